"""Who has which device now, as the allocations of ResourceClaims tell.

Kubernetes 1.37, scheduler/framework/plugins/dynamicresources/allocateddevices.go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.devices import DeviceId
from dra_driver.allocation.fields import Fields
from dra_driver.allocation.quantities import quantities_of
from dra_driver.model.quantity import Quantity


@dataclass(frozen=True, slots=True)
class InUse:
    """Devices that claims have: alone, or together with others."""

    holders: Mapping[DeviceId, str] = field(default_factory=dict)  # claims that have one alone
    # What all shares of a device consume together; a device with shares is in it in any case.
    shared: Mapping[DeviceId, Mapping[str, Quantity]] = field(default_factory=dict)


def devices_in_use(claims: Iterable[Mapping[str, Any]]) -> InUse:
    """Return what is in use, from ResourceClaims with an allocation.

    Admin access holds nothing; a share of a device leaves the rest to others.
    """
    holders: dict[DeviceId, str] = {}
    shared: dict[DeviceId, dict[str, Quantity]] = {}
    for manifest in claims:
        meta = Fields(manifest, "ResourceClaim").child("metadata")
        holder = f"{meta.text('namespace', 'default')}/{meta.text('name')}"
        allocation = Fields(manifest, f"ResourceClaim {holder}").child("status").child("allocation")
        for result in allocation.child("devices").children("results"):
            if result.flag("adminAccess"):
                continue
            device = DeviceId(result.text("driver"), result.text("pool"), result.text("device"))
            if "shareID" in result:
                _add(shared.setdefault(device, {}), quantities_of(result, "consumedCapacity"))
            else:
                holders[device] = holder
    return InUse(holders, shared)


def _add(total: dict[str, Quantity], more: Mapping[str, Quantity]) -> None:
    for name, amount in more.items():
        before = total[name].value if name in total else 0
        total[name] = Quantity(before + amount.value)
