"""Helm upgrades the driver and takes it back, while Pods come and go and programs have MPS."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.chart.helm import NAME, setting
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, claim, template, use
from tests.cluster.driver import DRIVER, eventually
from tests.cluster.driver_image import NEW_ATTRIBUTE, NEWER
from tests.cluster.jobs import JOB_SECONDS, job_of, succeeded
from tests.cluster.mps import MpsNode, PodProgram
from tests.cluster.release import AGENT, PLUGIN, Release
from tests.cluster.workload import Namespace, pod

_MPS_GPU: Final = 0  # position
_DYNAMIC: Final = setting("config.map.default.rules[0].partitioning.mode=Dynamic")
_ASKED_AT: Final = ("--selector", f"app.kubernetes.io/component={AGENT}")


class Programs:
    """Two Pods that share a GPU by MPS, and what must stay as it is while they run."""

    def __init__(self, mps: MpsNode, namespace: Namespace, *names: str) -> None:
        """Start them; returns when all are clients of one daemon."""
        self._mps, self._namespace, self._names = mps, namespace, names
        namespace.apply(mps.claim("shared", _MPS_GPU, strategy="MPS"))
        namespace.apply(*(mps.pod(namespace, name, "shared") for name in names))
        self._talk: list[PodProgram] = [mps.attached(namespace, name) for name in names]
        self._before = self._state()

    def check(self) -> None:
        """They are the same clients of the same daemon, and work."""
        assert self._state() == self._before
        for program in self._talk:
            program.gets("1Gi")
        assert "MpsInterrupted" not in [e["reason"] for e in self._namespace.events("shared")]

    def end(self) -> None:
        """Delete them; nothing of their claim is left."""
        for name in self._names:
            self._namespace.delete_pod(name)
        self._namespace.cluster.api.delete(
            f"/apis/resource.k8s.io/v1/namespaces/{self._namespace.name}/resourceclaims/shared"
        )
        assert self._mps.leftovers() == []

    def _state(self) -> tuple[Any, Mapping[int, int], list[str]]:
        ids = [self._namespace.container_id(name) for name in self._names]
        return self._mps.daemon()["pid"], dict(self._mps.clients()), ids


@pytest.fixture
def dynamic(release: Release) -> Iterator[Release]:
    """Let the node publish all partitions that can be made: several slices.

    Afterwards the release is as it was.
    """
    release.load_image(NEWER)
    release.helm("upgrade", *_DYNAMIC)
    try:
        eventually(lambda: _is_complete(release), "all that can be made is published")
        yield release
    finally:
        release.helm("upgrade")
        _replace_agent(release)
        release.wait_settled()


def test_helm_upgrades_and_rolls_back_under_load(dynamic: Release) -> None:
    release, mps = dynamic, MpsNode(dynamic)
    with release.namespace() as namespace:
        programs = Programs(mps, namespace, "a", "b")
        agent = release.pod_name(AGENT)
        namespace.apply(template("one", GPU_CLASS), job_of("many", 30))
        eventually(lambda: succeeded(namespace, "many") >= 4, "4 Pods done", JOB_SECONDS)
        before = release.published()
        _change(release, NEWER, "upgrade", *_DYNAMIC, *setting(f"image.tag={NEWER}"))
        programs.check()
        eventually(lambda: succeeded(namespace, "many") == 30, "30 Pods done", JOB_SECONDS)
        assert release.published() == _once_more(before)
        assert release.pod_name(AGENT) == agent
        programs.end()

        _replace_agent(release)
        assert _images(release, AGENT) == _images(release, PLUGIN) == {NEWER}
        programs = Programs(mps, namespace, "c", "d")
        namespace.apply(job_of("few", 10))
        eventually(lambda: succeeded(namespace, "few") >= 2, "2 Pods done", JOB_SECONDS)
        served = release.metrics("nvidia_dra_requests_total", operation="prepare")
        assert sum(served) > 0
        before = release.published()
        _change(release, "", "rollback")
        programs.check()
        eventually(lambda: succeeded(namespace, "few") == 10, "10 Pods done", JOB_SECONDS)
        assert release.published() == _once_more(before)
        programs.end()
        assert not [line for line in namespace.warnings() if "DynamicResources" in line]


def _change(release: Release, published: str, verb: str, *options: str) -> None:
    """Let Helm change the release; returns when what it publishes has this of all devices."""
    generation = _generation(release)
    if verb == "rollback":
        release.run_helm(verb, NAME)
    else:
        release.helm(verb, *options)
    release.wait_started()

    def all_do() -> bool:
        return all(
            each.get(NEW_ATTRIBUTE, {}).get("string", "") == published
            for each in release.attributes().values()
        )

    eventually(all_do, f"all slices have {published or 'what they had'}")
    assert _generation(release) == generation + 1


def _generation(release: Release) -> int:
    (found,) = {each["spec"]["pool"]["generation"] for each in release.slices()}
    return int(found)


def _is_complete(release: Release) -> bool:
    pools = [each["spec"]["pool"] for each in release.slices()]
    generations = {pool["generation"] for pool in pools}
    is_whole = len(generations) == 1 and len(pools) == pools[0]["resourceSliceCount"] > 1
    return is_whole and "gpu-0-mig-7g80gb-0-0" in release.device_names()


def _once_more(published: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Each slice is the same object, changed once since: the API server counts changes."""
    return {name: (uid, count + 1) for name, (uid, count) in published.items()}


def _replace_agent(release: Release) -> None:
    """Do what docs/install.md says, and wait until a new agent serves."""
    old = release.pod_name(AGENT)
    where = (f"--namespace={NAME}", f"--field-selector=spec.nodeName={release.cluster.node_name}")
    release.cluster.kubectl("delete", "pod", *where, *_ASKED_AT)

    def another() -> bool:
        return [each["metadata"]["name"] != old for each in release.pods(AGENT)] == [True]

    eventually(another, "another agent is made")
    release.namespace_of_driver.wait_pod(release.pod_name(AGENT), "Running")
    socket = release.cluster.kubelet_root / "plugins" / DRIVER / "mps/agent.sock"
    eventually(socket.exists, "the new agent serves")


def _images(release: Release, part: str) -> set[str]:
    return {
        status["image"].rpartition(":")[2]
        for each in release.pods(part)
        for status in each["status"]["containerStatuses"]
    }


def test_a_pod_ends_when_the_driver_is_there_again(release: Release) -> None:
    """Without a driver the kubelet can't unprepare its claim, so that it stays `Terminating`."""
    with release.namespace() as namespace:
        namespace.apply(claim("held"))
        namespace.run(pod("late", claims=use("held")))
        held = release.leftovers()
        release.uninstall()
        late = f"/api/v1/namespaces/{namespace.name}/pods/late"
        release.cluster.api.delete(late)
        release.cluster.api.wait(late, _has_ended, "without a running container")
        namespace.run(pod("marker"))  # it ends later, and is gone
        namespace.delete_pod("marker")
        assert namespace.pod("late")["metadata"]["deletionTimestamp"]
        assert release.leftovers() == held
        release.install()
        release.cluster.api.wait_gone(late, 120)


def _has_ended(found: Object) -> bool:
    statuses = found.get("status", {}).get("containerStatuses", [])
    return bool(statuses) and all("terminated" in each["state"] for each in statuses)
