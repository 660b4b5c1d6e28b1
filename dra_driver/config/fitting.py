"""Where the partitions of a layout find room on one GPU. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.model import MigProfile, Slot

_ENGINES: Final = (
    "multiprocessors",
    "copy_engines",
    "decoders",
    "encoders",
    "jpeg_engines",
    "ofa_engines",
)


def fit(wanted: Mapping[str, int], slots: Sequence[Slot]) -> tuple[Slot, ...] | None:
    """Find a slot for each of so many partitions of these profiles; None: there is no room.

    Slots do not overlap, and their engines together are not more than the largest profile has.
    Large profiles come first and lie as low as they can; the answer is always the same.
    """
    names = [name for name, count in wanted.items() for _ in range(count)]
    room = {name: _slots_of(name, slots) for name in wanted}
    if any(count > len(room[name]) for name, count in wanted.items()):
        return None
    names.sort(key=lambda name: (-_size(room[name]), name))
    return _Search(room, _most(slots)).place(names, ())


def most_that_fit(profile: str, slots: Sequence[Slot]) -> int:
    """Count how many partitions of one profile a GPU holds."""
    count = 0
    while fit({profile: count + 1}, slots) is not None:
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Search:
    """Tries slots until all partitions have one; a GPU has few enough for that."""

    room: Mapping[str, Sequence[Slot]]
    most: tuple[int, ...]  # of each kind of engine

    def place(self, names: Sequence[str], taken: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
        if not names:
            return taken
        name, *rest = names
        last = taken[-1] if taken and taken[-1].profile.name == name else None
        candidates = self.room[name]
        first = candidates.index(last) + 1 if last else 0  # equal ones in order: no repetitions
        for slot in candidates[first:]:
            if self._is_free(slot, taken) and (found := self.place(rest, (*taken, slot))):
                return found
        return None

    def _is_free(self, slot: Slot, taken: tuple[Slot, ...]) -> bool:
        if any(slot.placement.overlaps(other.placement) for other in taken):
            return False
        used = [_engines(each.profile) for each in (*taken, slot)]
        return all(
            sum(kind) <= most for kind, most in zip(zip(*used, strict=True), self.most, strict=True)
        )


def _slots_of(name: str, slots: Sequence[Slot]) -> Sequence[Slot]:
    found = [slot for slot in slots if slot.profile.name == name]
    return sorted(found, key=lambda slot: (slot.placement.start, slot.profile.gi_profile_id))


def _size(slots: Sequence[Slot]) -> int:
    return slots[0].placement.size if slots else 0


def _most(slots: Sequence[Slot]) -> tuple[int, ...]:
    """Give what a GPU has of each kind of engine: what the profile with most of it has."""
    all_engines = [_engines(slot.profile) for slot in slots]
    return tuple(max(kind) for kind in zip(*all_engines, strict=True))


def _engines(profile: MigProfile) -> tuple[int, ...]:
    return tuple(getattr(profile, engine) for engine in _ENGINES)
