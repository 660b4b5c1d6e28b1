"""Two instances on one node, as during an update: the newest publishes, the older one waits."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.model import Inventory
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import Publishing, publishing, wait_for
from tests.support.inventories import gpu, inventory

COUNT = 130  # three slices
OLD = inventory(*(gpu(minor, brand="old") for minor in range(COUNT)))
NEW = inventory(*(gpu(minor, brand="new") for minor in range(COUNT)))


def brands(server: ApiServer) -> set[str]:
    """How the devices look, which tells who published them."""
    return {
        device["attributes"]["brand"]["string"]
        for obj in server.objects.select("resourceslices")
        for device in obj["spec"]["devices"]
    }


def generations(server: ApiServer) -> set[int]:
    return {obj["spec"]["pool"]["generation"] for obj in server.objects.select("resourceslices")}


def is_publisher(run: Publishing) -> bool:
    return "gpu_dra_driver_publisher 1.0" in run.metrics.exposition().decode()


def publish(run: Publishing, what: Inventory) -> None:
    run.publisher.publish(what)
    run.wait()


def test_an_update_that_changes_nothing_writes_nothing(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as old:
        publish(old, OLD)
        server.requests.clear()
        with publishing(server, tmp_path) as new:
            publish(new, OLD)
            assert is_publisher(new)
        publish(old, inventory(gpu(0)))  # the marker, after the new one was rolled back
        assert {entry.verb for entry in server.requests.writes()} == {"update", "delete"}
        assert len(server.requests.writes()) == 3


def test_an_update_that_changes_slices_makes_one_generation(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as old:
        publish(old, OLD)
        assert generations(server) == {1}
        with publishing(server, tmp_path) as new:
            publish(new, NEW)
            assert (brands(server), generations(server)) == ({"new"}, {2})
            wait_for(lambda: not is_publisher(old), "the old one has noticed")
            for _ in range(5):
                publish(old, inventory(*OLD.gpus[:7]))
            assert old.publisher.complete(), "the slices are not its business"
            assert (brands(server), generations(server)) == ({"new"}, {2})
            assert len(server.requests.writes()) == 6
            old.publisher.stop()
        assert (brands(server), generations(server)) == ({"new"}, {2})


def test_the_older_takes_over_when_the_newer_is_gone(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as old:
        publish(old, OLD)
        with publishing(server, tmp_path) as new:
            publish(new, NEW)
        wait_for(lambda: brands(server) == {"old"}, "the old one took over")
        old.wait()
        assert generations(server) == {3}
        wait_for(lambda: is_publisher(old), "it says so")
        with publishing(server, tmp_path) as newest:
            publish(newest, NEW)
            assert (brands(server), generations(server)) == ({"new"}, {4})


def test_a_newer_one_without_hardware_leaves_the_slices_to_the_older(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as old, publishing(server, tmp_path):
        wait_for(lambda: server.requests.count("list") == 2, "the new one has listed")
        publish(old, OLD)
        assert brands(server) == {"old"}


def test_the_older_stops_before_its_next_write(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one comes while the first of the old one's three writes is on its way."""
    wait_for_new: list[Any] = []
    admit = server.slices

    def on_write(new: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        is_first = before is not None and not wait_for_new
        if is_first:
            newer.join()
            wait_for_new.append(new["metadata"]["name"])
        return admit(new, before)

    with publishing(server, tmp_path) as old, publishing(server, tmp_path) as new:
        publish(old, OLD)
        newer = new.publisher._instances
        server.objects.admit_with({"resourceslices": on_write})
        server.requests.clear()
        old.publisher.publish(inventory(*(gpu(minor, brand="older") for minor in range(COUNT))))
        wait_for(lambda: not is_publisher(old), "the old one stands by")
        (write,) = server.requests.writes()
        assert write.verb == "update"
        assert old.publisher.complete()
        publish(new, NEW)
        assert (brands(server), generations(server)) == ({"new"}, {3})
        assert len(server.requests.writes()) == 4


def test_writes_that_are_under_way_do_not_undo_the_newer_ones(
    server: ApiServer, tmp_path: Path
) -> None:
    """The old one's update hangs before the server and arrives after those of the new one."""
    with publishing(server, tmp_path) as old, publishing(server, tmp_path) as new:
        publish(old, OLD)
        server.faults.hang("update", "resourceslices", seconds=1.5, times=1)
        server.requests.clear()
        old.publisher.publish(inventory(*(gpu(minor, brand="older") for minor in range(COUNT))))
        wait_for(server.requests.writes, "the old one's first write is under way")
        publish(new, NEW)
        assert brands(server) == {"new"}
        wait_for(lambda: not is_publisher(old), "the old one stands by")
        assert server.requests.writes()[0].status == 409
        assert (brands(server), generations(server)) == ({"new"}, {2})
