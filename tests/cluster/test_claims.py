"""From a claim to its end: placed or not, prepared or not, and gone without a trace."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import view
from tests.cluster.claims import GPU_CLASS, MIG_CLASS, by_uuid, claim, use
from tests.cluster.driver import DRIVER, Driver, eventually
from tests.cluster.workload import Namespace, pod

_CLEANUP_SECONDS = 300.0  # the kubelet looks for what it may have missed once a minute


def test_an_impossible_selector_stays_pending(gpu_namespace: Namespace) -> None:
    more_than_there_is = (
        f"'memory' in device.capacity['{DRIVER}'] && "
        f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('1Ti'))"
    )
    gpu_namespace.apply(
        claim("impossible", selector=more_than_there_is),
        claim("possible"),
        pod("impossible", claims=use("impossible")),
    )
    assert "cannot allocate all claims" in gpu_namespace.wait_unschedulable("impossible")
    gpu_namespace.run(pod("later", "true", claims=use("possible")), "Succeeded")
    assert gpu_namespace.pod("impossible")["status"]["phase"] == "Pending"
    assert "cannot allocate all claims" in gpu_namespace.wait_unschedulable("impossible")
    assert "allocation" not in gpu_namespace.claim("impossible").get("status", {})


@pytest.mark.every_release
def test_deletion_leaves_nothing_and_the_slices_as_they_were(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    published = driver.published()
    assert driver.leftovers() == set()
    gpu_namespace.apply(claim("whole"), claim("part", MIG_CLASS))
    gpu_namespace.run(pod("user", claims=use("whole", "part")))
    uids = {gpu_namespace.claim(name)["metadata"]["uid"] for name in ("whole", "part")}
    assert {f"{uid}.json" for uid in uids} <= driver.leftovers()
    assert len(driver.cdi_files()) == len(uids) + 1
    driver.cluster.validate_cdi(*driver.cdi_files())
    gpu_namespace.delete_pod("user")
    assert driver.leftovers() == set()
    assert driver.published() == published
    for kind in ("gpu", "mig"):
        assert driver.main.metric("nvidia_dra_prepared_devices", device_type=kind) == 0


def test_a_pod_deleted_by_force_leaves_nothing_either(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("forced"))
    gpu_namespace.run(pod("user", claims=use("forced"), terminationGracePeriodSeconds=0))
    gpu_namespace.delete_pod("user")
    eventually(lambda: not driver.leftovers(), "the kubelet has cleaned up", _CLEANUP_SECONDS)


def test_a_prepare_costs_one_request(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(claim("first"), claim("second"))
    before = len(driver.requests())
    gpu_namespace.run(pod("user", claims=use("first", "second")))
    gpu_namespace.delete_pod("user")
    # Of the Node and of slices it asks from time to time, whether there are claims or not.
    made = [
        (item["verb"], item["objectRef"]["resource"], item["objectRef"].get("name", ""))
        for item in driver.requests()[before:]
        if item["objectRef"].get("namespace")
    ]
    assert sorted(made) == [
        ("get", "resourceclaims", "first"),
        ("get", "resourceclaims", "second"),
    ]


def test_a_failed_prepare_is_explained_and_leaves_nothing(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("explained"))
    with _without(driver.node.root / "dev/nvidia-uvm") as missing:
        gpu_namespace.apply(pod("fails", claims=use("explained")))
        told = gpu_namespace.wait_event("fails", "FailedPrepareDynamicResources")
        assert "DriverFilesMissing: " in told["message"]
        assert f"no device node {missing}" in told["message"]
        assert "modprobe nvidia-uvm" in told["message"]
        assert "\n" not in told["message"]
        told = gpu_namespace.wait_event("explained", "DriverFilesMissing")
        assert (told["type"], told["reportingComponent"]) == ("Warning", DRIVER)
        assert f"no device node {missing}" in told["message"]
        uid = gpu_namespace.claim("explained")["metadata"]["uid"]
        assert told["involvedObject"]["uid"] == uid
        assert driver.leftovers() == set()
    gpu_namespace.delete_pod("fails")
    gpu_namespace.run(pod("works", "nvidia-smi", "-L", claims=use("explained")), "Succeeded")


def test_a_partition_works_without_its_capability_nodes(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    """They were there when the driver looked at the GPUs, and are not when it prepares."""
    wanted = {
        name: view.expected(driver.node, [name]) for name in driver.device_names() if "mig" in name
    }
    gpu_namespace.apply(claim("part", MIG_CLASS))
    with driver.replaced("--poll-interval=10m"):
        driver.node.remove_capability_nodes()
        try:
            gpu_namespace.run(pod("user", claims=use("part")))
            (name,) = view.allocated(gpu_namespace.claim("part"))
            assert view.seen(gpu_namespace, "user") == wanted[name]
        finally:
            driver.node.restore_capability_nodes()


@pytest.mark.parametrize("position", [0, 9])
def test_a_gpu_or_its_partition_is_had_by_uuid(
    driver: Driver, gpu_namespace: Namespace, position: int
) -> None:
    gpu = driver.node.gpu(position)
    parts = [ci["uuid"] for gi in gpu["instances"] for ci in gi["computeInstances"]]
    device_class = MIG_CLASS if parts else GPU_CLASS
    uuid = (parts or [gpu["uuid"]])[0]
    gpu_namespace.apply(claim("certain", device_class, by_uuid(uuid)))
    gpu_namespace.run(pod("user", claims=use("certain")))
    seen = view.seen(gpu_namespace, "user")
    assert uuid in seen.gpus[-1]
    assert (f"/dev/nvidia{gpu['minor']}", 195, gpu["minor"]) in seen.nodes


@contextmanager
def _without(device_node: Path) -> Iterator[Path]:
    """Take a device node away for a while, as on a node where a kernel module is not loaded."""
    number = device_node.stat().st_rdev
    device_node.unlink()
    try:
        yield device_node
    finally:
        os.mknod(device_node, stat.S_IFCHR | 0o666, number)
        device_node.chmod(0o666)
