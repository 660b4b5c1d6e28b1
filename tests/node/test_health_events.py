"""B40: each event hits the devices that it concerns, all of them and no others."""

import time
from collections.abc import Callable

import pytest

from dra_driver.health.xids import ANNOUNCEMENT, APPLICATION
from dra_driver.simulator.native_library import ALL_GPUS, error_number
from dra_driver.simulator.node_file import NodeSpec
from tests.support.hardware import HEALTHY, UNHEALTHY, MakeWard, Ward
from tests.support.kubelet import eventually
from tests.support.node import MakeNode, SimulatedNode

SPEC = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            {
                "model": "h100-80gb",
                "partitions": [
                    {"profile": "1g.10gb", "start": 0},
                    {"profile": "1g.10gb", "start": 1},
                    {"profile": "3g.40gb", "start": 4},
                ],
            },
            {"model": "h100-80gb"},
        ]
    }
)
FIRST, SECOND, THIRD = (
    "gpu-1-mig-1g10gb-19-0",
    "gpu-1-mig-1g10gb-19-1",
    "gpu-1-mig-3g40gb-9-4",
)
PARTITIONS = {FIRST, SECOND, THIRD}


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    return make_node(spec=SPEC)


def gi_of(run: Ward, device: str) -> int:
    found = run.told[-1].device(device)
    assert found is not None
    assert found.partition is not None
    return found.partition.gi_id


def no_instance(node: SimulatedNode, run: Ward) -> set[str]:
    node.state.xid(1, 79)
    return PARTITIONS


def gpu_instance_alone(node: SimulatedNode, run: Ward) -> set[str]:
    node.state.xid(1, 95, gi_of(run, SECOND))
    return {SECOND}


def both_instances(node: SimulatedNode, run: Ward) -> set[str]:
    node.state.xid(1, 94, gi_of(run, THIRD), 0)
    return {THIRD}


def whole_gpu(node: SimulatedNode, run: Ward) -> set[str]:
    node.state.xid(2, 48)
    return {"gpu-2"}


def unreadable_uuid(node: SimulatedNode, run: Ward) -> set[str]:
    node.state.fault(2, "nvmlDeviceGetUUID", error_number("UNKNOWN"), times=0, hang=0)
    node.state.xid(2, 48)
    return {"gpu-2"}


@pytest.mark.parametrize(
    "happen", [no_instance, gpu_instance_alone, both_instances, whole_gpu, unreadable_uuid]
)
def test_b40_a_fatal_xid_hits_all_that_it_is_about_and_nothing_else(
    node: SimulatedNode, ward: MakeWard, happen: Callable[[SimulatedNode, Ward], set[str]]
) -> None:
    run = ward(node.root)
    expected = happen(node, run)
    run.until(lambda _: run.sick() == expected, f"{expected} are unhealthy")
    assert set(run.health()) == {"gpu-0", "gpu-2"} | PARTITIONS
    for name in expected:
        health = run.health()[name]
        assert health.reason == "xid"
        assert health.value in ("79", "94", "95", "48")
        assert health.message.startswith(f"XID {health.value} (")
        assert abs(health.since - time.time()) < 60


def test_b40_an_instance_that_nobody_knows_is_the_whole_gpu(
    node: SimulatedNode, ward: MakeWard
) -> None:
    """A partition made after the last look: until the next one its GPU is under suspicion."""
    run = ward(node.root)
    node.state.fault(1, "nvmlDeviceGetGpuInstances", error_number("UNKNOWN"), times=0, hang=0)
    gi = node.state.partition(1, "1g.10gb", 2)
    node.state.xid(1, 95, gi, 0)
    run.until(lambda _: len(run.sick()) == len(run.health()) - 2, "all of GPU 1")
    assert not run.sick() & {"gpu-0", "gpu-2"}
    gpu = run.told[-1].gpus[1]
    assert not gpu.health.usable
    node.state.clear()
    run.look()
    assert run.sick() == {"gpu-1-mig-1g10gb-19-2"}, "the look has found it"


