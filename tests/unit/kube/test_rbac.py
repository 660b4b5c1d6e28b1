"""The driver's rights in `deploy/manifests/rbac.yaml` are those it uses, and no more."""

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
SYNTHETIC = "resourceclaims/driver"  # asked for by the API server itself, never in a path


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    (role,) = (each for each in documents if each["kind"] == "ClusterRole")
    found: list[dict[str, Any]] = role["rules"]
    return found


def use_everything(kube: KubeClient) -> None:
    """Make every request that the client can make."""
    device = DeviceStatus(NODE, "gpu-0", "MIG-1", "GPU-1", "1g.10gb", Placement(0, 1))
    made = kube.create_slice(slice_of())
    made = kube.replace_slice(made)
    kube.list_slices()
    kube.watch_slices(made["metadata"]["resourceVersion"], 1, 5).close()
    kube.delete_slice("slice", made["metadata"]["uid"], made["metadata"]["resourceVersion"])
    kube.create_event("team", {"metadata": {"name": "e", "namespace": "team"}})
    with suppress(DriverError):
        kube.node_uid(NODE)
    with suppress(DriverError):
        kube.get_claim(CLAIM, 10)
    with suppress(DriverError):
        kube.apply_claim_status(ClaimStatus(CLAIM, 0, (device,)))


def test_the_rights_are_exactly_those_that_are_used(
    server: ApiServer, kube: KubeClient, rules: list[dict[str, Any]]
) -> None:
    methods = {name for name in vars(KubeClient) if not name.startswith("_")}
    harmless = {"close", "server_version"}  # /version is open to everybody
    use_everything(kube)
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
    assert len(used) == len(methods - harmless), "every method of the client is tried here"


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
