"""Requests to the API server and what becomes of its answers."""

import threading
import time
from typing import Any

import pytest

from dra_driver.config import Settings
from dra_driver.kube import (
    ApiBusy,
    Conflict,
    Gone,
    KubeClient,
    NotFound,
    Refused,
    WatchEvent,
    connection,
)
from dra_driver.kube.errors import Subject
from dra_driver.model import Bug, ClaimRef
from dra_driver.model.errors import (
    ApiUnavailable,
    ClaimChanged,
    ClaimNotAllocated,
    ClaimNotFound,
    ConfigInvalid,
    PermissionMissing,
)
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import DRIVER, NODE, add_node, slice_of, wait_for

RESULT = {"request": "r", "driver": DRIVER, "pool": NODE, "device": "gpu-0"}


def add_claim(server: ApiServer, status: dict[str, Any]) -> ClaimRef:
    obj = server.objects.create(
        "resourceclaims",
        {"metadata": {"namespace": "team", "name": "c"}, "status": status},
    )
    return ClaimRef("team", "c", obj["metadata"]["uid"])


def allocated(*results: dict[str, Any]) -> dict[str, Any]:
    return {"allocation": {"devices": {"results": list(results)}}}


def test_a_claim_takes_one_request(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, allocated(RESULT))
    claim = kube.get_claim(ref, 10)
    assert claim.ref == ref
    assert [device.device for device in claim.devices] == ["gpu-0"]
    assert [(r.verb, r.resource) for r in server.requests.all()] == [("get", "resourceclaims")]


def test_b27_results_of_another_pool_of_ours_are_left_out(
    server: ApiServer, kube: KubeClient
) -> None:
    ref = add_claim(server, allocated(RESULT | {"pool": "node-b"}, RESULT | {"driver": "other.x"}))
    assert kube.get_claim(ref, 10).devices == ()


def test_a_replaced_claim_names_both_uids(server: ApiServer, kube: KubeClient) -> None:
    ref = add_claim(server, allocated(RESULT))
    with pytest.raises(ClaimChanged) as caught:
        kube.get_claim(ClaimRef("team", "c", "old-uid"), 10)
    assert "old-uid" in str(caught.value)
    assert ref.uid in str(caught.value)


def test_a_claim_that_is_not_there_or_not_allocated(server: ApiServer, kube: KubeClient) -> None:
    with pytest.raises(ClaimNotFound, match="team/c"):
        kube.get_claim(ClaimRef("team", "c", "u"), 10)
    ref = add_claim(server, {})
    with pytest.raises(ClaimNotAllocated):
        kube.get_claim(ref, 10)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_stays_in_its_place_in_the_path(kube: KubeClient, name: str) -> None:
    with pytest.raises(Bug):
        kube.get_claim(ClaimRef("team", name, "u"), 10)


def test_a_name_with_a_slash_is_one_segment(server: ApiServer, kube: KubeClient) -> None:
    with pytest.raises(ClaimNotFound):
        kube.get_claim(ClaimRef("team", "../../nodes/x?y=1", "u"), 10)
    assert [entry.resource for entry in server.requests.all()] == ["resourceclaims"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Refused),
        (401, PermissionMissing),
        (403, PermissionMissing),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Refused),
        (429, ApiUnavailable),
        (500, ApiUnavailable),
        (504, ApiUnavailable),
    ],
)
def test_each_status_becomes_an_error(
    server: ApiServer, kube: KubeClient, status: int, error: type[Exception]
) -> None:
    server.faults.fail("get", "nodes", status=status)
    with pytest.raises(error) as caught:
        kube.node_uid(NODE)
    assert str(status) in str(caught.value)


def test_a_missing_permission_names_verb_and_resource(server: ApiServer, kube: KubeClient) -> None:
    server.faults.fail("create", "resourceslices", status=403)
    with pytest.raises(
        PermissionMissing, match=r"verb 'create' on 'resourceslices.resource.k8s.io'"
    ):
        kube.create_slice(slice_of())


def test_parameters_nested_without_end_are_the_claim_s_fault() -> None:
    deep = 1700  # as many as the API server lets a config have
    answer = b'{"spec":' * deep + b"{}" + b"}" * deep
    with pytest.raises(
        ConfigInvalid, match=r"cannot get resourceclaims \"c\": parameters .* too deeply"
    ):
        connection._decode(Subject("get", "resourceclaims", "c"), answer)


def test_a_busy_server_says_for_how_long(server: ApiServer, kube: KubeClient) -> None:
    server.faults.fail("", "nodes", status=429, headers={"Retry-After": "7"}, times=1)
    server.faults.fail("", "nodes", status=503, headers={"Retry-After": "99999"}, times=1)
    server.faults.fail("", "nodes", status=503, headers={"Retry-After": "soon"}, times=1)
    with pytest.raises(ApiBusy) as caught:
        kube.node_uid(NODE)
    assert caught.value.retry_after == 7
    with pytest.raises(ApiBusy) as caught:
        kube.node_uid(NODE)
    assert caught.value.retry_after == 300
    with pytest.raises(ApiUnavailable) as other:
        kube.node_uid(NODE)
    assert not isinstance(other.value, ApiBusy)


def test_a_refused_slice_names_its_fields(kube: KubeClient) -> None:
    bad = {"name": "gpu-0", "attributes": {"driverVersion": {"version": "550.127.08"}}}
    with pytest.raises(Refused) as caught:
        kube.create_slice(slice_of(bad))
    assert [entry.field for entry in caught.value.fields] == [
        "spec.devices[0].attributes[driverVersion].version"
    ]


