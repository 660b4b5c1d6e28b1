"""What is to be done to one GPU so that it has its layout, and what that waits for. No I/O."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.config import Wanted, fit
from dra_driver.mig import Standing, StandingPartition
from dra_driver.model import Gpu, Partitioning, Placement, Slot
from dra_driver.state import Holding, LayoutNote, NotedSlot, is_reservation

_NAMED: Final = 4  # of those that a change waits for


@dataclass(frozen=True, slots=True)
class Target:
    """What is to become of a GPU that is not yet so."""

    layout: str  # name; empty: partitions of a former layout are to go
    mig_enabled: bool | None  # None: off, if nothing is left and the mode can be switched
    slots: tuple[NotedSlot, ...]

    def __str__(self) -> str:
        if self.layout:
            return f"layout {self.layout} is to be applied"
        return "the partitions of a former layout are to be removed"


@dataclass(frozen=True, slots=True)
class Work:
    """What to change, in this order."""

    remove: tuple[NotedSlot, ...]
    mig_enabled: bool | None  # None: leave the mode
    make: tuple[NotedSlot, ...]
    for_claims: bool = False  # partitions that claims hold come back: nothing else is touched


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Who uses the GPU, in words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.words) - _NAMED
        return ", ".join(self.words[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def is_as_wanted(gpu: Gpu, wanted: Wanted) -> bool:
    """Whether mode and partitions are those of the layout, whoever made them."""
    if gpu.mig_enabled is not wanted.mig_enabled:
        return False
    names = Counter(part.profile.name for part in gpu.partitions)
    return names == Counter(wanted.partitions) and all(part.uuid for part in gpu.partitions)


def target_of(gpu: Gpu, wanted: Wanted | None, note: LayoutNote | None) -> Target | None:
    """Find out what is to become of a GPU; None: it is as it should be.

    `wanted` is what its layout wants, None where none concerns it. What a former layout has left
    is in the way of partitions on request, and half of a layout is of use to nobody: it goes.
    """
    if wanted is not None:
        if is_as_wanted(gpu, wanted):
            return None
        slots = _slots_as_before(wanted, note) or _slots_anew(wanted, gpu)
        return Target(gpu.policy.layout, wanted.mig_enabled, slots)
    is_dynamic = gpu.policy.partitioning is Partitioning.DYNAMIC
    if note is not None and note.made and (is_dynamic or not note.finished):
        return Target("", None, ())
    return None


def why_impossible(gpu: Gpu, target: Target) -> str:
    """Say what a person has to do before the change can be made; empty: nothing."""
    if target.mig_enabled in (None, gpu.mig_enabled) or gpu.switches_mig:
        return ""
    word, flag = ("on", 1) if target.mig_enabled else ("off", 0)
    if gpu.mig_pending:
        return f"MIG mode is switched {word} by the next reset of the GPU or reboot of the node"
    return (
        f"switching MIG mode {word} needs a GPU reset: set partitioning.allowReset, or switch it "
        f"with nvidia-smi -i {gpu.uuid} -mig {flag} and reset the GPU or reboot the node"
    )


def lost_by_claims(gpu: Gpu, note: LayoutNote | None, held: Sequence[Holding]) -> bool:
    """Whether claims hold partitions of the layout that a reboot or driver reload has taken."""
    there = {part.placement for part in gpu.partitions if part.uuid}
    noted = {slot.span for slot in note.slots} if note is not None else set()
    return any(span in noted and span not in there for span in _spans(held))


def work_for(
    target: Target | None, note: LayoutNote | None, standing: Standing, held: Sequence[Holding]
) -> Work | Obstacles:
    """Find out what to change now, or for whom it has to wait.

    What stands there belongs to this driver if the note says that it made it, to a claim if one
    holds it, else to somebody else. `target` None: only what claims have lost is made again.
    """
    comeback = _comeback(target, note, standing, held)
    if comeback is not None:
        return comeback
    words = [f"claim {claim}" for claim in dict.fromkeys(str(each.claim) for each in held)]
    words += [str(process) for process in standing.processes]
    words += [f"foreign partition {part}" for part in _foreign(note, standing, held)]
    if words:
        return Obstacles(tuple(words))
    if target is None:
        return Work(remove=(), mig_enabled=None, make=())
    wanted = {slot.key for slot in target.slots}
    complete = {part.key for part in standing.partitions if part.is_complete}
    there = {part.key for part in standing.partitions}
    noted = note.slots if note is not None else ()
    return Work(
        remove=tuple(slot for slot in noted if slot.key in there and slot.key not in wanted),
        mig_enabled=target.mig_enabled,
        make=tuple(slot for slot in target.slots if slot.key not in complete),
    )


def users(holdings: Iterable[Holding], gpu_uuid: str) -> list[Holding]:
    """Give what claims hold of a GPU; admin access takes nothing from anybody."""
    return [
        each
        for each in holdings
        if each.gpu_uuid == gpu_uuid and not each.admin_access and not is_reservation(each.claim)
    ]


def noted(gpu: Gpu, note: LayoutNote | None) -> tuple[NotedSlot, ...]:
    """Slots of all that stands on a GPU now; what the note knows to be made stays so."""
    made = note.made if note is not None else frozenset()
    slots = (Slot(part.profile, part.placement) for part in gpu.partitions)
    return tuple(_noted(each, made=_key(each) in made) for each in slots)


def _comeback(
    target: Target | None, note: LayoutNote | None, standing: Standing, held: Sequence[Holding]
) -> Work | Obstacles | None:
    """Find out how to make again what claims hold; None: they have lost nothing of the layout.

    All of the layout comes back if it still is the one that is wanted, so that claims which are
    allocated and not prepared yet find their partitions.
    """
    complete = {part.key for part in standing.partitions if part.is_complete}
    missing = [slot for slot in note.slots if slot.key not in complete] if note else []
    claimed = set(_spans(held))
    lost = [slot for slot in missing if slot.span in claimed]
    if not lost:
        return None
    is_wanted = target is not None and note is not None and target.slots == _as_ours(note.slots)
    make = _as_ours(missing if is_wanted else lost)
    keys = {slot.key for slot in make}
    in_the_way = [
        part
        for part in standing.partitions
        if part.key not in keys and any(part.placement.overlaps(slot.span) for slot in make)
    ]
    if in_the_way:
        return Obstacles(tuple(f"foreign partition {part}" for part in in_the_way))
    return Work(remove=(), mig_enabled=True, make=make, for_claims=True)


def _foreign(
    note: LayoutNote | None, standing: Standing, held: Sequence[Holding]
) -> list[StandingPartition]:
    made = note.made if note is not None else frozenset()
    claimed = set(_spans(held))
    return [
        part
        for part in sorted(standing.partitions, key=lambda part: part.placement.start)
        if part.key not in made and part.placement not in claimed
    ]


def _spans(held: Iterable[Holding]) -> list[Placement]:
    return [each.span for each in held if each.span is not None]


def _slots_as_before(wanted: Wanted, note: LayoutNote | None) -> tuple[NotedSlot, ...]:
    """Slots that the layout had before a reboot, so that claims find their partitions again."""
    if note is None or Counter(slot.profile for slot in note.slots) != Counter(wanted.partitions):
        return ()
    return _as_ours(note.slots)


def _slots_anew(wanted: Wanted, gpu: Gpu) -> tuple[NotedSlot, ...]:
    found = fit(wanted.partitions, gpu.slots) or ()  # there is room: the layout was checked
    return tuple(_noted(slot, made=True) for slot in found)


def _as_ours(slots: Iterable[NotedSlot]) -> tuple[NotedSlot, ...]:
    return tuple(slot.model_copy(update={"made": True}) for slot in slots)


def _noted(slot: Slot, *, made: bool) -> NotedSlot:
    return NotedSlot(
        profile=slot.profile.name,
        gi_profile_id=slot.profile.gi_profile_id,
        placement=(slot.placement.start, slot.placement.size),
        made=made,
    )


def _key(slot: Slot) -> tuple[int, Placement]:
    return slot.profile.gi_profile_id, slot.placement
