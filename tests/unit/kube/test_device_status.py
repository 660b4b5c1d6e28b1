"""What a claim's status says after a write, whose words stay, and what refusals mean."""

import json
from typing import Any

import pytest

from dra_driver.kube import KubeClient, Refused
from dra_driver.kube.device_status import status_patch
from dra_driver.model import ClaimRef, ClaimStatus, DeviceStatus, MemoryLimitLevel, Placement
from dra_driver.model.errors import (
    ApiUnavailable,
    ClaimChanged,
    ClaimNotAllocated,
    ClaimNotFound,
    PermissionMissing,
)
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import DRIVER, NODE

SHARE = "4a7b9f2e-0c1d-4e5f-8a6b-7c8d9e0f1a2b"
NIC = {"driver": "net.example.com", "pool": "p", "device": "nic-0"}
NIC_STATUS = {**NIC, "networkData": {"interfaceName": "eth7"}}
SLOT = "gpu-0-mig-1g10gb-19-6"


def device(name: str = SLOT, **changes: Any) -> DeviceStatus:
    base: dict[str, Any] = {
        "pool": NODE,
        "device": name,
        "uuid": "MIG-1",
        "parent_uuid": "GPU-1",
        "profile": "1g.10gb",
        "placement": Placement(6, 1),
        "gi_id": 13,
        "ci_id": 0,
        "driver_version": "580.95.05",
    }
    return DeviceStatus(**(base | changes))


def add_claim(server: ApiServer, *names: str, **more: Any) -> ClaimRef:
    """Add a claim of ours that also holds a network card, of which its driver tells something."""
    results = [{"driver": DRIVER, "pool": NODE, "device": name, **more} for name in names]
    status = {"allocation": {"devices": {"results": [*results, NIC]}}, "devices": [NIC_STATUS]}
    obj = server.objects.create(
        "resourceclaims", {"metadata": {"namespace": "team", "name": "c"}, "status": status}
    )
    return ClaimRef("team", "c", obj["metadata"]["uid"])


def stored(server: ApiServer) -> dict[str, Any]:
    return server.objects.get("resourceclaims", "c", "team")


def told(server: ApiServer, driver: str = DRIVER) -> list[dict[str, Any]]:
    entries = stored(server)["status"].get("devices", [])
    return [entry for entry in entries if entry["driver"] == driver]


def test_a_partition_is_told_in_one_request(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, SLOT)
    assert kube.apply_claim_status(ClaimStatus(ref, 1_700_000_000, (device(),)))
    assert [(r.verb, r.resource) for r in server.requests.all()] == [("patch", "resourceclaims")]
    assert told(server) == [
        {
            "driver": DRIVER,
            "pool": NODE,
            "device": SLOT,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Prepared",
                    "message": "partition 1g.10gb MIG-1 of GPU-1 is ready",
                    "lastTransitionTime": "2023-11-14T22:13:20Z",
                }
            ],
            "data": {
                "type": "mig",
                "uuid": "MIG-1",
                "parentUUID": "GPU-1",
                "profile": "1g.10gb",
                "placement": {"start": 6, "size": 1},
                "gpuInstanceID": 13,
                "computeInstanceID": 0,
                "driverVersion": "580.95.05",
            },
        }
    ]
    assert told(server, NIC["driver"]) == [NIC_STATUS]


def test_the_longest_entry_is_far_below_what_the_server_takes() -> None:
    most = device(
        uuid="MIG-" + "f" * 90,
        parent_uuid="GPU-" + "f" * 90,
        profile="1g.10gb+me.all" * 5,
        share_id=SHARE,
        memory_limit=81_559 << 20,
        limit_level=MemoryLimitLevel.MPS_CLIENT,
    )
    patch = status_patch(ClaimStatus(ClaimRef("n", "c", "u"), 0, (most,)), DRIVER)
    (entry,) = patch["status"]["devices"]
    assert len(json.dumps(entry["data"])) < 1024 < 10 * 1024
    assert len(entry["conditions"]) <= 8


def test_what_is_not_known_is_left_out(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, SLOT)
    bare = device(profile="", gi_id=None, ci_id=None, driver_version="")
    kube.apply_claim_status(ClaimStatus(ref, 0, (bare,)))
    (entry,) = told(server)
    assert entry["conditions"][0]["message"] == "partition MIG-1 of GPU-1 is ready"
    assert entry["data"].keys() == {"type", "uuid", "parentUUID", "placement"}


def test_a_claim_prepared_again_tells_the_new_uuid(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, SLOT, "gpu-1")
    kube.apply_claim_status(ClaimStatus(ref, 0, (device(), device("gpu-1"))))
    assert [entry["device"] for entry in told(server)] == [SLOT, "gpu-1"]
    kube.apply_claim_status(ClaimStatus(ref, 0, (device(uuid="MIG-2"),)))
    (entry,) = told(server)
    assert (entry["device"], entry["data"]["uuid"]) == (SLOT, "MIG-2")
    assert told(server, NIC["driver"]) == [NIC_STATUS]


