"""`policies-nodes.yaml` on a real API server: a node's token sets one label of its own Node."""

from collections.abc import Iterator
from typing import Final

import pytest

from dra_driver.claims.layout_label import CONFIG, STATE
from tests.cluster.api import Object
from tests.cluster.cluster import Cluster
from tests.cluster.driver import CHECKOUT, eventually
from tests.cluster.two_nodes import NODES, A, B, TwoNodes, token

pytestmark = pytest.mark.every_cluster

_POLICY: Final = "labels-of-the-own-node.gpu-dra-driver.dev"
_MANIFEST: Final = CHECKOUT / "deploy/manifests/policies-nodes.yaml"
_TAINT: Final = {"key": "example.com/mine", "effect": "NoSchedule"}
_OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": B, "uid": "u"}
_REFUSED: Final[dict[str, Object]] = {
    "another label": {"metadata": {"labels": {CONFIG: "all-disabled"}}},
    "a label beside ours": {"metadata": {"labels": {STATE: "failed", "pool": "mine"}}},
    "another value": {"metadata": {"labels": {"kept": "changed"}}},
    "a label that goes": {"metadata": {"labels": {"kept": None}}},
    "all labels": {"metadata": {"labels": None}},
    "a taint": {"spec": {"taints": [_TAINT]}},
    "a taint that goes": {"spec": {"taints": None}},
    "schedulable again": {"spec": {"unschedulable": None}},
    "an annotation": {"metadata": {"annotations": {"a": "b"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/mine"]}},
    "an owner": {"metadata": {"ownerReferences": [_OWNER]}},
}


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[TwoNodes]:
    """Give two nodes with a taint, a label of others, and ours."""
    rule = {"apiGroups": [""], "resources": ["nodes", "nodes/status"]}
    made = TwoNodes(cluster, _POLICY, _MANIFEST.name, rule)
    for name in (A, B):
        cluster.api.patch(f"{NODES}/{name}", {"metadata": {"labels": {"kept": "b", STATE: "x"}}})
    other = (f"{NODES}/{B}?dryRun=All", label("failed"))
    eventually(lambda: made.counts(made.a.patch, *other), "the policy counts")
    yield made
    made.close()
    cluster.kubectl("delete", f"--filename={_MANIFEST}")


def label(state: str | None) -> Object:
    return {"metadata": {"labels": {STATE: state}}}


def labels(nodes: TwoNodes, name: str) -> dict[str, str]:
    found: dict[str, str] = nodes.cluster.api.get(f"{NODES}/{name}")["metadata"]["labels"]
    return found


def test_our_label_of_the_own_node_is_set_changed_and_removed(nodes: TwoNodes) -> None:
    for state in ("pending", "success", None):
        nodes.a.patch(f"{NODES}/{A}", label(state))
        assert labels(nodes, A).get(STATE) == state
    whole = nodes.a.get(f"{NODES}/{A}")
    whole["metadata"]["labels"][STATE] = "failed"
    nodes.a.update(f"{NODES}/{A}", whole)
    assert labels(nodes, A)[STATE] == "failed"
    assert f"changes Node {A} only" in nodes.refused(nodes.a.patch, f"{NODES}/{B}", label("x"))
    assert labels(nodes, B)[STATE] == "x"


def test_nothing_else_of_the_own_node_is_changed(nodes: TwoNodes) -> None:
    for what, patch in _REFUSED.items():
        told = nodes.refused(nodes.a.patch, f"{NODES}/{A}?dryRun=All", patch)
        assert f"sets label {STATE} of its Node, and " in told, what
    condition = {"type": "Ready", "status": "False"}
    status = {"status": {"conditions": [condition]}}
    assert "not its status" in nodes.refused(nodes.a.patch, f"{NODES}/{A}/status", status)
    assert "nor deletes" in nodes.refused(nodes.a.delete, f"{NODES}/{A}")
    assert "nor deletes" in nodes.refused(nodes.a.delete, NODES, fieldSelector=f"metadata.name={A}")
    assert "neither makes" in nodes.refused(nodes.a.create, NODES, {"metadata": {"name": "new"}})


def test_a_token_that_is_bound_to_no_node_labels_nothing(nodes: TwoNodes) -> None:
    unbound = token(nodes.cluster)
    told = nodes.refused(unbound.patch, f"{NODES}/{A}", label("failed"))
    assert "this token is bound to no node" in told


def test_the_api_server_finds_nothing_wrong_in_the_policy(nodes: TwoNodes) -> None:
    assert nodes.is_type_checked()
