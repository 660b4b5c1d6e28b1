"""Two allocators on a node, and whose a GPU is by what everybody can read (field report B43)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
import pytest

from dra_driver.rpc import podresources_v1_pb2 as messages
from dra_driver.rpc.podresources_v1_pb2_grpc import PodResourcesListerStub
from tests.cluster import view
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, by_uuid, claim, profile_class, use
from tests.cluster.driver import CHECKOUT, DRIVER, eventually
from tests.cluster.release import Release
from tests.cluster.workload import Namespace, pod

_METRIC: Final = "gpu_dra_driver_other_allocator"
_DYNAMIC: Final = CHECKOUT / "examples/nodeconfigs/dynamic.yaml"
_Key = tuple[str, str, str]  # driver, pool, device


@contextmanager
def device_plugin(release: Release, gpus: str) -> Iterator[None]:
    """Let the Node's status be as with a device plugin that offers so many GPUs."""
    path = f"/api/v1/nodes/{release.cluster.node_name}/status"

    def offer(amount: str | None) -> None:
        counted = {"nvidia.com/gpu": amount}
        patch = {"status": {"capacity": counted, "allocatable": counted}}
        release.cluster.api.patch(path, patch)

    offer(gpus)
    try:
        yield
    finally:
        offer(None)


def test_b43_a_second_allocator_is_told_of_while_it_is_there(release: Release) -> None:
    assert release.metrics(_METRIC) == [0]
    with device_plugin(release, "8"):
        eventually(lambda: release.metrics(_METRIC) == [1], "the metric tells", 120)
        status, text = release.page("/readyz")
        (first, note) = text.splitlines()
        assert (status, first) == (200, "ok"), "it serves on"
        assert "a device plugin gives out GPUs of this Node too (nvidia.com/gpu=8" in note
        release.wait_node_event("OtherAllocator", note.removeprefix("note: "))
    eventually(lambda: release.metrics(_METRIC) == [0], "its end is noticed", 120)
    assert release.page("/readyz") == (200, "ok\n")
    release.wait_settled()


@pytest.mark.gate("DRAPartitionableDevices")
def test_b43_exporters_find_out_which_gpu_a_container_has(release: Release) -> None:
    with release.configured(_DYNAMIC.read_text()), release.namespace() as namespace:
        made_for_it = by_uuid("")  # not one that is there, whose UUID its slice tells
        part = claim("part", profile_class("1g.10gb"), made_for_it)
        namespace.apply(part, claim("whole", GPU_CLASS))
        namespace.run(pod("user", claims=use("part", "whole")))
        names = view.devices_of(namespace, "user")
        eventually(lambda: "devices" in namespace.claim("part")["status"], "its status tells")
        held = held_by(release.cluster.kubelet_root, namespace.name, "user")
        assert {device for _, _, _, device in held} == set(names)
        for name, *key in held:
            driver, pool, device = key
            assert uuid_by_objects(release, namespace, name, (driver, pool, device)) == view.uuid(
                release.node, device
            )
    release.wait_settled()


def held_by(kubelet_root: Path, namespace: str, name: str) -> set[tuple[str, str, str, str]]:
    """Claim, driver, pool and device of all that a Pod holds, as the kubelet tells exporters."""
    address = f"unix:{quote(str(kubelet_root / 'pod-resources/kubelet.sock'))}"
    with grpc.insecure_channel(address) as channel:
        answer = PodResourcesListerStub(channel).List(messages.ListPodResourcesRequest())
    return {
        (claim.claim_name, each.driver_name, each.pool_name, each.device_name)
        for found in answer.pod_resources
        if (found.namespace, found.name) == (namespace, name)
        for container in found.containers
        for claim in container.dynamic_resources
        for each in claim.claim_resources
    }


def uuid_by_objects(release: Release, namespace: Namespace, name: str, key: _Key) -> str:
    """Find a UUID as an exporter does: in the slice, else in the status of the claim."""
    published: dict[_Key, Object] = {
        (DRIVER, each["spec"]["pool"]["name"], device["name"]): device["attributes"]
        for each in release.slices()
        for device in each["spec"].get("devices") or []
    }
    if "uuid" in published[key]:
        return str(published[key]["uuid"]["string"])
    (told,) = (
        each["data"]["uuid"]
        for each in namespace.claim(name)["status"]["devices"]
        if (each["driver"], each["pool"], each["device"]) == key
    )
    return str(told)
