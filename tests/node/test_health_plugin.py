"""The real plugin on a sick node: taints, refusals, health streams, events, and what goes on."""

from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.native_library import ALL_GPUS, error_number
from dra_driver.simulator.node_file import NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, MakeBed, NodeBed

MIXED = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            {
                "model": "h100-80gb",
                "partitions": [
                    {"profile": "1g.10gb", "start": 0},
                    {"profile": "3g.40gb", "start": 4},
                ],
            },
        ]
    }
)
SMALL, LARGE = "gpu-1-mig-1g10gb-19-0", "gpu-1-mig-3g40gb-9-4"
XID, LOST, UNMONITORED = (f"{DRIVER}/{key}" for key in ("xid", "gpu-lost", "unmonitored"))
POLL = "--poll-interval=300ms"


def taints(bed: NodeBed) -> dict[str, list[tuple[str, str, str]]]:
    """Taints of each published device: key, value, effect."""
    return {
        device["name"]: [
            (taint["key"], taint.get("value", ""), taint["effect"])
            for taint in device.get("taints", ())
        ]
        for each in bed.slices()
        for device in each["spec"].get("devices", ())
    }


def states(bed: NodeBed) -> dict[str, str]:
    """Give what the kubelet last heard of each device."""
    reports = bed.kubelet.wait_registered(DRIVER, 60).health.reports
    return {name: report.state for (_, name), report in reports.items()}


def node_events(bed: NodeBed) -> list[dict[str, Any]]:
    return [e for e in bed.api.objects.select("events") if e["involvedObject"]["kind"] == "Node"]


def refusal(bed: NodeBed, claim: ClaimRef) -> str:
    with pytest.raises(CallFailed) as raised:
        bed.kubelet.prepare(DRIVER, [claim])
    return str(raised.value)


def test_b40_a_fatal_xid_from_taint_to_recovery(make_bed: MakeBed) -> None:
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    bed.serve(POLL)
    held, wanted = bed.claim("held", LARGE), bed.claim("wanted", LARGE)
    other = bed.claim("other", "gpu-0")
    bed.kubelet.prepare(DRIVER, [held])
    bed.node.state.xid(1, 79)
    bed.node.state.set_recovery_action(1, 1)
    action = (f"{DRIVER}/recovery-action", "gpu-reset", "NoSchedule")
    sick = [action, (XID, "79", "NoSchedule")]
    seconds = eventually(
        lambda: taints(bed) == {"gpu-0": [], SMALL: sick, LARGE: sick}, "both partitions tainted"
    )
    print(f"tainted after {seconds:.2f} s")
    eventually(
        lambda: states(bed) == {"gpu-0": "HEALTHY", SMALL: "UNHEALTHY", LARGE: "UNHEALTHY"},
        "the kubelet knows",
    )
    report = bed.kubelet.wait_registered(DRIVER, 60).health.reports[NODE, LARGE]
    assert "XID 79" in report.message
    words = refusal(bed, wanted)
    assert "unhealthy" in words
    assert "XID 79" in words
    assert "XID 79" in refusal(bed, held), "nor does a new Pod with the claim that holds it"
    bed.kubelet.prepare(DRIVER, [other])
    eventually(
        lambda: [e for e in node_events(bed) if e["reason"] == "DeviceUnhealthy"],
        "an Event on the Node",
    )
    bed.kubelet.unprepare(DRIVER, [held, other])
    assert bed.claim_files() == set()
    bed.node.state.set_recovery_action(1, 0)
    eventually(lambda: taints(bed) == {"gpu-0": [], SMALL: [], LARGE: []}, "well by itself")
    eventually(lambda: set(states(bed).values()) == {"HEALTHY"}, "the kubelet knows that too")
    bed.kubelet.prepare(DRIVER, [wanted])
    bed.kubelet.unprepare(DRIVER, [wanted])
    eventually(
        lambda: [e for e in node_events(bed) if e["reason"] == "DeviceHealthy"],
        "another Event on the Node",
    )
    well = 'gpu_dra_driver_devices{device_type="mig",health="healthy",state="free"}'
    assert f"{well} 2.0" in bed.get("/metrics")[1]


def test_b40_a_partition_s_fault_stays_with_it_up_to_the_api_server(make_bed: MakeBed) -> None:
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    bed.serve("--additional-xids-to-ignore=62, 63")
    instances = bed.node.gpu(1)["instances"]
    (gi,) = [each["id"] for each in instances if each["profile"] == "1g.10gb"]
    for xid in (13, 31, 43, 45, 62, 63, 68, 109):
        bed.node.state.xid(1, xid, gi, 0)
    bed.node.state.xid(1, 94, gi, 0)
    eventually(lambda: taints(bed).get(SMALL), "tainted")
    assert taints(bed) == {"gpu-0": [], SMALL: [(XID, "94", "NoSchedule")], LARGE: []}


