"""Evaluates claims against ResourceSlices as the Kubernetes scheduler does.

`allocate` is the whole of it: objects of `resource.k8s.io/v1` in, one allocation for each claim or
one explained refusal out. Nothing here talks to an API server, and the node plugin never loads
this package. Answers are advice: the scheduler decides, with its own evaluator.
"""

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from dra_driver.allocation.claims import Claim, DeviceClass
from dra_driver.allocation.devices import Device, DeviceId, Slice
from dra_driver.allocation.fields import Fields, ObjectInvalid
from dra_driver.allocation.outcome import (
    Allocation,
    Cause,
    Grant,
    Refusal,
    Rejection,
    Shortfall,
)
from dra_driver.allocation.pods import claim_for_pod
from dra_driver.allocation.pools import pools_of_node
from dra_driver.allocation.search import Search

SEARCH_LIMIT = 10.0  # seconds; the scheduler's own for one node (DRASchedulerFilterTimeout)


def allocate(
    node: str,
    slices: Iterable[Slice],
    classes: Iterable[DeviceClass],
    claims: Sequence[Claim],
    taken: Mapping[DeviceId, str] | None = None,
    limit: float = SEARCH_LIMIT,
) -> tuple[Allocation, ...] | Refusal:
    """Find devices on `node` for all claims together, in their order, or say why there are none.

    `taken` names the claims that hold devices already (`devices_in_use`); `limit` is in seconds.
    """
    return Search(
        node=node,
        pools=pools_of_node(node, slices),
        classes={device_class.name: device_class for device_class in classes},
        claims=claims,
        taken=taken or {},
        deadline=monotonic() + limit,
    ).run()


def devices_in_use(claims: Iterable[Mapping[str, Any]]) -> dict[DeviceId, str]:
    """Return who holds which device, from ResourceClaims with an allocation.

    Admin access holds nothing; a share of a device leaves the rest to others.
    """
    holders: dict[DeviceId, str] = {}
    for manifest in claims:
        meta = Fields(manifest, "ResourceClaim").child("metadata")
        holder = f"{meta.text('namespace', 'default')}/{meta.text('name')}"
        allocation = Fields(manifest, f"ResourceClaim {holder}").child("status").child("allocation")
        for result in allocation.child("devices").children("results"):
            if not result.flag("adminAccess") and "shareID" not in result:
                parts = (result.text("driver"), result.text("pool"), result.text("device"))
                holders[DeviceId(*parts)] = holder
    return holders


__all__ = [
    "Allocation",
    "Cause",
    "Claim",
    "Device",
    "DeviceClass",
    "DeviceId",
    "Grant",
    "ObjectInvalid",
    "Refusal",
    "Rejection",
    "Shortfall",
    "Slice",
    "allocate",
    "claim_for_pod",
    "devices_in_use",
]