def test_a_server_that_hangs_costs_no_more_than_the_timeout(
    server: ApiServer, kube: KubeClient
) -> None:
    ref = add_claim(server, allocated(RESULT))
    server.faults.hang("get", "resourceclaims", seconds=30)
    began = time.monotonic()
    with pytest.raises(ApiUnavailable):
        kube.get_claim(ref, 0.3)
    assert time.monotonic() - began < 5


def test_a_server_that_is_away_is_unavailable(server: ApiServer, kube: KubeClient) -> None:
    server.stop()
    with pytest.raises(ApiUnavailable, match="does not answer"):
        kube.node_uid(NODE)


def test_a_connection_that_died_while_idle_is_replaced(server: ApiServer, kube: KubeClient) -> None:
    uid = add_node(server)
    assert kube.node_uid(NODE) == uid
    server.faults.cut("get", "nodes", times=1)
    assert kube.node_uid(NODE) == uid
    server.faults.cut("get", "nodes", times=2)
    with pytest.raises(ApiUnavailable):
        kube.node_uid(NODE)


def test_a_write_is_never_sent_twice(server: ApiServer, kube: KubeClient) -> None:
    server.faults.cut("create", "resourceslices", times=1, after=True)
    with pytest.raises(ApiUnavailable):
        kube.create_slice(slice_of())
    assert server.requests.count("create", "resourceslices") == 1
    with pytest.raises(Conflict):
        kube.create_slice(slice_of())


@pytest.mark.parametrize(
    ("text", "version"),
    [("v1.37.2", (1, 37, 2)), ("v1.35.0-gke.1", (1, 35, 0)), ("1.36+", (1, 36, 0))],
)
def test_versions_of_vendors_count_as_their_release(
    kube: KubeClient, monkeypatch: pytest.MonkeyPatch, text: str, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(kube._connection, "call", lambda *_: {"gitVersion": text})
    assert kube.server_version() == version


def test_slices_are_created_replaced_and_deleted(server: ApiServer, kube: KubeClient) -> None:
    assert kube.server_version() == (1, 37, 2)
    kube.create_slice(slice_of(), dry_run=True)
    assert kube.list_slices().items == ()
    made = kube.create_slice(slice_of({"name": "gpu-0"}))
    changed = kube.replace_slice({**made, "spec": {**made["spec"], "devices": [{"name": "gpu-1"}]}})
    with pytest.raises(Conflict):
        kube.replace_slice(made | {"spec": slice_of()["spec"]})  # an old resourceVersion
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    with pytest.raises(Conflict):
        kube.delete_slice(name, uid, made["metadata"]["resourceVersion"])
    kube.delete_slice(name, uid, changed["metadata"]["resourceVersion"])
    kube.delete_slice(name, uid, changed["metadata"]["resourceVersion"])  # gone: fine
    assert server.objects.select("resourceslices") == []


def test_only_own_slices_are_listed_and_watched(server: ApiServer, kube: KubeClient) -> None:
    server.objects.create("resourceslices", slice_of(name="theirs", nodeName="node-b"))
    server.objects.create("resourceslices", slice_of(name="other", driver="other.example.com"))
    server.objects.create("resourceslices", slice_of(name="ours"))
    listed = kube.list_slices()
    assert [obj["metadata"]["name"] for obj in listed.items] == ["ours"]
    seen: list[WatchEvent] = []
    watch = kube.watch_slices(listed.resource_version, 60, 30)
    thread = threading.Thread(target=lambda: seen.extend(watch))
    thread.start()
    for name, changes in (("their2", {"nodeName": "node-b"}), ("our2", {})):
        server.objects.create("resourceslices", slice_of(name=name, **changes))
    server.objects.delete("resourceslices", "our2")
    wait_for(lambda: len(seen) >= 2, "events")
    server.end_watches()
    thread.join(60)
    assert [(event.kind, event.object["metadata"]["name"]) for event in seen] == [
        ("ADDED", "our2"),
        ("DELETED", "our2"),
    ]


def test_a_watch_ends_when_it_is_closed(server: ApiServer, kube: KubeClient) -> None:
    watch = kube.watch_slices(kube.list_slices().resource_version, 600, 600)
    thread = threading.Thread(target=lambda: list(watch))
    thread.start()
    time.sleep(0.05)
    watch.close()
    thread.join(60)
    assert not thread.is_alive()
    watch.close()  # once more is fine


def test_a_silent_watch_ends_by_itself(server: ApiServer, kube: KubeClient) -> None:
    watch = kube.watch_slices(kube.list_slices().resource_version, 600, 0.2)
    assert list(watch) == []


def test_a_watch_gets_bookmarks(settings: Settings, server: ApiServer, kube: KubeClient) -> None:
    server.bookmark_seconds = 0.0
    listed = kube.list_slices()
    add_node(server)  # something else moves on
    watch = kube.watch_slices(listed.resource_version, 60, 30)
    event = next(iter(watch))
    watch.close()
    assert event.kind == "BOOKMARK"
    assert int(event.object["metadata"]["resourceVersion"]) > int(listed.resource_version)


def test_a_watch_from_too_long_ago_is_gone(server: ApiServer, kube: KubeClient) -> None:
    old = kube.list_slices().resource_version
    running = kube.watch_slices(old, 60, 30)
    server.objects.forget_history()
    with pytest.raises(Gone):  # told inside the stream
        list(running)
    with pytest.raises(Gone):  # told as a status
        kube.watch_slices(old, 60, 30)
