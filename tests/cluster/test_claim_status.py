"""A claim's own status tells which partitions were made for it: exporters join metrics by that."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import pytest

from tests.cluster import view
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, claim, profile_class, use
from tests.cluster.driver import DRIVER, Driver, eventually
from tests.cluster.workload import Namespace, pod

_ROLE: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpu-dra-driver-kubelet-plugin"
_RIGHT: Final = ["resourceclaims/driver"]  # asked for from 1.36 on
_WRITES: Final = "gpu_dra_driver_claim_status_writes_total"


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
        created = namespace.claim("parts")["metadata"]["creationTimestamp"]
        version = (node.root / "sys/module/nvidia/version").read_text().strip()
        assert {item["device"]: item["data"]["uuid"] for item in told} == {
            name: view.uuid(node, name) for name in names
        }
        for item in told:
            gpu, instance = view.device(node, item["device"])
            assert (item["driver"], item["pool"]) == (DRIVER, partitioning.cluster.node_name)
            assert item["data"]["parentUUID"] == gpu["uuid"]
            assert item["data"]["profile"] == instance["profile"]
            assert item["data"]["gpuInstanceID"] == instance["id"]
            assert item["data"]["driverVersion"] == version
            (condition,) = item["conditions"]
            assert [condition[key] for key in ("type", "status", "reason")] == [
                "Ready",
                "True",
                "Prepared",
            ]
            assert instance["profile"] in condition["message"]
            assert condition["lastTransitionTime"] >= created, "not before there was a claim"
        assert "devices" not in namespace.claim("whole")["status"]
        namespace.delete_pod("user")
        eventually(
            lambda: "devices" not in namespace.claim("parts").get("status", {}),
            "the status tells of no partition that is gone",
        )


def test_without_the_right_of_newer_releases_all_but_the_status_works(
    partitioning: Driver,
) -> None:
    names = ("first", "second")
    with partitioning.namespace() as namespace:
        with partitioning.replaced() as instance:
            with _without_the_right(partitioning):
                _run(namespace, *names)
                eventually(
                    lambda: instance.metric(_WRITES, result="forbidden") == len(names),
                    "both statuses are refused",
                )
                log = instance.process.log.read_text()
                assert log.count("claims get no device status") == 1, "it is said once"
                assert "allow verb 'associated-node:patch' on 'resourceclaims/driver'" in log
                assert _answers(partitioning, *names) == [HTTPStatus.UNPROCESSABLE_ENTITY] * 2
                for name in names:
                    assert "devices" not in namespace.claim(name)["status"]
                    devices = view.devices_of(namespace, name)
                    seen = view.expected(partitioning.node, devices)
                    assert view.seen(namespace, name) == seen
            _run(namespace, "later")
            _wait_told(namespace, "later")
        for name in names:  # by the instance that was started since
            _wait_told(namespace, name)


@contextmanager
def _without_the_right(driver: Driver) -> Iterator[None]:
    """Take the right away that only the authorizer sees, and give it back."""
    api = driver.cluster.api
    granted = api.get(_ROLE)["rules"]
    left = [rule for rule in granted if rule["resources"] != _RIGHT]
    assert len(left) == len(granted) - 1
    api.patch(_ROLE, {"rules": left})
    try:
        yield
    finally:
        api.patch(_ROLE, {"rules": granted})


def _run(namespace: Namespace, *names: str) -> None:
    """Run a Pod for each name, with a partition by a claim of that name."""
    for name in names:
        namespace.apply(claim(name, profile_class("1g.10gb")), pod(name, claims=use(name)))
    for name in names:
        namespace.wait_pod(name, "Running")


def _answers(driver: Driver, *names: str) -> list[int]:
    """Give how the API server has answered writes of the statuses of these claims."""
    return [
        item["responseStatus"]["code"]
        for item in driver.requests()
        if item["objectRef"].get("subresource") == "status" and item["objectRef"]["name"] in names
    ]


def _wait_told(namespace: Namespace, name: str) -> list[Object]:
    eventually(
        lambda: "devices" in namespace.claim(name)["status"], "the claim's status tells of them"
    )
    found: list[Object] = namespace.claim(name)["status"]["devices"]
    return found
