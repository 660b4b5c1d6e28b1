"""The API stand-in answers as the real server does where this project relies on it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.simulator.api_server import ApiError, ApiServer
from dra_driver.simulator.api_server.slices import canonical
from tests.support.api import NODE, slice_of

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


def ask(
    server: ApiServer,
    path: str,
    method: str = "GET",
    body: Any = None,
    token: str = "",
) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, method=method)  # noqa: S310
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def watch(server: ApiServer, query: str) -> list[dict[str, Any]]:
    path = f"{server.url}{SLICES}?watch=true&timeoutSeconds=1{query}"
    with urllib.request.urlopen(path, timeout=30) as answer:  # noqa: S310
        return [json.loads(line) for line in answer]


def test_the_version_is_told() -> None:
    with ApiServer("1.34.4") as old:
        assert ask(old, "/version")[1]["gitVersion"] == "v1.34.4"


def test_an_object_lives_and_dies(server: ApiServer) -> None:
    status, made = ask(server, SLICES, "POST", slice_of({"name": "gpu-0"}))
    assert status == 201
    metadata = made["metadata"]
    assert metadata["generation"] == 1
    assert ask(server, f"{SLICES}/slice") == (200, made)
    changed = {**made, "spec": slice_of({"name": "gpu-1"})["spec"]}
    status, put = ask(server, f"{SLICES}/slice", "PUT", changed)
    assert (status, put["metadata"]["generation"]) == (200, 2)
    assert put["metadata"]["uid"] == metadata["uid"]
    assert int(put["metadata"]["resourceVersion"]) > int(metadata["resourceVersion"])
    assert ask(server, f"{SLICES}/slice", "DELETE")[0] == 200
    assert ask(server, f"{SLICES}/slice")[0] == 404


def test_conflicts_are_found(server: ApiServer) -> None:
    _, made = ask(server, SLICES, "POST", slice_of())
    assert ask(server, SLICES, "POST", slice_of())[0] == 409
    _, put = ask(server, f"{SLICES}/slice", "PUT", made | {"spec": slice_of({"name": "a"})["spec"]})
    assert ask(server, f"{SLICES}/slice", "PUT", made)[0] == 409
    for wrong in ({"uid": "other"}, {"resourceVersion": made["metadata"]["resourceVersion"]}):
        body = {"preconditions": wrong}
        assert ask(server, f"{SLICES}/slice", "DELETE", body)[0] == 409
    right = {key: put["metadata"][key] for key in ("uid", "resourceVersion")}
    assert ask(server, f"{SLICES}/slice", "DELETE", {"preconditions": right})[0] == 200


def test_an_update_that_changes_nothing_is_none(server: ApiServer) -> None:
    _, made = ask(server, SLICES, "POST", slice_of({"name": "gpu-0"}))
    before = server.objects.version
    assert ask(server, f"{SLICES}/slice", "PUT", made) == (200, made)
    assert server.objects.version == before


def test_names_are_made_and_dry_runs_store_nothing(server: ApiServer) -> None:
    obj = slice_of() | {"metadata": {"generateName": "probe-"}}
    _, tried = ask(server, f"{SLICES}?dryRun=All", "POST", obj)
    assert tried["metadata"]["name"].startswith("probe-")
    assert server.objects.select("resourceslices") == []
    names = {ask(server, SLICES, "POST", obj)[1]["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert ask(server, SLICES, "POST", slice_of() | {"metadata": {}})[0] == 422


def test_fields_select(server: ApiServer) -> None:
    for name, changes in (("a", {}), ("b", {"nodeName": "node-b"}), ("c", {"driver": "x.y"})):
        server.objects.create("resourceslices", slice_of(name=name, **changes))

    def names(selector: str) -> list[str]:
        _, found = ask(server, f"{SLICES}?fieldSelector={selector}")
        return [item["metadata"]["name"] for item in found["items"]]

    assert names("spec.driver=gpu.nvidia.com,spec.nodeName=node-a") == ["a"]
    assert names("spec.nodeName=node-b") == ["b"]
    assert names("spec.pool.name==node-a") == ["a", "b", "c"]
    assert names("metadata.name=c") == ["c"]
    assert ask(server, f"{SLICES}?fieldSelector=spec.devices=x")[0] == 400
    server.become("1.36.3")
    assert ask(server, f"{SLICES}?fieldSelector=spec.pool.name=node-a")[0] == 400


def test_a_collection_is_deleted_by_selector(server: ApiServer) -> None:
    for name, node in (("a", NODE), ("b", NODE), ("c", "node-b")):
        server.objects.create("resourceslices", slice_of(name=name, nodeName=node))
    assert ask(server, f"{SLICES}?fieldSelector=spec.nodeName={NODE}", "DELETE")[0] == 200
    assert [obj["metadata"]["name"] for obj in server.objects.select("resourceslices")] == ["c"]


def test_a_watch_tells_what_happens_after_a_version(server: ApiServer) -> None:
    server.objects.create("resourceslices", slice_of(name="before"))
    version = server.objects.version
    server.objects.create("resourceslices", slice_of(name="after"))
    server.objects.create("resourceslices", slice_of(name="else", nodeName="node-b"))
    server.objects.delete("resourceslices", "before")
    selector = f"&resourceVersion={version}&fieldSelector=spec.nodeName={NODE}"
    found = [(e["type"], e["object"]["metadata"]["name"]) for e in watch(server, selector)]
    assert found == [("ADDED", "after"), ("DELETED", "before")]
    first = watch(server, "")
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in first] == [
        ("ADDED", "after"),
        ("ADDED", "else"),
    ]


def test_a_version_that_is_forgotten_is_gone(server: ApiServer) -> None:
    version = server.objects.version
    server.objects.forget_history()
    status, answer = ask(server, f"{SLICES}?watch=true&resourceVersion={version}")
    assert (status, answer["reason"]) == (410, "Expired")
    small = ApiServer(history=3)
    small.objects.create("resourceslices", slice_of(name="first"))
    version = small.objects.version
    for number in range(4):
        small.objects.create("resourceslices", slice_of(name=f"s{number}"))
    with pytest.raises(ApiError, match="too old"):
        small.objects.changes_after(version, "resourceslices", 0)


def test_a_status_is_written_by_itself(server: ApiServer) -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": []}}}
    assert ask(server, CLAIMS, "POST", claim)[0] == 201
    patch = {"spec": {"ignored": True}, "status": {"reservedFor": [{"uid": "u"}]}}
    status, patched = ask(server, f"{CLAIMS}/c/status", "PATCH", patch)
    assert status == 200
    assert patched["status"] == patch["status"]
    assert patched["spec"] == claim["spec"]
    _, put = ask(server, f"{CLAIMS}/c", "PUT", patched | {"status": {}})
    assert put["status"] == patch["status"]


@pytest.mark.parametrize("names_version", [False, True])
def test_a_patch_is_made_again_when_somebody_was_faster(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, *, names_version: bool
) -> None:
    made = server.objects.create("nodes", {"metadata": {"name": NODE}})
    read, reads = server.objects.get, 0

    def read_before_a_change(plural: str, name: str, namespace: str = "default") -> Any:
        nonlocal reads
        reads += 1
        found = read(plural, name, namespace)
        if reads == 1:
            changed = {**found, "metadata": {**found["metadata"], "labels": {"theirs": "b"}}}
            server.objects.replace(plural, changed)
        return found

    monkeypatch.setattr(server.objects, "get", read_before_a_change)
    metadata: dict[str, Any] = {"labels": {"ours": "a"}}
    if names_version:
        metadata["resourceVersion"] = made["metadata"]["resourceVersion"]
    status, _ = ask(server, f"/api/v1/nodes/{NODE}", "PATCH", {"metadata": metadata})
    assert status == (409 if names_version else 200)
    labels = read("nodes", NODE)["metadata"]["labels"]
    assert labels == {"theirs": "b"} | ({} if names_version else {"ours": "a"})


def test_its_port_is_no_client_s_while_it_is_down(server: ApiServer) -> None:
    """Else a connection, even one to this port itself, could have it when the server is back."""
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert int(server.url.rpartition(":")[2]) < int(first)


def test_what_is_not_served_is_not_found(server: ApiServer) -> None:
    for path in ("/apis/resource.k8s.io/v1beta1/resourceslices", "/api/v1/configmaps", "/x"):
        assert ask(server, path)[0] == 404
    assert ask(server, SLICES, "POST", [1])[0] == 400


def test_quantities_are_stored_in_their_canonical_form() -> None:
    pairs = {
        "81920Mi": "80Gi",
        "1024": "1024",
        "1000": "1k",
        "2500M": "2500M",
        "1500m": "1500m",
        "0": "0",
        "1Gi": "1Gi",
        "1536Mi": "1536Mi",
    }
    assert {given: canonical(given) for given in pairs} == pairs


@pytest.mark.parametrize(("version", "kept"), [("1.34.4", False), ("1.36.3", True)])
def test_fields_of_features_that_are_off_are_dropped(version: str, kept: bool) -> None:  # noqa: FBT001
    device = {
        "name": "gpu-0",
        "taints": [{"key": "k", "effect": "NoSchedule"}],
        "allowMultipleAllocations": True,
        "capacity": {"m": {"value": "4", "requestPolicy": {"default": "1"}}},
        "unknownField": 1,
        "bindsToNode": True,
    }
    with ApiServer(version) as server:
        made = server.objects.create("resourceslices", slice_of(device))
        (stored,) = made["spec"]["devices"]
        assert ("taints" in stored) is kept
        assert ("allowMultipleAllocations" in stored) is kept
        assert ("requestPolicy" in stored["capacity"]["m"]) is kept
        assert ("bindsToNode" in stored) is kept
        assert "unknownField" not in stored
        if kept:
            assert stored["taints"][0]["timeAdded"].endswith("Z")
            server.slices.gates["DRADeviceTaints"] = False  # in use: kept all the same
            assert server.objects.replace("resourceslices", made) == made


def test_a_list_attribute_is_dropped_and_then_missed(server: ApiServer) -> None:
    device = {"name": "gpu-0", "attributes": {"a": {"strings": ["x"]}}}
    status, answer = ask(server, SLICES, "POST", slice_of(device))
    assert status == 422
    assert answer["details"]["causes"][0]["field"] == "spec.devices[0].attributes[a]"
    server.slices.gates["DRAListTypeAttributes"] = True
    assert ask(server, SLICES, "POST", slice_of(device))[0] == 201


def test_some_fields_cannot_be_changed(server: ApiServer) -> None:
    made = server.objects.create("resourceslices", slice_of())
    for change in (
        {"nodeName": "node-b"},
        {"driver": "other.example.com"},
        {"pool": {"name": "other", "generation": 1, "resourceSliceCount": 1}},
    ):
        body = made | {"spec": made["spec"] | change}
        assert ask(server, f"{SLICES}/slice", "PUT", body)[0] == 422


def test_the_shape_of_counters_depends_on_the_release() -> None:
    counters = [{"name": "set", "counters": {"a": {"value": "1"}}}]
    use = [{"counterSet": "set", "counters": {"a": {"value": "1"}}}]
    together = slice_of({"name": "gpu-0", "consumesCounters": use}, sharedCounters=counters)
    apart = slice_of({"name": "gpu-0", "consumesCounters": use})
    gates = {"DRAPartitionableDevices": True}
    for version, good, bad in (("1.34.4", together, apart), ("1.35.4", apart, together)):
        server = ApiServer(version, gates)
        server.objects.create("resourceslices", good, dry_run=True)
        with pytest.raises(ApiError):
            server.objects.create("resourceslices", bad, dry_run=True)


def test_only_known_tokens_are_let_in() -> None:
    with ApiServer(tokens={"good"}) as server:
        assert ask(server, "/api/v1/nodes")[0] == 401
        assert ask(server, "/api/v1/nodes", token="good")[0] == 200


def test_faults_are_used_up_in_order(server: ApiServer) -> None:
    server.faults.fail("list", "nodes", status=503, times=2)
    assert [ask(server, "/api/v1/nodes")[0] for _ in range(3)] == [503, 503, 200]
    server.faults.fail("", "", status=500)
    assert ask(server, "/version")[0] == 500
    server.faults.clear()
    assert ask(server, "/version")[0] == 200


def test_a_request_can_be_carried_out_and_its_answer_lost(server: ApiServer) -> None:
    server.faults.cut("create", "nodes", times=1)
    server.faults.cut("create", "nodes", times=1, after=True)
    for stored in (0, 1):
        with pytest.raises(OSError, match="closed"):
            ask(server, "/api/v1/nodes", "POST", {"metadata": {"name": "n"}})
        assert len(server.objects.select("nodes")) == stored


def test_it_stops_and_starts_on_the_same_port_with_its_objects(server: ApiServer) -> None:
    server.objects.create("nodes", {"metadata": {"name": "n"}})
    url = server.url
    server.stop()
    with pytest.raises(urllib.error.URLError):
        ask(server, "/api/v1/nodes")
    server.start()
    assert server.url == url
    assert len(ask(server, "/api/v1/nodes")[1]["items"]) == 1


def test_the_log_counts_what_was_asked(server: ApiServer) -> None:
    ask(server, SLICES)
    ask(server, f"{SLICES}?dryRun=All", "POST", slice_of())
    ask(server, SLICES, "POST", slice_of())
    ask(server, "/nonsense")
    log = server.requests
    assert log.count() == 4
    assert (log.count("create", "resourceslices"), log.count("list")) == (2, 1)
    assert [(entry.verb, entry.status) for entry in log.writes()] == [("create", 201)]


def test_the_kubeconfig_leads_here(server: ApiServer, tmp_path: Path) -> None:
    path = server.write_kubeconfig(tmp_path / "config", token="t")
    assert path.stat().st_mode & 0o077 == 0
    document = yaml.safe_load(path.read_text())
    assert document["clusters"][0]["cluster"]["server"] == server.url
    assert document["users"][0]["user"] == {"token": "t"}
