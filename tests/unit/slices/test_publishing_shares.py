"""Shares against the API stand-in: relied on where they are kept, else it is told."""

from dataclasses import replace
from pathlib import Path

from dra_driver.model import GpuPolicy, Inventory, MemoryLimitLevel, SharesMode, SharesPolicy
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import Publishing, add_node, publishing, wait_for
from tests.support.inventories import GIB, gpu, inventory, partitioned

GATE = {"DRAConsumableCapacity": True}
FOUR = GpuPolicy(shares=SharesPolicy(SharesMode.COUNT, 4, rename=True))
BY_MEMORY = GpuPolicy(shares=SharesPolicy(SharesMode.MEMORY, reserve_bytes=GIB))
STRICT = replace(BY_MEMORY, required_limit=MemoryLimitLevel.CGROUP)


def node(policy: GpuPolicy, level: MemoryLimitLevel = MemoryLimitLevel.NONE) -> Inventory:
    return inventory(
        gpu(0, policy=policy, memory_limit=level),
        partitioned(1, 0, 1, policy=policy, memory_limit=level),
    )


def shared(run: Publishing) -> set[str]:
    return {
        device["name"]
        for obj in run.slices()
        for device in obj["spec"]["devices"]
        if device.get("allowMultipleAllocations")
    }


def wait_for_left_out(run: Publishing, count: int) -> None:
    def found() -> bool:
        labels = {"reason": "not-shared"}
        return run.metrics.registry.get_sample_value("gpu_dra_driver_left_out", labels) == count

    wait_for(found, f"{count} are told of")


def told(run: Publishing) -> list[str]:
    """Texts of the Events of two kinds of devices, of which each is told once."""
    events = [run.events.take(60) for _ in range(2)]
    assert all(event is not None and event.reason == "DeviceNotShared" for event in events)
    return [event.message for event in events if event is not None]


def test_what_the_server_stores_is_what_was_meant(server: ApiServer, tmp_path: Path) -> None:
    with publishing(server, tmp_path) as run:
        for policy in (FOUR, BY_MEMORY, GpuPolicy(shares=SharesPolicy(SharesMode.UNLIMITED))):
            server.requests.clear()
            run.publisher.publish(node(policy))
            wait_for(lambda: run.publisher.complete() and server.requests.writes(), "published")
            run.publisher.poke()
            run.wait("looked at once more")
            assert len(server.requests.writes()) == 1, "else it is written again and again"
            assert len(shared(run)) == 3
        wait_for_left_out(run, 0)


def test_a_server_that_drops_shares_gets_none_until_it_is_upgraded(tmp_path: Path) -> None:
    with ApiServer("1.35.4") as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(node(FOUR))
        run.wait()
        assert len(run.devices()) == 3
        assert shared(run) == set()
        wait_for_left_out(run, 2)
        assert [text.partition(":")[0] for text in told(run)] == [
            "device gpu-0 is not shared",
            "device gpu-1-mig-* is not shared",
        ]
        server.become("1.36.3")
        wait_for(lambda: len(shared(run)) == 3, "shared after the upgrade")
        run.wait()
        wait_for_left_out(run, 0)


def test_shares_that_a_write_loses_are_given_up_by_name(tmp_path: Path) -> None:
    """The gate goes off between probe and write, as with several servers at one address."""
    with ApiServer("1.35.4", GATE) as server, publishing(server, tmp_path) as run:
        add_node(server)
        run.publisher.publish(inventory())
        run.wait()
        server.slices.gates["DRAConsumableCapacity"] = False
        run.publisher.publish(node(FOUR))
        wait_for_left_out(run, 2)
        run.wait()
        assert shared(run) == set()
        resources = {
            device["attributes"]["resourceName"]["string"]
            for obj in run.slices()
            for device in obj["spec"]["devices"]
        }
        assert resources == {"gpu", "mig-1g.10gb"}, "nobody has a share of what is not shared"


def test_shares_come_and_go_with_the_level_that_is_wanted(
    server: ApiServer, tmp_path: Path
) -> None:
    with publishing(server, tmp_path) as run:
        run.publisher.publish(node(STRICT))
        run.wait()
        assert shared(run) == set()
        assert all("requireMemoryLimit is cgroup" in text for text in told(run))
        run.publisher.publish(node(STRICT, MemoryLimitLevel.CGROUP))
        wait_for(lambda: shared(run) == {"gpu-0"}, "a limit holds on the whole GPU")
        run.wait()
        wait_for_left_out(run, 1)
        run.publisher.publish(node(STRICT))
        wait_for(lambda: shared(run) == set(), "and holds no more")
