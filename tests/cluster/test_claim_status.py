"""A claim's own status tells which partitions were made for it: exporters join metrics by that."""

from typing import Final

import pytest

from tests.cluster import view
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, claim, profile_class, use
from tests.cluster.driver import DRIVER, Driver, eventually
from tests.cluster.workload import Namespace, pod

_ROLE: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpu-dra-driver-kubelet-plugin"
_RIGHT: Final = ["resourceclaims/driver"]  # asked for from 1.36 on


@pytest.mark.gate("DRAPartitionableDevices")
def test_the_status_of_a_claim_names_its_partitions(partitioning: Driver) -> None:
    node = partitioning.node
    with partitioning.namespace() as namespace:
        namespace.apply(
            claim("parts", profile_class("1g.10gb"), count=2), claim("whole", GPU_CLASS)
        )
        namespace.run(pod("user", claims=use("parts", "whole")))
        names = view.allocated(namespace.claim("parts"))
        told = _wait_told(namespace, "parts")
        assert {item["device"]: item["data"]["uuid"] for item in told} == {
            name: view.uuid(node, name) for name in names
        }
        for item in told:
            gpu, instance = view.device(node, item["device"])
            assert (item["driver"], item["pool"]) == (DRIVER, partitioning.cluster.node_name)
            assert item["data"]["parentUUID"] == gpu["uuid"]
            assert item["data"]["profile"] == instance["profile"]
            assert item["data"]["gpuInstanceID"] == instance["id"]
            assert [(each["type"], each["status"]) for each in item["conditions"]] == [
                ("Ready", "True")
            ]
        assert "devices" not in namespace.claim("whole")["status"]
        namespace.delete_pod("user")
        eventually(
            lambda: "devices" not in namespace.claim("parts").get("status", {}),
            "the status tells of no partition that is gone",
        )


def test_without_the_right_of_newer_releases_all_else_works(partitioning: Driver) -> None:
    api = partitioning.cluster.api
    role = api.get(_ROLE)
    granted = role["rules"]
    api.patch(_ROLE, {"rules": [rule for rule in granted if rule["resources"] != _RIGHT]})
    try:
        with partitioning.replaced() as instance, partitioning.namespace() as namespace:
            namespace.apply(claim("part", profile_class("1g.10gb")))
            namespace.run(pod("user", claims=use("part")))
            eventually(
                lambda: "associated-node:patch" in instance.process.log.read_text(),
                "it is said which right is missing",
            )
            assert "devices" not in namespace.claim("part")["status"]
            names = view.devices_of(namespace, "user")
            assert view.seen(namespace, "user") == view.expected(partitioning.node, names)
    finally:
        api.patch(_ROLE, {"rules": granted})


def _wait_told(namespace: Namespace, name: str) -> list[Object]:
    eventually(
        lambda: "devices" in namespace.claim(name)["status"], "the claim's status tells of them"
    )
    found: list[Object] = namespace.claim(name)["status"]["devices"]
    return found
