"""What all partitions of one GPU draw on: counters, which the scheduler adds up.

A GPU has so many engines and memory slices; each partition that could be made takes its part of
them and the whole GPU takes all, so that only what can stand beside each other is allocated
(KEP-4815). Names and units are those that other readers of GPU slices know.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.model import Gpu, MigProfile, PublishedDevice, Quantity, Slot, gpu_device_name
from dra_driver.slices.rules import MAX_COUNTERS

JsonObject = dict[str, Any]

_MEMORY: Final = "memory"  # in bytes; all other counters count units


def engines(profile: MigProfile) -> Iterator[tuple[str, str, int]]:
    """Yield what a profile has of each kind of engine: name as capacity, as counter, how many."""
    yield "multiprocessors", "multiprocessors", profile.multiprocessors
    yield "copyEngines", "copy-engines", profile.copy_engines
    yield "decoders", "decoders", profile.decoders
    yield "encoders", "encoders", profile.encoders
    yield "jpegEngines", "jpeg-engines", profile.jpeg_engines
    yield "ofaEngines", "ofa-engines", profile.ofa_engines


def most_engines(slots: Iterable[Slot]) -> dict[tuple[str, str], int]:
    """Engines of a whole GPU, by name as capacity and as counter: the most that a profile has."""
    most: dict[tuple[str, str], int] = {}
    for slot in slots:
        for capacity, counter, count in engines(slot.profile):
            most[capacity, counter] = max(count, most.get((capacity, counter), 0))
    return most


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Counters of one GPU: what there is, and what is used by partitions that are not given out."""

    name: str
    total: Mapping[str, int]
    used: Mapping[str, int]

    def to_json(self) -> JsonObject:
        """Entry of `sharedCounters`: what claims can have."""
        return {"name": self.name, "counters": _amounts({c: self._free(c) for c in self.total})}

    def fits(self, device: PublishedDevice) -> bool:
        """Whether the GPU could be given that shape if no claim had a part of it.

        A device that does not fit must not be published: once allocated, it would leave less than
        nothing of a counter, and the scheduler then gives out no device of the whole pool that
        consumes counters (allocator_incubating.go, checkAvailableCounters).
        """
        return all(need <= self._free(counter) for counter, need in self._needs(device).items())

    def consumption(self, device: PublishedDevice) -> JsonObject:
        """Entry of the device's `consumesCounters`."""
        return {"counterSet": self.name, "counters": _amounts(self._needs(device))}

    def _free(self, counter: str) -> int:
        return max(0, self.total.get(counter, 0) - self.used.get(counter, 0))

    def _needs(self, device: PublishedDevice) -> dict[str, int]:
        """Counters that the device consumes; of what it does not use it says nothing."""
        needs = dict(self.total) if device.slot is None else _part(device.slot)
        if _MEMORY not in self.total:
            needs.pop(_MEMORY, None)
        return {counter: need for counter, need in needs.items() if need}


def counter_set(gpu: Gpu, standing: Iterable[Slot] = ()) -> CounterSet:
    """Counters of a GPU of which partitions are made; `standing` are partitions not to be given.

    Memory that the GPU does not tell is not counted: its slices keep partitions apart anyway.
    """
    total = {counter: count for (_, counter), count in most_engines(gpu.slots).items()}
    if gpu.memory_bytes:
        total[_MEMORY] = gpu.memory_bytes
    slices = max(slot.placement.start + slot.placement.size for slot in gpu.slots)
    total |= {_memory_slice(index): 1 for index in range(min(slices, MAX_COUNTERS + 1))}
    used: Counter[str] = Counter()
    for slot in standing:
        used.update(_part(slot))
    return CounterSet(f"{gpu_device_name(gpu)}-counter-set", total, used)


def _part(slot: Slot) -> dict[str, int]:
    part = {counter: count for _, counter, count in engines(slot.profile)}
    part[_MEMORY] = slot.profile.memory_bytes
    start = slot.placement.start
    size = min(slot.placement.size, MAX_COUNTERS + 1)
    return part | {_memory_slice(index): 1 for index in range(start, start + size)}


def _memory_slice(index: int) -> str:
    return f"memory-slice-{index}"


def _amounts(counts: Mapping[str, int]) -> JsonObject:
    return {
        counter: {"value": str(Quantity.of(count)) if counter == _MEMORY else str(count)}
        for counter, count in counts.items()
    }
