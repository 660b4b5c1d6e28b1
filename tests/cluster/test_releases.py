"""What older releases lack or do wrong, and what this driver makes of it."""

import json
from typing import Any

import pytest

from tests.cluster import view
from tests.cluster.claims import MIG_CLASS, claim, use
from tests.cluster.driver import DRIVER, Driver
from tests.cluster.workload import Namespace, pod

_GATES = ("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")


@pytest.mark.every_cluster
def test_what_the_server_drops_is_told(driver: Driver) -> None:
    settings = driver.cluster.settings
    off = " ".join(gate for gate in _GATES if not settings.has(gate)) or "none"
    log = driver.main.process.log.read_text()
    lines = [line for line in log.splitlines() if "gates_off=" in line]
    assert lines
    for line in lines:
        assert f"version={settings.version} " in line
        assert line.endswith((f"gates_off={off}", f'gates_off="{off}"'))


@pytest.mark.gate("DRAExtendedResource")
def test_an_unchanged_pod_gets_a_gpu(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.run(pod("unchanged", limits={"nvidia.com/gpu": "1"}))
    names = view.devices_of(gpu_namespace, "unchanged")
    assert len(names) == 1
    assert view.seen(gpu_namespace, "unchanged") == view.expected(driver.node, names)
    node = driver.cluster.api.get(f"/api/v1/nodes/{driver.cluster.node_name}")
    assert "nvidia.com/gpu" not in node["status"]["allocatable"], "that is a device plugin's mark"


@pytest.mark.no_gate("DRAExtendedResource")
def test_an_unchanged_pod_waits_where_the_gate_is_off(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(pod("unchanged", limits={"nvidia.com/gpu": "1"}))
    assert "Insufficient nvidia.com/gpu" in gpu_namespace.wait_unschedulable("unchanged")


@pytest.mark.every_release
def test_a_batch_that_fails_gives_no_device_twice(driver: Driver, gpu_namespace: Namespace) -> None:
    """Kubelets up to 1.36.3 add the devices of what did succeed again at each further try."""
    gpu_namespace.apply(claim("first"), claim("second"), claim("third", MIG_CLASS))
    names = ("first", "second", "third")
    # Claims are prepared in the order of the Pod, so two have been when the last one fails.
    capability = driver.node.root / "proc/driver/nvidia/capabilities"
    hidden = capability.with_name("hidden")
    capability.rename(hidden)
    try:
        gpu_namespace.apply(pod("user", claims=use(*names)))
        gpu_namespace.wait_event("user", "FailedPrepareDynamicResources")
    finally:
        hidden.rename(capability)
    gpu_namespace.wait_pod("user", "Running")
    noted = _noted_by_kubelet(driver)
    for name in names:
        (device,) = noted[gpu_namespace.claim(name)["metadata"]["uid"]]
        assert device["DeviceName"] == view.allocated(gpu_namespace.claim(name))[0]
        assert len(set(device["CDIDeviceIDs"])) == len(device["CDIDeviceIDs"])
    assert view.seen(gpu_namespace, "user") == view.expected(
        driver.node, view.devices_of(gpu_namespace, "user")
    )


def _noted_by_kubelet(driver: Driver) -> dict[str, list[dict[str, Any]]]:
    """Devices of our driver by claim UID, as the kubelet's checkpoint has them."""
    checkpoint = json.loads((driver.cluster.kubelet_root / "dra_manager_state").read_text())
    return {
        item["ClaimUID"]: item["DriverState"].get(DRIVER, {}).get("Devices", [])
        for item in json.loads(checkpoint["Data"])["ClaimInfoStateList"]
    }
