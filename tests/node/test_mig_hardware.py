"""Partitions and whole GPUs made on the simulated hardware of every MIG model, and removed."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.model import Placement
from dra_driver.simulator import models
from dra_driver.simulator.node_file import NodeSpec
from tests.support.discovery import MakeWatch, fault
from tests.support.mig import MakeMigBed, MigBed
from tests.support.mig_models import MIG_MODELS, slots_of
from tests.support.node import MakeNode, SimulatedNode

AMPERE = {"a100-40gb", "a100-80gb"}


def node_of(make_node: MakeNode, model: str, gpus: int = 1, *partitions: object) -> SimulatedNode:
    """Make a node whose GPUs can be partitioned: on Ampere that means that MIG mode is on."""
    entry: dict[str, Any] = {"model": model, "migMode": model in AMPERE}
    first = entry | {"migMode": True, "partitions": list(partitions)} if partitions else entry
    others = [entry] * (gpus - 1)
    return make_node(spec=NodeSpec.model_validate({"gpus": [first, *others]}))


def mig_devices(node: SimulatedNode, position: int = 0) -> dict[str, tuple[int, int]]:
    """UUIDs of all MIG devices with their instance ids, as any NVML client sees them."""
    rows = node.nvml(
        f"""
found = []
gpu = pynvml.nvmlDeviceGetHandleByIndex({position})
for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
    try:
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
    except pynvml.NVMLError_NotFound:
        continue
    ids = pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)
    found.append([pynvml.nvmlDeviceGetUUID(mig), *ids])
