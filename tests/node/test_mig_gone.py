"""Partitions of GPUs that hang, are lost or taken out, and of GPU drivers that go and come."""

import shutil
import time
from collections.abc import Callable

import pytest

from dra_driver.model.errors import DeviceNotFound, DriverNotReady, HardwareBusy, HardwareFailed
from dra_driver.nvml import GpuLost
from tests.support.discovery import ALL_GPUS, fault
from tests.support.mig import MakeMigBed, MigBed
from tests.support.node import MakeNode

PATIENCE = 60.0
HANG = 2.0
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def overdue(bed: MigBed, call: str, work: Callable[[], object]) -> None:
    """Let a call on the first GPU hang until whoever waited for it has given up.

    Others wait for a minute: who is refused while it hangs is refused at once.
    """
    fault(bed.node, 0, call, "", times=1, hang=HANG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_driver.nvml.jobs._JOB_SECONDS", HANG / 4)
        with pytest.raises(HardwareBusy, match="gpu 0 does not answer"):
            work()


@pytest.fixture(autouse=True)
def long_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.nvml.jobs._JOB_SECONDS", PATIENCE)


def until_it_works(bed: MigBed, work: object, *arguments: object) -> None:
    """Call again while the hardware is busy, as the kubelet does."""
    deadline = time.monotonic() + PATIENCE
    assert callable(work)
    while True:
        try:
            work(*arguments)
        except HardwareBusy:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize(
    "call", ["nvmlDeviceSetMigMode", CREATE, "nvmlGpuInstanceCreateComputeInstance"]
)
def test_a_call_that_hangs_costs_its_own_gpu_only_and_is_taken_back(
    make_node: MakeNode, mig_bed: MakeMigBed, call: str
) -> None:
    bed = mig_bed(make_node(gpus=2))
    record, other = bed.record(("1g.10gb", 0)), bed.record(("1g.10gb", 0), position=1)
    overdue(bed, call, lambda: bed.effect.apply(record))
    for work in (bed.effect.check, bed.effect.apply, bed.effect.undo):
        with pytest.raises(HardwareBusy, match="gpu 0 does not answer"):
            work(record)
    bed.effect.undo(bed.effect.apply(other))
    until_it_works(bed, bed.effect.check, record)
    assert bed.mode() == (False, False), "what came late was taken back"
    assert bed.standing() == []
    bed.effect.undo(bed.effect.apply(record))
    assert (bed.standing(), bed.mode()) == ([], (False, False))


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMigMode", "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"]
)
def test_undo_on_a_gpu_that_hangs_is_busy_then_works(
    make_node: MakeNode, mig_bed: MakeMigBed, call: str
) -> None:
    bed = mig_bed(make_node(gpus=2))
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    overdue(bed, call, lambda: bed.effect.undo(made))
    with pytest.raises(HardwareBusy, match="gpu 0 does not answer"):
        bed.effect.undo(made)
    until_it_works(bed, bed.effect.undo, made)
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_a_slow_switch_is_waited_for(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(make_node())
    fault(bed.node, 0, "nvmlDeviceSetMigMode", "", hang=HANG / 2)
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    assert bed.standing() == [("1g.10gb", 0, 1)]
    bed.effect.undo(made)
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_b42_a_lost_gpu_refuses_prepare_and_lets_unprepare_go(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node(gpus=2))
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    bed.node.state.lose(0)
    with pytest.raises(GpuLost, match="GPU_IS_LOST"):
        bed.effect.apply(made)
    bed.effect.undo(made)
    bed.watch.look()
    bed.effect.undo(made)
    bed.effect.undo(bed.effect.apply(bed.record(("1g.10gb", 0), position=1)))
    bed.node.state.restore(0)
    assert bed.standing() == [], "no partition outlives the reset"


@pytest.mark.parametrize("word", ["GPU_IS_LOST", "RESET_REQUIRED", "NOT_FOUND"])
def test_b42_a_gpu_that_no_call_reaches_lets_unprepare_go(
    make_node: MakeNode, mig_bed: MakeMigBed, word: str
) -> None:
    bed = mig_bed(make_node(gpus=2))
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    fault(bed.node, 0, "nvmlDeviceGetUUID", word)
    with pytest.raises(HardwareFailed, match=word):
        bed.effect.apply(made)
    bed.effect.undo(made)


def test_b42_after_a_restart_a_lost_gpu_lets_unprepare_go(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node(gpus=2))
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    bed.node.state.lose(0)
    again = mig_bed(bed.node)
    with pytest.raises(DeviceNotFound, match="is not on this node any more"):
        again.effect.apply(made)
    again.effect.undo(made)


def test_after_a_restart_a_silent_gpu_may_be_any(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(make_node(gpus=2))
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    fault(bed.node, 0, "nvmlDeviceGetUUID", "UNKNOWN")
    again = mig_bed(bed.node)
    with pytest.raises(HardwareBusy, match="is not found while not every GPU answers: gpu 0"):
        again.effect.undo(made)
    bed.node.state.clear()
    again.effect.undo(made)
    assert bed.standing() == []


def test_a_gpu_taken_out_takes_its_partitions_along(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node(gpus=3))
    gone = bed.effect.apply(bed.record(("1g.10gb", 0), position=1))
    stays = bed.effect.apply(bed.record(("1g.10gb", 0), position=2))
    bed.node.remove_gpu(1)
    bed.effect.undo(gone)
    assert bed.effect.apply(stays) == stays, "it is found though its number is another"
    bed.effect.undo(stays)
    assert bed.standing(1) == []
    with pytest.raises(DeviceNotFound):
        bed.effect.apply(gone)


def test_the_last_gpu_taken_out_takes_its_partitions_along(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node())
    gone = bed.effect.apply(bed.record(("1g.10gb", 0)))
    bed.node.remove_gpu(0)
    assert bed.watch.look().gpus == ()
    bed.effect.undo(gone)


@pytest.mark.parametrize("model", ["a100-40gb", "h100-80gb"])
def test_after_a_driver_reload_partitions_are_made_anew(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str
) -> None:
    node = make_node(model=model)
    node.state.set_mig_mode(0, on=True)
    node.state.reset(0)
    bed = mig_bed(node)
    profile = bed.gpu().slots[0].profile.name
    made = bed.effect.apply(bed.record((profile, 2)))
    node.state.driver_reload()
    assert bed.standing() == []
    again = bed.effect.apply(made)
    assert bed.standing() == [(profile, 2, 1)]
    assert again.devices[0].uuid != made.devices[0].uuid
    node.state.driver_reload()
    bed.effect.undo(again)
    assert bed.standing() == []


def test_another_driver_version_is_found(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(make_node())
    made = bed.effect.apply(bed.record(("1g.10gb", 2)))
    bed.node.set_driver_version("590.10.01")
    made = bed.effect.apply(made)
    assert bed.standing() == [("1g.10gb", 2, 1)]
    bed.effect.undo(made)
    assert bed.standing() == []


def test_without_nvml_nobody_knows_while_the_kernel_has_the_driver(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node())
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    bed.node.state.driver_reload()
    fault(bed.node, ALL_GPUS, "nvmlInit", "DRIVER_NOT_LOADED")
    for work in (bed.effect.check, bed.effect.apply, bed.effect.undo):
        with pytest.raises(DriverNotReady, match="DRIVER_NOT_LOADED"):
            work(made)
    bed.node.state.clear()
    bed.effect.undo(made)


def test_without_a_gpu_driver_partitions_are_gone(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(make_node())
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    bed.node.state.driver_reload()
    fault(bed.node, ALL_GPUS, "nvmlInit", "DRIVER_NOT_LOADED")
    shutil.rmtree(bed.node.root / "proc/driver/nvidia")
    devices = bed.node.root / "proc/devices"
    devices.write_text("Character devices:\n  1 mem\n\nBlock devices:\n259 blkext\n")
    with pytest.raises(DriverNotReady):
        bed.effect.apply(made)
    bed.effect.undo(made)


def test_before_the_first_look_it_works_as_soon_as_nvml_is_open(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node(gpus=2))
    record = bed.record(("1g.10gb", 0))
    fault(bed.node, 1, "nvmlDeviceGetName", "", hang=2 * HANG)
    again = mig_bed(bed.node, looked=False)
    deadline = time.monotonic() + PATIENCE
    while (session := again.watch.discovery._session) is None or not session._initialised:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    again.effect.undo(again.effect.apply(record))
    assert again.watch.discovery.current() is None, "the first look is not over"
    assert bed.standing() == []
