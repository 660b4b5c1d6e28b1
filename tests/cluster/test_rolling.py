"""A newer driver replaces the older, as updates with surge do, while Pods come and go."""

import uuid
from typing import Final

import pytest

from tests.cluster import view
from tests.cluster.claims import GPU_CLASS, claim, template, use
from tests.cluster.driver import Driver, Instance, eventually
from tests.cluster.jobs import JOB_SECONDS, job_of, succeeded
from tests.cluster.workload import Namespace, pod

pytestmark = pytest.mark.every_release

_PODS: Final = 30


def test_pods_come_and_go_while_the_driver_is_replaced(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("kept"))
    gpu_namespace.run(pod("keeper", claims=use("kept"), restartPolicy="Always"))
    kept = gpu_namespace.container_id("keeper")
    published = driver.published()
    newer, newest = (driver.instance(f"--pod-uid={uuid.uuid4()}") for _ in range(2))
    try:
        gpu_namespace.apply(template("one", GPU_CLASS), job_of("many", _PODS))
        _replace(gpu_namespace, driver.main, newer, when_done=4)
        _replace(gpu_namespace, newer, newest, when_done=14)
        eventually(
            lambda: succeeded(gpu_namespace, "many") == _PODS, "all Pods succeeded", JOB_SECONDS
        )
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
    eventually(
        lambda: succeeded(namespace, "many") >= when_done, f"{when_done} Pods done", JOB_SECONDS
    )
    assert succeeded(namespace, "many") < _PODS
    new.start()
    assert old.process.stop() == 0
