"""`policies-slices.yaml` on a real API server: a node's token writes slices of its node only."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.cluster.access import API_ADDRESS
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.driver import ACCOUNT, CHECKOUT, DRIVER, eventually
from tests.cluster.workload import pod

pytestmark = pytest.mark.every_cluster

_MANIFESTS: Final = ("rbac.yaml", "policies-slices.yaml")
_POLICY: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/"
    "slices-of-the-own-node.gpu-dra-driver.dev"
)
_GROUP: Final = "/apis/resource.k8s.io"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ROLE: Final = "test:node-plugins-do-all-with-slices"
_PODS: Final = f"/api/v1/namespaces/{ACCOUNT[0]}/pods"
_A, _B = "policy-a", "policy-b"
_names = itertools.count()


def slice_of(node: str = _A, *, driver: str = DRIVER, pool: str = "", **spec: Any) -> Object:
    """Build a slice without devices, for a node unless `spec` says otherwise."""
    target = spec or {"nodeName": node}
    made = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    name = f"policy-{next(_names)}"
    return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": made, **target}}


def token(cluster: Cluster, pod_name: str = "") -> Api:
    """Act as the node plugin, with the token of a Pod if there is one."""
    spec: Object = {"expirationSeconds": 3600}
    if pod_name:
        uid = cluster.api.get(f"{_PODS}/{pod_name}")["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": uid}
        spec["boundObjectRef"] = bound
    namespace, name = ACCOUNT
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    answer = cluster.api.create(path, {"spec": spec})
    return Api(API_ADDRESS, cluster.authority, answer["status"]["token"])


def refused(call: Callable[..., object], *arguments: Any, **more: str) -> str:
    """Give the words of the policy."""
    with pytest.raises(ApiError) as caught:
        call(*arguments, **more)
    assert caught.value.status == 403
    assert "slices-of-the-own-node" in caught.value.body, "refused by the policy, not by RBAC"
    return caught.value.body


class Fleet:
    """Two nodes that run nothing, the token of the node plugin's Pod on each, and all rights."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        for manifest in _MANIFESTS:
            cluster.apply(CHECKOUT / "deploy/manifests" / manifest)
        self._grant()
        for node in (_A, _B):
            made = {"metadata": {"name": node}, "spec": {"unschedulable": True}}
            cluster.api.create("/api/v1/nodes", made)
            cluster.api.create(_PODS, pod(node, nodeName=node, serviceAccountName=ACCOUNT[1]))
        self.a, self.b = token(cluster, _A), token(cluster, _B)
        served = cluster.api.get(_GROUP)["versions"]
        lists = {each["version"]: cluster.api.get(f"{_GROUP}/{each['version']}") for each in served}
        self.paths = [
            f"{_GROUP}/{version}/resourceslices"
            for version, found in lists.items()
            if any(each["name"] == "resourceslices" for each in found["resources"])
        ]

    def _grant(self) -> None:
        """Grant all verbs, so that nothing but the policy can refuse."""
        rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["*"]}
        subject = {"kind": "ServiceAccount", "namespace": ACCOUNT[0], "name": ACCOUNT[1]}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _ROLE}
        named = {"metadata": {"name": _ROLE}}
        self.cluster.api.create(f"{_RBAC}/clusterroles", {**named, "rules": [rule]})
        binding = {**named, "roleRef": role, "subjects": [subject]}
        self.cluster.api.create(f"{_RBAC}/clusterrolebindings", binding)

    def names(self) -> set[str]:
        """Names of the slices of these tests."""
        items = self.cluster.api.get(self.paths[0])["items"]
        found = {str(each["metadata"]["name"]) for each in items}
        return {name for name in found if name.startswith("policy-")}

    def close(self) -> None:
        api = self.cluster.api
        for kind in ("clusterrolebindings", "clusterroles"):
            api.delete(f"{_RBAC}/{kind}/{_ROLE}")
        for node in (_A, _B):
            api.delete(f"{_PODS}/{node}", gracePeriodSeconds="0")
            api.delete(f"/api/v1/nodes/{node}")

    def remove_slices(self) -> None:
        for name in self.names():
            self.cluster.api.delete(f"{self.paths[0]}/{name}")


