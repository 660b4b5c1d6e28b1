"""Where partitions of each profile can be made on a GPU, whatever is made of it now."""

from dra_driver.model import Gpu, Slot
from dra_driver.nvml import reads
from dra_driver.nvml.calls import Handle
from dra_driver.nvml.errors import CallFailed, Notes
from dra_driver.nvml.partitions import mig_profile


class SlotCache:
    """Slots of the GPUs of one session, each read once in either MIG mode.

    They stay the same for the lifetime of a MIG mode (nvml.h, GPU instance profile information),
    and cost more calls than all the rest of a look. Each GPU is asked about by its own thread.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], tuple[Slot, ...]] = {}

    def of(self, device: Handle, gpu: Gpu, known: Gpu | None, notes: Notes) -> tuple[Slot, ...]:
        """All slots of `gpu`; none where GPU or driver can't tell, `known` ones after a failure."""
        key = (gpu.uuid, gpu.mig_enabled)
        if key not in self._known:
            try:
                self._known[key] = _read(device, gpu.memory_bytes)
            except CallFailed as failure:
                notes.failed(failure, "partitions that can be made are left out or as before")
                return known.slots if known else ()
        return self._known[key] or self._known.get((gpu.uuid, not gpu.mig_enabled), ())


def _read(device: Handle, memory_bytes: int | None) -> tuple[Slot, ...]:
    found: list[Slot] = []
    for index, info in reads.gi_profiles(device):
        profile = mig_profile(index, info, memory_bytes)
        try:
            places = reads.gi_placements(device, info.id)
        except CallFailed as failure:
            if not failure.absent:
                raise
            continue
        found += (Slot(profile, place) for place in places)
    return tuple(found)
