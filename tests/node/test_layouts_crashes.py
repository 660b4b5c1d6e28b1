"""A plugin that is killed while it applies a layout, and nodes that are rebooted under claims."""

import re

import pytest

from dra_driver.claims.layout_change import STEPS
from dra_driver.host import RangeLock
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.state import LayoutNote, LayoutNotes, NotedSlot, reservation_uid
from tests.support.kubelet import DRIVER, eventually
from tests.support.layouts import BALANCED, CONFIG, HALVES, LayoutBed, MakeLayoutBed

EXISTING = CONFIG.replace("mode: Static, layout: LAYOUT", "mode: Existing")
SMALL = "gpu-0-mig-1g10gb-19-2"
# Where the process is killed on its way from two halves to a balanced layout.
POINTS = (
    "before-layout:reserve",
    "layout:reserve/before-rename",
    "after-layout:reserve",
    "layout:note/before-rename",
    "after-layout:note",
    "layout:change/after-remove-compute-instance",
    "layout:change/after-remove-gpu-instance",
    "layout:change/before-gpu-instance",
    "layout:change/after-gpu-instance#2",
    "layout:change/before-compute-instance#3",
    "after-layout:change",
    "layout:finish/before-rename",
    "before-layout:release",
    "layout:release/before-remove",
)


def halves(make: MakeLayoutBed, *, gpus: int = 1) -> LayoutBed:
    """Make a node on whose GPUs the plugin has made two halves before."""
    bed = make(*[{"partitions": [{"profile": "3g.40gb"}, {"profile": "3g.40gb"}]}] * gpus)
    notes = LayoutNotes(bed.bed.data_folder)
    for gpu in bed.bed.node.show()["gpus"]:
        slots = tuple(
            NotedSlot(profile="3g.40gb", gi_profile_id=9, placement=(each["start"], 4), made=True)
            for each in gpu["instances"]
        )
        notes.write(LayoutNote(gpu_uuid=gpu["uuid"], layout="halves", finished=True, slots=slots))
    assert bed.partitions() == HALVES
    return bed


def killed_at(bed: LayoutBed, point: str) -> None:
    """Ask for a balanced layout, and let the plugin die on the way."""
    bed.configure("all-balanced")
    plugin = bed.serve(DRA_DRIVER_FAILPOINT=point)
    eventually(lambda: not plugin.running, f"it is killed at {point}")
    assert plugin.wait() == -9


def test_every_step_has_its_kills() -> None:
    assert {re.search(r"layout:(\w+)", point)[1] for point in POINTS} == set(STEPS)  # type: ignore[index]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_change_is_gone_on_with(layout_bed: MakeLayoutBed, point: str) -> None:
    bed = halves(layout_bed)
    killed_at(bed, point)
    bed.serve()
    bed.becomes(BALANCED)
    eventually(lambda: bed.bed.claim_files() == set(), "nothing is reserved")
    eventually(lambda: len(bed.bed.device_names()) == 4, "all are offered")
    eventually(lambda: bed.taints() == set(), "nothing is held back")
    note = bed.note()
    assert note.finished
    assert len(note.made) == 4, "all of them are ours"


def test_a_reservation_that_is_looked_at_just_then_is_dropped_later(
    layout_bed: MakeLayoutBed,
) -> None:
    """By the janitor at its start, say: nothing else would have the GPU looked at again."""
    bed = halves(layout_bed)
    killed_at(bed, "layout:release/before-remove")
    uid = reservation_uid(bed.bed.node.gpu(0)["uuid"])
    with RangeLock(bed.bed.data_folder / "claims.lock", uid, 60):
        bed.serve()
        eventually(lambda: bed.metric("applied") == 1, "the layout is looked after")
        assert bed.bed.claim_files() != set()
    eventually(lambda: bed.bed.claim_files() == set(), "nothing is reserved")


