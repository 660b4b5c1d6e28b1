"""Two nodes that run nothing, and on each the token of the node plugin's Pod."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.cluster.access import API_ADDRESS
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.driver import ACCOUNT, CHECKOUT
from tests.cluster.workload import pod

A: Final = "policy-a"
B: Final = "policy-b"
NODES: Final = "/api/v1/nodes"
_PODS: Final = f"/api/v1/namespaces/{ACCOUNT[0]}/pods"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ROLE: Final = "test:node-plugins-do-what-a-policy-may-refuse"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


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


class TwoNodes:
    """The nodes, the plugin's tokens `a` and `b`, and all rights on what one policy is about."""

    def __init__(self, cluster: Cluster, policy: str, manifest: str, rule: Object) -> None:
        """Apply the manifest of the policy; `rule` is what the plugin's account may do beside."""
        self.cluster = cluster
        self.policy = policy
        for name in ("rbac.yaml", manifest):
            cluster.apply(CHECKOUT / "deploy/manifests" / name)
        self._grant({**rule, "verbs": ["*"]})
        for node in (A, B):
            made = {"metadata": {"name": node}, "spec": {"unschedulable": True}}
            cluster.api.create(NODES, made)
            cluster.api.create(_PODS, pod(node, nodeName=node, serviceAccountName=ACCOUNT[1]))
        self.a, self.b = token(cluster, A), token(cluster, B)

    def _grant(self, rule: Object) -> None:
        """Grant all verbs, so that nothing but the policy can refuse."""
        subject = {"kind": "ServiceAccount", "namespace": ACCOUNT[0], "name": ACCOUNT[1]}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _ROLE}
        named = {"metadata": {"name": _ROLE}}
        self.cluster.api.create(f"{_RBAC}/clusterroles", {**named, "rules": [rule]})
        binding = {**named, "roleRef": role, "subjects": [subject]}
        self.cluster.api.create(f"{_RBAC}/clusterrolebindings", binding)

    def refused(self, call: Callable[..., object], *arguments: Any, **more: str) -> str:
        """Give the words of the policy."""
        with pytest.raises(ApiError) as caught:
            call(*arguments, **more)
        assert caught.value.status == 403
        assert self.policy in caught.value.body, "refused by the policy, not by RBAC"
        return caught.value.body

    def counts(self, call: Callable[..., object], *arguments: Any) -> bool:
        """Whether the policy refuses this already."""
        try:
            call(*arguments)
        except ApiError as error:
            return self.policy in error.body
        return False

    def is_type_checked(self) -> bool:
        """Whether the API server finds nothing wrong in the policy."""
        checked = self.cluster.api.wait(
            f"{_POLICIES}/{self.policy}",
            lambda found: "typeChecking" in found.get("status", {}),
            "checked",
        )
        return bool(checked["status"]["typeChecking"] == {})

    def close(self) -> None:
        """Remove nodes and rights; the policy stays, as rbac.yaml does."""
        api = self.cluster.api
        for kind in ("clusterrolebindings", "clusterroles"):
            api.delete(f"{_RBAC}/{kind}/{_ROLE}")
        for node in (A, B):
            api.delete(f"{_PODS}/{node}", gracePeriodSeconds="0")
            api.delete(f"{NODES}/{node}")
