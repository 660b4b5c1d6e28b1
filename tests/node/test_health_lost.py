"""B42: a GPU that vanishes with no XID, and event waits that fail, end at once or never end."""

import time

import pytest

from dra_driver.simulator.native_library import ALL_GPUS, error_number
from tests.support.hardware import HEALTHY, UNHEALTHY, MakeWard
from tests.support.node import MakeNode, SimulatedNode

IGNORED = frozenset({79})  # the simulated GPU announces its loss: that is not to be relied on


def fault(node: SimulatedNode, gpu: int, call: str, name: str = "", hang: float = 0) -> None:
    node.state.fault(gpu, call, error_number(name) if name else 0, times=0, hang=hang)


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "NOT_FOUND", "RESET_REQUIRED"])
def test_b42_a_gpu_that_stops_to_answer_is_found_by_polling(
    make_node: MakeNode, ward: MakeWard, error: str
) -> None:
    node = make_node(gpus=3)
    run = ward(node.root, poll_seconds=0.2)
    fault(node, 1, "nvmlDevice*", error)
    run.until_health(gpu_0=HEALTHY, gpu_1=UNHEALTHY, gpu_2=HEALTHY)
    assert run.health()["gpu-1"].reason == "gpu-lost"
    node.state.clear()
    run.until_health(gpu_0=HEALTHY, gpu_1=HEALTHY, gpu_2=HEALTHY)


def test_b42_a_failing_event_wait_is_reason_to_look_at_once(
    make_node: MakeNode, ward: MakeWard
) -> None:
    node = make_node(gpus=3)
    run = ward(node.root, ignored_xids=IGNORED)  # polls once an hour
    node.state.lose(1)
    run.until_health(gpu_0=HEALTHY, gpu_1=UNHEALTHY, gpu_2=HEALTHY)
    assert run.health()["gpu-1"].reason == "gpu-lost"
    node.state.xid(2, 48)
    run.until_health(gpu_2=UNHEALTHY)  # events of the others are still heard
    node.state.restore(1)
    run.look()
    assert run.sick() == {"gpu-2"}
    node.state.xid(1, 48)
    run.until_health(gpu_1=UNHEALTHY)  # and those of the GPU that came back


def test_b42_a_gpu_that_nvml_lists_no_longer_is_lost(make_node: MakeNode, ward: MakeWard) -> None:
    """The kernel driver still has it; one that both have lost is gone."""
    node = make_node(gpus=3)
    run = ward(node.root, poll_seconds=0.2)
    (node.root / "dev/nvidia1").rename(node.root / "aside")
    run.until_health(gpu_0=HEALTHY, gpu_1=UNHEALTHY, gpu_2=HEALTHY)
    assert run.health()["gpu-1"].reason == "gpu-lost"
    assert "does not list it" in run.health()["gpu-1"].message
    (node.root / "aside").rename(node.root / "dev/nvidia1")
    run.until_health(gpu_0=HEALTHY, gpu_1=HEALTHY, gpu_2=HEALTHY)
    node.remove_gpu(1)
    run.until(lambda _: set(run.health()) == {"gpu-0", "gpu-2"}, "withdrawn")


def test_a_gpu_is_lost_and_has_its_xid_at_once(make_node: MakeNode, ward: MakeWard) -> None:
    node = make_node(gpus=2)
    run = ward(node.root, poll_seconds=0.2, health_clear_seconds=3600.0)
    node.state.lose(0)
    run.until(lambda _: len(run.health()["gpu-0"].entries()) == 2, "both reasons")
    lost, xid = run.health()["gpu-0"].entries()
    assert (lost.reason, xid.reason, xid.value) == ("gpu-lost", "xid", "79")
    assert "XID 79" in run.health()["gpu-0"].words
    node.state.restore(0)
    run.until_health(gpu_0=HEALTHY)


# ---- no busy loop, whatever NVML answers

SECONDS = 5.0
READS = 40  # calls that one look at one GPU may make


def calls_in(node: SimulatedNode, seconds: float) -> int:
    before = node.show()["nvmlCalls"]
    time.sleep(seconds)
    made = int(node.show()["nvmlCalls"]) - int(before)
    print(f"{made} NVML calls in {seconds:g} s")
    return made


@pytest.mark.parametrize(
    "error",
    ["GPU_IS_LOST", "UNINITIALIZED", "TIMEOUT", "UNKNOWN", "FUNCTION_NOT_FOUND"],
)
def test_b42_an_event_wait_that_fails_at_once_is_no_busy_loop(
    make_node: MakeNode, ward: MakeWard, error: str
) -> None:
    node = make_node(gpus=2)
    run = ward(node.root)
    fault(node, ALL_GPUS, "nvmlEventSetWait", error)
    time.sleep(1.5)  # the wait in progress ends, and the first failure is answered at once
    # Pauses of 0, 1, 2, 4 s between looks at two GPUs, or two waits a second.
    assert calls_in(node, SECONDS) < 4 * 2 * READS
    assert run.sick() == set()
    node.state.clear()
    node.state.xid(0, 48)
    began = time.monotonic()
    while not run.sick():  # an event in a pause is lost: the poll of the real GPU would find it
        node.state.xid(0, 48)
        time.sleep(0.1)
        assert time.monotonic() - began < 60
    print(f"events are heard again after {time.monotonic() - began:.1f} s")


def test_b42_events_without_end_are_no_busy_loop(make_node: MakeNode, ward: MakeWard) -> None:
    node = make_node(gpus=2)
    run = ward(node.root)
    before = node.show()["nvmlCalls"]
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        node.state.xid(0, 48)
        node.state.xid(1, 13)
        time.sleep(0.002)
    made = int(node.show()["nvmlCalls"]) - int(before)
    print(f"{made} NVML calls for {int(SECONDS * 500)} pairs of events")
    assert made < SECONDS * 2 * 64 + 3 * 2 * READS
    assert run.sick() == {"gpu-0"}
    assert len(run.told) <= 4


def test_an_event_set_that_can_t_be_had_costs_only_the_events(
    make_node: MakeNode, ward: MakeWard
) -> None:
    node = make_node(gpus=2)
    fault(node, ALL_GPUS, "nvmlEventSetCreate", "UNKNOWN")
    run = ward(node.root, poll_seconds=0.2)
    assert {(h.state, h.reason) for h in run.health().values()} == {(HEALTHY, "no-events")}
    node.state.lose(0)
    run.until_health(gpu_0=UNHEALTHY)
    node.state.clear()
    node.state.restore(0)
    run.until(lambda _: {h.reason for h in run.health().values()} == {""}, "events are had again")


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "UNKNOWN", "NO_PERMISSION"])
def test_one_gpu_without_events_does_not_deafen_the_others(
    make_node: MakeNode, ward: MakeWard, error: str
) -> None:
    node = make_node(gpus=3)
    fault(node, 1, "nvmlDeviceRegisterEvents", error)
    run = ward(node.root)
    assert [h.reason for h in run.health().values()] == ["", "no-events", ""]
    node.state.xid(2, 48)
    run.until_health(gpu_2=UNHEALTHY, gpu_0=HEALTHY)
    run.look()  # the one that follows an event is over
    assert calls_in(node, 2.0) < 20, "it is not tried over and over"
