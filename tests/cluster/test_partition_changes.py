"""Nodes change while partitions are made for claims: by hand, by configuration, by power cuts."""

from collections.abc import Mapping
from typing import Final

import pytest

from tests.cluster import power, view
from tests.cluster.claims import GPU_CLASS, by_uuid, claim, of_parent, profile_class, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import pod

# What an H100 80GB offers beside somebody's partition on its memory slices 0 and 1: name and GPU
# instance profile, and where it may begin.
_BESIDE: Final[Mapping[str, range]] = {
    "1g10gb-19": range(2, 7),
    "1g10gb-me-20": range(2, 7),
    "1g20gb-15": range(2, 7, 2),
    "2g20gb-14": range(2, 5, 2),
    "3g40gb-9": range(4, 5),
}
_OTHERS: Final = "2g.20gb"
_REMOVAL_SECONDS: Final = 180.0  # the kubelet calls a driver again after 10 to 60 seconds
_EXISTING: Final = """
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Existing}
"""


@pytest.mark.gate("DRAPartitionableDevices")
def test_a_partition_made_by_hand_takes_its_place_and_gives_it_back(
    partitioning: Driver,
) -> None:
    node, before = partitioning.node, partitioning.device_names()
    gpu = node.gpu(0)
    whole = f"gpu-{gpu['minor']}"
    others = {name for name in before if name.partition("-mig-")[0] != whole}
    beside = {f"{whole}-mig-{kind}-{start}" for kind, starts in _BESIDE.items() for start in starts}
    with partitioning.namespace() as namespace:
        namespace.apply(
            claim("before", profile_class("1g.10gb"), of_parent(gpu["uuid"])),
            claim("beside", profile_class(_OTHERS), of_parent(gpu["uuid"])),
            claim("after", GPU_CLASS, by_uuid(gpu["uuid"])),
        )
        namespace.run(pod("before", claims=use("before")))
        instance = node.state.partition(0, _OTHERS, 0)
        made = f"{whole}-mig-2g20gb-14-0"
        uuid = view.uuid(node, made)
        eventually(lambda: partitioning.device_names() == others | beside, "its place is withdrawn")
        namespace.run(pod("beside", claims=use("beside")))
        namespace.apply(pod("after", claims=use("after")))
        assert "cannot allocate all claims" in namespace.wait_unschedulable("after")
        for name in ("before", "beside"):
            names = view.devices_of(namespace, name)
            assert view.seen(namespace, name) == view.expected(node, names)
            namespace.delete_pod(name)
        assert view.partitions(node) == [made]
        assert view.uuid(node, made) == uuid
        assert node.gpu(0)["mig"]["current"]

        node.state.unpartition(0, instance)
        eventually(lambda: partitioning.device_names() == before, "its place is back")
        namespace.wait_pod("after", "Running")
        assert view.seen(namespace, "after") == view.expected(node, [whole])


def test_the_configuration_changes_while_a_claim_lives(partitioning: Driver) -> None:
    node, before = partitioning.node, partitioning.device_names()
    with partitioning.namespace() as namespace:
        namespace.apply(claim("part", profile_class("3g.40gb")))
        namespace.run(pod("user", claims=use("part")))
        (name,) = view.devices_of(namespace, "user")
        seen = view.seen(namespace, "user")
        with partitioning.configured(_EXISTING):
            whole = {f"gpu-{gpu['minor']}" for gpu in node.show()["gpus"]}
            left = whole - {name.partition("-mig-")[0]}
            eventually(lambda: partitioning.device_names() == left | {name}, "it counts")
            assert view.seen(namespace, "user") == seen

            partitioning.configure("kind: NodeConfig\nrules: 1\n")
            eventually(lambda: not _config_is_valid(partitioning), "what is wrong is noticed")
            assert partitioning.device_names() == left | {name}
            namespace.delete_pod("user")
            assert view.partitions(node) == []
        eventually(lambda: partitioning.device_names() == before, "it counts again")
        assert _config_is_valid(partitioning)


def test_partitions_are_made_again_after_a_reboot(partitioning: Driver) -> None:
    node, names = partitioning.node, {}
    with partitioning.namespace() as namespace:
        namespace.apply(
            claim("stays", profile_class("2g.20gb")), claim("leaves", profile_class("1g.10gb"))
        )
        for pod_name in ("stays", "leaves"):
            made = pod(pod_name, claims=use(pod_name), restartPolicy="Always")
            namespace.run(made)
            names[pod_name] = view.devices_of(namespace, pod_name)
        power.cut(partitioning.cluster)
        partitioning.main.process.kill()
        node.reboot()
        assert view.partitions(node) == []
        power.restore(partitioning.cluster)
        partitioning.main.start()
        for pod_name in ("stays", "leaves"):
            namespace.wait_restarted(pod_name)
            expected = view.expected(node, names[pod_name])
            assert view.seen(namespace, pod_name) == expected
        namespace.delete_pod("leaves")
        assert view.partitions(node) == names["stays"]
    assert view.partitions(node) == []


@pytest.mark.parametrize("place", ["after-mig-mode", "after-gpu-instance"])
def test_killed_while_a_partition_is_made(partitioning: Driver, place: str) -> None:
    with partitioning.namespace() as namespace:
        namespace.apply(claim("part", profile_class("1g.10gb")))
        partitioning.arm(f"prepare:mig/{place}")
        namespace.apply(pod("user", claims=use("part")))
        partitioning.restart_when_killed()
        namespace.wait_pod("user", "Running")
        names = view.devices_of(namespace, "user")
        assert view.seen(namespace, "user") == view.expected(partitioning.node, names)
        assert view.partitions(partitioning.node) == names
        namespace.delete_pod("user")
        _check_nothing_is_left(partitioning)


@pytest.mark.parametrize("place", ["after-remove-compute-instance", "after-remove-gpu-instance"])
def test_killed_while_a_partition_is_removed(partitioning: Driver, place: str) -> None:
    with partitioning.namespace() as namespace:
        namespace.apply(claim("part", profile_class("1g.10gb")))
        namespace.run(pod("user", claims=use("part")))
        partitioning.arm(f"unprepare:mig/{place}")
        path = f"/api/v1/namespaces/{namespace.name}/pods/user"
        partitioning.cluster.api.delete(path)
        partitioning.restart_when_killed()
        partitioning.cluster.api.wait_gone(path, _REMOVAL_SECONDS)
        _check_nothing_is_left(partitioning)


def _check_nothing_is_left(driver: Driver) -> None:
    assert view.partitions(driver.node) == []
    assert not any(gpu["mig"]["current"] for gpu in driver.node.show()["gpus"])
    assert driver.leftovers() == set()


def _config_is_valid(driver: Driver) -> bool:
    return driver.main.metric("gpu_dra_driver_config_valid") == 1
