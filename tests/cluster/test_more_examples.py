"""The other examples: several devices, workloads that make Pods, namespaces of their own."""

from typing import Final

import pytest

from tests.cluster import (
    examples,
    test_examples,
    test_layouts,
    test_mig_examples,
    test_sharing_examples,
    view,
)
from tests.cluster.api import Object
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import Namespace

_PODS: Final = "10-same-pcie-root", "11-two-claims"
_JOB: Final = "12-job"
_DEPLOYMENT: Final = "13-deployment"
_ADMIN: Final = "14-admin-access"
_TEAMS: Final = "15-namespaces"
_TOGETHER: Final = (*_PODS, _DEPLOYMENT, _ADMIN, _TEAMS)
_JOB_SECONDS: Final = 300.0


def test_every_example_is_run() -> None:
    single, partitions = test_examples._WANTED, test_mig_examples._WANTED
    shared = test_sharing_examples.EXAMPLES
    others = {*_TOGETHER, _JOB, test_layouts.EXAMPLE}
    assert examples.names() == {*single, *partitions, *shared, *others}


def test_pods_with_several_devices_or_claims(driver: Driver, gpu_namespace: Namespace) -> None:
    for name in _PODS:
        gpu_namespace.apply(*examples.objects(name))
    for name in ("same-pcie-root", "two-claims"):
        gpu_namespace.wait_pod(name, "Running")

    pair = view.devices_of(gpu_namespace, "same-pcie-root")
    attributes = driver.attributes()
    root = "resource.kubernetes.io/pcieRoot"
    assert len(set(pair)) == 2
    assert len({attributes[name][root]["string"] for name in pair}) == 1
    assert view.seen(gpu_namespace, "same-pcie-root") == view.expected(driver.node, pair)

    for container, kind in (("first", "gpu"), ("second", "mig")):
        (name,) = view.devices_of(gpu_namespace, "two-claims", container)
        assert attributes[name]["type"] == {"string": kind}
        wanted = view.expected(driver.node, [name])
        assert view.seen(gpu_namespace, "two-claims", container) == wanted


def test_pods_of_a_job_take_turns(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(*examples.objects(_JOB))
    jobs = f"/apis/batch/v1/namespaces/{gpu_namespace.name}/jobs/job"
    done = driver.cluster.api.wait(jobs, _complete, "complete", _JOB_SECONDS)
    assert done["status"]["succeeded"] == done["spec"]["completions"] == 4
    whole = {gpu["uuid"] for gpu in driver.node.show()["gpus"] if not gpu["instances"]}
    for pod in gpu_namespace.pods("batch.kubernetes.io/job-name=job"):
        (line,) = gpu_namespace.logs(pod).splitlines()
        assert [uuid for uuid in whole if uuid in line], line


def test_each_replica_of_a_deployment_has_its_own(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(*examples.objects(_DEPLOYMENT))
    first, second = examples.running(driver, gpu_namespace, "app=deployment", 2)
    assert first.isdisjoint(second)


def test_a_monitor_sees_what_others_have(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(*examples.objects(_DEPLOYMENT))
    held = set().union(*examples.running(driver, gpu_namespace, "app=deployment", 2))
    with examples.own_namespaces(driver, _ADMIN) as (namespace,):
        (names,) = examples.running(driver, namespace, "app=admin-access", 1)
        whole = {name for name in driver.device_names() if "-mig-" not in name}
        assert held < names == whole


@pytest.mark.usefixtures("gpu_namespace")
def test_a_quota_limits_one_namespace(driver: Driver) -> None:
    with examples.own_namespaces(driver, _TEAMS) as (limited, free):
        (first,) = examples.running(driver, limited, "app=namespaces", 1)
        (second,) = examples.running(driver, free, "app=namespaces", 1)
        assert first.isdisjoint(second)
        eventually(
            lambda: [line for line in limited.warnings() if "exceeded quota" in line],
            "the second Pod of the limited team is refused",
        )
        assert len(limited.pods("app=namespaces")) == 2


def _complete(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(item["type"] == "Complete" and item["status"] == "True" for item in conditions)
