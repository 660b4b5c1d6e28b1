"""Counters let be allocated what a real GPU can be cut into, all of it and nothing else."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model import Gpu, Slot
from dra_driver.model.gpu import partition_device_name
from dra_driver.simulator.models import MODELS
from tests.support.dynamic_gpus import dynamic_gpu, with_partitions
from tests.support.mig_models import MIG_MODELS, slots_of
from tests.unit.slices.mig_rules import beside_each_other, can_stand
from tests.unit.slices.published import counters_in, devices_of, needs_of, permitted, plan_for


class Offer:
    """What is published of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        plan = plan_for(gpu)
        self.counters = counters_in(plan)
        self.devices = devices_of(plan)
        self.needs = {name: needs_of(device) for name, device in self.devices.items()}
        self._names = {slot: partition_device_name(gpu, slot) for slot in gpu.slots}

    def permits(self, slots: Sequence[Slot]) -> bool:
        """Whether these partitions can be allocated at once, by counters alone."""
        found = [self.needs.get(self._names[slot]) for slot in slots]
        return None not in found and permitted(self.counters, [need for need in found if need])

    def permits_with_whole(self, *slots: Slot) -> bool:
        needs = [self.needs["gpu-0"], *(self.needs[self._names[slot]] for slot in slots)]
        return permitted(self.counters, needs)


@cache
def combinations_of(model: str) -> tuple[tuple[Slot, ...], ...]:
    """All sets of slots that do not overlap, and what NVML says of each."""
    return tuple(beside_each_other(slots_of(model)))


@cache
def real_combinations(model: str) -> tuple[tuple[Slot, ...], ...]:
    return tuple(slots for slots in combinations_of(model) if can_stand(MODELS[model], slots))


@pytest.mark.parametrize("model", MIG_MODELS)
def test_what_counters_permit_is_what_can_be_made(model: str) -> None:
    """Every set of slots that there is: 5536 for each model."""
    offer = Offer(dynamic_gpu(model=model))
    for slots in combinations_of(model):
        assert offer.permits(slots) == can_stand(MODELS[model], slots), slots
    assert len(real_combinations(model)) > 1000


@pytest.mark.parametrize("model", MIG_MODELS)
def test_slots_that_overlap_are_never_permitted(model: str) -> None:
    offer = Offer(dynamic_gpu(model=model))
    for one, other in combinations(slots_of(model), 2):
        if one.placement.overlaps(other.placement):
            assert not offer.permits((one, other))


@pytest.mark.parametrize("model", [m for m in MIG_MODELS if not m.startswith("a100")])
def test_the_whole_gpu_takes_every_counter(model: str) -> None:
    offer = Offer(dynamic_gpu(model=model))
    assert offer.permits_with_whole()
    assert not any(offer.permits_with_whole(slot) for slot in slots_of(model))
    assert offer.needs["gpu-0"] == {key: n for key, n in offer.counters.items() if n}


@st.composite
def shared_gpus(draw: st.DrawFn) -> tuple[str, tuple[Slot, ...], tuple[Slot, ...]]:
    """Draw a model, partitions of others on it, and slots for claims."""
    model = draw(st.sampled_from(MIG_MODELS))
    foreign = draw(st.sampled_from(real_combinations(model)).filter(bool))
    kept = draw(st.integers(1, len(foreign)))
    return model, foreign[:kept], draw(st.sampled_from(combinations_of(model)))


@given(shared_gpus())
def test_beside_partitions_of_others_counters_permit_what_is_left(
    drawn: tuple[str, tuple[Slot, ...], tuple[Slot, ...]],
) -> None:
    model, foreign, slots = drawn
    offer = Offer(with_partitions(dynamic_gpu(model=model), foreign, foreign=True))
    assert offer.permits(slots) == can_stand(MODELS[model], [*foreign, *slots])
    assert "gpu-0" not in offer.devices
    for need in offer.needs.values():
        assert permitted(offer.counters, [need]), "what never fits must not be published"


def test_what_is_left_of_a_foreign_combination_can_be_had() -> None:
    """Take from each real combination one part as foreign: the rest is permitted beside it."""
    for slots in real_combinations("h100-80gb")[::7]:
        if slots:
            offer = Offer(with_partitions(dynamic_gpu(), slots[:1], foreign=True))
            assert offer.permits(slots[1:])


def _names_and_units() -> Iterator[tuple[str, str]]:
    yield "multiprocessors", "132"
    yield "copy-engines", "8"
    yield "decoders", "7"
    yield "encoders", "0"
    yield "jpeg-engines", "7"
    yield "ofa-engines", "1"
    yield "memory", "81559Mi"
    yield from ((f"memory-slice-{index}", "1") for index in range(8))


def test_names_and_units_are_those_that_others_read() -> None:
    plan = plan_for(dynamic_gpu(3))
    (group,) = plan.slices[0].spec["sharedCounters"]
    assert group["name"] == "gpu-3-counter-set"
    assert group["counters"] == {name: {"value": value} for name, value in _names_and_units()}
    found = devices_of(plan)
    assert found["gpu-3-mig-1g20gb-15-6"]["consumesCounters"] == [
        {
            "counterSet": "gpu-3-counter-set",
            "counters": {
                "multiprocessors": {"value": "26"},
                "copy-engines": {"value": "1"},
                "decoders": {"value": "1"},
                "jpeg-engines": {"value": "1"},
                "memory": {"value": "20096Mi"},
                "memory-slice-6": {"value": "1"},
                "memory-slice-7": {"value": "1"},
            },
        }
    ]


def test_memory_that_is_not_known_is_not_counted() -> None:
    """Its slices still keep the partitions apart."""
    offer = Offer(dynamic_gpu(memory_bytes=None))
    assert ("gpu-0-counter-set", "memory") not in offer.counters
    assert "memory" not in offer.devices["gpu-0"]["capacity"]
    for slots in real_combinations("h100-80gb")[::11]:
        assert offer.permits(slots)