@pytest.fixture(scope="module")
def installed_fleet(cluster: Cluster) -> Iterator[Fleet]:
    made = Fleet(cluster)

    def counts() -> bool:
        try:
            made.a.create(f"{made.paths[0]}?dryRun=All", slice_of(_B))
        except ApiError as error:
            return "slices-of-the-own-node" in error.body
        return False

    eventually(counts, "the policy counts")
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
        made = fleet.a.create(path, slice_of(_A))
        assert f"spec.nodeName {_B} only" in refused(fleet.b.create, path, slice_of(_A))
        one = f"{path}/{made['metadata']['name']}"
        made["spec"]["pool"]["generation"] = 2
        refused(fleet.b.update, one, made)
        assert fleet.a.update(one, made)["spec"]["pool"]["generation"] == 2
        patch = {"spec": {"pool": {"generation": 3}}}
        refused(fleet.b.patch, one, patch)
        assert fleet.a.patch(one, patch)["spec"]["pool"]["generation"] == 3
        refused(fleet.b.delete, one)
        fleet.a.delete(one)
        kept = {fleet.a.create(path, slice_of(_A))["metadata"]["name"] for _ in range(2)}
        selector = f"spec.nodeName={_A}"
        refused(fleet.b.delete, path, fieldSelector=selector)
        assert fleet.names() == kept
        fleet.a.delete(path, fieldSelector=selector)
        assert fleet.names() == set()


def test_nothing_but_slices_of_this_driver_for_one_node(fleet: Fleet) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [_A]}]}
    elsewhere: list[Object] = [{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": [term]}}]
    if fleet.cluster.settings.has("DRAPartitionableDevices"):
        device = {"name": "d", "nodeName": _A}
        elsewhere.append({"perDeviceNodeSelection": True, "devices": [device]})
    path = f"{_GROUP}/v1/resourceslices"
    for spec in elsewhere:
        assert "not for other nodes, all" in refused(fleet.a.create, path, slice_of(**spec))
    other = slice_of(driver="nic.example.com")
    assert "not of nic.example.com" in refused(fleet.a.create, path, other)
    assert f"not of {_B}" in refused(fleet.a.create, path, slice_of(pool=_B))
    fleet.a.create(f"{path}?dryRun=All", slice_of(pool=f"{_A}/more"))
    fleet.cluster.api.create(path, other)
    one = f"{path}/{other['metadata']['name']}"
    refused(fleet.a.delete, one)
    refused(fleet.a.patch, one, {"metadata": {"labels": {"a": "b"}}})


def test_a_token_that_is_bound_to_no_node_writes_nothing(fleet: Fleet) -> None:
    path = f"{_GROUP}/v1/resourceslices"
    own = fleet.a.create(path, slice_of(_A))
    unbound = token(fleet.cluster)
    said = "this token is bound to no node"
    assert said in refused(unbound.create, path, slice_of(_A))
    assert said in refused(unbound.delete, f"{path}/{own['metadata']['name']}")


def test_the_kubelet_removes_slices_of_a_driver_that_is_gone(fleet: Fleet) -> None:
    path = f"{_GROUP}/v1/resourceslices"
    name = fleet.a.create(path, slice_of(_A))["metadata"]["name"]
    authority = fleet.cluster.authority
    identity = authority.client("kubelet-of-policy-a", f"system:node:{_A}", "system:nodes")
    kubelet = Api(API_ADDRESS, authority, identity)
    kubelet.delete(path, fieldSelector=f"spec.driver={DRIVER},spec.nodeName={_A}")
    assert name not in fleet.names()


def test_the_api_server_finds_nothing_wrong_in_the_policy(fleet: Fleet) -> None:
    checked = fleet.cluster.api.wait(
        _POLICY, lambda found: "typeChecking" in found.get("status", {}), "checked"
    )
    assert checked["status"]["typeChecking"] == {}