@pytest.mark.parametrize("where", ["whole", "partition"])
def test_b40_an_application_fault_taints_nothing(
    node: SimulatedNode, ward: MakeWard, where: str
) -> None:
    run = ward(node.root, ignored_xids=frozenset({63, 999}))
    told = len(run.told)
    for xid in sorted(APPLICATION | {63, 999, ANNOUNCEMENT}):
        if where == "whole":
            node.state.xid(0, xid)
        else:
            node.state.xid(1, xid, gi_of(run, FIRST), 0)
    node.state.xid(2, 48)  # the marker: what came before it has been heard
    run.until_health(gpu_2=UNHEALTHY)
    assert run.sick() == {"gpu-2"}
    assert len(run.told) == told + 1
    count = "gpu_dra_driver_hardware_events_total"
    assert run.metric(count, kind="xid", fatal="false") == len(APPLICATION) + 3
    assert run.metric(count, kind="xid", fatal="true") == 1


def test_b40_events_of_several_devices_are_told_at_once(
    make_node: MakeNode, ward: MakeWard
) -> None:
    node = make_node(gpus=8)
    run = ward(node.root)
    told = len(run.told)
    # Eight events in one moment: no wait comes back between them.
    node.state.fault(ALL_GPUS, "nvmlEventSetWait", 0, times=1, hang=2.0)
    eventually(lambda: not node.show()["faults"], "the event wait sleeps")
    for gpu in range(8):
        node.state.xid(gpu, 79)
    run.until(lambda _: len(run.sick()) == 8, "all eight are unhealthy")
    assert len(run.told) == told + 1, "in one snapshot"


def test_people_are_told_once_for_a_gpu(node: SimulatedNode, ward: MakeWard) -> None:
    run = ward(node.root, poll_seconds=0.2, health_clear_seconds=1.0)
    assert run.events() == []
    node.state.xid(1, 79)
    run.until(lambda _: run.sick() == PARTITIONS, "unhealthy")
    (event,) = run.events()
    assert (event.reason, event.warning, event.claim) == ("DeviceUnhealthy", True, None)
    assert all(name in event.message for name in PARTITIONS)
    assert "XID 79" in event.message
    run.until(lambda _: not run.sick(), "healthy again")
    (event,) = run.events()
    assert (event.reason, event.warning) == ("DeviceHealthy", False)


def test_an_ecc_error_blames_a_gpu_and_leaves_partitions_to_the_xid(
    make_node: MakeNode, ward: MakeWard
) -> None:
    node = make_node(
        spec=NodeSpec.model_validate(
            {
                "gpus": [
                    {"model": "t4"},
                    {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb"}]},
                ]
            }
        )
    )
    run = ward(node.root)
    node.state.ecc(0)
    run.until_health(gpu_0=UNHEALTHY)
    assert run.health()["gpu-0"].reason == "ecc"
    node.state.ecc(1)
    run.until(lambda _: len(run.sick()) == 2, "the GPU driver asks for a reset")
    assert {h.reason for h in run.health().values()} == {"ecc", "recovery-action"}


@pytest.mark.parametrize("model", ["a100-40gb", "gb10", "p4"])
def test_every_model_starts_healthy_and_hears_its_events(
    make_node: MakeNode, ward: MakeWard, model: str
) -> None:
    node = make_node(model=model, gpus=2)
    run = ward(node.root)
    assert {(h.state, h.reason) for h in run.health().values()} == {(HEALTHY, "")}
    node.state.xid(1, 79)
    run.until_health(gpu_1=UNHEALTHY, gpu_0=HEALTHY)


def test_nothing_is_told_while_nothing_changes(node: SimulatedNode, ward: MakeWard) -> None:
    run = ward(node.root)
    first = run.told[-1]
    assert [run.look() for _ in range(3)] == [first] * 3
    node.state.xid(2, 48)
    run.until_health(gpu_2=UNHEALTHY)
    sick = run.told[-1]
    assert [run.look() for _ in range(3)] == [sick] * 3
    assert run.told == [first, sick]
    assert sick.generation == first.generation + 1
