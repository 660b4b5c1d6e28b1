"""NVML calls that hang for an hour delay nobody but whoever needs that very GPU."""

import time
from collections.abc import Callable

import pytest

from dra_driver.simulator.native_library import ALL_GPUS
from tests.node.test_health_plugin import POLL, states, taints
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, MakeBed, NodeBed

HOUR = 3600.0
PROMPT = 5.0  # seconds; half of what the first overdue call is waited for


def hang(bed: NodeBed, gpu: int, call: str) -> None:
    bed.node.state.fault(gpu, call, 0, times=0, hang=HOUR)


def promptly(what: str, call: Callable[[], object]) -> None:
    begun = time.monotonic()
    call()
    took = time.monotonic() - begun
    print(f"{what}: {took:.3f} s")
    assert took < PROMPT, f"{what} took {took:.1f} s"


def test_a_gpu_that_hangs_delays_neither_kubelet_nor_other_gpus(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=3)
    bed.kubelet.start()
    bed.serve(POLL)
    held, other = bed.claim("held", "gpu-0"), bed.claim("other", "gpu-1")
    bed.kubelet.prepare(DRIVER, [held])
    hang(bed, 0, "nvmlDevice*")
    time.sleep(1.0)  # the poll is stuck in the first hanging call, its deadline still ahead
    promptly("Prepare on another GPU", lambda: bed.kubelet.prepare(DRIVER, [other]))
    promptly("Unprepare on another GPU", lambda: bed.kubelet.unprepare(DRIVER, [other]))
    promptly("Unprepare on the hanging GPU", lambda: bed.kubelet.unprepare(DRIVER, [held]))
    bed.kubelet.restart()
    promptly("registration", lambda: bed.kubelet.wait_registered(DRIVER, 60))
    assert all(happening.what == "registered" for happening in bed.kubelet.history)
    promptly("health report", lambda: eventually(lambda: len(states(bed)) == 3, "a report"))
    promptly("an XID elsewhere", lambda: _xid_is_seen(bed, 2))
    eventually(
        lambda: states(bed) == {"gpu-0": "UNKNOWN", "gpu-1": "HEALTHY", "gpu-2": "UNHEALTHY"},
        "the hanging GPU is unknown",
    )
    report = bed.kubelet.wait_registered(DRIVER, 60).health.reports[NODE, "gpu-0"]
    assert "does not answer" in report.message
    unknown = [(f"{DRIVER}/unmonitored", "not-answering", "None")]
    eventually(lambda: taints(bed).get("gpu-0") == unknown, "a taint that only informs")
    promptly("Prepare on another GPU, later", lambda: bed.kubelet.prepare(DRIVER, [other]))
    promptly("Unprepare, later", lambda: bed.kubelet.unprepare(DRIVER, [other]))
    assert bed.get("/readyz") == (200, "ok\n")


def _xid_is_seen(bed: NodeBed, gpu: int) -> None:
    bed.node.state.xid(gpu, 48)
    eventually(lambda: taints(bed).get(f"gpu-{gpu}"), "tainted")


def test_reports_go_on_while_a_gpu_hangs(make_bed: MakeBed) -> None:
    """The kubelet takes a device for unknown after 30 s without a report."""
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(POLL)
    hang(bed, 0, "nvmlDevice*")
    health = bed.kubelet.wait_registered(DRIVER, 60).health
    seen = health.received
    seconds = eventually(lambda: health.received >= seen + 2, "two more reports")
    print(f"two more reports after {seconds:.1f} s")
    assert seconds < 30


@pytest.mark.parametrize(
    "call",
    ["nvmlEventSetWait", "nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents"],
)
def test_events_that_hang_cost_only_events(make_bed: MakeBed, call: str) -> None:
    bed = make_bed(gpus=3)
    bed.kubelet.start()
    if call != "nvmlEventSetWait":
        hang(bed, 1 if call == "nvmlDeviceRegisterEvents" else ALL_GPUS, call)
    bed.serve(POLL, environment={"ADDITIONAL_XIDS_TO_IGNORE": "79"})
    if call == "nvmlEventSetWait":
        hang(bed, ALL_GPUS, call)
    claim = bed.claim("mine", "gpu-0")
    promptly("Prepare", lambda: bed.kubelet.prepare(DRIVER, [claim]))
    promptly("Unprepare", lambda: bed.kubelet.unprepare(DRIVER, [claim]))
    bed.node.state.lose(2)
    lost = (f"{DRIVER}/gpu-lost", "", "NoSchedule")
    seconds = eventually(lambda: lost in taints(bed).get("gpu-2", []), "polling finds the lost GPU")
    print(f"polling finds the lost GPU after {seconds:.2f} s")
    eventually(lambda: states(bed).get("gpu-2") == "UNHEALTHY", "the kubelet knows")
    assert taints(bed)["gpu-0"] in ([], [(f"{DRIVER}/unmonitored", "no-events", "None")])


def test_a_stuck_event_wait_is_told_and_overcome(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(POLL)
    bed.node.state.fault(ALL_GPUS, "nvmlEventSetWait", 0, times=1, hang=15.0)
    unmonitored = [(f"{DRIVER}/unmonitored", "no-events", "None")]
    eventually(lambda: taints(bed) == {"gpu-0": unmonitored, "gpu-1": unmonitored}, "told")
    eventually(lambda: taints(bed) == {"gpu-0": [], "gpu-1": []}, "over")
    _xid_is_seen(bed, 1)


def test_a_gpu_that_answers_again_is_healthy(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(POLL)
    bed.node.state.fault(0, "nvmlDeviceGetName", 0, times=1, hang=14.0)
    eventually(lambda: states(bed).get("gpu-0") == "UNKNOWN", "unknown")
    eventually(lambda: states(bed).get("gpu-0") == "HEALTHY", "healthy again")
    eventually(lambda: taints(bed) == {"gpu-0": [], "gpu-1": []}, "no taint stays")