@pytest.mark.parametrize("point", POINTS[2:-4:3])
def test_what_a_killed_change_has_begun_goes_if_it_is_not_wanted_any_more(
    layout_bed: MakeLayoutBed, point: str
) -> None:
    bed = halves(layout_bed)
    killed_at(bed, point)
    begun = "note" in point or "change" in point
    bed.configure("", EXISTING)
    bed.serve()
    if begun and point != "layout:note/before-rename":
        eventually(lambda: bed.bed.node.gpu(0)["instances"] == [], "what was begun is gone")
        eventually(lambda: bed.bed.device_names() == {"gpu-0"}, "the whole GPU is offered")
        assert bed.notes() == []
    else:
        eventually(lambda: len(bed.bed.device_names()) == 2, "all is as it was")
        assert bed.partitions() == HALVES
    eventually(lambda: bed.bed.claim_files() == set(), "nothing is reserved")


def test_a_damaged_reservation_keeps_nothing_from_claims(layout_bed: MakeLayoutBed) -> None:
    bed = halves(layout_bed, gpus=2)
    killed_at(bed, "after-layout:reserve")
    (file,) = (bed.bed.data_folder / "claims").glob("layout-*.json")
    file.write_text("rubbish")
    bed.serve()
    bed.becomes(BALANCED)
    bed.becomes(BALANCED, gpu=1)
    eventually(lambda: len(bed.bed.device_names()) == 8, "all are offered")
    claim = bed.prepared("one", SMALL)
    bed.bed.kubelet.unprepare(DRIVER, [claim])
    assert list(bed.bed.data_folder.rglob("layout-*")) == []


