"""Evaluates claims against ResourceSlices as the Kubernetes scheduler does.

`allocate` is the whole of it: objects of `resource.k8s.io/v1` in, one allocation for each claim or
one explained refusal out. Nothing here talks to an API server, and the node plugin never loads
this package. Answers are advice: the scheduler decides, with its own evaluator.
"""

from collections.abc import Iterable, Sequence
from time import monotonic

from dra_driver.allocation.claims import Claim, DeviceClass
from dra_driver.allocation.devices import Device, DeviceId, Slice
from dra_driver.allocation.fields import ObjectInvalid
from dra_driver.allocation.in_use import InUse, devices_in_use
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
    in_use: InUse | None = None,
    limit: float = SEARCH_LIMIT,
) -> tuple[Allocation, ...] | Refusal:
    """Find devices on `node` for all claims together, in their order, or say why there are none.

    `in_use` tells what claims have already (`devices_in_use`); `limit` is in seconds.
    """
    return Search(
        node=node,
        pools=pools_of_node(node, slices),
        classes={device_class.name: device_class for device_class in classes},
        claims=claims,
        in_use=in_use or InUse(),
        deadline=monotonic() + limit,
    ).run()


__all__ = [
    "Allocation",
    "Cause",
    "Claim",
    "Device",
    "DeviceClass",
    "DeviceId",
    "Grant",
    "InUse",
    "ObjectInvalid",
    "Refusal",
    "Rejection",
    "Shortfall",
    "Slice",
    "allocate",
    "claim_for_pod",
    "devices_in_use",
]
