"""Two allocators on a node: a device plugin beside this driver is reported (report B43)."""

from collections.abc import Mapping
from typing import Any

from tests.support.kubelet import eventually
from tests.support.plugin_process import NODE, MakeBed, NodeBed

METRIC = "gpu_dra_driver_other_allocator"


def allocatable(bed: NodeBed, resources: Mapping[str, str]) -> None:
    """Let the kubelet count these resources of device plugins."""
    node = bed.api.objects.get("nodes", NODE)
    node["status"] = {"allocatable": {"cpu": "8", "pods": "110", **resources}}
    bed.api.objects.replace("nodes", node, part="status")


def events(bed: NodeBed, reason: str) -> list[dict[str, Any]]:
    return [each for each in bed.api.objects.select("events") if each["reason"] == reason]


def metric(bed: NodeBed) -> int:
    return 1 if f"{METRIC} 1.0" in bed.get("/metrics")[1] else 0


def test_b43_a_second_allocator_is_reported_until_it_goes(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    plugin = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb.shared": "4", "nvidia.com/hostdev": "2"}
    allocatable(bed, plugin)
    process = bed.serve("--sweep-interval=200ms")
    eventually(lambda: metric(bed), "the metric tells")
    status, text = bed.get("/readyz")
    (first, note) = text.splitlines()
    assert (status, first) == (200, "ok"), "it serves on"
    assert note.startswith("note: a device plugin gives out GPUs of this Node too")
    assert "(nvidia.com/gpu=8, nvidia.com/mig-1g.5gb.shared=4 in status.allocatable)" in note
    eventually(lambda: events(bed, "OtherAllocator"), "an Event tells")
    (event,) = events(bed, "OtherAllocator")
    assert f"note: {event['message']}" == note
    assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "Node")
    # What a device plugin leaves when it ends (kubelet/cm/devicemanager/manager.go).
    allocatable(bed, {"nvidia.com/gpu": "0", "nvidia.com/hostdev": "2"})
    eventually(lambda: events(bed, "OtherAllocatorGone"), "its end is told")
    assert bed.get("/readyz") == (200, "ok\n")
    assert metric(bed) == 0
    assert len(events(bed, "OtherAllocator")) == 1
    assert len(process.lines("there is a second allocator")) == 1
    allocatable(bed, {"nvidia.com/gpu": "1"})
    eventually(lambda: metric(bed), "it is noticed again")


def test_b43_without_gpus_there_is_nothing_to_give_out_twice(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=0)
    bed.kubelet.start()
    allocatable(bed, {"nvidia.com/gpu": "8"})
    bed.serve("--sweep-interval=100ms", "--poll-interval=200ms")
    assert bed.get("/readyz") == (200, "ok\n")
    assert metric(bed) == 0
    bed.node.add_gpu("t4")
    eventually(lambda: metric(bed), "the GPU may be given out twice")
