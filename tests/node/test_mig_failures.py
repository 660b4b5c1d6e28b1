"""Steps of making and removing partitions that fail, and others who are in the way."""

from pathlib import Path

import pytest

from dra_driver.model import BadNode, DriverError
from dra_driver.model.errors import HardwareBusy, HardwareFailed, PermissionMissing
from dra_driver.simulator.node_file import NodeSpec
from tests.support.discovery import fault
from tests.support.mig import MakeMigBed, MigBed
from tests.support.mig_models import MIG_MODELS
from tests.support.node import MakeNode

GIB = 1 << 30
AMPERE = ("a100-40gb", "a100-80gb")
ACTIVATION = "nvmlDeviceSetMigMode.activation"
MAKING = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceSetMigMode",
    ACTIVATION,
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetMinorNumber",
)
REMOVING = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)


def bed_of(make_node: MakeNode, mig_bed: MakeMigBed, model: str = "h100-80gb") -> MigBed:
    on = model in AMPERE
    return mig_bed(
        make_node(spec=NodeSpec.model_validate({"gpus": [{"model": model, "migMode": on}]}))
    )


def largest(bed: MigBed) -> tuple[str, int]:
    """Give the slot that covers the whole GPU: two compute profiles span it."""
    slot = max(bed.gpu().slots, key=lambda slot: slot.placement.size)
    return slot.profile.name, 0


def smallest(bed: MigBed) -> tuple[str, int]:
    slot = bed.gpu().slots[0]
    return slot.profile.name, 3


@pytest.mark.parametrize("call", MAKING)
@pytest.mark.parametrize("model", MIG_MODELS)
def test_what_fails_while_making_leaves_nothing(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str, call: str
) -> None:
    bed = bed_of(make_node, mig_bed, model)
    before = bed.mode()
    for wanted in (smallest(bed), largest(bed)):
        record = bed.record(wanted)
        fault(bed.node, 0, call, "UNKNOWN", times=1)
        failed = False
        try:
            bed.effect.apply(record)
        except DriverError as error:
            failed = True
            assert bed.gpu().uuid in str(error), "it says which GPU"
            assert "UNKNOWN" in str(error), "it says what NVML answered"
            assert bed.standing() == []
            assert bed.mode() == before
        if call.startswith("nvmlDeviceSetMigMode"):
            assert failed is (model not in AMPERE), "on Ampere the mode is not switched"
        bed.node.state.clear()
        made = bed.effect.apply(record)
        assert bed.standing() == [(*wanted, 1)]
        bed.effect.undo(made)
        assert (bed.standing(), bed.mode()) == ([], before)


@pytest.mark.parametrize("call", REMOVING)
@pytest.mark.parametrize("model", MIG_MODELS)
def test_what_fails_while_removing_is_told_and_works_later(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str, call: str
) -> None:
    bed = bed_of(make_node, mig_bed, model)
    before = bed.mode()
    made = bed.effect.apply(bed.record(smallest(bed)))
    fault(bed.node, 0, call, "UNKNOWN")
    with pytest.raises(HardwareFailed, match=f"{call}.*UNKNOWN"):
        bed.effect.undo(made)
    assert [(profile, start) for profile, start, _ in bed.standing()] == [smallest(bed)]
    bed.node.state.clear()
    bed.effect.undo(made)
    assert (bed.standing(), bed.mode()) == ([], before)