def test_a_failure_is_tried_again_and_a_lasting_one_is_told(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.bed.fault("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN")
    bed.configure("all-balanced")
    bed.serve()
    bed.says("LayoutFailed", "layout all-balanced of gpu-0", "UNKNOWN")
    bed.bed.node.state.clear()
    bed.becomes(BALANCED)


def test_what_it_was_told_to_do_is_done_after_a_trouble(layout_bed: MakeLayoutBed) -> None:
    """Meanwhile the GPU is held back, and nothing changes that would remind of it."""
    bed = layout_bed({})
    bed.configure("halves")
    plugin = bed.serve()
    bed.becomes(HALVES)
    eventually(lambda: bed.metric("applied") == 1, "it is done")
    lock = bed.bed.data_folder / "state.lock"
    lock.replace(lock.with_suffix(".away"))
    lock.mkdir()
    bed.configure("all-balanced")
    eventually(lambda: plugin.lines("layouts can't be looked after"), "it is in trouble")
    eventually(lambda: bed.held_back() == {"gpu-0"}, "the GPU is held back")
    lock.rmdir()
    lock.with_suffix(".away").replace(lock)
    bed.becomes(BALANCED)


def test_a_monitor_in_the_way_of_a_mode_switch_is_waited_for(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.bed.node.state.fault(0, "nvmlDeviceSetMigMode", 19)  # IN_USE
    bed.configure("all-balanced")
    bed.serve()
    bed.says("LayoutWaiting", "IN_USE")
    eventually(lambda: bed.held_back() == {"gpu-0"}, "it is held back meanwhile")
    bed.bed.node.state.clear()
    bed.becomes(BALANCED)


@pytest.mark.parametrize("model", ["h100-80gb", "a100-80gb"])
def test_after_a_reboot_claims_find_their_partitions_again(
    layout_bed: MakeLayoutBed, model: str
) -> None:
    bed = layout_bed({"model": model, "migMode": model == "a100-80gb"})
    bed.configure("all-balanced")
    plugin = bed.serve()
    bed.becomes(BALANCED)
    eventually(lambda: len(bed.bed.device_names()) == 4, "all are offered")
    before = [(each["profile"], each["start"]) for each in bed.bed.node.gpu(0)["instances"]]
    names = sorted(bed.bed.device_names())
    claims = [bed.prepared(f"claim-{name}", name) for name in names[:3]]
    plugin.kill()
    bed.bed.node.reboot()
    bed.serve()
    bed.bed.kubelet.prepare(DRIVER, claims)
    eventually(lambda: sorted(bed.bed.device_names()) == names, "all are offered again")
    after = [(each["profile"], each["start"]) for each in bed.bed.node.gpu(0)["instances"]]
    assert sorted(after) == sorted(before)
    bed.bed.kubelet.unprepare(DRIVER, claims)
    assert bed.bed.claim_files() == set()


def test_after_a_reboot_only_what_claims_hold_comes_back_of_an_unwanted_layout(
    layout_bed: MakeLayoutBed,
) -> None:
    bed = layout_bed({})
    bed.configure("all-balanced")
    plugin = bed.serve()
    bed.becomes(BALANCED)
    eventually(lambda: SMALL in bed.bed.device_names(), "it is offered")
    claim = bed.prepared("one", SMALL)
    plugin.kill()
    bed.configure("halves")
    bed.bed.node.reboot()
    bed.serve()
    bed.bed.kubelet.prepare(DRIVER, [claim])
    assert bed.partitions() == [("1g.10gb", 1)]
    bed.says("LayoutWaiting", "waits for claim default/one")
    bed.bed.kubelet.unprepare(DRIVER, [claim])
    bed.becomes(HALVES)


def test_a_driver_reload_is_noticed_without_restart(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.configure("halves")
    bed.serve()
    bed.becomes(HALVES)
    eventually(lambda: bed.metric("applied") == 1, "it is done")
    bed.bed.node.state.driver_reload()
    eventually(lambda: bed.partitions() == HALVES and bed.metric("applied") == 1, "made again")


def test_of_two_instances_the_newest_applies_layouts(layout_bed: MakeLayoutBed) -> None:
    # With MIG mode on: to switch it the older instance would have to let go of the GPU.
    bed = layout_bed({"migMode": True})
    bed.bed.node.state.partition(0, "1g.10gb", 0)
    bed.configure("halves")
    old = bed.serve("--pod-uid=11111111-1111-1111-1111-111111111111")
    bed.says("LayoutWaiting", "foreign partition 1g.10gb")
    other = bed.bed.folder / "other.yaml"
    other.write_text(CONFIG.replace("LAYOUT", "all-balanced"))
    new = bed.bed.serve(f"--config={other}", "--pod-uid=22222222-2222-2222-2222-222222222222")
    bed.says("LayoutWaiting", "layout all-balanced")
    bed.bed.node.state.unpartition(0, bed.bed.node.gpu(0)["instances"][0]["id"])
    bed.becomes(BALANCED)
    assert old.lines("a layout is applied") == []
    new.kill()
    bed.becomes(HALVES)


def test_a_claim_on_a_gpu_that_is_missing_its_partition_is_not_refused_for_good(
    layout_bed: MakeLayoutBed,
) -> None:
    bed = layout_bed({})
    bed.configure("halves")
    plugin = bed.serve()
    bed.becomes(HALVES)
    eventually(lambda: len(bed.bed.device_names()) == 2, "both are offered")
    claim = bed.prepared("one", "gpu-0-mig-3g40gb-9-0")
    plugin.kill()
    bed.bed.node.reboot()
    bed.bed.fault("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN")
    bed.serve("--prepare-retry=10ms")
    with pytest.raises(CallFailed, match="gpu-0-mig-3g40gb-9-0"):
        bed.bed.kubelet.prepare(DRIVER, [claim])
    bed.bed.node.state.clear()
    bed.becomes(HALVES)
    eventually(lambda: len(bed.bed.device_names()) == 2, "both are offered")
    bed.bed.kubelet.prepare(DRIVER, [claim])
    bed.bed.kubelet.unprepare(DRIVER, [claim])
