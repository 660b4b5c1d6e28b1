"""The steps of Prepare: each makes one kind of change for a whole claim and can take it back.

A step knows what to do from the claim's record alone, so that Unprepare, and the clean-up after a
crash, need neither the API server nor the hardware's present state. `apply` and `undo` may be
called twice, and `undo` after an `apply` that never happened or died half way.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from dra_driver.cdi import CdiDevice, ClaimSpecs
from dra_driver.model.errors import RecordDamaged, StorageFailed
from dra_driver.sharing.mps_shares import LIMIT_VARIABLE, limit_variable
from dra_driver.state import ClaimRecord, DeviceRecord, Phase, decode, encode


class Effect(Protocol):
    """One named step."""

    name: str

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        """Make the change for every device of the claim; leave alone what is already right.

        Gives the record with what was found out on the way, such as the UUID of a new partition.
        """

    def undo(self, record: ClaimRecord) -> None:
        """Take the change back; succeeds when there is nothing to take back."""


class Partitions(Effect, Protocol):
    """The step that gives GPUs the shape a claim needs."""

    def check(self, record: ClaimRecord) -> None:
        """Refuse what can't be made, before there is a record of it. Raises TryAgain."""


class Sharing(Effect, Protocol):
    """The step that sets how programs share devices."""

    def assert_again(
        self,
        records: Sequence[ClaimRecord],
        undisturbed: Callable[[ClaimRecord], AbstractContextManager[bool]],
    ) -> None:
        """Set again what these live claims want, each while `undisturbed` says that it lives."""


@dataclass(frozen=True, slots=True)
class GpuEffects:
    """The steps that change GPUs."""

    mig: Partitions
    sharing: Sharing


class CdiEffect:
    """The CDI file that tells the container runtime what the claim's containers get.

    It is the last step: until it has run, no container can start with the claim's devices.
    """

    name = "cdi"

    def __init__(self, specs: ClaimSpecs) -> None:
        """Write through `specs`."""
        self._specs = specs

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        """Write the claim's CDI file, with the record in it for the day that ours is damaged."""
        devices = [_with_limit(device, record) for device in record.devices]
        if record.taken_over:
            devices = [as_prior_device(device) for device in devices]
        note = encode(record.in_phase(Phase.PREPARED)).decode()
        self._specs.apply(record.uid, devices, note, whole=record.taken_over)
        return record

    def undo(self, record: ClaimRecord) -> None:
        """Remove the claim's CDI file."""
        self._specs.undo(record.uid)


class CdiTraces:
    """What CDI files tell of claims whose records are lost.

    They are written after the record and removed before it. That a file is gone proves nothing:
    somebody may have emptied the folder under running containers.
    """

    def __init__(self, specs: ClaimSpecs) -> None:
        """Read through `specs`."""
        self._specs = specs

    def uids(self) -> set[str]:
        """UIDs of the claims that have a file. Raises StorageFailed."""
        return self._specs.claim_uids()

    def record(self, uid: str) -> ClaimRecord | None:
        """Record in a claim's file, None when it has nothing to say."""
        try:
            return decode(self._specs.note(uid).encode(), uid)
        except (RecordDamaged, StorageFailed):
            return None


def _with_limit(device: DeviceRecord, record: ClaimRecord) -> CdiDevice:
    """Device with the memory that MPS leaves to each program in a container that has it."""
    limit = limit_variable(device, record.devices)
    environment = (f"{LIMIT_VARIABLE}={limit}",) if limit else ()
    return replace(as_cdi_device(device), environment=environment)


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
        mps_folders=device.mps_folders,
    )


def as_prior_device(device: CdiDevice) -> CdiDevice:
    """Device under the id that the driver before has told the kubelet: without a share."""
    return replace(device, share_id=None)
