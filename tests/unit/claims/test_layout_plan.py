"""What layouts decide: on GPUs of every simulated model, without hardware."""

from collections import Counter
from dataclasses import replace

import pytest

from dra_driver.claims.layout_plan import (
    Obstacles,
    Target,
    Work,
    is_as_wanted,
    lost_by_claims,
    noted,
    target_of,
    users,
    why_impossible,
    work_for,
)
from dra_driver.config import Wanted, shipped_layouts
from dra_driver.host import HostProcess
from dra_driver.mig import Standing, StandingPartition
from dra_driver.model import ClaimRef, Gpu, GpuPolicy, Partition, Partitioning, Placement
from dra_driver.state import Holding, LayoutNote, NotedSlot, reservation
from dra_driver.state.ownership import holdings
from tests.support.mig_models import MIG_MODELS, gpu_of

STATIC = GpuPolicy(Partitioning.STATIC, "mine")
BALANCED = Wanted(mig_enabled=True, partitions={"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})


def gpu(model: str = "h100-80gb") -> Gpu:
    return replace(gpu_of(model), policy=STATIC)


def cut(made: Gpu, slots: tuple[NotedSlot, ...]) -> Gpu:
    """Let these partitions stand."""
    profiles = {slot.profile.gi_profile_id: slot.profile for slot in made.slots}
    parts = tuple(
        Partition(made.uuid, profiles[slot.gi_profile_id], slot.span, number, 0, f"MIG-{number}")
        for number, slot in enumerate(slots)
    )
    return replace(made, mig_enabled=True, partitions=parts)


def target(made: Gpu, wanted: Wanted | None = BALANCED, note: LayoutNote | None = None) -> Target:
    found = target_of(made, wanted, note)
    assert found is not None
    return found


def make(*slots: NotedSlot, for_claims: bool = False) -> Work:
    return Work(remove=(), mig_enabled=True, make=slots, for_claims=for_claims)


def standing(*slots: NotedSlot, processes: int = 0, complete: bool = True) -> Standing:
    parts = tuple(
        StandingPartition(slot.profile, slot.gi_profile_id, slot.span, number, complete)
        for number, slot in enumerate(slots)
    )
    people = tuple(HostProcess(4242 + number, "python3") for number in range(processes))
    return Standing(bool(slots), parts, people)


def note_of(*slots: NotedSlot, finished: bool = True) -> LayoutNote:
    return LayoutNote(gpu_uuid=gpu().uuid, layout="mine", finished=finished, slots=slots)


def holding(span: Placement | None, *, name: str = "a", admin: bool = False) -> Holding:
    ref = ClaimRef("default", name, f"uid-{name}")
    return Holding(ref, "device", gpu().uuid, span, None, admin)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_every_shipped_layout_has_a_target_and_its_end_is_as_wanted(model: str) -> None:
    made = gpu(model)
    for name, wanted in shipped_layouts(made).items():
        if name == "all-disabled":
            assert target_of(made, wanted, None) is None
            continue
        found = target(made, wanted)
        assert Counter(slot.profile for slot in found.slots) == Counter(wanted.partitions), name
        spans = [slot.span for slot in found.slots]
        assert not any(a.overlaps(b) for i, a in enumerate(spans) for b in spans[:i])
        done = cut(made, found.slots)
        assert is_as_wanted(done, wanted)
        assert target_of(done, wanted, None) is None
        assert work_for(found, None, standing(), []) == make(*found.slots)


def test_an_instance_without_compute_instance_is_not_as_wanted() -> None:
    done = cut(gpu(), target(gpu()).slots)
    broken = replace(done.partitions[0], ci_id=None, uuid=None)
    assert not is_as_wanted(replace(done, partitions=(broken, *done.partitions[1:])), BALANCED)


def test_slots_of_the_note_are_kept_if_they_are_still_wanted() -> None:
    made = gpu()
    slots = target(made, Wanted(mig_enabled=True, partitions={"1g.10gb": 1})).slots
    elsewhere = tuple(each.model_copy(update={"placement": (5, 1)}) for each in slots)
    again = target(made, Wanted(mig_enabled=True, partitions={"1g.10gb": 1}), note_of(*elsewhere))
    assert again.slots == elsewhere
    assert target(made, BALANCED, note_of(*elsewhere)).slots == target(made).slots


def test_only_what_is_in_the_way_goes() -> None:
    made = gpu()
    before = target(made, Wanted(mig_enabled=True, partitions={"1g.10gb": 7})).slots
    found = target(cut(made, before))
    work = work_for(found, note_of(*before), standing(*before), [])
    assert isinstance(work, Work)
    stay = {slot.key for slot in before} - {slot.key for slot in work.remove}
    assert stay == {slot.key for slot in found.slots} & {slot.key for slot in before}
    assert {slot.key for slot in work.make} == {slot.key for slot in found.slots} - stay
    assert len(stay) == 2


def test_who_is_waited_for() -> None:
    found = target(gpu())
    foreign = target(gpu(), Wanted(mig_enabled=True, partitions={"1g.10gb": 1})).slots[0]
    held = [holding(Placement(4, 1)), holding(None, name="b"), holding(None, name="b")]
    work = work_for(found, None, standing(foreign, processes=1), held)
    assert isinstance(work, Obstacles)
    assert str(work) == (
        "claim default/a, claim default/b, python3 (PID 4242), foreign partition 1g.10gb "
        "at memory slices 0 to 0 (GPU instance 0)"
    )
    many = work_for(found, None, standing(processes=9), [])
    assert str(many).endswith("(PID 4245) and 5 more")


def test_admin_access_other_gpus_and_layouts_are_not_waited_for() -> None:
    uuid = gpu().uuid
    others = [
        holding(None, admin=True),
        *holdings(reservation(uuid, 0, "gpu-0", "mine")),
        replace(holding(None), gpu_uuid="GPU-1"),
    ]
    assert users([*others, holding(None)], uuid) == [holding(None)]


def test_what_stood_there_before_is_never_removed() -> None:
    slots = target(gpu()).slots
    adopted = noted(cut(gpu(), slots), None)
    assert [slot.made for slot in adopted] == [False] * 4
    other = target(cut(gpu(), slots), Wanted(mig_enabled=True), note_of(*adopted))
    work = work_for(other, note_of(*adopted), standing(*slots), [])
    assert isinstance(work, Obstacles)
    assert len(work.words) == 4
    ours = noted(cut(gpu(), slots), note_of(*slots))
    assert all(slot.made for slot in ours)


def test_what_claims_hold_comes_back_at_its_place() -> None:
    slots = target(gpu()).slots
    adopted = note_of(*(slot.model_copy(update={"made": False}) for slot in slots))
    held = [holding(slots[0].span)]
    assert lost_by_claims(gpu(), adopted, held)
    assert not lost_by_claims(cut(gpu(), slots), adopted, held)
    assert not lost_by_claims(gpu(), None, held)
    still_wanted = target(gpu(), BALANCED, adopted)
    whole = work_for(still_wanted, adopted, standing(), held)
    assert whole == make(*slots, for_claims=True)
    changed = target(gpu(), Wanted(mig_enabled=True, partitions={"1g.10gb": 7}), adopted)
    assert work_for(changed, adopted, standing(), held) == replace(whole, make=slots[:1])
    assert work_for(None, adopted, standing(), held) == replace(whole, make=slots[:1])
    assert work_for(still_wanted, adopted, standing(*slots[1:]), held) == replace(
        whole, make=slots[:1]
    )


def test_nothing_comes_back_over_somebody_elses_partition() -> None:
    slots = target(gpu()).slots
    foreign = slots[0].model_copy(update={"gi_profile_id": 99})
    work = work_for(None, note_of(*slots), standing(foreign), [holding(slots[0].span)])
    assert isinstance(work, Obstacles)


def test_half_a_layout_is_completed() -> None:
    slots = target(gpu()).slots
    found = target(cut(gpu(), slots[:2]), note=note_of(*slots, finished=False))
    half = standing(slots[0], complete=False)
    work = work_for(found, note_of(*slots, finished=False), half, [])
    assert isinstance(work, Work)
    assert work.make == slots


@pytest.mark.parametrize("mode", Partitioning)
@pytest.mark.parametrize("state", ["finished", "begun"])
def test_what_a_former_layout_has_left(mode: Partitioning, state: str) -> None:
    slots = target(gpu()).slots
    made = replace(cut(gpu(), slots), policy=GpuPolicy(mode))
    note = note_of(*slots, finished=state == "finished")
    found = target_of(made, None, note)
    assert target_of(made, None, None) is None
    if mode is not Partitioning.DYNAMIC and state == "finished":
        assert found is None
        return
    assert str(found) == "the partitions of a former layout are to be removed"
    expected = Work(remove=slots, mig_enabled=None, make=())
    assert work_for(found, note, standing(*slots), []) == expected


def test_a_mode_switch_that_needs_a_reset_is_left_to_a_person() -> None:
    ampere = gpu("a100-40gb")
    wanted = shipped_layouts(ampere)["all-balanced"]
    on = target(ampere, wanted)
    assert "nvidia-smi -i" in why_impossible(ampere, on)
    assert "-mig 1" in why_impossible(ampere, on)
    allowed = replace(ampere, policy=replace(STATIC, allow_reset=True))
    assert why_impossible(allowed, on) == ""
    assert why_impossible(replace(ampere, mig_enabled=True), on) == ""
    assert "by the next reset" in why_impossible(replace(ampere, mig_pending=True), on)
    off = target(cut(ampere, on.slots), Wanted(mig_enabled=False))
    assert "-mig 0" in why_impossible(cut(ampere, on.slots), off)
    assert why_impossible(gpu(), target(gpu())) == ""