def test_b40_eight_sick_gpus_are_one_write(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=8)
    bed.kubelet.start()
    bed.serve()
    before = bed.api.requests.count("update", "resourceslices")
    bed.node.state.fault(ALL_GPUS, "nvmlEventSetWait", 0, times=1, hang=2.0)
    eventually(lambda: not bed.node.show()["faults"], "the event wait sleeps")
    for gpu in range(8):
        bed.node.state.xid(gpu, 79)
    eventually(lambda: all(taints(bed).values()), "all are tainted")
    assert bed.api.requests.count("update", "resourceslices") == before + 1


def test_b42_a_gpu_that_vanishes_without_xid(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=3)
    bed.kubelet.start()
    bed.serve(POLL, environment={"ADDITIONAL_XIDS_TO_IGNORE": "79"})
    held, wanted, other = (
        bed.claim(name, device)
        for name, device in (("held", "gpu-1"), ("wanted", "gpu-1"), ("other", "gpu-2"))
    )
    bed.kubelet.prepare(DRIVER, [held])
    bed.node.state.lose(1)
    lost = [(LOST, "", "NoSchedule")]
    eventually(lambda: taints(bed) == {"gpu-0": [], "gpu-1": lost, "gpu-2": []}, "tainted")
    eventually(lambda: states(bed).get("gpu-1") == "UNHEALTHY", "the kubelet knows")
    assert "GPU_IS_LOST" in refusal(bed, wanted)
    bed.kubelet.unprepare(DRIVER, [held])
    bed.kubelet.prepare(DRIVER, [other])
    bed.kubelet.unprepare(DRIVER, [other])
    assert bed.claim_files() == set()
    bed.node.state.restore(1)
    eventually(lambda: taints(bed) == {"gpu-0": [], "gpu-1": [], "gpu-2": []}, "back by itself")
    bed.kubelet.prepare(DRIVER, [wanted])
    bed.kubelet.unprepare(DRIVER, [wanted])


def test_a_server_that_drops_taints_gets_no_sick_devices(make_bed: MakeBed) -> None:
    """1.34 with default gates: the device is withdrawn, and an Event says why."""
    bed = make_bed(gpus=2, minor=34)
    bed.api.become("1.34.4")
    bed.kubelet.start()
    bed.serve(POLL)
    bed.node.state.xid(0, 48)
    bed.node.state.set_recovery_action(0, 2)
    eventually(lambda: bed.device_names() == {"gpu-1"}, "withdrawn")
    eventually(lambda: states(bed) == {"gpu-0": "UNHEALTHY", "gpu-1": "HEALTHY"}, "still told")
    eventually(lambda: len({e["reason"] for e in node_events(bed)}) == 2, "two Events")
    told = [e["message"] for e in node_events(bed) if e["reason"] == "DeviceNotPublished"]
    assert all("XID 48" in words and "keeps no taints" in words for words in told), told
    bed.node.state.set_recovery_action(0, 0)
    eventually(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "published again")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.34.4", []), ("1.35.4", [(UNMONITORED, "no-events", "None")])],
)
def test_unmonitored_is_said_where_the_server_knows_taints_without_effect(
    make_bed: MakeBed, version: str, expected: list[tuple[str, str, str]]
) -> None:
    bed = make_bed(gpus=2)
    bed.api.become(version, {"DRADeviceTaints": True})
    bed.node.state.fault(
        0, "nvmlDeviceRegisterEvents", error_number("NOT_SUPPORTED"), times=0, hang=0
    )
    bed.kubelet.start()
    bed.serve()
    assert taints(bed) == {"gpu-0": expected, "gpu-1": []}
    eventually(lambda: states(bed) == {"gpu-0": "HEALTHY", "gpu-1": "HEALTHY"}, "told as healthy")


def test_a_sick_gpu_is_still_sick_after_a_restart_where_it_says_so(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(POLL).kill()
    bed.node.state.set_recovery_action(0, 1)
    bed.serve(POLL)
    assert taints(bed)["gpu-0"] == [(f"{DRIVER}/recovery-action", "gpu-reset", "NoSchedule")]


@pytest.mark.parametrize("flag", ["--additional-xids-to-ignore=13,x", "--health-clear-after=never"])
def test_bad_health_flags_are_named(make_bed: MakeBed, flag: str) -> None:
    process = make_bed().serve(flag, wait=False)
    assert process.wait() == 2
    (line,) = process.lines("Error:")
    assert flag.partition("=")[0] in line
