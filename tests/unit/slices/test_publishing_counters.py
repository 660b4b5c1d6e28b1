"""Counters against the API stand-in: as few writes as can be, and never relied on where dropped."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.model import Inventory, Slot
from dra_driver.simulator.api_server import ApiError, ApiServer
from dra_driver.slices import reconcile, writes
from tests.support.api import Publishing, add_node, publishing, wait_for
from tests.support.dynamic_gpus import dynamic_gpu, with_partitions
from tests.support.inventories import gpu, inventory

EIGHT = inventory(*(dynamic_gpu(minor) for minor in range(8)))
GATE = {"DRAPartitionableDevices": True}


def claimed(*positions: int, foreign: bool = False) -> Inventory:
    """Eight GPUs, the first with partitions at the slots of these positions."""
    slots: list[Slot] = [EIGHT.gpus[0].slots[position] for position in positions]
    first = with_partitions(EIGHT.gpus[0], slots, foreign=foreign)
    return inventory(first, *EIGHT.gpus[1:])


def consuming(run: Publishing) -> set[str]:
    return {
        device["name"]
        for obj in run.slices()
        for device in obj["spec"].get("devices", ())
        if "consumesCounters" in device
    }


def sets(run: Publishing) -> list[int]:
    """How many counter sets each slice has."""
    found = sorted(run.slices(), key=lambda obj: str(obj["metadata"]["name"]))
    return [len(obj["spec"].get("sharedCounters", ())) for obj in found]


def left_out(run: Publishing, reason: str) -> float | None:
    return run.metrics.registry.get_sample_value("gpu_dra_driver_left_out", {"reason": reason})


def test_208_devices_take_one_write_for_each_slice_and_claims_none(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        assert len(run.devices()) == 208
        assert sets(run) == [8] + [0] * 9
        assert len(server.requests.writes()) == 10
        server.requests.clear()
        for made in ((0,), (0, 1), (0, 1, 5), ()):
            run.publisher.publish(claimed(*made))
            run.wait("claims come and go")
        run.publisher.publish(inventory(*EIGHT.gpus[:7]))
        wait_for(lambda: len(run.devices()) == 26 * 7, "the marker: a GPU is gone")
        run.wait()
        updates = [entry.verb for entry in server.requests.writes()]
        assert updates == ["delete"] + ["update"] * 9


def test_a_claim_costs_not_even_a_comparison(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def plan_writes(*args: Any) -> writes.Writes:
        compared.append(1)
        return writes.plan_writes(*args)

    monkeypatch.setattr(reconcile, "plan_writes", plan_writes)
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        run.publisher.publish(EIGHT)
        wait_for(lambda: len(compared) > 2, "its own writes are looked at once")
        run.wait()
        before = len(compared)
        for made in ((0,), (0, 1), ()):
            run.publisher.publish(claimed(*made))
            run.wait("claims come and go")
        assert len(compared) == before
        for obj in run.slices()[:1]:
            server.objects.delete("resourceslices", obj["metadata"]["name"])
        wait_for(lambda: len(compared) > before, "the marker: somebody changed a slice")
        wait_for(lambda: len(run.devices()) == 208, "repaired")


def test_a_partition_of_others_withdraws_what_it_overlaps(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(EIGHT)
        run.wait()
        run.publisher.publish(claimed(3, foreign=True))
        run.wait("with a foreign partition")
        assert "gpu-0" not in run.devices()
        assert "gpu-1" in run.devices()
        event = run.events.take(60)
        assert event is not None
        assert "1g.10gb at slice 3" in event.message
        assert left_out(run, "foreign") == 1
        run.publisher.publish(EIGHT)
        run.wait("without")
        assert len(run.devices()) == 208
        assert left_out(run, "foreign") == 0


def test_an_older_server_with_default_gates_gets_whole_gpus_and_the_reason_is_told(
    tmp_path: Path,
) -> None:
    with ApiServer("1.34.4") as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(EIGHT)
        run.wait()
        assert run.devices() == [f"gpu-{minor}" for minor in range(8)]
        assert left_out(run, "no-counters") == 8
        for minor in range(8):
            event = run.events.take(60)
            assert event is not None
            assert event.message.startswith(f"device gpu-{minor}-mig-* is not published")
            assert "DRAPartitionableDevices" in event.message


def test_an_upgraded_server_gets_counters_apart(tmp_path: Path) -> None:
    with ApiServer("1.34.4", GATE) as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(EIGHT)
        run.wait()
        assert sets(run) == [1] * 8
        assert len(consuming(run)) == 208
        server.become("1.36.3")
        wait_for(lambda: sets(run) == [8] + [0] * 9, "after the upgrade")
        run.wait()
        assert len(consuming(run)) == 208
        assert {obj["spec"]["pool"]["resourceSliceCount"] for obj in run.slices()} == {10}


def test_another_release_on_the_same_connection_gets_its_own_layout(tmp_path: Path) -> None:
    """As behind one address while control planes are upgraded one by one: no watch ends."""
    with ApiServer("1.34.4", GATE) as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(EIGHT)
        run.wait()
        server.slices.version = (1, 36, 3)
        server.requests.clear()
        run.publisher.publish(inventory(*EIGHT.gpus, gpu(8)))
        run.wait("with the newer release")
        assert sets(run) == [0, 8] + [0] * 9
        assert len(run.devices()) == 209
        assert len(server.requests.all()) < 30, "no device was searched for"


@pytest.mark.parametrize("version", ["1.34.4", "1.37.2"])
def test_counters_that_are_dropped_without_warning_are_noticed(
    tmp_path: Path, version: str
) -> None:
    """Another replica of the server, with the gate off, answers on the same connection."""
    with ApiServer(version, GATE) as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(inventory())
        run.wait()
        server.slices.gates["DRAPartitionableDevices"] = False
        server.requests.clear()
        run.publisher.publish(EIGHT)
        run.wait()
        assert run.devices() == [f"gpu-{minor}" for minor in range(8)]
        assert sets(run) == [0]
        sent = [entry for entry in server.requests.writes() if entry.verb != "delete"]
        assert len(sent) == 2, "nothing more is sent of what needs counters"


@pytest.mark.parametrize("version", ["1.34.4", "1.37.2"])
def test_counters_that_are_refused_cost_the_partitions_only(tmp_path: Path, version: str) -> None:
    with ApiServer(version, GATE) as server, publishing(server, tmp_path) as run:
        add_node(server)
        admit = server.slices

        def policy(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
            for group in new["spec"].get("sharedCounters", ()):
                if group["name"] == "gpu-3-counter-set":
                    raise ApiError(422, "Invalid", "a policy of this cluster says no")
            return admit(new, old)

        server.objects.admit_with({"resourceslices": policy})
        run.publisher.publish(inventory(*EIGHT.gpus, gpu(8)))
        run.wait()
        assert sorted(run.devices()) == [f"gpu-{minor}" for minor in range(9)]
        assert left_out(run, "no-counters") == 8
        server.objects.admit_with({"resourceslices": admit})
        server.end_watches()  # as when it restarts with another policy
        wait_for(lambda: len(run.devices()) == 209, "tried again with another server")


@pytest.mark.parametrize("version", ["1.34.4", "1.37.2"])
def test_b06_a_partition_that_is_refused_does_not_hide_the_others(
    tmp_path: Path, version: str
) -> None:
    with ApiServer(version, GATE) as server, publishing(server, tmp_path) as run:
        add_node(server)
        admit = server.slices

        def policy(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
            if any(d["name"] == "gpu-2-mig-7g80gb-0-0" for d in new["spec"].get("devices", ())):
                raise ApiError(422, "Invalid", "a policy of this cluster says no")
            return admit(new, old)

        server.objects.admit_with({"resourceslices": policy})
        run.publisher.publish(EIGHT)
        run.wait()
        assert len(run.devices()) == 207
        assert left_out(run, "refused") == 1
