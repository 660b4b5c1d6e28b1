"""Faults put on NVML calls while a program runs."""

import threading
import time
from typing import Any

import pynvml
import pytest

from dra_driver.simulator.native_library import ALL_GPUS, SimulatorError, error_number
from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, expect, leave


def gpus() -> tuple[Any, Any]:
    return pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)


def test_one_gpu_for_ever_until_cleared(nvml_node: SimulatedNode) -> None:
    bad, good = gpus()
    nvml_node.state.fault(0, "nvmlDeviceGetMemoryInfo", error_number("NOT_SUPPORTED"))
    for _ in range(5):
        expect("NOT_SUPPORTED", pynvml.nvmlDeviceGetMemoryInfo, bad)
        assert pynvml.nvmlDeviceGetMemoryInfo(good).total
    nvml_node.state.clear()
    assert pynvml.nvmlDeviceGetMemoryInfo(bad).total


def test_n_times(nvml_node: SimulatedNode) -> None:
    gpu, _ = gpus()
    nvml_node.state.fault(0, "nvmlDeviceGetUUID", error_number("UNKNOWN"), times=2)
    assert nvml_node.show()["faults"][0]["times"] == 2
    for _ in range(2):
        expect("UNKNOWN", pynvml.nvmlDeviceGetUUID, gpu)
    assert pynvml.nvmlDeviceGetUUID(gpu).startswith("GPU-")
    assert nvml_node.show()["faults"] == []


def test_all_gpus_and_calls_without_device(nvml_node: SimulatedNode) -> None:
    first, second = gpus()
    nvml_node.state.fault(ALL_GPUS, "nvmlDeviceGet*", error_number("TIMEOUT"))
    expect("TIMEOUT", pynvml.nvmlDeviceGetCount)
    expect("TIMEOUT", pynvml.nvmlDeviceGetUUID, first)
    expect("TIMEOUT", pynvml.nvmlDeviceGetName, second)
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("nvmlDeviceGetMemoryInfo", True),
        ("nvmlDeviceGetMemoryInfo_v2", True),
        ("nvmlDeviceGetMem*", True),
        ("nvmlDeviceGetName", False),
    ],
)
def test_names_mean_versions(nvml_node: SimulatedNode, name: str, *, matches: bool) -> None:
    gpu, _ = gpus()
    nvml_node.state.fault(0, name, error_number("UNKNOWN"))
    if matches:
        expect("UNKNOWN", pynvml.nvmlDeviceGetMemoryInfo, gpu, pynvml.nvmlMemory_v2)
    else:
        assert pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).total


def test_versioned_query_of_profiles_has_the_plain_name(nvml_node: SimulatedNode) -> None:
    gpu, _ = gpus()
    nvml_node.state.fault(0, "nvmlDeviceGetGpuInstanceProfileInfo", error_number("UNKNOWN"))
    expect("UNKNOWN", pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 0, 2)


def test_failing_init_then_well(make_node: MakeNode, use_nvml: UseNvml) -> None:
    node = make_node()
    use_nvml(node)
    leave()
    node.state.fault(ALL_GPUS, "nvmlInit", error_number("DRIVER_NOT_LOADED"), times=2)
    expect("DRIVER_NOT_LOADED", pynvml.nvmlInit)
    expect("DRIVER_NOT_LOADED", pynvml.nvmlInit)
    expect("UNINITIALIZED", pynvml.nvmlDeviceGetCount)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1


def test_fault_on_getting_the_handle(nvml_node: SimulatedNode) -> None:
    nvml_node.state.fault(0, "nvmlDeviceGetHandleByIndex", error_number("GPU_IS_LOST"))
    expect("GPU_IS_LOST", pynvml.nvmlDeviceGetHandleByIndex, 0)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))


def test_fault_follows_its_gpu_through_instances(nvml_node: SimulatedNode) -> None:
    for gpu in (0, 1):
        nvml_node.state.set_mig_mode(gpu, on=True)
    bad, good = gpus()
    nvml_node.state.fault(0, "nvmlGpuInstanceCreateComputeInstance", error_number("IN_USE"))
    bad_gi = pynvml.nvmlDeviceCreateGpuInstance(bad, 19)
    good_gi = pynvml.nvmlDeviceCreateGpuInstance(good, 19)
    expect("IN_USE", pynvml.nvmlGpuInstanceCreateComputeInstance, bad_gi, 0)
    assert pynvml.nvmlGpuInstanceCreateComputeInstance(good_gi, 0)
    results = [(call["call"], call["result"]) for call in nvml_node.state.calls()]
    assert results[-2:] == [
        ("nvmlGpuInstanceCreateComputeInstance", "IN_USE"),
        ("nvmlGpuInstanceCreateComputeInstance", "SUCCESS"),
    ]


def test_hang_stops_neither_other_calls_nor_the_administrator(nvml_node: SimulatedNode) -> None:
    hanging, fine = gpus()
    nvml_node.state.fault(0, "nvmlDeviceGetName", error_number("UNKNOWN"), hang=4)
    answer: list[int] = []

    def call() -> None:
        try:
            pynvml.nvmlDeviceGetName(hanging)
        except pynvml.NVMLError as error:
            answer.append(error.value)

    thread = threading.Thread(target=call)
    began = time.monotonic()
    thread.start()
    time.sleep(0.1)
    while time.monotonic() < began + 0.5:
        assert pynvml.nvmlDeviceGetName(fine)
        nvml_node.state.process(1, 9, 1 << 20)
    assert answer == []
    thread.join(timeout=30)
    assert answer == [pynvml.NVML_ERROR_UNKNOWN]
    assert time.monotonic() - began >= 4


def test_slow_mig_goes_on_after_the_sleep(nvml_node: SimulatedNode) -> None:
    nvml_node.state.set_mig_mode(0, on=True)
    gpu, _ = gpus()
    nvml_node.state.fault(0, "nvmlDeviceCreateGpuInstance", hang=0.3, times=1)
    began = time.monotonic()
    assert pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    assert time.monotonic() - began >= 0.3
    assert len(nvml_node.gpu(0)["instances"]) == 1


def test_misspelt_function_is_refused(nvml_node: SimulatedNode) -> None:
    with pytest.raises(SimulatorError, match="no function nvmlDeviceGetMemoryInf"):
        nvml_node.state.fault(0, "nvmlDeviceGetMemoryInf", 3)
    with pytest.raises(SimulatorError, match="no GPU 7"):
        nvml_node.state.fault(7, "nvmlDeviceGetMemoryInfo", 3)


def test_error_names() -> None:
    assert error_number("NOT_SUPPORTED") == error_number("NVML_ERROR_NOT_SUPPORTED") == 3
    assert error_number("SUCCESS") == error_number("NVML_SUCCESS") == 0
    for name in (n for n in dir(pynvml) if n.startswith("NVML_ERROR_")):
        assert error_number(name) == getattr(pynvml, name), name
    with pytest.raises(SimulatorError, match="no error named NONSENSE"):
        error_number("NONSENSE")


def test_mig_mode_that_is_set_but_not_activated(nvml_node: SimulatedNode) -> None:
    gpu, _ = gpus()
    error = error_number("RESET_REQUIRED")
    nvml_node.state.fault(0, "nvmlDeviceSetMigMode.activation", error, times=1)
    assert pynvml.nvmlDeviceSetMigMode(gpu, 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
    assert pynvml.nvmlDeviceSetMigMode(gpu, 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
