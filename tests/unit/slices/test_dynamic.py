"""GPUs with partitions on request: order, layouts, limits, and that claims change nothing."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model import Gpu, Health, HealthState, MigProfile, Placement, Slot
from dra_driver.simulator.api_server import ApiError
from dra_driver.simulator.api_server.slices import SliceAdmission
from dra_driver.slices import PoolPlan, ServerAbilities, Why, check_spec
from dra_driver.slices.compare import same_spec
from tests.support.dynamic_gpus import DYNAMIC, dynamic_gpu, with_partitions
from tests.support.inventories import gpu, inventory, partitioned
from tests.support.mig_models import MIG_MODELS, slots_of
from tests.unit.slices.published import NEW, OLD, WITHOUT, devices_of, names, plan_for, plan_of

SICK = Health(HealthState.UNHEALTHY, "xid", "XID 79", 1.0)
EIGHT = [dynamic_gpu(minor) for minor in range(8)]
NO_TAINTS = ServerAbilities((1, 37, 2), counters=True)
PENDING = "layout all-balanced waits for claim team/train"


def slot(profile: str, start: int, model: str = "h100-80gb") -> Slot:
    (found,) = (
        s for s in slots_of(model) if (s.profile.name, s.placement.start) == (profile, start)
    )
    return found


def taken_by_server(plan: PoolPlan, abilities: ServerAbilities = NEW) -> bool:
    """Whether the server stores every slice as it was sent."""
    gates = {"DRAPartitionableDevices": abilities.counters, "DRADeviceTaints": abilities.taints}
    server = SliceAdmission(abilities.version, gates)
    sent = [obj["spec"] for obj in plan.objects()]
    assert [list(check_spec(spec)) for spec in sent] == [[]] * len(sent)
    stored = [server(obj, None)["spec"] for obj in plan.objects()]
    return all(same_spec(a, b) for a, b in zip(sent, stored, strict=True))


def test_partitions_come_first_and_whole_gpus_from_the_last_card() -> None:
    plan = plan_for(gpu(0), dynamic_gpu(1), partitioned(2, 0), dynamic_gpu(3))
    assert taken_by_server(plan)
    plain, counters, first, second, whole = names(plan)
    assert plain == ["gpu-0", "gpu-2-mig-1g10gb-19-0"]
    assert counters == ["gpu-1-counter-set", "gpu-3-counter-set"]
    assert whole == ["gpu-3", "gpu-1"]
    assert [name.replace("gpu-3-", "gpu-1-") for name in second] == first
    assert first == [
        *(f"gpu-1-mig-1g10gb-19-{start}" for start in (6, 5, 4, 3, 2, 1, 0)),
        *(f"gpu-1-mig-1g10gb-me-20-{start}" for start in (6, 5, 4, 3, 2, 1, 0)),
        *(f"gpu-1-mig-1g20gb-15-{start}" for start in (6, 4, 2, 0)),
        *(f"gpu-1-mig-2g20gb-14-{start}" for start in (4, 2, 0)),
        *(f"gpu-1-mig-3g40gb-9-{start}" for start in (4, 0)),
        "gpu-1-mig-4g40gb-5-0",
        "gpu-1-mig-7g80gb-0-0",
    ]


def test_an_older_server_has_counters_and_devices_together() -> None:
    plan = plan_for(gpu(0), dynamic_gpu(1), dynamic_gpu(2), abilities=OLD)
    assert taken_by_server(plan, OLD)
    plain, first, second = names(plan)
    assert plain == ["gpu-0"]
    assert (first[0], first[-1], len(first)) == ("gpu-1-counter-set", "gpu-1", 27)
    assert (second[0], second[-1], len(second)) == ("gpu-2-counter-set", "gpu-2", 27)


def test_a_slice_of_counters_has_no_devices_not_even_an_empty_list() -> None:
    """The API server refuses the empty list beside counters."""
    plan = plan_for(dynamic_gpu())
    counters = plan.objects()[0]
    assert "devices" not in counters["spec"]
    assert plan.slices[0].devices == []
    counters["spec"]["devices"] = []
    with pytest.raises(ApiError, match="only one of"):
        SliceAdmission(NEW.version, {})(counters, None)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16])
@pytest.mark.parametrize("abilities", [NEW, OLD], ids=["apart", "together"])
def test_one_to_sixteen_gpus(count: int, abilities: ServerAbilities) -> None:
    gpus = [dynamic_gpu(minor) for minor in range(count)]
    plan = plan_for(*gpus, abilities=abilities)
    assert taken_by_server(plan, abilities)
    assert plan.left_out == ()
    assert len(devices_of(plan)) == 26 * count
    sets = [len(part.spec.get("sharedCounters", ())) for part in plan.slices]
    if abilities.counters_apart:
        assert [size for size in sets if size] == [8] * (count // 8) + [count % 8] * bool(count % 8)
        assert len(plan.slices) == -(-count // 8) + count + 1
    else:
        assert sets == [1] * count


@pytest.mark.parametrize(
    ("version", "apart"),
    [((1, 34, 9), False), ((1, 35, 0), True), ((1, 36, 1), True), ((2, 0, 0), True)],
)
def test_counters_stand_apart_from_1_35_on(version: Any, apart: bool) -> None:  # noqa: FBT001
    assert replace(NEW, version=version).counters_apart is apart


@st.composite
def claimed(draw: st.DrawFn) -> tuple[Gpu, Gpu]:
    """Draw a dynamic GPU, and the same GPU with partitions that claims have."""
    model = draw(st.sampled_from(MIG_MODELS))
    parent = dynamic_gpu(draw(st.integers(0, 3)), model)
    made: list[Slot] = []
    for each in draw(st.lists(st.sampled_from(parent.slots), max_size=4)):
        if not any(each.placement.overlaps(other.placement) for other in made):
            made.append(each)
    return parent, with_partitions(parent, made)


@given(claimed(), st.sampled_from((NEW, OLD, NO_TAINTS)))
def test_claims_that_come_and_go_change_nothing(
    drawn: tuple[Gpu, Gpu], abilities: ServerAbilities
) -> None:
    before, after = drawn
    plan = plan_for(before, gpu(7), abilities=abilities)
    assert plan_for(after, gpu(7), abilities=abilities) == plan
    assert devices_of(plan)


def test_a_partition_on_request_in_full() -> None:
    found = devices_of(plan_for(dynamic_gpu()))
    plain = devices_of(plan_for(partitioned(0, 3)))["gpu-0-mig-1g10gb-19-3"]
    made = found["gpu-0-mig-1g10gb-19-3"]
    attributes = set(made["attributes"])
    assert attributes >= {"type", "resourceName", "parentUUID", "profile", "memoryType"}
    assert set(plain["attributes"]) - attributes <= {"uuid", "brand", "cudaComputeCapability"} | {
        "addressingMode",
        "resource.kubernetes.io/pcieRoot",
    }
    assert "uuid" not in attributes
    assert set(made["capacity"]) == set(plain["capacity"]) - {"memorySlice3"}
    assert made["attributes"]["resourceName"] == {"string": "mig-1g.10gb"}


def test_a_whole_gpu_has_the_memory_of_the_board_and_all_engines() -> None:
    whole = devices_of(plan_for(dynamic_gpu()))["gpu-0"]
    assert whole["attributes"]["uuid"] == {"string": "GPU-00000000-0000-0000-0000-000000000000"}
    assert whole["capacity"] == {
        "memory": {"value": "81559Mi"},
        "multiprocessors": {"value": "132"},
        "copyEngines": {"value": "8"},
        "decoders": {"value": "7"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "7"},
        "ofaEngines": {"value": "1"},
    }


def test_a_gpu_that_can_t_switch_mig_mode_is_never_both() -> None:
    on, off = dynamic_gpu(0, "a100-80gb"), dynamic_gpu(1, "a100-80gb", mig_enabled=False)
    plain, counters, partitions = names(plan_for(on, off))
    assert (plain, counters) == (["gpu-1"], ["gpu-0-counter-set"])
    assert len(partitions) == 25
    allowed = dynamic_gpu(
        0, "a100-80gb", mig_enabled=False, policy=replace(DYNAMIC, allow_reset=True)
    )
    assert "gpu-0" in devices_of(plan_for(allowed))


def test_names_by_uuid_reach_the_counters() -> None:
    by_uuid = replace(DYNAMIC, named_by_uuid=True)
    plan = plan_for(dynamic_gpu(5, policy=by_uuid))
    assert taken_by_server(plan)
    uuid = "gpu-00000000-0000-0000-0000-000000000005"
    assert names(plan)[0] == [f"{uuid}-counter-set"]
    assert names(plan)[-1] == [uuid]


def test_without_counters_a_gpu_is_what_it_is_and_the_reason_is_told_once() -> None:
    cut = with_partitions(dynamic_gpu(1), [slot("3g.40gb", 4)], foreign=True)
    plan = plan_for(dynamic_gpu(0), cut, abilities=WITHOUT)
    assert taken_by_server(plan, WITHOUT)
    assert names(plan) == [["gpu-0", "gpu-1-mig-3g40gb-9-4"]]
    assert set(devices_of(plan)["gpu-0"]["capacity"]) == {"memory"}
    assert "uuid" in devices_of(plan)["gpu-1-mig-3g40gb-9-4"]["attributes"]
    assert [(lost.device, lost.why) for lost in plan.left_out] == [
        ("gpu-0-mig-*", Why.NO_COUNTERS),
        ("gpu-1-mig-*", Why.NO_COUNTERS),
    ]
    assert "DRAPartitionableDevices" in str(plan.left_out[0])


def test_a_gpu_that_waits_is_tainted_or_withdrawn() -> None:
    waiting = [dynamic_gpu(0, held_back=PENDING), partitioned(1, 0, 1, held_back=PENDING)]
    found = devices_of(plan_for(*waiting, gpu(2)))
    taint = {"key": "gpu.nvidia.com/layout-pending", "effect": "NoSchedule"}
    assert {name for name, device in found.items() if device.get("taints") == [taint]} == set(
        found
    ) - {"gpu-2"}
    plan = plan_for(*waiting, gpu(2), abilities=NO_TAINTS)
    assert set(devices_of(plan)) == {"gpu-2"}
    assert {(lost.device, lost.why) for lost in plan.left_out} == {
        (name, Why.HELD_BACK)
        for name in ("gpu-0", "gpu-0-mig-*", "gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-1")
    }
    assert all(PENDING in str(lost) for lost in plan.left_out)


def test_partitions_of_others_withdraw_what_they_overlap() -> None:
    theirs = with_partitions(dynamic_gpu(), [slot("3g.40gb", 4)], foreign=True)
    plan = plan_for(theirs, dynamic_gpu(1))
    starts = {
        name
        for name in devices_of(plan)
        if name.startswith("gpu-0-") and int(name.rpartition("-")[2]) >= 4
    }
    assert starts == set()
    assert "gpu-0" not in devices_of(plan)
    assert {"gpu-0-mig-4g40gb-5-0", "gpu-0-mig-3g40gb-9-0"} <= set(devices_of(plan))
    (group, _) = plan.slices[0].spec["sharedCounters"]
    left = {name: counter["value"] for name, counter in group["counters"].items()}
    assert left["multiprocessors"] == str(132 - 60)
    assert left["memory"] == f"{81559 - 40448}Mi"
    assert [left[f"memory-slice-{i}"] for i in range(8)] == ["1"] * 4 + ["0"] * 4
    (lost,) = plan.left_out
    assert (lost.device, lost.why) == ("gpu-0", Why.FOREIGN)
    assert "3g.40gb at slice 4" in str(lost)
    assert plan_for(dynamic_gpu(), dynamic_gpu(1)).left_out == (), "when it goes, all return"


def test_a_gpu_with_nothing_to_offer_keeps_its_place() -> None:
    full = with_partitions(dynamic_gpu(), [slot("7g.80gb", 0)], foreign=True)
    assert taken_by_server(plan_for(full, dynamic_gpu(1)))
    _, first, second, whole = names(plan_for(full, dynamic_gpu(1)))
    assert (first, len(second), whole) == ([], 25, ["gpu-1"])


def test_a_sick_partition_without_taints_leaves_less_to_others() -> None:
    """It is withdrawn, so nobody counts what it takes: the counters must say so."""
    parent = with_partitions(dynamic_gpu(), [slot("2g.20gb", 4)])
    sick = replace(parent, partitions=(replace(parent.partitions[0], health=SICK),))
    tainted = devices_of(plan_for(sick))
    assert [name for name, device in tainted.items() if "taints" in device] == [
        "gpu-0-mig-2g20gb-14-4"
    ]
    plan = plan_for(sick, abilities=NO_TAINTS)
    ends = {name.rpartition("-")[2] for name in devices_of(plan)}
    assert not ends & {"4", "5"}
    assert "gpu-0" not in devices_of(plan)
    assert {lost.why for lost in plan.left_out} == {Why.UNHEALTHY}
    assert "XID 79" in str(next(x for x in plan.left_out if x.device == "gpu-0-mig-2g20gb-14-4"))


def test_a_held_partition_does_not_hold_up_a_gpu_that_is_partitioned_on_request() -> None:
    held = {gpu(n).uuid: "claim team/train (uid) holds partition x of it" for n in (0, 1)}
    plan = plan_of(inventory(dynamic_gpu(0), gpu(1)), held=held)
    assert "gpu-0" in devices_of(plan)
    assert [(lost.device, lost.why) for lost in plan.left_out] == [("gpu-1", Why.HELD)]


def test_a_refused_partition_is_left_out_alone() -> None:
    name = "gpu-0-mig-7g80gb-0-0"
    sent = devices_of(plan_for(dynamic_gpu()))[name]
    plan = plan_of(inventory(dynamic_gpu()), refused={name: (sent, "no")})
    assert [(lost.device, lost.why) for lost in plan.left_out] == [(name, Why.REFUSED)]
    assert len(devices_of(plan)) == 25


def many_slots(count: int, size: int = 1) -> tuple[Slot, ...]:
    profile = MigProfile("1g.1gb", 19, 0, 1 << 20, 1, 1, 0, 0, 0, 0)
    return tuple(Slot(replace(profile, gi_profile_id=n), Placement(0, size)) for n in range(count))


def test_more_devices_than_a_slice_takes() -> None:
    big = dynamic_gpu(slots=many_slots(70))
    assert [len(part) for part in names(plan_for(big))] == [1, 64, 6, 1]
    plan = plan_for(big, abilities=OLD)
    assert taken_by_server(plan, OLD)
    assert [len(part) for part in names(plan)] == [1 + 64]
    assert "gpu-0" in devices_of(plan)
    assert [(lost.device, lost.why) for lost in plan.left_out] == [("gpu-0-mig-*", Why.INVALID)]


def test_more_counters_than_a_set_takes() -> None:
    plan = plan_for(dynamic_gpu(slots=many_slots(3, size=26)))
    assert names(plan) == [["gpu-0"]]
    assert [(lost.device, lost.why) for lost in plan.left_out] == [("gpu-0-mig-*", Why.INVALID)]
    assert "1 to 32" in str(plan.left_out[0])
    assert names(plan_for(dynamic_gpu(slots=many_slots(3, size=25))))[0] == ["gpu-0-counter-set"]


def test_what_takes_more_than_there_is_is_left_out() -> None:
    plan = plan_for(dynamic_gpu(memory_bytes=50 << 30))
    assert "gpu-0-mig-7g80gb-0-0" not in devices_of(plan)
    assert [(lost.device, lost.why) for lost in plan.left_out] == [
        ("gpu-0-mig-7g80gb-0-0", Why.INVALID)
    ]


def test_two_gpus_of_one_name_do_not_make_the_pool_invalid() -> None:
    plan = plan_for(dynamic_gpu(0), replace(dynamic_gpu(0), uuid="GPU-twin"))
    assert len(names(plan)[0]) == 1
    assert len(devices_of(plan)) == 26
    assert {lost.why for lost in plan.left_out} == {Why.INVALID}
