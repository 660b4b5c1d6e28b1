"""What a real GPU lets stand side by side: NVML's rules, apart from any counters."""

from collections import Counter
from collections.abc import Iterator, Sequence

from dra_driver.model import Slot
from dra_driver.simulator.models import GpuModel


def can_stand(model: GpuModel, slots: Sequence[Slot]) -> bool:
    """Whether GPU instances can be made at all these slots at once.

    Their memory slices are disjoint, there are engines and compute slices for all of them, and no
    profile has more instances than NVML allows.
    """
    rows = {row.id: row for row in model.gi}
    taken = [rows[slot.profile.gi_profile_id] for slot in slots]
    if any(a.placement.overlaps(b.placement) for i, a in enumerate(slots) for b in slots[:i]):
        return False
    instances = Counter(row.id for row in taken)
    return (
        all(count <= rows[profile].max_instances for profile, count in instances.items())
        and sum(row.slices for row in taken) <= model.compute_slices
        and sum(row.copy_engines for row in taken) <= model.copy_engines
        and sum(row.decoders for row in taken) <= model.decoders
        and sum(row.encoders for row in taken) <= model.encoders
        and sum(row.jpegs for row in taken) <= model.jpegs
        and sum(row.ofas for row in taken) <= model.ofas
    )


def beside_each_other(slots: Sequence[Slot]) -> Iterator[tuple[Slot, ...]]:
    """Yield every set of slots of which no two overlap, from the empty one on."""
    yield ()
    for index, slot in enumerate(slots):
        rest = [s for s in slots[index + 1 :] if not s.placement.overlaps(slot.placement)]
        for others in beside_each_other(rest):
            yield (slot, *others)
