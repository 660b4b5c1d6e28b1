"""From look to look: what stays, what goes, what is dated and told."""

from dataclasses import replace

import pynvml
import pytest

from dra_driver.model import (
    Gpu,
    HealthState,
    Inventory,
    MigProfile,
    Partition,
    Placement,
    Problem,
)
from dra_driver.model.errors import HardwareBusy
from dra_driver.nvml.errors import CallFailed
from dra_driver.nvml.gpu import Reading
from dra_driver.nvml.session import Outcome, System
from dra_driver.nvml.snapshot import changes, next_inventory, next_places

A = Gpu("GPU-a", 0, "H100")
B = Gpu("GPU-b", 1, "H100")
SYSTEM = System("580.95.05", (13, 0), 2, ())
PLACES = {0: "GPU-a", 1: "GPU-b"}
LOST = CallFailed("nvmlDeviceGetUUID", pynvml.NVML_ERROR_GPU_IS_LOST)


def reading(gpu: Gpu) -> Reading:
    return Reading(gpu, ())


def after(previous: Inventory | None, *outcomes: Outcome, now: float = 100.0) -> Inventory:
    return next_inventory(previous, PLACES, SYSTEM, outcomes, now)


def test_first_snapshot_and_no_news() -> None:
    first = after(None, reading(B), reading(A))
    assert first.gpus == (A, B)
    assert first.generation == 1
    assert after(first, reading(A), reading(B), now=200.0) is first


def test_a_lost_gpu_keeps_its_description_and_is_unhealthy_since_then() -> None:
    first = after(None, reading(A), reading(B))
    lost = after(first, reading(A), LOST, now=200.0)
    gpu = lost.gpu("GPU-b")
    assert gpu is not None
    assert gpu.product_name == "H100"
    assert gpu.health.state is HealthState.UNHEALTHY
    assert gpu.health.reason == "gpu-lost"
    assert gpu.health.since == 200.0
    assert lost.generation == first.generation + 1
    assert after(lost, reading(A), LOST, now=300.0) is lost, "since is when it began"
    healed = after(lost, reading(A), reading(B), now=400.0).gpu("GPU-b")
    assert healed is not None
    assert healed.health.state is HealthState.HEALTHY
    assert healed.health.since == 400.0


@pytest.mark.parametrize("name", ["NOT_FOUND", "GPU_NOT_FOUND", "RESET_REQUIRED"])
def test_a_gpu_that_is_nowhere_is_lost_too(name: str) -> None:
    failure = CallFailed("nvmlDeviceGetHandleByIndex", getattr(pynvml, f"NVML_ERROR_{name}"))
    gpu = after(after(None, reading(A), reading(B)), reading(A), failure).gpu("GPU-b")
    assert gpu is not None
    assert gpu.health.reason == "gpu-lost"


def test_a_silent_gpu_is_unknown_not_unhealthy() -> None:
    first = after(None, reading(A), reading(B))
    gpu = after(first, reading(A), HardwareBusy("gpu 1 does not answer")).gpu("GPU-b")
    assert gpu is not None
    assert gpu.health.state is HealthState.UNKNOWN
    assert gpu.health.reason == "not-answering"


def test_a_gpu_unreadable_from_the_start_is_a_problem_only() -> None:
    inventory = next_inventory(None, {}, SYSTEM, (reading(A), LOST), 100.0)
    assert inventory.gpus == (A,)
    (problem,) = inventory.problems
    assert problem.subject == "gpu 1"
    assert "nvmlDeviceGetUUID answered GPU_IS_LOST" in problem.message


def test_a_gpu_that_moved_is_not_shown_twice() -> None:
    first = after(None, reading(A), reading(B))
    moved = after(first, reading(B), LOST)
    assert [gpu.uuid for gpu in moved.gpus] == ["GPU-b"]


def test_a_gpu_that_left_the_list_is_gone() -> None:
    first = after(None, reading(A), reading(B))
    assert after(first, reading(A)).gpus == (A,)


def test_places_follow_the_gpus() -> None:
    assert next_places({}, [reading(A), reading(B)]) == PLACES
    assert next_places(PLACES, [reading(A), LOST]) == PLACES
    assert next_places(PLACES, [reading(B), LOST]) == {0: "GPU-b"}
    assert next_places(PLACES, [reading(B)]) == {0: "GPU-b"}


def test_changes_name_what_came_went_and_changed() -> None:
    profile = MigProfile("1g.10gb", 19, 0, 1, 1, 1, 1, 0, 1, 0)
    part = Partition("GPU-a", profile, Placement(0, 1), 7, 0, "MIG-1")
    split = Gpu("GPU-a", 0, "H100", mig_capable=True, mig_enabled=True, partitions=(part,))
    before = Inventory((A, B))
    now = Inventory((split,), problems=(Problem("node", "no CUDA version"),))
    told = [
        (message, fields.get("partition", fields.get("gpu")))
        for message, fields in changes(before, now)
    ]
    assert told == [
        ("device changed", "GPU-a"),
        ("device is gone", "GPU-b"),
        ("device found", "MIG-1"),
        ("discovery problem", None),
    ]
    assert list(changes(now, now)) == []


def test_b42_a_gpu_that_nvml_lists_no_longer_is_lost_while_the_kernel_has_it() -> None:
    with_place = replace(B, pci_bus_id="0000:3b:00.0")
    first = after(None, reading(A), reading(with_place))
    system = replace(SYSTEM, gpu_count=1, kernel_gpus=frozenset({"0000:3b:00.0"}))
    vanished = next_inventory(first, PLACES, system, (reading(A),), 200.0)
    gpu = vanished.gpu("GPU-b")
    assert gpu is not None
    assert (gpu.health.reason, gpu.health.since) == ("gpu-lost", 200.0)
    assert [problem.subject for problem in vanished.problems] == ["GPU-b"]
    assert next_inventory(vanished, PLACES, system, (reading(A),), 300.0) is vanished
    gone = replace(system, kernel_gpus=frozenset())
    assert next_inventory(vanished, PLACES, gone, (reading(A),), 300.0).gpus == (A,)
