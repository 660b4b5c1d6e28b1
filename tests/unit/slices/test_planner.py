"""Slices are built anew when they would differ, and only then."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model import Gpu, GpuPolicy, Health, HealthState, Inventory
from dra_driver.slices import ServerAbilities, build_slices
from dra_driver.slices import planner as planner_module
from dra_driver.slices.planner import Planner
from tests.support.dynamic_gpus import dynamic_gpu, with_partitions
from tests.support.inventories import gpu, inventory, partitioned
from tests.unit.slices.published import NEW, OLD, SETTINGS, WITHOUT
from tests.unit.slices.strategies import INVENTORIES

SICK = Health(HealthState.UNHEALTHY, "xid", "XID 79", 1.0)


class Count:
    """Plans, and how often they were built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = 0
        self._planner = Planner(SETTINGS)

        def build(*args: Any) -> Any:
            self.built += 1
            return build_slices(*args)

        monkeypatch.setattr(planner_module, "build_slices", build)

    def __call__(
        self, *gpus: Gpu, abilities: ServerAbilities = NEW, held: Any = None, **more: Any
    ) -> int:
        """Plan for these GPUs, check it, and say how often was built so far."""
        found = inventory(*gpus, **more)
        plan = self._planner.plan(found, abilities, {}, held or {})
        assert plan == build_slices(found, SETTINGS, abilities, {}, held)
        return self.built


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(monkeypatch)


def test_claims_that_come_and_go_cost_nothing(built: Count) -> None:
    one, two = dynamic_gpu(0), dynamic_gpu(1)
    assert built(one, two) == 1
    for slots in (one.slots[:1], one.slots[:3], ()):
        assert built(with_partitions(one, slots), two, generation=len(slots)) == 1


def test_what_shows_is_built_anew(built: Count) -> None:
    one = dynamic_gpu(0)
    made = with_partitions(one, one.slots[:1])
    assert built(made) == 1
    assert built(with_partitions(one, one.slots[:1], foreign=True)) == 2
    assert built(replace(made, partitions=(replace(made.partitions[0], health=SICK),))) == 3
    assert built(made, driver_version="590.1") == 4
    assert built(made) == 5
    assert built(replace(made, held_back="a layout waits")) == 6
    assert built(replace(made, policy=GpuPolicy())) == 7
    assert built(one) == 8
    assert built(one, abilities=OLD) == 9
    assert built(one, abilities=OLD, held={"GPU-1": "x"}) == 10


@pytest.mark.parametrize("abilities", [NEW, WITHOUT])
def test_partitions_that_are_published_as_they_exist_always_count(
    built: Count, abilities: ServerAbilities
) -> None:
    assert built(partitioned(0, 0), gpu(1), abilities=abilities) == 1
    assert built(partitioned(0, 0, 1), gpu(1), abilities=abilities) == 2
    one = dynamic_gpu(0)
    assert built(one, abilities=WITHOUT) == 3
    assert built(with_partitions(one, one.slots[:1]), abilities=WITHOUT) == 4


@given(st.lists(st.tuples(INVENTORIES, st.sampled_from((NEW, OLD, WITHOUT))), max_size=4))
def test_a_plan_is_never_an_old_one(asked: list[tuple[Inventory, ServerAbilities]]) -> None:
    planner = Planner(SETTINGS)
    for found, abilities in asked:
        no_claims = replace(found, gpus=tuple(replace(g, partitions=()) for g in found.gpus))
        for each in (found, no_claims, found):
            plan = planner.plan(each, abilities, {}, {})
            assert plan == build_slices(each, SETTINGS, abilities)
