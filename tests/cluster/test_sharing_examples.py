"""The examples about sharing, each with the node configuration that it names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.cluster import examples, view
from tests.cluster.claims import (
    MIG_CLASS,
    by_uuid,
    claim,
    from_template,
    profile_class,
    template,
    use,
)
from tests.cluster.driver import eventually
from tests.cluster.mps import MpsNode
from tests.cluster.release import Release
from tests.cluster.workload import Namespace, pod

_GIB: Final = 1 << 30
_BOTH: Final = "first", "second"
# Containers of each Pod; `_BOTH` have the same device.
_ALONE: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "22-time-slices": {
        f"time-slices-{word}": _BOTH for word in ("default", "short", "medium", "long")
    },
    "24-mps-limits": {"mps-limits": _BOTH},
    "27-mps-on-a-partition": {"mps-on-a-partition": _BOTH},
    "28-two-strategies": {"two-strategies": ("turns", "together")},
}
_SHARED_PODS: Final = "23-shared-pods"
_NAMESPACES: Final = "25-mps-namespaces"
_MEMORY: Final = "26-memory-shares"
_EITHER: Final = "29-partition-or-share"
EXAMPLES: Final = {*_ALONE, _SHARED_PODS, _NAMESPACES, _MEMORY, _EITHER}


@pytest.fixture
def mps(release: Release) -> Iterator[MpsNode]:
    """Give the node with the MPS agent, of whose work nothing is left in the end."""
    node = MpsNode(release)
    yield node
    assert node.leftovers() == []
    release.wait_settled()


@contextmanager
def _with_config(release: Release, name: str, *wanted: str) -> Iterator[Namespace]:
    """Give a namespace on a node with a configuration, by which GPU 1 is shared.

    Waits for this and for devices that it makes; in the end nothing of it is left.
    """

    def is_shared() -> bool:
        found = {item["name"]: item for item in release.devices()}
        shared = bool(found.get("gpu-1", {}).get("allowMultipleAllocations"))
        return shared and found.keys() >= set(wanted)

    with release.configured(examples.node_config(f"{name}.yaml")):
        eventually(is_shared, f"the node is as {name} says")
        with release.namespace() as namespace:
            yield namespace
    eventually(
        lambda: not any("allowMultipleAllocations" in item for item in release.devices()),
        "nothing is shared any more",
    )


def test_containers_share_what_their_pod_has(release: Release, mps: MpsNode) -> None:
    """All examples at once whose claims have their devices alone."""
    with release.namespace() as namespace:
        namespace.apply(*(item for name in _ALONE for item in examples.objects(name)))
        pods = {name: both for made in _ALONE.values() for name, both in made.items()}
        for name in pods:
            namespace.wait_pod(name, "Running")
        for name, containers in pods.items():
            found = [_device(mps, namespace, name, container) for container in containers]
            assert (found[0] == found[1]) == (containers == _BOTH)
        intervals = [_gpu(mps, namespace, name)["timeslice"] for name in _ALONE["22-time-slices"]]
        assert intervals == [0, 1, 2, 3]
        _check_limits(mps, namespace)
        _check_strategies(mps, namespace)
    assert mps.leftovers() == []


def _check_limits(mps: MpsNode, namespace: Namespace) -> None:
    """Look at the daemons of two examples, which their containers reach."""
    limits = {
        daemon["visibleDevices"]: (daemon["activeThreadPercentage"], daemon["pinnedMemoryLimits"])
        for daemon in mps.node.show()["mps"]
    }
    for name, wanted in {"mps-limits": 30 * _GIB, "mps-on-a-partition": 4 * _GIB}.items():
        (device,) = view.devices_of(namespace, name, "first")
        threads, memory = limits[view.uuid(mps.node, device)]
        assert memory == {"0": wanted}
        assert (threads == 50) == (name == "mps-limits")
        assert all(_reaches_mps(namespace, name, container) for container in _BOTH)


def _check_strategies(mps: MpsNode, namespace: Namespace) -> None:
    """Look at the GPUs of one claim, of which each has its own strategy."""
    name = "two-strategies"
    sliced, served = (_gpu(mps, namespace, name, container) for container in ("turns", "together"))
    assert (sliced["timeslice"], sliced["computeMode"]) == (3, "DEFAULT")
    assert (served["timeslice"], served["computeMode"]) == (0, "EXCLUSIVE_PROCESS")
    assert _reaches_mps(namespace, name, "together")
    assert not _reaches_mps(namespace, name, "turns")


def test_four_unchanged_pods_have_one_gpu(release: Release, mps: MpsNode) -> None:
    with _with_config(release, "shares") as namespace:
        namespace.apply(*examples.objects(_SHARED_PODS))
        found = examples.running(release, namespace, "app=shared-pods", 4)
        assert found == [{"gpu-0"}] * 4


def test_two_namespaces_have_one_server(release: Release, mps: MpsNode) -> None:
    with (
        _with_config(release, "shares-mps"),
        examples.own_namespaces(release, _NAMESPACES) as namespaces,
    ):
        for namespace in namespaces:
            namespace.wait_pod("mps-namespaces", "Running")
            assert _device(mps, namespace, "mps-namespaces") == "gpu-0"
        assert mps.daemon()["multiUser"]
        users = {each.exec("mps-namespaces", ["id", "-u"]).strip() for each in namespaces}
        assert users == {"1001", "1002"}


def test_pods_have_so_much_memory_of_one_gpu(release: Release, mps: MpsNode) -> None:
    with _with_config(release, "memory") as namespace:
        namespace.apply(*examples.objects(_MEMORY))
        found = examples.running(release, namespace, "app=memory-shares", 3)
        assert found == [{"gpu-0"}] * 3
        for name in namespace.pods("app=memory-shares"):
            (made,) = namespace.claims_of(name).values()
            assert _consumed(made) == ["10Gi"]


def test_a_partition_and_then_a_share(release: Release, mps: MpsNode) -> None:
    """Once the first GPU is full of partitions, and the one of another GPU has its Pod."""
    with _with_config(release, "partition-or-share", "gpu-0-mig-1g20gb-15-6") as namespace:
        namespace.apply(claim("other", MIG_CLASS, _big_partition(mps)))
        namespace.run(pod("other", claims=use("other")))
        namespace.apply(*examples.objects(_EITHER))
        namespace.wait_pod("partition-or-share", "Running")
        first = _device(mps, namespace, "partition-or-share")
        assert view.device(mps.node, first)[1]["profile"] == "1g.20gb"
        namespace.apply(template("rest", profile_class("1g.20gb"), count=3))
        namespace.run(pod("rest", claims=from_template("rest")))
        namespace.run(pod("share", claims=from_template("partition-or-share")))
        assert view.devices_of(namespace, "share") == ["gpu-1"]
        (made,) = namespace.claims_of("share").values()
        assert _consumed(made) == ["10Gi"]


def _device(mps: MpsNode, namespace: Namespace, pod_name: str, container: str = "main") -> str:
    """Name of a container's one device, which it sees, and its log shows."""
    (name,) = examples.looked_into(mps.driver, namespace, pod_name, container)
    lines = view.expected(mps.node, [name]).gpus
    eventually(
        lambda: namespace.logs(pod_name, container) == "\n".join([*lines, ""]),
        f"the log of {pod_name}, {container}, shows its device",
    )
    return name


def _gpu(mps: MpsNode, namespace: Namespace, pod_name: str, container: str = "first") -> Any:
    """Find the simulator's GPU that a container has."""
    (name,) = view.devices_of(namespace, pod_name, container)
    return view.device(mps.node, name)[0]


def _big_partition(mps: MpsNode) -> str:
    """Select the one with room enough of those that are there without any claim."""
    found = [instance for gpu in mps.node.show()["gpus"] for instance in gpu["instances"]]
    (uuid,) = (
        instance["computeInstances"][0]["uuid"]
        for instance in found
        if instance["profile"] == "3g.40gb"
    )
    return by_uuid(uuid)


def _reaches_mps(namespace: Namespace, pod_name: str, container: str) -> bool:
    mounts = namespace.exec(pod_name, ["cat", "/proc/1/mountinfo"], container)
    return "/tmp/nvidia-mps" in mounts


def _consumed(made: Any) -> list[str]:
    """Amounts of memory that a claim has of its devices."""
    results = made["status"]["allocation"]["devices"]["results"]
    return [result["consumedCapacity"]["memory"] for result in results]
