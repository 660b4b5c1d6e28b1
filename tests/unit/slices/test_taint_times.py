"""Taints keep the time they began, whatever happens to the slices they stand in."""

from pathlib import Path
from typing import Any

from dra_driver.model import Health, HealthState, Inventory
from dra_driver.simulator.api_server import ApiServer
from dra_driver.slices.builder import PoolPlan, SlicePlan
from dra_driver.slices.taint_times import TaintTimes
from tests.support.api import Publishing, publishing, slice_of, wait_for
from tests.support.inventories import gpu, inventory

KEY = "gpu.nvidia.com/xid"
SICK = Health(HealthState.UNHEALTHY, "xid", "XID 79", 100.0, "79")
OLD = "2026-01-01T00:00:00Z"


def taint(value: str = "79", **more: str) -> dict[str, Any]:
    return {"key": KEY, "value": value, "effect": "NoSchedule", **more}


def plan(*devices: dict[str, Any]) -> PoolPlan:
    return PoolPlan((SlicePlan("slice", slice_of(*devices)["spec"]),))


def times_in(found: PoolPlan) -> list[str | None]:
    return [
        each.get("timeAdded")
        for part in found.slices
        for device in part.devices
        for each in device["taints"]
    ]


def test_the_same_taint_on_the_same_device_keeps_its_time() -> None:
    times = TaintTimes()
    times.note([slice_of({"name": "gpu-0", "taints": [taint(timeAdded=OLD)]})])
    same = {"name": "gpu-0", "taints": [taint()]}
    other_device = {"name": "gpu-1", "taints": [taint()]}
    assert times_in(times.applied(plan(same, other_device))) == [OLD, None]
    assert same["taints"] == [taint()], "the plan itself is not changed"
    assert times_in(times.applied(plan({"name": "gpu-0", "taints": [taint("48")]}))) == [None]


def test_a_taint_that_ended_begins_anew() -> None:
    times = TaintTimes()
    times.note([slice_of({"name": "gpu-0", "taints": [taint(timeAdded=OLD)]})])
    times.applied(plan({"name": "gpu-0"}))
    assert times_in(times.applied(plan({"name": "gpu-0", "taints": [taint()]}))) == [None]


def test_the_earliest_time_counts() -> None:
    times = TaintTimes()
    for time in (OLD, "2026-02-01T00:00:00Z"):
        times.note([slice_of({"name": "gpu-0", "taints": [taint(timeAdded=time)]})])
    assert times_in(times.applied(plan({"name": "gpu-0", "taints": [taint()]}))) == [OLD]


def test_a_slice_of_counters_stays_as_it_is() -> None:
    """Beside counters the API server refuses even an empty list of devices."""
    times = TaintTimes()
    times.note([slice_of({"name": "gpu-0", "taints": [taint(timeAdded=OLD)]})])
    counters = SlicePlan("counters", {"sharedCounters": [{"name": "s", "counters": {}}]})
    tainted = SlicePlan("devices", slice_of({"name": "gpu-0", "taints": [taint()]})["spec"])
    times.note([{"spec": counters.spec}])
    found = times.applied(PoolPlan((counters, tainted)))
    assert found.slices[0] == counters
    assert found.slices[1].devices[0]["taints"] == [taint(timeAdded=OLD)]


def make_old(server: ApiServer, run: Publishing) -> None:
    """Let the taint have begun long ago, as the server tells it."""
    (obj,) = run.slices()
    obj["spec"]["devices"][1]["taints"][0]["timeAdded"] = OLD
    server.objects.replace("resourceslices", obj)


def published(run: Publishing) -> dict[str, list[dict[str, Any]]]:
    return {d["name"]: d.get("taints", []) for o in run.slices() for d in o["spec"]["devices"]}


def sick_second(*more: Any) -> Inventory:
    return inventory(gpu(0), gpu(1, health=SICK), *more)


def test_times_last_over_updates_deleted_slices_and_a_second_slice(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(sick_second())
        run.wait()
        make_old(server, run)
        run.publisher.publish(inventory(gpu(0, health=SICK), gpu(1, health=SICK)))
        run.wait("another taint beside it")
        assert published(run)["gpu-1"] == [taint(timeAdded=OLD)]
        assert published(run)["gpu-0"][0]["timeAdded"] > OLD
        for obj in run.slices():
            server.objects.delete("resourceslices", obj["metadata"]["name"])
        wait_for(lambda: len(run.slices()) == 1, "written anew")
        assert published(run)["gpu-1"] == [taint(timeAdded=OLD)]
        run.publisher.publish(sick_second(*(gpu(n) for n in range(2, 70))))
        run.wait("two slices")
        assert published(run)["gpu-1"] == [taint(timeAdded=OLD)]
        run.publisher.publish(inventory(gpu(0), gpu(1)))
        run.wait("well again")
        run.publisher.publish(sick_second())
        run.wait("sick again")
        assert published(run)["gpu-1"][0]["timeAdded"] > OLD


def test_a_time_that_stays_costs_no_write(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(sick_second())
        run.wait()
        before = server.requests.count("update", "resourceslices")
        for _ in range(3):
            run.publisher.publish(sick_second())
            run.wait()
        assert server.requests.count("update", "resourceslices") == before
