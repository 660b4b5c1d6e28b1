"""A newer driver replaces the older, as updates with surge do, while Pods come and go."""

import uuid
from typing import Final

import pytest

from tests.cluster import images, view
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, claim, from_template, template, use
from tests.cluster.driver import Driver, Instance, eventually
from tests.cluster.workload import Namespace, pod

pytestmark = pytest.mark.every_release

_PODS: Final = 30
_AT_ONCE: Final = 6
_JOB_SECONDS: Final = 400.0


def test_pods_come_and_go_while_the_driver_is_replaced(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("kept"))
    gpu_namespace.run(pod("keeper", claims=use("kept"), restartPolicy="Always"))
    kept = gpu_namespace.container_id("keeper")
    published = driver.published()
    newer, newest = (driver.instance(f"--pod-uid={uuid.uuid4()}") for _ in range(2))
    try:
        gpu_namespace.apply(template("one", GPU_CLASS), _job())
        _replace(gpu_namespace, driver.main, newer, when_done=4)
        _replace(gpu_namespace, newer, newest, when_done=14)
        eventually(lambda: _succeeded(gpu_namespace) == _PODS, "all Pods succeeded", _JOB_SECONDS)
        assert driver.published() == published
        assert gpu_namespace.container_id("keeper") == kept
        assert view.seen(gpu_namespace, "keeper") == view.expected(
            driver.node, view.devices_of(gpu_namespace, "keeper")
        )
        gpu_namespace.delete_pod("keeper")
        eventually(lambda: not driver.leftovers(), "nothing is left of any claim")
        prepared = newest.metric("nvidia_dra_requests_total", operation="prepare")
        print(f"prepared by the newest of three instances: {prepared:.0f} claims")
        assert prepared > 0
    finally:
        driver.main.start()
        for instance in (newer, newest):
            if instance.process.running:
                instance.process.stop()
    assert not [line for line in gpu_namespace.warnings() if "DynamicResources" in line]


def _replace(namespace: Namespace, old: Instance, new: Instance, when_done: int) -> None:
    eventually(lambda: _succeeded(namespace) >= when_done, f"{when_done} Pods done", _JOB_SECONDS)
    assert _succeeded(namespace) < _PODS
    new.start()
    assert old.process.stop() == 0


def _succeeded(namespace: Namespace) -> int:
    path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs/many"
    status = namespace.cluster.api.get(path).get("status", {})
    assert not status.get("failed"), namespace.warnings()
    return int(status.get("succeeded", 0))


def _job() -> Object:
    """Build a Job whose Pods fail if they see other than one GPU, and that fails with them."""
    script = "nvidia-smi -L | tee /dev/stderr | grep -c UUID | grep -qx 1 && sleep 2"
    made = pod("", "sh", "-c", script, image=images.DEBIAN, claims=from_template("one"))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "many"},
        "spec": {
            "completions": _PODS,
            "parallelism": _AT_ONCE,
            "backoffLimit": 0,
            "template": {"spec": made["spec"]},
        },
    }
