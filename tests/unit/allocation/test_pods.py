"""Claims for Pods that ask for extended resources."""

from typing import Any

import pytest

from dra_driver.allocation import Claim, DeviceClass, ObjectInvalid, claim_for_pod
from tests.unit.allocation.build import device_class

CLASSES = [
    DeviceClass.parse(manifest)
    for manifest in (
        device_class("gpu.nvidia.com", extended="nvidia.com/gpu"),
        device_class("mig.example", extended="nvidia.com/mig-1g.10gb"),
        device_class("plain"),
    )
]


def _pod(*resources: dict[str, Any], init: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"name": "job", "namespace": "team"},
        "spec": {
            "initContainers": [{"name": f"i{index}"} for index in range(init)],
            "containers": [{"name": "c", "resources": each} for each in resources],
        },
    }


def _wanted(claim: Claim | None) -> list[tuple[str, str, int]]:
    assert claim is not None
    options = [request.alternatives[0] for request in claim.requests]
    return [(option.name, option.class_name, option.count) for option in options]


def test_limits_are_enough() -> None:
    claim = claim_for_pod(_pod({"limits": {"nvidia.com/gpu": 2}}), CLASSES)
    assert _wanted(claim) == [("container-0-request-0", "gpu.nvidia.com", 2)]
    assert str(claim) == "team/job-extended-resources"


def test_requests_are_numbered_among_all_resources_of_the_container() -> None:
    amounts = {"cpu": "500m", "nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu": "1", "memory": "1Gi"}
    claim = claim_for_pod(_pod({"requests": amounts}, {"limits": {"nvidia.com/gpu": "1"}}), CLASSES)
    assert _wanted(claim) == [
        ("container-0-request-2", "gpu.nvidia.com", 1),
        ("container-0-request-3", "mig.example", 1),
        ("container-1-request-0", "gpu.nvidia.com", 1),
    ]


def test_init_containers_count_for_the_numbers_only() -> None:
    claim = claim_for_pod(_pod({"limits": {"nvidia.com/gpu": 1}}, init=2), CLASSES)
    assert _wanted(claim) == [("container-2-request-0", "gpu.nvidia.com", 1)]


def test_every_class_has_an_implicit_resource_name() -> None:
    name = "deviceclass.resource.kubernetes.io/plain"
    claim = claim_for_pod(_pod({"limits": {name: 1}}), CLASSES)
    assert _wanted(claim) == [("container-0-request-0", "plain", 1)]


@pytest.mark.parametrize("limits", [{}, {"cpu": 1}, {"nvidia.com/gpu": 0}, {"other.com/gpu": 1}])
def test_nothing_to_claim(limits: dict[str, Any]) -> None:
    assert claim_for_pod(_pod({"limits": limits}), CLASSES) is None


@pytest.mark.parametrize("amount", ["half", "500m", -1])
def test_an_amount_that_is_no_count(amount: object) -> None:
    with pytest.raises(ObjectInvalid, match=r"Pod team/job\.spec\.containers\[0\]\.resources"):
        claim_for_pod(_pod({"limits": {"nvidia.com/gpu": amount}}), CLASSES)


def test_of_two_classes_for_one_resource_the_newer_counts() -> None:
    older = device_class("b", extended="nvidia.com/gpu", created="2026-01-01T00:00:00Z")
    newer = device_class("c", extended="nvidia.com/gpu", created="2026-02-01T00:00:00Z")
    same_age = device_class("a", extended="nvidia.com/gpu", created="2026-02-01T00:00:00Z")
    pod = _pod({"limits": {"nvidia.com/gpu": 1}})
    for manifests, winner in (([newer, older], "c"), ([older, newer, same_age], "a")):
        classes = [DeviceClass.parse(manifest) for manifest in manifests]
        assert _wanted(claim_for_pod(pod, classes))[0][1] == winner
