"""The other examples: several devices, workloads that make Pods, namespaces of their own."""

from typing import Final

import pytest

from tests.cluster import (
    examples,
    test_examples,
    test_mig_examples,
    test_sharing_examples,
    view,
)
from tests.cluster.api import Object
from tests.cluster.driver import eventually
from tests.cluster.release import Release
from tests.cluster.workload import Namespace

_PODS: Final = "10-same-pcie-root", "11-two-claims"
_JOB: Final = "12-job"
_DEPLOYMENT: Final = "13-deployment"
_ADMIN: Final = "14-admin-access"
_TEAMS: Final = "15-namespaces"
_LAYOUT: Final = "21-layout"
_TOGETHER: Final = (*_PODS, _DEPLOYMENT, _ADMIN, _TEAMS)
_LAID_OUT: Final = "gpu-0-mig-", "gpu-1-mig-"
_JOB_SECONDS: Final = 300.0


def test_every_example_is_run() -> None:
    single, partitions = test_examples._WANTED, test_mig_examples._WANTED
    shared = test_sharing_examples.EXAMPLES
    others = {*_TOGETHER, _JOB, _LAYOUT}
    assert examples.names() == {*single, *partitions, *shared, *others}


def test_pods_with_several_devices_or_claims(
    release: Release, release_namespace: Namespace
) -> None:
    for name in _PODS:
        release_namespace.apply(*examples.objects(name))
    for name in ("same-pcie-root", "two-claims"):
        release_namespace.wait_pod(name, "Running")

    pair = view.devices_of(release_namespace, "same-pcie-root")
    attributes = release.attributes()
    root = "resource.kubernetes.io/pcieRoot"
    assert len(set(pair)) == 2
    assert len({attributes[name][root]["string"] for name in pair}) == 1
    assert view.seen(release_namespace, "same-pcie-root") == view.expected(release.node, pair)

    for container, kind in (("first", "gpu"), ("second", "mig")):
        (name,) = view.devices_of(release_namespace, "two-claims", container)
        assert attributes[name]["type"] == {"string": kind}
        wanted = view.expected(release.node, [name])
        assert view.seen(release_namespace, "two-claims", container) == wanted


def test_pods_of_a_job_take_turns(release: Release, release_namespace: Namespace) -> None:
    release_namespace.apply(*examples.objects(_JOB))
    jobs = f"/apis/batch/v1/namespaces/{release_namespace.name}/jobs/job"
    done = release.cluster.api.wait(jobs, _complete, "complete", _JOB_SECONDS)
    assert done["status"]["succeeded"] == done["spec"]["completions"] == 4
    whole = {gpu["uuid"] for gpu in release.node.show()["gpus"] if not gpu["instances"]}
    for pod in release_namespace.pods("batch.kubernetes.io/job-name=job"):
        (line,) = release_namespace.logs(pod).splitlines()
        assert [uuid for uuid in whole if uuid in line], line


def test_each_replica_of_a_deployment_has_its_own(
    release: Release, release_namespace: Namespace
) -> None:
    release_namespace.apply(*examples.objects(_DEPLOYMENT))
    first, second = examples.running(release, release_namespace, "app=deployment", 2)
    assert first.isdisjoint(second)


def test_a_monitor_sees_what_others_have(release: Release, release_namespace: Namespace) -> None:
    release_namespace.apply(*examples.objects(_DEPLOYMENT))
    held = set().union(*examples.running(release, release_namespace, "app=deployment", 2))
    with examples.own_namespaces(release, _ADMIN) as (namespace,):
        (names,) = examples.running(release, namespace, "app=admin-access", 1)
        whole = {name for name in release.device_names() if "-mig-" not in name}
        assert held < names == whole


@pytest.mark.usefixtures("release_namespace")
def test_a_quota_limits_one_namespace(release: Release) -> None:
    with examples.own_namespaces(release, _TEAMS) as (limited, free):
        (first,) = examples.running(release, limited, "app=namespaces", 1)
        (second,) = examples.running(release, free, "app=namespaces", 1)
        assert first.isdisjoint(second)
        eventually(
            lambda: [line for line in limited.warnings() if "exceeded quota" in line],
            "the second Pod of the limited team is refused",
        )
        assert len(limited.pods("app=namespaces")) == 2


def _complete(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(item["type"] == "Complete" and item["status"] == "True" for item in conditions)


def test_a_pod_has_a_partition_of_a_layout(release: Release) -> None:
    def made() -> int:
        return len([name for name in release.device_names() if name.startswith(_LAID_OUT)])

    before = view.partitions(release.node)
    layout = examples.node_config("layout.yaml").replace('*H100*"', '*H100*", index: [0, 1]')
    assert "index" in layout
    with release.configured(layout):
        eventually(lambda: made() == 2 * 5, "the layout is published")
        with release.namespace() as namespace:
            namespace.apply(*examples.objects(_LAYOUT))
            namespace.wait_pod("layout", "Running")
            (name,) = view.devices_of(namespace, "layout")
            assert name.startswith(_LAID_OUT)
            assert view.device(release.node, name)[1]["profile"] == "3g.40gb"
            assert view.seen(namespace, "layout") == view.expected(release.node, [name])
    with release.configured(layout.replace("layout: one-big-four-small", "layout: all-disabled")):
        eventually(lambda: view.partitions(release.node) == before, "its partitions are gone")
    release.wait_settled()
