"""The driver's rights in `deploy/manifests/rbac.yaml` are those it uses, and no more."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.config import DEFAULT_DRIVER_NAME
from dra_driver.kube import KubeClient
from dra_driver.model import ClaimRef, ClaimStatus, DeviceStatus, DriverError, Placement
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import NODE, slice_of

MANIFEST = Path(__file__).parents[3] / "deploy/manifests/rbac.yaml"
CLAIM = ClaimRef("team", "c", "u")
NEED_NO_RIGHT = {"close", "server_version"}  # /version is open to everybody
ONLY_WHEN_ASKED = {"label_node"}  # --mig-config-label: the chart grants it with its switch
SYNTHETIC = "resourceclaims/driver"  # asked for by the API server itself, never in a path


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    (role,) = (each for each in documents if each["kind"] == "ClusterRole")
    found: list[dict[str, Any]] = role["rules"]
    return found


def use_everything(kube: KubeClient) -> set[str]:
    """Make every request that the plugin makes by default; gives the methods that were called."""
    device = DeviceStatus(NODE, "gpu-0", "MIG-1", "GPU-1", "1g.10gb", Placement(0, 1))
    made = kube.create_slice(slice_of())
    version = kube.replace_slice(made)["metadata"]["resourceVersion"]
    calls: dict[str, Callable[[], object]] = {
        "list_slices": kube.list_slices,
        "watch_slices": lambda: kube.watch_slices(version, 1, 5).close(),
        "delete_slice": lambda: kube.delete_slice("slice", made["metadata"]["uid"], version),
        "create_event": lambda: kube.create_event("team", {"metadata": {"name": "e"}}),
        "node_uid": lambda: kube.node_uid(NODE),
        "node_labels": kube.node_labels,
        "get_claim": lambda: kube.get_claim(CLAIM, 10),
        "apply_claim_status": lambda: kube.apply_claim_status(ClaimStatus(CLAIM, 0, (device,))),
    }
    for call in calls.values():
        with suppress(DriverError):  # the node and the claim are not there
            call()
    return {"create_slice", "replace_slice", *calls}


def test_the_rights_are_exactly_those_that_are_used(
    server: ApiServer, kube: KubeClient, rules: list[dict[str, Any]]
) -> None:
    called = use_everything(kube)
    methods = {name for name in vars(KubeClient) if not name.startswith("_")}
    assert methods - called == NEED_NO_RIGHT | ONLY_WHEN_ASKED
    used = {
        (entry.verb, entry.resource + ("/status" if "/status?" in entry.url else ""))
        for entry in server.requests.all()
    }
    granted = {
        (verb, resource)
        for rule in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if resource != SYNTHETIC
    }
    assert granted == used


def test_from_1_36_on_only_our_own_entries_on_our_own_node_may_be_written(
    rules: list[dict[str, Any]],
) -> None:
    (rule,) = (each for each in rules if SYNTHETIC in each["resources"])
    assert rule == {
        "apiGroups": ["resource.k8s.io"],
        "resources": [SYNTHETIC],
        "resourceNames": [DEFAULT_DRIVER_NAME],
        "verbs": ["associated-node:patch"],
    }


def test_nothing_is_granted_by_a_wildcard(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        for key in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[key]
