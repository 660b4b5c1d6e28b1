"""The API stand-in takes and refuses the device status of claims as the real server does.

What is expected here was seen on kube-apiserver 1.34.4 and 1.37.2.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.simulator.api_server import ApiServer

APPLY = "application/apply-patch+yaml"
OURS, THEIRS = "gpu.nvidia.com", "net.example.com"
UID = "4a7b9f2e-0c1d-4e5f-8a6b-7c8d9e0f1a2b"
Json = dict[str, Any]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


def add(server: ApiServer, *results: Json) -> Json:
    status = {"allocation": {"devices": {"results": list(results)}}}
    return server.objects.create("resourceclaims", {"metadata": {"name": "c"}, "status": status})


def device(name: str = "gpu-0", driver: str = OURS, **more: Any) -> Json:
    return {"driver": driver, "pool": "p", "device": name, **more}


def ready(**changes: Any) -> Json:
    time = "2026-01-01T00:00:00Z"
    base = {"type": "Ready", "status": "True", "reason": "Prepared", "lastTransitionTime": time}
    return {key: value for key, value in (base | changes).items() if value is not None}


def patch(
    server: ApiServer,
    *devices: Json,
    manager: str = OURS,
    query: str = "&force=true",
    kind: str = APPLY,
    uid: str = "",
    part: str = "/status",
) -> tuple[int, Json]:
    metadata = {"name": "c", **({"uid": uid} if uid else {})}
    body = {"metadata": metadata, "status": {"devices": list(devices)}}
    claim = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
    url = f"{server.url}{claim}{part}?fieldManager={manager}{query}"
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": kind}, method="PATCH")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def told(server: ApiServer) -> list[Json]:
    found: list[Json] = server.objects.get("resourceclaims", "c")["status"].get("devices", [])
    return found


def causes(answer: Json) -> list[tuple[str, str]]:
    return [(each["field"], each["reason"]) for each in answer["details"]["causes"]]


def test_each_manager_owns_what_it_applies(server: ApiServer) -> None:
    add(server, device(), device("gpu-1"), device("nic-0", THEIRS))
    patch(server, device(data={"a": 1, "b": 2}), device("gpu-1"))
    patch(server, device("nic-0", THEIRS, conditions=[ready()]), manager=THEIRS)
    assert len(told(server)) == 3
    patch(server, device(data={"a": 3}))
    assert told(server) == [
        device(data={"a": 3}),
        device("nic-0", THEIRS, conditions=[ready()]),
    ]
    patch(server)
    assert told(server) == [device("nic-0", THEIRS, conditions=[ready()])]
    managers = server.objects.get("resourceclaims", "c")["metadata"]["managedFields"]
    assert {each["manager"] for each in managers} == {OURS, THEIRS}


def test_what_two_managers_applied_goes_with_the_second(server: ApiServer) -> None:
    add(server, device())
    patch(server, device(conditions=[ready()]), manager="a")
    patch(server, device(conditions=[ready(), ready(type="Attached")]), manager="b")
    patch(server, manager="a")
    assert [each["type"] for each in told(server)[0]["conditions"]] == ["Ready", "Attached"]
    patch(server, device(conditions=[ready()]), manager="b")
    assert [each["type"] for each in told(server)[0]["conditions"]] == ["Ready"]
    patch(server, manager="b")
    assert told(server) == []


def test_the_same_apply_changes_nothing(server: ApiServer) -> None:
    add(server, device())
    _, first = patch(server, device(conditions=[ready()], data={"a": {"b": 1}}))
    _, second = patch(server, device(conditions=[ready()], data={"a": {"b": 1}}))
    assert first == second


def test_an_apply_has_a_manager_force_and_a_status(server: ApiServer) -> None:
    add(server, device())
    assert patch(server, manager="")[0] == 422
    assert patch(server, query="")[0] == 501
    assert patch(server, part="")[0] == 415


def test_a_patch_with_another_uid_is_refused(server: ApiServer) -> None:
    obj = add(server, device())
    assert patch(server, device(), uid=obj["metadata"]["uid"])[0] == 200
    status, answer = patch(server, device(), uid=UID)
    assert (status, causes(answer)) == (422, [("metadata.uid", "FieldValueInvalid")])


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (device("gpu-9"), "status.devices[0]"),
        (device("gpu-0", shareID=UID), "status.devices[0]"),
        (device("gpu-1", shareID="no"), "status.devices[0].shareID"),
        (device(data=[1]), "status.devices[0].data"),
        (device(data={"a": "x" * 10_240}), "status.devices[0].data"),
        (device(conditions=[ready(type=f"T{n}") for n in range(9)]), "conditions"),
        (device(conditions=[ready(status="yes")]), "conditions[0].status"),
        (device(conditions=[ready(reason="")]), "conditions[0].reason"),
        (device(conditions=[ready(reason="not a word")]), "conditions[0].reason"),
        (device(conditions=[ready(lastTransitionTime=None)]), "conditions[0].lastTransitionTime"),
    ],
)
def test_a_device_status_has_rules(server: ApiServer, entry: Json, field: str) -> None:
    add(server, device(), device("gpu-1", shareID="no"))
    status, answer = patch(server, entry)
    assert status == 422
    assert causes(answer)[0][0].endswith(field)
    assert told(server) == []


def test_one_device_has_one_entry(server: ApiServer) -> None:
    add(server, device())
    kind = "application/merge-patch+json"
    status, answer = patch(server, device(), device(), kind=kind)
    assert (status, causes(answer)[0][0]) == (422, "status.devices[1]")


def test_what_is_deallocated_is_told_no_more(server: ApiServer) -> None:
    add(server, device(), device("gpu-1"))
    patch(server, device(), device("gpu-1"))
    obj = server.objects.get("resourceclaims", "c")
    obj["status"]["allocation"]["devices"]["results"].pop()
    server.objects.replace("resourceclaims", obj, part="status")
    assert told(server) == [device()]
    obj = server.objects.get("resourceclaims", "c")
    del obj["status"]["allocation"]
    server.objects.replace("resourceclaims", obj, part="status")
    assert told(server) == []


@pytest.mark.parametrize(("version", "status"), [("1.35.4", 200), ("1.36.0", 422)])
def test_from_1_36_on_each_drivers_entries_need_a_right(version: str, status: int) -> None:
    with ApiServer(version=version) as server:
        add(server, device(), device("nic-0", THEIRS))
        patch(server, device("nic-0", THEIRS), manager=THEIRS)
        server.claims.drivers = {THEIRS}
        code, answer = patch(server, device())
        assert code == status
        if code != 200:
            assert causes(answer) == [("status.devices", "FieldValueForbidden")]
            assert "resourceclaims/driver" in answer["message"]
        theirs = device("nic-0", THEIRS, data={"a": 1})
        assert patch(server, theirs, manager=THEIRS)[0] == 200


def test_a_server_without_the_feature_drops_device_statuses() -> None:
    with ApiServer("1.34.4", {"DRAResourceClaimDeviceStatus": False}) as server:
        add(server, device())
        assert patch(server, device())[0] == 200
        assert told(server) == []
