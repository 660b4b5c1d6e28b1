"""The steps of Prepare: each makes one kind of change for a whole claim and can take it back.

A step knows what to do from the claim's record alone, so that Unprepare, and the clean-up after a
crash, need neither the API server nor the hardware's present state. `apply` and `undo` may be
called twice, and `undo` after an `apply` that never happened or died half way.
"""

from collections.abc import Callable
from typing import Protocol

from dra_driver.cdi import CdiDevice, ClaimSpecs
from dra_driver.model import Inventory
from dra_driver.model.errors import DeviceNotFound, DriverNotReady
from dra_driver.state import ClaimRecord, DeviceRecord


class Effect(Protocol):
    """One named step."""

    name: str

    def apply(self, record: ClaimRecord) -> None:
        """Make the change for every device of the claim; changes nothing that is already right."""

    def undo(self, record: ClaimRecord) -> None:
        """Take the change back; succeeds when there is nothing to take back."""


class CdiEffect:
    """The CDI file that tells the container runtime what the claim's containers get.

    It is the last step: until it has run, no container can start with the claim's devices.
    """

    name = "cdi"

    def __init__(self, specs: ClaimSpecs, inventory: Callable[[], Inventory]) -> None:
        """Write through `specs`; `inventory` is the latest snapshot, or raises DriverNotReady."""
        self._specs = specs
        self._inventory = inventory

    def apply(self, record: ClaimRecord) -> None:
        """Write the claim's CDI file with the device numbers that hold now."""
        inventory = self._inventory()
        self._specs.apply(record.uid, [_as_found(device, inventory) for device in record.devices])

    def undo(self, record: ClaimRecord) -> None:
        """Remove the claim's CDI file."""
        self._specs.undo(record.uid)


def as_cdi_device(device: DeviceRecord) -> CdiDevice:
    """Device of a record in the words of `cdi`."""
    return CdiDevice(
        name=device.device,
        gpu_uuid=device.gpu_uuid,
        gpu_minor=device.gpu_minor,
        gi_id=device.gi_id,
        ci_id=device.ci_id,
        uuid=device.uuid,
        share_id=device.share_id,
    )


def _as_found(device: DeviceRecord, inventory: Inventory) -> CdiDevice:
    """Device of a record under the numbers it has now: they change over reloads and reboots.

    The hardware itself never changes: it is found by UUID, or not at all (field report dra #930).
    """
    gpu = inventory.gpu(device.gpu_uuid)
    if gpu is None:
        raise DeviceNotFound(
            f"GPU {device.gpu_uuid}, with which this claim was prepared as {device.device}, is not "
            "on this node any more; delete the Pod and its claim so that it is allocated again"
        )
    if device.span is None:
        return as_cdi_device(device.model_copy(update={"gpu_minor": gpu.minor}))
    found = next((part for part in gpu.partitions if part.uuid == device.uuid), None)
    if found is None:
        raise DeviceNotFound(
            f"partition {device.device} ({device.uuid}) of GPU {device.gpu_uuid} does not exist "
            "any more; make it again at the same placement, or delete the Pod and its claim"
        )
    return as_cdi_device(
        device.model_copy(
            update={"gpu_minor": gpu.minor, "gi_id": found.gi_id, "ci_id": found.ci_id}
        )
    )


def require(inventory: Inventory | None, why_not: str) -> Inventory:
    """Snapshot of the hardware, or DriverNotReady with the reason why there is none."""
    if inventory is None:
        raise DriverNotReady(why_not or "the GPUs have not been looked at yet")
    return inventory
