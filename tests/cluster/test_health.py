"""Sick GPUs: Pods tell of them, new claims get others, and all is well again without restart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.cluster import view
from tests.cluster.claims import by_uuid, claim, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import Namespace, pod

_GPU_RESET: Final = 1  # nvml.h: NVML_GPU_RECOVERY_ACTION_GPU_RESET
_SICK: Final = 3  # position of the GPU that falls ill


@contextmanager
def _fatal_xid(driver: Driver) -> Iterator[None]:
    driver.node.state.xid(_SICK, 79)
    driver.node.state.set_recovery_action(_SICK, _GPU_RESET)
    try:
        yield
    finally:
        driver.node.state.set_recovery_action(_SICK, 0)


@contextmanager
def _lost_silently(driver: Driver) -> Iterator[None]:
    driver.node.state.lose(_SICK)
    try:
        yield
    finally:
        driver.node.state.restore(_SICK)


_AILMENTS: Final = {"fatal-xid": (_fatal_xid, "XID 79"), "lost": (_lost_silently, "GPU_IS_LOST")}
_each_ailment = pytest.mark.parametrize("ailment", _AILMENTS)


@pytest.mark.gate("ResourceHealthStatus")
@_each_ailment
def test_the_status_of_a_pod_tells_that_its_gpu_is_sick(
    driver: Driver, gpu_namespace: Namespace, ailment: str
) -> None:
    falls_ill, words = _AILMENTS[ailment]
    gpu_namespace.apply(claim("held", selector=_the_sick_one(driver)))
    gpu_namespace.run(pod("holder", claims=use("held")))
    container = gpu_namespace.container_id("holder")
    gpu_namespace.wait_health("holder", "held", "Healthy", "")
    with falls_ill(driver):
        message = words if driver.cluster.settings.has("ResourceHealthStatusMessage") else ""
        gpu_namespace.wait_health("holder", "held", "Unhealthy", message)
    gpu_namespace.wait_health("holder", "held", "Healthy", "")
    assert gpu_namespace.container_id("holder") == container


@pytest.mark.gate("DRADeviceTaints")
@_each_ailment
def test_new_claims_avoid_a_sick_gpu_until_it_is_well(
    driver: Driver, gpu_namespace: Namespace, ailment: str
) -> None:
    falls_ill, words = _AILMENTS[ailment]
    name = f"gpu-{driver.node.gpu(_SICK)['minor']}"
    gpu_namespace.apply(claim("certain", selector=_the_sick_one(driver)), claim("any"))
    with falls_ill(driver):
        eventually(lambda: _taints(driver)[name], "it is tainted")
        assert [key for key, taints in _taints(driver).items() if taints] == [name]
        gpu_namespace.apply(pod("waits", claims=use("certain")))
        assert "cannot allocate all claims" in gpu_namespace.wait_unschedulable("waits")
        gpu_namespace.run(pod("works", claims=use("any")))
        assert view.devices_of(gpu_namespace, "works") != [name]
        driver.wait_node_event("DeviceUnhealthy", words)
    gpu_namespace.wait_pod("waits", "Running")
    assert not any(_taints(driver).values())
    assert view.seen(gpu_namespace, "waits") == view.expected(driver.node, [name])


@pytest.mark.no_gate("DRADeviceTaints")
@_each_ailment
def test_a_sick_gpu_is_withdrawn_where_taints_are_dropped(
    driver: Driver, gpu_namespace: Namespace, ailment: str
) -> None:
    falls_ill, words = _AILMENTS[ailment]
    name = f"gpu-{driver.node.gpu(_SICK)['minor']}"
    all_devices = driver.device_names()
    gpu_namespace.apply(claim("held", selector=_the_sick_one(driver)))
    gpu_namespace.run(pod("holder", claims=use("held")))
    container = gpu_namespace.container_id("holder")
    with falls_ill(driver):
        eventually(lambda: driver.device_names() == all_devices - {name}, "it is withdrawn")
        driver.wait_node_event("DeviceNotPublished", words)
        assert driver.main.metric("gpu_dra_driver_left_out", reason="unhealthy") == 1
    eventually(lambda: driver.device_names() == all_devices, "it is published again")
    assert gpu_namespace.container_id("holder") == container


def _the_sick_one(driver: Driver) -> str:
    return by_uuid(driver.node.gpu(_SICK)["uuid"])


def _taints(driver: Driver) -> dict[str, list[Any]]:
    return {device["name"]: device.get("taints", []) for device in driver.devices()}
