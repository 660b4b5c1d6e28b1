"""What claims and others have left of a GPU of which partitions are made on request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from dra_driver.model import Gpu, PublishedDevice, Slot, made_devices
from dra_driver.slices.counters import counter_set
from dra_driver.state import ClaimRecord


@dataclass(frozen=True, slots=True)
class Room:
    """A GPU and what is taken of it."""

    gpu: Gpu
    taken: tuple[Slot, ...] = ()
    is_taken_whole: bool = False

    @classmethod
    def of(cls, gpu: Gpu, claims: Iterable[ClaimRecord]) -> Self:
        """Take away partitions of others, and what claims hold, whether or not it stands yet."""
        taken = [Slot(part.profile, part.placement) for part in gpu.foreign]
        slots = {(slot.profile.gi_profile_id, slot.placement): slot for slot in gpu.slots}
        is_taken_whole = False
        for record in claims:
            for held in record.devices:
                if held.gpu_uuid != gpu.uuid or held.admin_access:
                    continue
                if held.span is None or held.gi_profile_id is None:
                    is_taken_whole = True
                elif slot := slots.get((held.gi_profile_id, held.span)):
                    taken.append(slot)
        return cls(gpu, tuple(taken), is_taken_whole)

    def has(self, device: PublishedDevice) -> bool:
        """Whether the device can be made beside all that is taken, by the counters of the GPU."""
        return not self.is_taken_whole and counter_set(self.gpu, self.taken).fits(device)

    def profiles(self) -> Mapping[str, int]:
        """How many partitions can still be made, of each profile if of no other."""
        found: dict[str, int] = {}
        left: dict[str, Room] = {}
        for device in made_devices(self.gpu):
            if device.slot is None:
                continue
            name = device.slot.profile.name
            room = left.get(name, self)
            if room.has(device):
                left[name] = replace(room, taken=(*room.taken, device.slot))
                found[name] = found.get(name, 0) + 1
        return found
