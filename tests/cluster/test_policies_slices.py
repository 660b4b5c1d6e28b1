"""`policies-slices.yaml` on a real API server: a node's token writes slices of its node only."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.cluster.access import API_ADDRESS
from tests.cluster.api import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.driver import DRIVER, eventually
from tests.cluster.two_nodes import A, B, TwoNodes, token

pytestmark = pytest.mark.every_cluster

_POLICY: Final = "slices-of-the-own-node.gpu-dra-driver.dev"
_GROUP: Final = "/apis/resource.k8s.io"
_names = itertools.count()


def slice_of(node: str = A, *, driver: str = DRIVER, pool: str = "", **spec: Any) -> Object:
    """Build a slice without devices, for a node unless `spec` says otherwise."""
    target = spec or {"nodeName": node}
    made = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    name = f"policy-{next(_names)}"
    return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": made, **target}}


class Fleet(TwoNodes):
    """Two nodes with slices in every version that is served."""

    def __init__(self, cluster: Cluster) -> None:
        rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"]}
        super().__init__(cluster, _POLICY, "policies-slices.yaml", rule)
        served = cluster.api.get(_GROUP)["versions"]
        lists = {each["version"]: cluster.api.get(f"{_GROUP}/{each['version']}") for each in served}
        self.paths = [
            f"{_GROUP}/{version}/resourceslices"
            for version, found in lists.items()
            if any(each["name"] == "resourceslices" for each in found["resources"])
        ]

    def names(self) -> set[str]:
        """Names of the slices of these tests."""
        items = self.cluster.api.get(self.paths[0])["items"]
        found = {str(each["metadata"]["name"]) for each in items}
        return {name for name in found if name.startswith("policy-")}

    def remove_slices(self) -> None:
        for name in self.names():
            self.cluster.api.delete(f"{self.paths[0]}/{name}")


@pytest.fixture(scope="module")
def installed_fleet(cluster: Cluster) -> Iterator[Fleet]:
    made = Fleet(cluster)
    other = (f"{made.paths[0]}?dryRun=All", slice_of(B))
    eventually(lambda: made.counts(made.a.create, *other), "the policy counts")
    yield made
    made.close()


@pytest.fixture
def fleet(installed_fleet: Fleet) -> Iterator[Fleet]:
    """Give nodes without slices."""
    yield installed_fleet
    installed_fleet.remove_slices()


def test_each_verb_in_each_version_for_the_own_node_only(fleet: Fleet) -> None:
    print("versions:", *fleet.paths)
    for path in fleet.paths:
        made = fleet.a.create(path, slice_of(A))
        assert f"spec.nodeName {B} only" in fleet.refused(fleet.b.create, path, slice_of(A))
        one = f"{path}/{made['metadata']['name']}"
        made["spec"]["pool"]["generation"] = 2
        fleet.refused(fleet.b.update, one, made)
        assert fleet.a.update(one, made)["spec"]["pool"]["generation"] == 2
        patch = {"spec": {"pool": {"generation": 3}}}
        fleet.refused(fleet.b.patch, one, patch)
        assert fleet.a.patch(one, patch)["spec"]["pool"]["generation"] == 3
        fleet.refused(fleet.b.delete, one)
        fleet.a.delete(one)
        kept = {fleet.a.create(path, slice_of(A))["metadata"]["name"] for _ in range(2)}
        selector = f"spec.nodeName={A}"
        fleet.refused(fleet.b.delete, path, fieldSelector=selector)
        assert fleet.names() == kept
        fleet.a.delete(path, fieldSelector=selector)
        assert fleet.names() == set()


def test_nothing_but_slices_of_this_driver_for_one_node(fleet: Fleet) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [A]}]}
    elsewhere: list[Object] = [{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": [term]}}]
    if fleet.cluster.settings.has("DRAPartitionableDevices"):
        device = {"name": "d", "nodeName": A}
        elsewhere.append({"perDeviceNodeSelection": True, "devices": [device]})
    path = f"{_GROUP}/v1/resourceslices"
    for spec in elsewhere:
        assert "not for other nodes, all" in fleet.refused(fleet.a.create, path, slice_of(**spec))
    other = slice_of(driver="nic.example.com")
    assert "not of nic.example.com" in fleet.refused(fleet.a.create, path, other)
    assert f"not of {B}" in fleet.refused(fleet.a.create, path, slice_of(pool=B))
    fleet.a.create(f"{path}?dryRun=All", slice_of(pool=f"{A}/more"))
    fleet.cluster.api.create(path, other)
    one = f"{path}/{other['metadata']['name']}"
    fleet.refused(fleet.a.delete, one)
    fleet.refused(fleet.a.patch, one, {"metadata": {"labels": {"a": "b"}}})


def test_a_token_that_is_bound_to_no_node_writes_nothing(fleet: Fleet) -> None:
    path = f"{_GROUP}/v1/resourceslices"
    own = fleet.a.create(path, slice_of(A))
    unbound = token(fleet.cluster)
    said = "this token is bound to no node"
    assert said in fleet.refused(unbound.create, path, slice_of(A))
    assert said in fleet.refused(unbound.delete, f"{path}/{own['metadata']['name']}")


def test_the_kubelet_removes_slices_of_a_driver_that_is_gone(fleet: Fleet) -> None:
    path = f"{_GROUP}/v1/resourceslices"
    name = fleet.a.create(path, slice_of(A))["metadata"]["name"]
    authority = fleet.cluster.authority
    identity = authority.client("kubelet-of-policy-a", f"system:node:{A}", "system:nodes")
    kubelet = Api(API_ADDRESS, authority, identity)
    kubelet.delete(path, fieldSelector=f"spec.driver={DRIVER},spec.nodeName={A}")
    assert name not in fleet.names()


def test_the_api_server_finds_nothing_wrong_in_the_policy(fleet: Fleet) -> None:
    assert fleet.is_type_checked()