@pytest.mark.parametrize("call", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
def test_what_can_not_be_taken_back_is_left_to_undo(
    make_node: MakeNode, mig_bed: MakeMigBed, call: str
) -> None:
    bed = bed_of(make_node, mig_bed)
    record = bed.record(("2g.20gb", 4))
    fault(bed.node, 0, "nvmlDeviceGetMigDeviceHandleByIndex", "NO_PERMISSION")
    fault(bed.node, 0, call, "UNKNOWN")
    with pytest.raises(PermissionMissing, match="nvmlDeviceGetMigDeviceHandleByIndex"):
        bed.effect.apply(record)
    assert [start for _, start, _ in bed.standing()] == [4]
    bed.node.state.clear()
    bed.effect.undo(record)
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_a_later_device_that_fails_leaves_the_earlier_ones_to_undo(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    record = bed.record(("1g.10gb", 0), ("7g.80gb", 0), ("1g.10gb", 1))
    with pytest.raises(HardwareBusy):
        bed.effect.apply(record)
    assert bed.standing() == [("1g.10gb", 0, 1)]
    bed.effect.undo(record)
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_undo_tries_each_device_whatever_became_of_the_others(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    made = bed.effect.apply(bed.record(("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2)))
    fault(bed.node, 0, "nvmlGpuInstanceDestroy", "UNKNOWN", times=1)
    with pytest.raises(HardwareFailed):
        bed.effect.undo(made)
    assert [start for _, start, _ in bed.standing()] == [0]
    bed.effect.undo(made)
    assert bed.standing() == []


@pytest.mark.parametrize("on", [True, False])
def test_a_busy_gpu_is_told_and_no_switch_stays_pending(
    make_node: MakeNode, mig_bed: MakeMigBed, *, on: bool
) -> None:
    bed = bed_of(make_node, mig_bed)
    bed.node.state.set_mig_mode(0, on=not on)
    fault(bed.node, 0, ACTIVATION, "IN_USE")
    word = "on" if on else "off"
    with pytest.raises(
        HardwareBusy,
        match=f"MIG mode of GPU .* can't be switched {word}: .* answered IN_USE; .*monitor such as",
    ):
        bed.effect.apply(bed.record(("1g.10gb", 0) if on else None))
    bed.node.state.clear()
    assert bed.mode() == (not on, not on)


def test_b37_a_switch_that_waits_for_a_reset_is_refused_and_taken_back(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    fault(bed.node, 0, ACTIVATION, "RESET_REQUIRED")
    uuid = bed.gpu().uuid
    with pytest.raises(BadNode, match=f"nvidia-smi -i {uuid} -mig 1, then reset the GPU"):
        bed.effect.apply(bed.record(("1g.10gb", 0)))
    bed.node.state.clear()
    assert bed.mode() == (False, False)


@pytest.mark.parametrize("model", AMPERE)
@pytest.mark.parametrize("may_reset", [False, True])
def test_b37_on_ampere_the_mode_is_switched_only_where_that_is_allowed(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str, *, may_reset: bool
) -> None:
    bed = mig_bed(make_node(model=model))
    with pytest.raises(BadNode, match="-mig 1, then reset the GPU or reboot the node") as raised:
        bed.effect.apply(bed.record(smallest(bed), may_reset=may_reset))
    calls = [call["call"] for call in bed.node.state.calls()]
    assert ("nvmlDeviceSetMigMode" in calls) is may_reset
    assert ("partitioning.allowReset" in str(raised.value)) is not may_reset
    assert bed.mode() == (False, False)


def test_foreign_partitions_are_named_and_never_touched(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    bed.node.state.set_mig_mode(0, on=True)
    gi = bed.node.state.partition(0, "3g.40gb", 4)
    foreign = bed.node.gpu(0)["instances"]
    for wanted in (("1g.10gb", 6), ("4g.40gb", 0), ("7g.80gb", 0), None):
        record = bed.record(wanted)
        if wanted == ("4g.40gb", 0):  # beside it
            bed.effect.check(record)
            bed.effect.undo(bed.effect.apply(record))
        else:
            words = rf"3g.40gb at memory slices 4 to 7 \(GPU instance {gi}\) stands there, which"
            with pytest.raises(HardwareBusy, match=words):
                bed.effect.check(record)
            with pytest.raises(HardwareBusy, match=words):
                bed.effect.apply(record)
        bed.effect.undo(record)
        assert bed.node.gpu(0)["instances"] == foreign
        assert bed.mode() == (True, True), "the mode stays on for it"


def test_a_foreign_partition_of_another_profile_at_the_same_start_stays(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    bed.node.state.set_mig_mode(0, on=True)
    bed.node.state.partition(0, "1g.20gb", 2)
    foreign = bed.node.gpu(0)["instances"]
    for wanted in (("1g.10gb", 2), ("2g.20gb", 2), ("1g.10gb+me", 2)):
        with pytest.raises(HardwareBusy):
            bed.effect.apply(bed.record(wanted))
        bed.effect.undo(bed.record(wanted))
    assert bed.node.gpu(0)["instances"] == foreign


def test_no_room_that_no_overlap_explains_names_what_stands(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    bed.node.state.set_mig_mode(0, on=True)
    bed.node.state.partition(0, "1g.10gb+me", 0)
    with pytest.raises(HardwareBusy, match=r"beside 1g.10gb\+me at memory slices 0 to 0") as raised:
        bed.effect.apply(bed.record(("1g.10gb+me", 5)))
    assert "INSUFFICIENT_RESOURCES" in str(raised.value)


def test_an_instance_that_somebody_cut_up_is_refused(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    bed.node.state.set_mig_mode(0, on=True)
    gi = bed.node.state.partition(0, "2g.20gb", 0, compute_instance=False)
    bed.node.nvml(
        f"""
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu, {gi})
pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
"""
    )
    with pytest.raises(HardwareBusy, match="is cut into smaller compute instances"):
        bed.effect.apply(bed.record(("2g.20gb", 0)))


def process(root: Path, pid: int, name: str, *opened: str) -> None:
    """Let the host have a process that has these files open."""
    (root / f"proc/{pid}/fd").mkdir(parents=True)
    (root / f"proc/{pid}/comm").write_text(f"{name}\n")
    for number, path in enumerate(opened):
        (root / f"proc/{pid}/fd/{number}").symlink_to(path)


def test_who_computes_on_a_partition_is_named_and_waited_for(
    make_node: MakeNode, mig_bed: MakeMigBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.mig.partition._PATIENCE_SECONDS", 0.2)
    bed = bed_of(make_node, mig_bed)
    made = bed.effect.apply(bed.record(("1g.10gb", 0), ("1g.10gb", 1)))
    for number, device in enumerate(made.devices):
        process(bed.node.root, 4242 + number, f"train-{number}")
        assert device.gi_id is not None
        bed.node.state.process(0, 4242 + number, GIB, gi_id=device.gi_id, ci_id=0)
    with pytest.raises(HardwareBusy, match=r"IN_USE; .*in use by train-0 \(PID 4242\)$"):
        bed.effect.undo(made)
    assert len(bed.standing()) == 2
    bed.node.state.process(0, 4242, 0, gi_id=made.devices[0].gi_id or 0, ci_id=0)
    with pytest.raises(HardwareBusy, match=r"in use by train-1 \(PID 4243\)$"):
        bed.effect.undo(made)
    assert [start for _, start, _ in bed.standing()] == [1]


def test_a_process_that_is_just_ending_is_waited_for(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    fault(bed.node, 0, "nvmlComputeInstanceDestroy", "IN_USE", times=2)
    fault(bed.node, 0, "nvmlGpuInstanceDestroy", "IN_USE", times=2)
    bed.effect.undo(made)
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_a_monitor_that_holds_the_gpu_is_named(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = bed_of(make_node, mig_bed)
    process(bed.node.root, 801, "nv-hostengine", "/dev/nvidiactl", "/dev/nvidia0", "socket:[1]")
    process(bed.node.root, 802, "nv-fabricmanager", "/dev/nvidiactl", "/dev/nvidia1")
    fault(bed.node, 0, ACTIVATION, "IN_USE")
    with pytest.raises(HardwareBusy, match=r"in use by nv-hostengine \(PID 801\)$"):
        bed.effect.apply(bed.record(("1g.10gb", 0)))


def test_a_program_on_the_whole_gpu_is_named(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = bed_of(make_node, mig_bed)
    process(bed.node.root, 4242, "python3")
    bed.node.state.process(0, 4242, GIB)
    bed.node.state.process(0, 4243, GIB)
    with pytest.raises(
        HardwareBusy, match=r"in use by python3 \(PID 4242\), a process \(PID 4243\)$"
    ):
        bed.effect.apply(bed.record(("1g.10gb", 0)))
    assert bed.mode() == (False, False)


def test_a_mode_that_can_not_be_left_does_not_fail_undo(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = bed_of(make_node, mig_bed)
    made = bed.effect.apply(bed.record(("1g.10gb", 0)))
    fault(bed.node, 0, ACTIVATION, "IN_USE")
    bed.effect.undo(made)
    assert (bed.standing(), bed.mode()) == ([], (True, True))
    bed.node.state.clear()
    assert bed.effect.apply(bed.record(None)) == bed.record(None)
    assert bed.mode() == (False, False)
