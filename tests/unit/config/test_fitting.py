"""Where partitions find room, checked against a count of all ways."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import fit
from dra_driver.model import Slot
from tests.support.mig_models import MIG_MODELS, slots_of

NAMES = tuple(dict.fromkeys(slot.profile.name for slot in slots_of("a100-40gb")))


def names(slots: tuple[Slot, ...]) -> Counter[str]:
    return Counter(slot.profile.name for slot in slots)


def possible() -> set[tuple[tuple[str, int], ...]]:
    """Every set of partitions that an A100 can hold, by trying all."""
    slots = slots_of("a100-40gb")
    found: set[tuple[tuple[str, int], ...]] = set()

    def grow(taken: tuple[Slot, ...], rest: tuple[Slot, ...]) -> None:
        found.add(tuple(sorted(names(taken).items())))
        for place, slot in enumerate(rest):
            if can_be(*taken, slot):
                grow((*taken, slot), rest[place + 1 :])

    grow((), slots)
    return found


def can_be(*taken: Slot) -> bool:
    """Memory slices do not overlap; an A100 has 98 multiprocessors for MIG, 5 decoders, 1 OFA."""
    if any(a.placement.overlaps(b.placement) for a, b in combinations(taken, 2)):
        return False
    profiles = [slot.profile for slot in taken]
    return (
        sum(p.multiprocessors for p in profiles) <= 98
        and sum(p.copy_engines for p in profiles) <= 7
        and sum(p.decoders for p in profiles) <= 5
        and sum(p.jpeg_engines for p in profiles) <= 1
        and sum(p.ofa_engines for p in profiles) <= 1
    )


POSSIBLE = possible()


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 8), max_size=4))
def test_room_is_found_if_and_only_if_there_is_some(wanted: dict[str, int]) -> None:
    found = fit(wanted, slots_of("a100-40gb"))
    wished = Counter({name: count for name, count in wanted.items() if count})
    assert (found is not None) == (tuple(sorted(wished.items())) in POSSIBLE)
    if found is not None:
        assert names(found) == wished
        assert can_be(*found)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_the_order_in_which_partitions_are_named_does_not_matter(model: str) -> None:
    first, *_, large = dict.fromkeys(slot.profile.name for slot in slots_of(model))
    third = next(s.profile.name for s in slots_of(model) if s.profile.name.startswith("3g"))
    one = fit({first: 3, third: 1}, slots_of(model))
    assert one == fit({third: 1, first: 3}, slots_of(model))
    assert one is not None
    assert [slot.placement.start for slot in one] == [0, 4, 5, 6]
    assert fit({large: 1, first: 1}, slots_of(model)) is None


def test_nothing_always_fits_and_what_is_unknown_never() -> None:
    assert fit({}, ()) == ()
    assert fit({"1g.5gb": 0}, ()) == ()
    assert fit({"1g.5gb": 1}, ()) is None
    assert fit({"9g.90gb": 1}, slots_of("h200")) is None
