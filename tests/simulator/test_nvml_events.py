"""Event sets: XID and ECC events, who gets them, and sleeping until they come."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from dra_driver.simulator.native_library import ALL_GPUS, error_number
from tests.support.node import SimulatedNode
from tests.support.nvml import expect

XID = pynvml.nvmlEventTypeXidCriticalError
DOUBLE_BIT = pynvml.nvmlEventTypeDoubleBitEccError
WHOLE = 0xFFFFFFFF


@pytest.fixture
def events(nvml_node: SimulatedNode) -> Iterator[Any]:
    """Give a set registered for all that GPU 0 supports."""
    event_set = pynvml.nvmlEventSetCreate()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlDeviceGetSupportedEventTypes(gpu), event_set)
    yield event_set
    pynvml.nvmlEventSetFree(event_set)


def picture(data: Any) -> tuple[str, int, int, int, int]:
    uuid = pynvml.nvmlDeviceGetUUID(data.device)
    return uuid, data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId


def test_xid_of_gpu_and_partition(nvml_node: SimulatedNode, events: Any) -> None:
    uuid = nvml_node.gpu(0)["uuid"]
    nvml_node.state.set_mig_mode(0, on=True)
    gi = nvml_node.state.partition(0, "1g.10gb")
    nvml_node.state.xid(0, 79)
    nvml_node.state.xid(0, 31, gi, 0)
    nvml_node.state.xid(0, 94, gi)
    found = [picture(pynvml.nvmlEventSetWait(events, 1000)) for _ in range(3)]
    assert found == [
        (uuid, XID, 79, WHOLE, WHOLE),
        (uuid, XID, 31, gi, 0),
        (uuid, XID, 94, gi, WHOLE),
    ]
    expect("TIMEOUT", pynvml.nvmlEventSetWait, events, 0)


def test_ecc(nvml_node: SimulatedNode, events: Any) -> None:
    nvml_node.state.ecc(0)
    data = pynvml.nvmlEventSetWait(events, 1000)
    assert (data.eventType, data.eventData) == (DOUBLE_BIT, 0)


def test_only_registered_gpus_and_types(nvml_node: SimulatedNode) -> None:
    event_set = pynvml.nvmlEventSetCreate()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(gpu, XID, event_set)
    nvml_node.state.xid(1, 48)
    nvml_node.state.ecc(0)
    expect("TIMEOUT", pynvml.nvmlEventSetWait, event_set, 0)
    nvml_node.state.xid(0, 48)
    assert pynvml.nvmlEventSetWait(event_set, 1000).eventData == 48


def test_earlier_events_are_not_recorded(nvml_node: SimulatedNode) -> None:
    nvml_node.state.xid(0, 13)
    event_set = pynvml.nvmlEventSetCreate()
    nvml_node.state.xid(0, 31)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(gpu, XID, event_set)
    nvml_node.state.xid(0, 43)
    assert pynvml.nvmlEventSetWait(event_set, 1000).eventData == 43


def test_each_set_gets_every_event(nvml_node: SimulatedNode, events: Any) -> None:
    other = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), XID, other)
    nvml_node.state.xid(0, 13)
    assert pynvml.nvmlEventSetWait(events, 1000).eventData == 13
    assert pynvml.nvmlEventSetWait(other, 1000).eventData == 13


def test_more_events_than_the_ring_holds_leave_the_latest(
    nvml_node: SimulatedNode, events: Any
) -> None:
    for number in range(400):
        nvml_node.state.xid(0, number)
    found: list[int] = []
    while not found or found[-1] != 399:
        found.append(pynvml.nvmlEventSetWait(events, 1000).eventData)
    assert found == list(range(400 - len(found), 400))
    assert len(found) == 255


def test_waiting_sleeps_and_wakes_at_once(nvml_node: SimulatedNode, events: Any) -> None:
    got: list[tuple[int, float, float]] = []

    def wait() -> None:
        data = pynvml.nvmlEventSetWait(events, 60_000)
        got.append((data.eventData, time.monotonic(), time.thread_time()))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.5)
    assert got == []
    raised = time.monotonic()
    nvml_node.state.xid(0, 62)
    thread.join(timeout=60)
    number, woke, burnt = got[0]
    print(f"woke after {1000 * (woke - raised):.1f} ms, {1000 * burnt:.1f} ms of CPU")
    assert number == 62
    assert burnt < 0.1
    assert woke - raised < 4  # the wait looks by itself after 5 s only


def test_timeout_is_kept(nvml_node: SimulatedNode, events: Any) -> None:
    began = time.monotonic()
    expect("TIMEOUT", pynvml.nvmlEventSetWait, events, 300)
    assert time.monotonic() - began >= 0.29


def test_losing_a_gpu_ends_the_wait(nvml_node: SimulatedNode, events: Any) -> None:
    timer = threading.Timer(0.2, nvml_node.state.lose, [0])
    timer.start()
    assert pynvml.nvmlEventSetWait(events, 60_000).eventData == 79
    expect("GPU_IS_LOST", pynvml.nvmlEventSetWait, events, 60_000)
    timer.join()


def test_lost_neighbour_does_not_matter(nvml_node: SimulatedNode, events: Any) -> None:
    nvml_node.state.lose(1)
    expect("TIMEOUT", pynvml.nvmlEventSetWait, events, 0)


def test_driver_reload_ends_the_wait(nvml_node: SimulatedNode, events: Any) -> None:
    timer = threading.Timer(0.2, nvml_node.state.driver_reload)
    timer.start()
    expect("DRIVER_NOT_LOADED", pynvml.nvmlEventSetWait, events, 60_000)
    timer.join()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()


def test_fault_set_during_the_wait_counts(nvml_node: SimulatedNode, events: Any) -> None:
    arguments = [ALL_GPUS, "nvmlEventSetWait", error_number("UNKNOWN")]
    timer = threading.Timer(0.2, nvml_node.state.fault, arguments)
    timer.start()
    expect("UNKNOWN", pynvml.nvmlEventSetWait, events, 60_000)
    timer.join()


def test_freed_set_is_refused(nvml_node: SimulatedNode) -> None:
    event_set = pynvml.nvmlEventSetCreate()
    pynvml.nvmlEventSetFree(event_set)
    expect("INVALID_ARGUMENT", pynvml.nvmlEventSetWait, event_set, 0)
    expect("INVALID_ARGUMENT", pynvml.nvmlEventSetFree, event_set)
