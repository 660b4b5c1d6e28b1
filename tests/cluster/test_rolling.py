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

_PODS: Final = 15  # for each replacement


def test_pods_come_and_go_while_the_driver_is_replaced(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("kept"))
    gpu_namespace.run(pod("keeper", claims=use("kept"), restartPolicy="Always"))
    kept = gpu_namespace.container_id("keeper")
    published = driver.published()
    newer, newest = (driver.instance(f"--pod-uid={uuid.uuid4()}") for _ in range(2))
    try:
        gpu_namespace.apply(template("one", GPU_CLASS))
        _replace_under_load(gpu_namespace, "first", driver.main, newer)
        _replace_under_load(gpu_namespace, "second", newer, newest)
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


def _replace_under_load(namespace: Namespace, job: str, old: Instance, new: Instance) -> None:
    """Replace an instance while the Pods of a Job come and go; returns when all have succeeded."""
    namespace.apply(job_of(job, _PODS))
    eventually(lambda: succeeded(namespace, job) >= 4, "4 Pods done", JOB_SECONDS)
    assert succeeded(namespace, job) < _PODS
    new.start()
    assert old.process.stop() == 0
    eventually(lambda: succeeded(namespace, job) == _PODS, "all Pods succeeded", JOB_SECONDS)
