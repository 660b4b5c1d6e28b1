"""The publisher against the API stand-in: repairs, faults, upgrades, and silence in between."""

import time
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube import connection
from dra_driver.model import Health, HealthState
from dra_driver.simulator.api_server import ApiServer
from dra_driver.slices import mirror
from dra_driver.slices import publisher as publisher_module
from tests.support.api import (
    NODE,
    Publishing,
    add_node,
    publishing,
    slice_of,
    wait_for,
)
from tests.support.inventories import gpu, inventory

EIGHT = inventory(*(gpu(minor) for minor in range(8)))
SICK = Health(HealthState.UNHEALTHY, "xid", "XID 79 on GPU 1", 1.0)
ONE_SICK = inventory(gpu(0), gpu(1, health=SICK))


def remove_all(server: ApiServer) -> None:
    for obj in server.objects.select("resourceslices"):
        server.objects.delete("resourceslices", obj["metadata"]["name"])


def published(run: Publishing) -> float:
    (line,) = [
        line
        for line in run.metrics.exposition().decode().splitlines()
        if line.startswith("gpu_dra_driver_published ")
    ]
    return float(line.split()[1])


def test_a_snapshot_becomes_a_slice_owned_by_the_node(tmp_path: Path) -> None:
    with ApiServer() as server, publishing(server, tmp_path) as run:
        uid = add_node(server)
        assert run.publisher.problem() != ""
        run.publisher.publish(EIGHT)
        run.wait()
        (obj,) = run.slices()
        assert run.devices() == [f"gpu-{minor}" for minor in range(8)]
        assert obj["metadata"]["ownerReferences"][0]["uid"] == uid
        assert obj["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert published(run) == 1
        assert run.publisher.problem() == ""


def test_what_is_left_out_is_told_before_the_rest_counts_as_complete(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with publishing(server, tmp_path) as before:
        before.publisher.publish(EIGHT)
        before.wait()
    with publishing(server, tmp_path) as run:
        told: list[str] = []
        set_metric = run.metrics.set

        def note(name: str, value: float, **labels: str) -> None:
            if name != "gpu_dra_driver_published" or value:
                told.append(name)
            set_metric(name, value, **labels)

        monkeypatch.setattr(run.metrics, "set", note)
        run.publisher.publish(EIGHT)
        run.wait()
        assert "gpu_dra_driver_left_out" in told[: told.index("gpu_dra_driver_published")]


def test_the_first_publication_takes_few_requests(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        asked = [entry.verb for entry in server.requests.all()]
        assert sorted(asked) == ["create", "create", "get", "get", "list", "watch"]
        assert len(server.requests.writes()) == 1


def test_nothing_is_written_while_nothing_changes(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.requests.clear()
        for _ in range(20):
            run.publisher.publish(inventory(*(gpu(minor) for minor in range(8)), generation=7))
        run.wait("same snapshot again")
        run.publisher.publish(inventory(gpu(0)))
        wait_for(lambda: run.devices() == ["gpu-0"], "marker")
        assert len(server.requests.writes()) == 1


def test_a_restart_finds_all_in_place(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
    assert len(server.objects.select("resourceslices")) == 1, "a stop deletes nothing"
    server.requests.clear()
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait("after a restart")
        assert server.requests.writes() == []


def test_deleted_slices_come_back(server: ApiServer, tmp_path: Path) -> None:
    many = inventory(*(gpu(minor) for minor in range(130)))
    with publishing(server, tmp_path) as run:
        run.publisher.publish(many)
        run.wait()
        for _ in range(3):
            remove_all(server)  # as the kubelet does when it starts
            wait_for(lambda: len(run.devices()) == 130, "repair of a wipe")
            run.wait()
        pools = {obj["spec"]["pool"]["generation"] for obj in run.slices()}
        assert len(pools) == 1


def test_a_changed_slice_is_put_right(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        (obj,) = run.slices()
        obj["spec"]["devices"] = [{"name": "fake"}]
        server.objects.replace("resourceslices", obj)
        wait_for(lambda: len(run.devices()) == 8, "repair of a change")


def test_somebody_who_keeps_undoing_does_not_make_it_frantic(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.requests.clear()
        ends = time.monotonic() + 1
        while time.monotonic() < ends or len(server.requests.writes()) < 2:
            remove_all(server)
            time.sleep(0.002)
        assert len(server.requests.writes()) <= 8


def test_a_new_list_follows_when_the_history_is_gone(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.objects.forget_history()
        wait_for(lambda: server.requests.count("list") == 2, "list after 410")
        remove_all(server)
        wait_for(run.devices, "repair after 410")


def test_it_survives_a_server_that_goes_away(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.stop()
        remove_all(server)
        run.publisher.publish(inventory(gpu(0)))
        wait_for(lambda: "does not answer" in run.publisher.problem(), "the problem is told")
        assert published(run) == 0
        server.start()
        wait_for(lambda: run.devices() == ["gpu-0"], "repair after the server is back")
        run.wait()


def test_a_server_that_was_restored_from_a_backup_gets_its_slices_again(
    server: ApiServer, tmp_path: Path
) -> None:
    for number in range(20):
        add_node(server, f"node-{number}")  # so that it begins earlier than it was
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.stop()
        server.objects = ApiServer().objects
        add_node(server)
        server.start()
        wait_for(lambda: len(run.devices()) == 8, "published anew")
        run.wait()


def test_it_starts_before_the_server_does(tmp_path: Path) -> None:
    server = ApiServer()
    server.start()
    add_node(server)
    server.stop()
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        wait_for(lambda: "does not answer" in run.publisher.problem(), "the problem is told")
        server.start()
        run.wait()
        server.stop()


def test_it_waits_for_the_node(tmp_path: Path) -> None:
    with ApiServer() as server, publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        wait_for(lambda: f"Node '{NODE}' does not exist yet" in run.publisher.problem(), "told")
        assert run.slices() == []
        uid = add_node(server)
        run.wait()
        assert run.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid


def test_slices_of_a_node_that_was_made_anew_belong_to_the_new_one(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.objects.delete("nodes", NODE)
        uid = add_node(server)
        remove_all(server)  # as the garbage collector does
        wait_for(run.slices, "repair")
        assert run.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid


@pytest.mark.parametrize("status", [500, 503, 429, 409, 403])
def test_a_write_that_fails_is_tried_again(server: ApiServer, tmp_path: Path, status: int) -> None:
    server.faults.fail("create", r"resourceslices$", status=status, times=2)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        assert len(run.devices()) == 8
        lines = run.metrics.exposition().decode()
        assert 'gpu_dra_driver_publish_writes_total{result="error",verb="create"} 2.0' in lines


def test_an_answer_that_is_lost_does_no_harm(server: ApiServer, tmp_path: Path) -> None:
    server.faults.cut("create", r"resourceslices$", times=1, after=True)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        assert len(run.slices()) == 1


def test_a_missing_permission_is_named(server: ApiServer, tmp_path: Path) -> None:
    server.faults.fail("list", "resourceslices", status=403)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        wait_for(lambda: "allow verb 'list'" in run.publisher.problem(), "told")
        server.faults.clear()
        run.wait()


def test_a_busy_server_is_left_alone_as_long_as_it_asks(server: ApiServer, tmp_path: Path) -> None:
    server.faults.fail(
        "create", r"resourceslices$", status=429, times=1, headers={"Retry-After": "1"}
    )
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        assert run.wait() > 0.95


def test_publish_never_blocks_and_the_newest_counts(server: ApiServer, tmp_path: Path) -> None:
    server.faults.hang("create", "resourceslices", seconds=3, times=1)
    with publishing(server, tmp_path) as run:
        began = time.monotonic()
        for count in range(1, 9):
            run.publisher.publish(inventory(*(gpu(minor) for minor in range(count))))
        assert time.monotonic() - began < 2.5
        run.wait()
        assert len(run.devices()) == 8
        assert len(server.requests.writes()) <= 3


def test_a_poke_looks_at_once(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        run.publisher.poke()
        wait_for(lambda: server.requests.count("list") == 2, "list after a poke")
        run.wait()
        assert len(server.requests.writes()) == 1


def test_a_watch_that_hangs_does_not_make_it_blind(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.5)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        server.faults.hang("watch", "", seconds=600, times=1)
        server.end_watches()
        wait_for(lambda: server.requests.count("watch") == 2, "a watch that hears nothing")
        remove_all(server)
        wait_for(run.slices, "repair beside a hanging watch")


def test_slices_of_others_are_left_alone_and_own_old_ones_removed(
    server: ApiServer, tmp_path: Path
) -> None:
    create = server.objects.create
    create("resourceslices", slice_of(name="other-node", nodeName="node-b"))
    create("resourceslices", slice_of(name="other-driver", driver="other.example.com"))
    old = {"name": NODE, "generation": 4, "resourceSliceCount": 1}
    create("resourceslices", slice_of({"name": "gpu-9"}, name="old-abcde", pool=old))
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        names = {obj["metadata"]["name"] for obj in run.slices()}
        assert {"other-node", "other-driver"} < names
        assert "old-abcde" not in names
        (ours,) = [obj for obj in run.slices() if len(obj["spec"].get("devices", [])) == 8]
        assert ours["spec"]["pool"]["generation"] == 4


def test_two_publishers_that_agree_leave_each_other_in_peace(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as one, publishing(server, tmp_path) as two:
        one.publisher.publish(EIGHT)
        two.publisher.publish(EIGHT)
        one.wait()
        two.wait()
        server.requests.clear()
        remove_all(server)
        wait_for(lambda: one.slices() and one.publisher.complete(), "repair")
        two.wait()
        assert len(one.slices()) == 1
        done = [entry for entry in server.requests.writes() if entry.status == 201]
        assert len(done) == 1


def test_sick_devices_are_tainted_where_the_server_keeps_taints(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(ONE_SICK)
        run.wait()
        (obj,) = run.slices()
        (taint,) = obj["spec"]["devices"][1]["taints"]
        assert taint["key"] == "gpu.nvidia.com/xid"
        began = taint["timeAdded"]
        time.sleep(1.1)
        run.publisher.publish(inventory(gpu(0, brand="Tesla"), gpu(1, health=SICK)))
        run.wait("another change")
        (obj,) = run.slices()
        assert obj["spec"]["devices"][1]["taints"][0]["timeAdded"] == began


def withdrawn(run: Publishing) -> Any:
    event = run.events.take(60)
    assert event is not None
    return event


def test_sick_devices_are_withdrawn_where_it_drops_them(tmp_path: Path) -> None:
    with ApiServer("1.34.4") as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(ONE_SICK)
        run.wait()
        assert run.devices() == ["gpu-0"]
        event = withdrawn(run)
        assert event.reason == "DeviceNotPublished"
        assert "XID 79 on GPU 1" in event.message
        assert 'gpu_dra_driver_left_out{reason="unhealthy"} 1.0' in (
            run.metrics.exposition().decode()
        )


def test_an_upgraded_server_is_asked_again_what_it_keeps(tmp_path: Path) -> None:
    with ApiServer("1.34.4") as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(ONE_SICK)
        run.wait()
        server.become("1.36.3")
        wait_for(lambda: run.devices() == ["gpu-0", "gpu-1"], "after the upgrade")
        assert "taints" in run.slices()[0]["spec"]["devices"][1]
        server.become("1.36.3", {"DRADeviceTaints": False})
        # what is stored keeps its taints; a slice made anew would lose them
        remove_all(server)
        wait_for(lambda: run.devices() == ["gpu-0"], "after the gate went off")


def test_fields_that_are_dropped_without_warning_are_noticed(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(inventory())
        run.wait()
        server.slices.gates["DRADeviceTaints"] = False  # another replica, same connection
        run.publisher.publish(ONE_SICK)
        run.wait()
        assert run.devices() == ["gpu-0"]


def test_what_a_webhook_changes_is_written_once(server: ApiServer, tmp_path: Path) -> None:
    admit = server.slices

    def webhook(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        done = admit(new, old)
        for device in done["spec"].get("devices", []):
            device.setdefault("attributes", {})["brand"] = {"string": "changed by a webhook"}
        return done

    server.objects.admit_with({"resourceslices": webhook})
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        assert len(server.requests.writes()) == 1
        remove_all(server)
        wait_for(run.slices, "repair")
        run.wait()
        assert len(server.requests.writes()) == 2


def refuse(server: ApiServer, *names: str, told: bool) -> None:
    """Let the server refuse these devices, with or without saying which field it is."""
    admit = server.slices

    def strict(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        from dra_driver.simulator.api_server import ApiError  # noqa: PLC0415

        for index, device in enumerate(new["spec"].get("devices", [])):
            if device["name"] in names:
                causes = ((f"spec.devices[{index}].attributes[x]", "no"),) if told else ()
                raise ApiError(422, "Invalid", "a policy says no", causes)
        return admit(new, old)

    server.objects.admit_with({"resourceslices": strict})


@pytest.mark.parametrize("told", [True, False])
def test_b06_a_refused_device_is_left_out_alone(
    server: ApiServer,
    tmp_path: Path,
    told: bool,  # noqa: FBT001
) -> None:
    refuse(server, "gpu-3", "gpu-6", told=told)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        assert run.devices() == [f"gpu-{minor}" for minor in range(8) if minor not in (3, 6)]
        assert "gpu-3" in withdrawn(run).message
        assert "gpu-6" in withdrawn(run).message
        assert 'gpu_dra_driver_left_out{reason="refused"} 2.0' in (
            run.metrics.exposition().decode()
        )
        server.objects.admit_with({"resourceslices": server.slices})
        server.end_watches()  # as when it restarts with another policy
        wait_for(lambda: len(run.devices()) == 8, "tried again with another server")


def test_a_slice_that_is_refused_as_such_is_told_and_tried_again(
    server: ApiServer, tmp_path: Path
) -> None:
    server.faults.fail("create", "resourceslices", status=422)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        wait_for(lambda: "422" in run.publisher.problem(), "told")
        asked = server.requests.count("create")
        time.sleep(0.5)
        assert server.requests.count("create") - asked < 20
        server.faults.clear()
        run.wait()


def test_it_stops_while_the_server_hangs(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (publisher_module, mirror):
        monkeypatch.setattr(module, "_JOIN_SECONDS", 0.2)
    server.faults.hang("", "", seconds=30)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        time.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 10