def test_the_same_words_change_nothing(server: ApiServer, kube: KubeClient) -> None:
    status = ClaimStatus(add_claim(server, SLOT), 0, (device(),))
    kube.apply_claim_status(status)
    before = stored(server)
    assert kube.apply_claim_status(status)
    assert stored(server) == before


def test_conditions_of_others_on_our_device_stay(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, SLOT)
    kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))
    obj = stored(server)
    theirs = {
        "type": "Attached",
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    next(e for e in obj["status"]["devices"] if e["driver"] == DRIVER)["conditions"].append(theirs)
    server.objects.replace("resourceclaims", obj, part="status")
    kube.apply_claim_status(ClaimStatus(ref, 0, (device(uuid="MIG-2"),)))
    (entry,) = told(server)
    assert [condition["type"] for condition in entry["conditions"]] == ["Ready", "Attached"]
    assert entry["conditions"][1] == theirs


def test_shares_of_one_device_are_told_apart(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, SLOT, shareID=SHARE)
    kube.apply_claim_status(ClaimStatus(ref, 0, (device(share_id=SHARE),)))
    assert [entry["shareID"] for entry in told(server)] == [SHARE]
    with pytest.raises(ClaimNotAllocated):
        kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))


def test_a_claim_that_is_gone_or_replaced_is_left_alone(
    server: ApiServer, kube: KubeClient
) -> None:
    with pytest.raises(ClaimNotFound, match="team/c"):
        kube.apply_claim_status(ClaimStatus(ClaimRef("team", "c", "u"), 0, (device(),)))
    add_claim(server, SLOT)
    with pytest.raises(ClaimChanged, match="replaced"):
        kube.apply_claim_status(ClaimStatus(ClaimRef("team", "c", "u"), 0, (device(),)))
    assert told(server) == []


def test_a_claim_that_was_deallocated_is_left_alone(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, SLOT)
    status = ClaimStatus(ref, 0, (device(),))
    kube.apply_claim_status(status)
    obj = stored(server)
    obj["status"]["allocation"]["devices"]["results"] = [NIC]  # not ours any more
    server.objects.replace("resourceclaims", obj, part="status")
    assert told(server) == [], "the server drops what is told of devices that are given back"
    with pytest.raises(ClaimNotAllocated):
        kube.apply_claim_status(status)
    assert told(server, NIC["driver"]) == [NIC_STATUS]


def test_a_missing_permission_of_1_36_names_what_to_allow(
    server: ApiServer, kube: KubeClient
) -> None:
    """From 1.36 on the server answers 422 with a forbidden field (registry/resource/utils.go)."""
    ref = add_claim(server, SLOT)
    server.claims.drivers = {NIC["driver"]}
    with pytest.raises(PermissionMissing) as caught:
        kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))
    for words in ("associated-node:patch", "resourceclaims/driver", DRIVER, "team/c"):
        assert words in str(caught.value)
    server.claims.drivers = {DRIVER}
    assert kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))
    assert told(server, NIC["driver"]) == [NIC_STATUS]


def test_a_missing_permission_for_statuses_names_the_subresource(
    server: ApiServer, kube: KubeClient
) -> None:
    ref = add_claim(server, SLOT)
    server.faults.fail("patch", "/status", status=403)
    words = r"verb 'patch' on 'resourceclaims.resource.k8s.io/status'"
    with pytest.raises(PermissionMissing, match=words):
        kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))


def test_a_status_that_the_server_cannot_take_is_refused(
    server: ApiServer, kube: KubeClient
) -> None:
    ref = add_claim(server, SLOT)
    with pytest.raises(Refused, match="10240 bytes"):
        kube.apply_claim_status(ClaimStatus(ref, 0, (device(profile="x" * 11_000),)))


def test_a_server_that_drops_device_statuses_is_noticed(
    server: ApiServer, kube: KubeClient
) -> None:
    ref = add_claim(server, SLOT)
    obj = stored(server)
    del obj["status"]["devices"]
    server.objects.replace("resourceclaims", obj, part="status")
    server.become("1.34.4", {"DRAResourceClaimDeviceStatus": False})
    assert not kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))
    server.become("1.34.4")
    assert kube.apply_claim_status(ClaimStatus(ref, 0, (device(),)))


def test_an_answer_that_never_comes_costs_no_more_than_a_timeout(
    server: ApiServer, kube: KubeClient
) -> None:
    server.faults.cut("patch", "/status")
    with pytest.raises(ApiUnavailable):
        kube.apply_claim_status(ClaimStatus(ClaimRef("team", "c", "u"), 0, (device(),)))
    assert server.requests.count("patch") == 1, "a write is never sent twice"
