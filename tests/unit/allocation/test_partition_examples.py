"""The examples about partitions, allocated on those that exist and on those that can be made."""

import pytest

from dra_driver.model import Slot
from dra_driver.model.gpu import partition_device_name
from dra_driver.simulator.models import MODELS
from dra_driver.slices import ServerAbilities
from tests.support.dynamic_gpus import dynamic_gpu, with_partitions
from tests.support.mig_models import gpu_of, slots_of
from tests.unit.allocation.examples import devices_of
from tests.unit.allocation.hardware import published, whole

# Profiles of an H100 80GB that each example asks for, with the memory slice where one begins.
WANTED = {
    "mig-class": [("1g.10gb", 6)],
    "four-of-one-gpu": [("1g.10gb", start) for start in (3, 4, 5, 6)],
    "at-least-20gi": [("3g.40gb", 4)],
    "big-and-small": [("4g.40gb", 0), *(("1g.10gb", start) for start in (4, 5, 6))],
    "unchanged-mig-pod": [("1g.10gb", 6)],
    "layout": [("3g.40gb", 4)],
}


@pytest.mark.parametrize("stem", WANTED)
def test_what_each_example_gets(stem: str) -> None:
    """Of two GPUs the second has what it asks for, the first one partition less."""
    slots = [_slot(*place) for place in WANTED[stem]]
    gpus = [
        with_partitions(gpu_of("h100-80gb", 0), slots[:-1]),
        with_partitions(gpu_of("h100-80gb", 1), slots),
    ]
    names = [partition_device_name(gpus[1], slot) for slot in slots]
    assert devices_of(stem, published(gpus)) == names


@pytest.mark.parametrize("release", [(1, 34, 4), (1, 37, 2)])
@pytest.mark.parametrize("stem", WANTED)
def test_what_is_made_for_each_example(stem: str, release: tuple[int, int, int]) -> None:
    """Of two GPUs the first serves, from its high end."""
    gpus = [dynamic_gpu(minor) for minor in (0, 1)]
    slices = published(gpus, ServerAbilities(release, counters=True))
    wanted = {partition_device_name(gpus[0], _slot(*place)) for place in WANTED[stem]}
    assert set(devices_of(stem, slices)) == wanted


def test_a_whole_gpu_where_no_partition_is_large_enough() -> None:
    small = with_partitions(gpu_of("h100-80gb", 0), [_slot("2g.20gb", 0)])
    slices = published([small, whole(1, MODELS["t4"]), whole(2, MODELS["l40s"])])
    assert devices_of("at-least-20gi", slices) == ["gpu-2"]


def _slot(profile: str, start: int) -> Slot:
    (slot,) = (
        slot
        for slot in slots_of("h100-80gb")
        if slot.profile.name == profile and slot.placement.start == start
    )
    return slot