print(json.dumps(found))
"""
    )
    return {uuid: (gi, ci) for uuid, gi, ci in rows}


@pytest.mark.parametrize("mode_on", [False, True])
@pytest.mark.parametrize("model", MIG_MODELS)
def test_slots_are_those_of_the_model_whatever_the_mode(
    make_node: MakeNode, watch: MakeWatch, model: str, *, mode_on: bool
) -> None:
    spec = NodeSpec.model_validate({"gpus": [{"model": model, "migMode": mode_on}]})
    gpu = watch(make_node(spec=spec).root).gpu()
    expected = {
        replace(slot, profile=replace(slot.profile, ci_profile_id=-1)) for slot in slots_of(model)
    }
    assert gpu.mig_enabled is mode_on
    assert len(gpu.slots) == len(expected)
    assert set(gpu.slots) == expected
    assert gpu.pci_device_id == models.MODELS[model].pci_device_id


def test_gpus_without_mig_have_no_slots(make_node: MakeNode, watch: MakeWatch) -> None:
    inventory = watch(make_node(model="l40s").root).look()
    assert inventory.gpus[0].slots == ()
    assert inventory.problems == ()


def test_slots_are_read_once_for_each_mode(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node()
    seen = watch(node.root)

    def calls_of_a_look() -> int:
        before = node.state.call_count()
        assert len(seen.gpu().slots) == len(slots_of("h100-80gb"))
        return node.state.call_count() - before

    seen.look()
    idle = calls_of_a_look()
    assert calls_of_a_look() == idle
    node.state.set_mig_mode(0, on=True)
    first_with_mode_on = calls_of_a_look()
    with_mode_on = calls_of_a_look()
    print(f"calls of a look: {idle} with MIG mode off, {with_mode_on} with it on")
    assert first_with_mode_on >= with_mode_on + 20
    node.state.set_mig_mode(0, on=False)
    assert calls_of_a_look() == idle


def test_a_driver_that_knows_no_placements_is_no_problem(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node()
    fault(node, 0, "nvmlDeviceGetGpuInstancePossiblePlacements", "FUNCTION_NOT_FOUND")
    inventory = watch(node.root).look()
    assert (inventory.gpus[0].slots, inventory.problems) == ((), ())


def test_slots_that_fail_are_told_and_asked_for_again(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node()
    fault(node, 0, "nvmlDeviceGetGpuInstancePossiblePlacements", "UNKNOWN")
    seen = watch(node.root)
    inventory = seen.look()
    assert inventory.gpus[0].slots == ()
    (problem,) = inventory.problems
    assert problem.message == (
        "nvmlDeviceGetGpuInstancePossiblePlacements answered UNKNOWN; partitions that can be made "
        "are left out or as before"
    )
    node.state.clear()
    assert len(seen.gpu().slots) == len(slots_of("h100-80gb"))
    assert seen.look().problems == ()


@pytest.mark.parametrize("model", MIG_MODELS)
def test_b39_every_slot_can_be_made_and_removed(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str
) -> None:
    node = node_of(make_node, model)
    bed = mig_bed(node)
    before = bed.mode()
    for slot in bed.gpu().slots:
        record = bed.record(slot)
        bed.effect.check(record)
        (made,) = bed.effect.apply(record).devices
        (stands,) = node.gpu(0)["instances"]
        (compute,) = stands["computeInstances"]
        assert (stands["profileId"], Placement(stands["start"], stands["size"])) == (
            slot.profile.gi_profile_id,
            slot.placement,
        )
        assert compute["size"] == stands["slices"]
        assert (made.gi_id, made.ci_id, made.ci_profile_id, made.uuid) == (
            stands["id"],
            compute["id"],
            compute["profileId"],
            compute["uuid"],
        )
        assert mig_devices(node) == {made.uuid: (made.gi_id, made.ci_id)}
        bed.effect.undo(record)
        assert (bed.standing(), bed.mode()) == ([], before)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_apply_and_undo_may_be_called_again(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str
) -> None:
    bed = mig_bed(node_of(make_node, model))
    profile = bed.gpu().slots[0].profile.name
    record = bed.record((profile, 2))
    made = bed.effect.apply(record)
    assert bed.effect.apply(made) == made
    assert bed.effect.apply(record) == made, "the record as it was before, after a crash"
    assert bed.standing() == [(profile, 2, 1)]
    bed.effect.undo(made)
    bed.effect.undo(made)
    assert bed.standing() == []
    bed.effect.undo(record)


def test_several_partitions_of_one_claim_and_the_mode_goes_with_the_last(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node(gpus=2))
    several = bed.record(("3g.40gb", 4), ("1g.10gb", 0), ("1g.10gb", 1))
    single = bed.record(("2g.20gb", 2))
    made = bed.effect.apply(several)
    bed.effect.apply(single)
    assert bed.standing() == [
        ("1g.10gb", 0, 1), ("1g.10gb", 1, 1), ("2g.20gb", 2, 1), ("3g.40gb", 4, 1),
    ]  # fmt: skip
    assert len({device.uuid for device in made.devices}) == 3
    bed.effect.undo(made)
    assert (bed.standing(), bed.mode()) == ([("2g.20gb", 2, 1)], (True, True))
    bed.effect.undo(single)
    assert (bed.standing(), bed.mode()) == ([], (False, False))
    assert (bed.standing(1), bed.mode(1)) == ([], (False, False))


def test_on_ampere_the_mode_stays_as_it_is(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(node_of(make_node, "a100-80gb"))
    record = bed.record(("7g.80gb", 0))
    bed.effect.apply(record)
    bed.effect.undo(record)
    assert bed.mode() == (True, True)
    calls = [call["call"] for call in bed.node.state.calls()]
    assert "nvmlDeviceSetMigMode" not in calls


def test_a_whole_gpu_leaves_mig_mode_where_it_has_to(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node(gpus=2))
    bed.node.state.set_mig_mode(0, on=True)
    record = bed.record(None)
    assert bed.effect.apply(record) == record
    assert bed.mode() == (False, False)
    assert bed.effect.apply(record) == record
    bed.effect.undo(record)


def test_numbers_are_those_of_now(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(make_node(gpus=2))
    partition, whole = bed.record(("1g.10gb", 0)), bed.record(None, position=1)
    bed.node.set_minor(0, 7)
    bed.node.set_minor(1, 9)
    made = bed.effect.apply(partition)
    assert made.devices[0].gpu_minor == 7
    assert bed.effect.apply(whole).devices[0].gpu_minor == 9
    bed.effect.undo(made)


@pytest.mark.parametrize("model", ["a100-40gb", "h100-80gb"])
def test_a_gpu_instance_without_compute_instance_is_completed(
    make_node: MakeNode, mig_bed: MakeMigBed, model: str
) -> None:
    bed = mig_bed(node_of(make_node, model))
    bed.node.state.set_mig_mode(0, on=True)
    profile = bed.gpu().slots[0].profile.name
    bed.node.state.partition(0, profile, 3, compute_instance=False)
    record = bed.effect.apply(bed.record((profile, 3)))
    assert bed.standing() == [(profile, 3, 1)]
    assert mig_devices(bed.node) == {record.devices[0].uuid: (record.devices[0].gi_id, 0)}
    bed.effect.undo(record)
    assert bed.standing() == []


def only_creatable(model: models.GpuModel, index: int) -> models.GpuModel:
    """Give the model with one of the two 7-slice compute profiles that can be created."""
    return replace(
        model,
        gi=tuple(
            replace(
                gi,
                ci=tuple(
                    replace(ci, creatable=int(ci.index == index)) if ci.slices == 7 else ci
                    for ci in gi.ci
                ),
            )
            for gi in model.gi
        ),
    )


@pytest.mark.parametrize("index", [4, 8])
def test_b39_of_two_compute_profiles_of_one_name_the_one_that_works_is_taken(
    make_node: MakeNode, mig_bed: MakeMigBed, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    changed = only_creatable(models.MODELS["h100-80gb"], index)
    monkeypatch.setitem(models.MODELS, "h100-80gb", changed)
    bed = mig_bed(make_node())
    made = bed.effect.apply(bed.record(("7g.80gb", 0)))
    assert made.devices[0].ci_profile_id == index
    assert bed.effect.apply(made) == made
    bed.effect.undo(made)
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_b39_where_no_compute_profile_works_nothing_is_left(
    make_node: MakeNode, mig_bed: MakeMigBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = only_creatable(models.MODELS["h100-80gb"], -1)
    monkeypatch.setitem(models.MODELS, "h100-80gb", changed)
    bed = mig_bed(make_node())
    with pytest.raises(Exception, match="CreateComputeInstance answered NOT_SUPPORTED"):
        bed.effect.apply(bed.record(("7g.80gb", 0)))
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_what_needs_no_change_needs_no_nvml(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    bed = mig_bed(make_node())
    as_it_is = bed.record(None)
    (device,) = as_it_is.devices
    as_it_is = as_it_is.model_copy(update={"devices": (device.model_copy(update={"made": False}),)})
    admin = bed.record(("1g.10gb", 0), admin_access=True)
    before = bed.node.state.call_count()
    for record in (as_it_is, admin):
        bed.effect.check(record)
        assert bed.effect.apply(record) == record
        bed.effect.undo(record)
    bed.effect.undo(bed.record(None))
    assert bed.node.state.call_count() == before


def test_seven_partitions_and_the_calls_that_each_costs(
    make_node: MakeNode, mig_bed: MakeMigBed
) -> None:
    bed = mig_bed(make_node())
    records = [bed.record(("1g.10gb", start)) for start in range(7)]
    costs: dict[str, list[int]] = {"make": [], "remove": []}

    def counted(kind: str, work: Any, record: Any) -> None:
        before = bed.node.state.call_count()
        work(record)
        costs[kind].append(bed.node.state.call_count() - before)

    for record in records:
        counted("make", bed.effect.apply, record)
    assert [start for _, start, _ in bed.standing()] == list(range(7))
    for record in records:
        counted("remove", bed.effect.undo, record)
    print(f"NVML calls: {costs}")
    assert max(costs["make"]) <= 80
    assert max(costs["remove"]) <= 90
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_a_bed_sees_what_the_node_says(make_node: MakeNode, mig_bed: MakeMigBed) -> None:
    """What the other tests compare with: the node's own state, not ours."""
    bed: MigBed = mig_bed(node_of(make_node, "h200", 2, {"profile": "1g.18gb", "start": 5}))
    assert (bed.standing(), bed.mode()) == ([("1g.18gb", 5, 1)], (True, True))
    assert (bed.standing(1), bed.mode(1)) == ([], (False, False))
