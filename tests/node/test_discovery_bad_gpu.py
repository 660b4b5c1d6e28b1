"""One bad GPU, value or call costs itself only, and heals."""

import threading
import time
from dataclasses import replace

import pytest

from dra_driver.model import HealthState
from dra_driver.model.errors import DriverNotReady
from dra_driver.nvml import Discovery, session
from dra_driver.simulator.node_file import NodeSpec
from tests.support.discovery import ALL_GPUS, PATIENCE, MakeWatch, fault
from tests.support.kubelet import eventually
from tests.support.node import MakeNode


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetName", "product_name"),
        ("nvmlDeviceGetBrand", "brand"),
        ("nvmlDeviceGetArchitecture", "architecture"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetPciInfo", "pci_bus_id"),
        ("nvmlDeviceGetAddressingMode", "addressing_mode"),
    ],
)
def test_a_value_that_fails_costs_itself_or_keeps_what_was_known(
    make_node: MakeNode, watch: MakeWatch, call: str, field: str
) -> None:
    node = make_node(gpus=2)
    fault(node, 1, call, "UNKNOWN")
    early = watch(node.root).look()
    assert len(early.gpus) == 2
    (problem,) = early.problems
    assert problem.subject == early.gpus[1].uuid
    assert f"{call} answered UNKNOWN" in problem.message
    assert getattr(early.gpus[1], field) in ("", "Unknown", None)
    node.state.clear()
    late = watch(node.root)
    well = late.gpu(1)
    assert getattr(well, field) not in ("", "Unknown", None)
    fault(node, 1, call, "UNKNOWN")
    assert late.gpu(1) == well
    assert len(late.look().problems) == 1


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode"]
)
def test_a_gpu_without_what_it_needs_costs_itself(
    make_node: MakeNode, watch: MakeWatch, call: str
) -> None:
    node = make_node(gpus=3)
    fault(node, 1, call, "UNKNOWN")
    inventory = watch(node.root).look()
    assert [gpu.minor for gpu in inventory.gpus] == [0, 2]
    (problem,) = inventory.problems
    assert problem.subject == "gpu 1"
    assert problem.message == f"{call} answered UNKNOWN; the GPU is left out"


def test_a_partition_that_fails_costs_itself(make_node: MakeNode, watch: MakeWatch) -> None:
    partitions = [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]
    node = make_node(
        spec=NodeSpec.model_validate({"gpus": [{"model": "h100-80gb", "partitions": partitions}]})
    )
    seen = watch(node.root)
    assert len(seen.gpu().partitions) == 2
    fault(node, 0, "nvmlGpuInstanceGetInfo", "UNKNOWN", times=1)
    inventory = seen.look()
    assert len(inventory.gpus[0].partitions) == 1
    (problem,) = inventory.problems
    assert "nvmlGpuInstanceGetInfo answered UNKNOWN" in problem.message
    assert len(seen.gpu().partitions) == 2


CALLS = [
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstanceProfileInfo*",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo*",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
]


@pytest.mark.parametrize(
    "name",
    [
        "UNKNOWN",
        "NOT_SUPPORTED",
        "FUNCTION_NOT_FOUND",
        "INVALID_ARGUMENT",
        "NO_PERMISSION",
        "TIMEOUT",
        "GPU_IS_LOST",
        "UNINITIALIZED",
        "NOT_FOUND",
    ],
)
def test_whatever_a_call_answers_costs_one_gpu_at_most_and_passes(
    make_node: MakeNode, watch: MakeWatch, name: str
) -> None:
    mig = {"model": "h100-80gb", "count": 2, "partitions": [{"profile": "1g.10gb"}]}
    node = make_node(spec=NodeSpec.model_validate({"gpus": [mig]}))
    seen = watch(node.root)
    well = seen.look()
    for call in CALLS:
        fault(node, 1, call, name)
        sick = seen.look()
        assert sick.gpus[0] == well.gpus[0], call
        assert sick.gpus[1].uuid == well.gpus[1].uuid, call
        assert sick.problems or name != "UNKNOWN", f"{call} is not asked"
        node.state.clear()
        healed = seen.look()
        since = healed.gpus[1].health.since
        expected = replace(well.gpus[1], health=replace(well.gpus[1].health, since=since))
        assert healed.gpus[1] == expected, call
        assert healed.problems == (), call


