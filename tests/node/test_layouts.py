"""Mode Static on the real process: layouts are applied when nobody uses a GPU, and say why not."""

import pytest

from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER, eventually
from tests.support.layouts import BALANCED, CONFIG, GIB, HALVES, MakeLayoutBed

SMALL = "gpu-0-mig-1g10gb-19-2"


def test_a_layout_is_applied_at_the_start(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({}, {})
    bed.configure("all-balanced")
    bed.serve()
    bed.becomes(BALANCED)
    bed.becomes(BALANCED, gpu=1)
    bed.says("LayoutApplied", "layout all-balanced of gpu-1")
    eventually(lambda: len(bed.bed.device_names()) == 8, "all partitions are offered")
    eventually(lambda: bed.metric("applied") == 2, "both are counted")
    eventually(lambda: bed.taints() == set(), "nothing is held back")


def test_what_is_right_already_is_left_alone_and_stays_somebody_elses(
    layout_bed: MakeLayoutBed,
) -> None:
    bed = layout_bed({"partitions": [{"profile": "3g.40gb"}, {"profile": "3g.40gb"}]})
    before = bed.bed.node.gpu(0)["instances"]
    bed.configure("halves")
    bed.serve()
    eventually(lambda: bed.metric("applied") == 1, "it is as it should be")
    assert bed.bed.node.gpu(0)["instances"] == before
    bed.configure("all-balanced")
    bed.says("LayoutWaiting", "waits for foreign partition 3g.40gb at memory slices 0 to 3")
    assert bed.bed.node.gpu(0)["instances"] == before


def test_a_change_waits_for_a_claim_and_needs_no_restart(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({}, {})
    bed.configure("all-balanced")
    plugin = bed.serve()
    bed.becomes(BALANCED)
    bed.becomes(BALANCED, gpu=1)
    eventually(lambda: SMALL in bed.bed.device_names(), "it is offered")
    claim = bed.prepared("train", SMALL)
    bed.configure("halves")
    bed.says("LayoutWaiting", "gpu-0", "waits for claim default/train")
    bed.becomes(HALVES, gpu=1)
    assert bed.partitions() == BALANCED
    eventually(lambda: {"gpu-0"} == bed.held_back(), "only what waits is held back")
    eventually(lambda: bed.metric("waiting") == 1, "it is counted")
    bed.bed.kubelet.prepare(DRIVER, [claim])  # a Pod may come back
    bed.bed.kubelet.unprepare(DRIVER, [claim])
    bed.becomes(HALVES)
    eventually(lambda: bed.taints() == set(), "nothing is held back")
    eventually(lambda: bed.metric("applied") == 2, "all is as it should be")
    assert plugin.running
    assert bed.bed.claim_files() == set()


def test_a_foreign_partition_blocks_and_is_not_touched(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.configure("all-balanced")
    bed.serve()
    bed.becomes(BALANCED)
    ours = bed.bed.node.gpu(0)["instances"]
    three = next(each for each in ours if each["profile"] == "3g.40gb")
    bed.bed.node.state.unpartition(0, three["id"])
    by_hand = bed.bed.node.state.partition(0, "2g.20gb", three["start"])
    told = bed.says("LayoutWaiting", "waits for foreign partition 2g.20gb at memory slices 4 to 5")
    assert f"GPU instance {by_hand}" in told
    assert by_hand in {each["id"] for each in bed.bed.node.gpu(0)["instances"]}
    bed.bed.node.state.unpartition(0, by_hand)
    bed.becomes(BALANCED)


def test_a_process_blocks(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.bed.node.state.process(0, 4242, GIB)
    bed.configure("halves")
    bed.serve()
    bed.says("LayoutWaiting", "waits for", "(PID 4242)")
    assert bed.partitions() == []
    bed.bed.node.state.process(0, 4242, 0)
    bed.becomes(HALVES)


def test_a_claim_that_arrives_while_the_layout_is_made_is_refused_by_name(
    layout_bed: MakeLayoutBed,
) -> None:
    bed = layout_bed({})
    bed.bed.node.state.process(0, 4242, GIB)
    bed.configure("halves")
    bed.serve("--prepare-retry=1ms")
    bed.says("LayoutWaiting", "4242")
    bed.bed.node.state.fault(0, "nvmlDeviceCreateGpuInstanceWithPlacement", hang=4, times=1)
    bed.bed.node.state.process(0, 4242, 0)
    records = bed.bed.data_folder / "claims"
    eventually(lambda: list(records.glob("layout-*.json")), "the GPU is reserved")
    claim = bed.bed.claim("late", "gpu-0")
    with pytest.raises(CallFailed, match="while layout halves is being applied"):
        bed.bed.kubelet.prepare(DRIVER, [claim])
    bed.becomes(HALVES)
    bed.bed.kubelet.unprepare(DRIVER, [claim])
    eventually(lambda: bed.bed.claim_files() == set(), "the reservation is gone")


def test_mig_mode_is_not_switched_where_that_resets_the_gpu(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({"model": "a100-40gb"})
    bed.configure("all-balanced")
    bed.serve()
    told = bed.says("LayoutFailed", "needs a GPU reset")
    assert "partitioning.allowReset" in told
    assert bed.metric("failed") == 1
    assert bed.taints() == set(), "it stays in use as it is"
    claim = bed.prepared("whole", "gpu-0")
    bed.bed.kubelet.unprepare(DRIVER, [claim])
    bed.bed.node.state.set_mig_mode(0, on=True)
    bed.bed.node.state.reset(0)
    bed.becomes([("1g.5gb", 2), ("2g.10gb", 1), ("3g.20gb", 1)])


def test_where_a_reset_is_allowed_and_can_not_be_had_the_gpu_stays_in_use(
    layout_bed: MakeLayoutBed,
) -> None:
    """NVML can't reset a GPU of a virtual machine: the switch stays pending, and is taken back."""
    bed = layout_bed({"model": "a100-40gb"})
    bed.configure("all-balanced", CONFIG.replace("LAYOUT}", "LAYOUT, allowReset: true}"))
    bed.serve()
    bed.says("LayoutFailed", "takes a reset of the GPU; do it by hand")
    eventually(lambda: bed.taints() == set(), "it is not held back any more")
    mig = bed.bed.node.gpu(0)["mig"]
    assert (mig["current"], mig["pending"]) == (False, False)
    assert bed.notes() == []
    claim = bed.prepared("whole", "gpu-0")
    bed.bed.kubelet.unprepare(DRIVER, [claim])


def test_a_layout_the_gpu_can_not_have_leaves_it_in_use(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({}, {"model": "t4"})
    bed.configure("all-7g.80gb")
    bed.serve()
    bed.becomes([("7g.80gb", 1)])
    bed.says("LayoutFailed", "gpu-1", "it can have all-disabled")
    bed.configure("all-2g.99gb")
    bed.says("LayoutFailed", "gpu-0", "it can have all-disabled, all-enabled")
    assert bed.partitions() == [("7g.80gb", 1)]
    assert bed.taints() == set()


def test_a_layout_without_partitions_switches_the_mode(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.configure("all-1g.10gb")
    bed.serve()
    bed.becomes([("1g.10gb", 7)])
    bed.configure("all-enabled")
    bed.becomes([])
    eventually(lambda: bed.metric("applied") == 1, "it is as it should be")
    assert bed.bed.node.gpu(0)["mig"]["current"] is True
    bed.configure("all-disabled")
    eventually(lambda: bed.bed.node.gpu(0)["mig"]["current"] is False, "MIG mode is off")
    eventually(lambda: bed.bed.device_names() == {"gpu-0"}, "the whole GPU is offered")
    assert bed.notes() == []


@pytest.mark.parametrize("mode", ["Existing", "Dynamic"])
def test_what_becomes_of_partitions_when_the_mode_changes(
    layout_bed: MakeLayoutBed, mode: str
) -> None:
    bed = layout_bed({})
    bed.configure("halves")
    bed.serve()
    bed.becomes(HALVES)
    bed.configure("", CONFIG.replace("mode: Static, layout: LAYOUT", f"mode: {mode}"))
    if mode == "Dynamic":
        bed.becomes([])
        eventually(lambda: "gpu-0" in bed.bed.device_names(), "all is offered")
        claim = bed.prepared("one", "gpu-0-mig-3g40gb-9-0")
        bed.bed.kubelet.unprepare(DRIVER, [claim])
        assert bed.notes() == []
    else:
        bed.configure("", CONFIG.replace("mode: Static, layout: LAYOUT", "mode: Existing"))
        eventually(lambda: bed.metric("applied") == 0, "no layout concerns it")
        assert bed.partitions() == HALVES
    bed.configure("all-balanced")
    bed.becomes(BALANCED)