@pytest.mark.parametrize("name", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_lost_gpu_is_unhealthy_and_still_named(
    make_node: MakeNode, watch: MakeWatch, name: str
) -> None:
    node = make_node(gpus=3)
    seen = watch(node.root, poll_seconds=0.2)
    well = seen.told_that(lambda inventory: len(inventory.gpus) == 3)
    fault(node, 1, "nvmlDevice*", name)
    sick = seen.told_that(lambda i: i.gpus[1].health.state is HealthState.UNHEALTHY)
    assert sick.gpus[1].health.reason == "gpu-lost"
    assert name in sick.gpus[1].health.message
    assert replace(sick.gpus[1], health=well.gpus[1].health) == well.gpus[1]
    assert [gpu.health.state for gpu in sick.gpus].count(HealthState.HEALTHY) == 2
    node.state.clear()
    seen.told_that(lambda i: i.gpus[1].health.state is HealthState.HEALTHY and not i.problems)


def test_b42_a_gpu_that_vanishes_without_event_is_polled(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=3)
    seen = watch(node.root, poll_seconds=0.2)
    seen.told_that(lambda inventory: len(inventory.gpus) == 3)
    node.state.lose(1)
    sick = seen.told_that(lambda i: i.gpus[1].health.reason == "gpu-lost")
    assert [gpu.health.usable for gpu in sick.gpus] == [True, False, True]
    node.state.restore(1)
    seen.told_that(lambda i: i.gpus[1].health.usable)


# ---- hangs

ANSWER_SECONDS = 2.0  # instead of the 10 that a GPU has


def test_a_gpu_that_hangs_costs_only_itself_and_no_waiting(
    make_node: MakeNode, watch: MakeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "READ_SECONDS", ANSWER_SECONDS)
    node = make_node(gpus=3)
    seen = watch(node.root)
    assert len(seen.look().gpus) == 3
    fault(node, 1, "nvmlDeviceGetName", "", hang=12)
    first = seen.look()
    assert [gpu.health.state for gpu in first.gpus] == [
        HealthState.HEALTHY,
        HealthState.UNKNOWN,
        HealthState.HEALTHY,
    ]
    assert first.gpus[1].health.reason == "not-answering"
    begun = time.monotonic()
    assert [seen.look() for _ in range(3)] == [first] * 3
    assert time.monotonic() - begun < 3 * ANSWER_SECONDS, "nobody waits behind an overdue call"
    node.state.clear()
    seen.discovery.refresh()
    while seen.look().gpus[1].health.state is not HealthState.HEALTHY:
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)


def test_a_gpu_that_hangs_from_the_start_does_not_hide_the_others(
    make_node: MakeNode, watch: MakeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "READ_SECONDS", ANSWER_SECONDS)
    node = make_node(gpus=3)
    fault(node, 0, "nvmlDeviceGetHandleByIndex", "", hang=20)
    inventory = watch(node.root).look()
    assert [gpu.minor for gpu in inventory.gpus] == [1, 2]
    assert "does not answer" in inventory.problems[0].message
    node.state.clear()


def test_stop_and_start_are_quick_while_nvml_hangs(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node()
    fault(node, ALL_GPUS, "nvmlInit*", "", hang=20)
    begun = time.monotonic()
    seen = watch(node.root)
    assert seen.discovery.current() is None
    with pytest.raises(DriverNotReady):
        seen.discovery.look(0.5)
    seen.discovery.stop()
    took = time.monotonic() - begun
    print(f"start, look and stop took {took:.2f} s")
    assert took < 19.0, "it did not wait for the call"
    node.state.clear()


def test_a_new_driver_is_loaded_while_a_call_hangs_in_the_old_one(
    make_node: MakeNode, watch: MakeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "READ_SECONDS", ANSWER_SECONDS)
    node = make_node(gpus=2)
    seen = watch(node.root)
    seen.look()
    fault(node, 1, "nvmlDeviceGetName", "", times=1, hang=6)
    assert seen.look().gpus[1].health.reason == "not-answering"
    node.set_driver_version("590.44.01")
    inventory = seen.look()
    assert inventory.driver_version == "590.44.01"
    assert inventory.gpus[1].health.state is HealthState.HEALTHY
    deadline = time.monotonic() + PATIENCE
    while [thread.name for thread in threading.enumerate()].count("nvml gpu 1") > 1:
        assert time.monotonic() < deadline, "the old call never came back"
        time.sleep(0.05)
    assert seen.look() is inventory, "it came back in the old library"


def test_a_look_that_takes_too_long_says_so(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node()
    seen = watch(node.root)
    seen.look()
    fault(node, 0, "nvmlDeviceGetName", "", times=1, hang=3)
    with pytest.raises(DriverNotReady, match=r"within 0\.2 s"):
        seen.discovery.look(0.2)


def test_no_gpu_counts_as_gone_before_they_have_been_counted(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    """What is undone meanwhile would take the GPU's partitions and settings for gone with it."""
    node = make_node(gpus=1)
    fault(node, ALL_GPUS, "nvmlDeviceGetCount*", "", times=1, hang=1)
    discovery = watch(node.root).discovery
    eventually(lambda: is_initialised(discovery), "NVML is initialised")
    assert discovery.on_gpu(node.gpu(0)["uuid"], lambda gpu: gpu.uuid, PATIENCE)


def is_initialised(discovery: Discovery) -> bool:
    return discovery._session is not None and discovery._session._initialised
