"""Taints that a device's health turns into."""

from dataclasses import replace

import pytest

from dra_driver.model import Gpu, GpuPolicy, Health, HealthState, Partitioning, combined
from dra_driver.simulator.api_server.validation import violations
from dra_driver.slices import ServerAbilities
from dra_driver.slices.devices import device_entry
from tests.support.api import slice_of
from tests.support.dynamic_gpus import dynamic_gpu
from tests.support.inventories import gpu, inventory, partition, partitioned
from tests.unit.slices.published import NEW, WITHOUT, devices_of, plan_for

XID = Health(HealthState.UNHEALTHY, "xid", "XID 79", 100.0, "79")
LOST = Health(HealthState.UNHEALTHY, "gpu-lost", "GPU_IS_LOST")
SILENT = Health(HealthState.UNKNOWN, "not-answering", "does not answer")
DEAF = Health(HealthState.HEALTHY, "no-events", "no XID events")


def taints(
    health: Health,
    *,
    version: tuple[int, int, int] = (1, 37, 2),
    effect: str = "NoSchedule",
) -> list[tuple[str, str, str]]:
    """Taints of a GPU with that health: key, value, effect; checked by the server's rules."""
    found = inventory(gpu(0, health=health, policy=GpuPolicy(taint_effect=effect)))
    (device,) = found.devices()
    abilities = ServerAbilities(version, taints=True)
    entry = device_entry(device, found, "gpu.nvidia.com", abilities).device
    assert entry is not None
    assert list(violations(slice_of(entry)["spec"], None, version)) == []
    return [(t["key"], t.get("value", ""), t["effect"]) for t in entry.get("taints", ())]


def test_each_reason_is_a_taint_with_its_value() -> None:
    assert taints(Health()) == []
    assert taints(combined((LOST, XID))) == [
        ("gpu.nvidia.com/gpu-lost", "", "NoSchedule"),
        ("gpu.nvidia.com/xid", "79", "NoSchedule"),
    ]


@pytest.mark.parametrize("health", [SILENT, DEAF])
def test_what_is_only_not_known_informs_where_that_is_possible(health: Health) -> None:
    unmonitored = ("gpu.nvidia.com/unmonitored", health.reason, "None")
    assert taints(health) == [unmonitored]
    assert taints(combined((health, XID))) == [
        ("gpu.nvidia.com/xid", "79", "NoSchedule"),
        unmonitored,
    ]
    assert taints(health, version=(1, 34, 4)) == []
    both = taints(combined((health, XID)), version=(1, 34, 4))
    assert both == [("gpu.nvidia.com/xid", "79", "NoSchedule")]


def test_the_configured_effect_is_that_of_sickness_alone() -> None:
    for effect in ("NoSchedule", "NoExecute", "None"):
        assert taints(combined((SILENT, XID)), effect=effect) == [
            ("gpu.nvidia.com/xid", "79", effect),
            ("gpu.nvidia.com/unmonitored", "not-answering", "None"),
        ]
        assert taints(Health(HealthState.UNHEALTHY, "?"), effect=effect) == [
            ("gpu.nvidia.com/unhealthy", "", effect)
        ]


def test_a_server_without_taints_of_no_effect_gets_none() -> None:
    assert taints(XID, version=(1, 34, 4), effect="None") == []
    assert taints(XID, version=(1, 34, 4), effect="NoExecute") == [
        ("gpu.nvidia.com/xid", "79", "NoExecute")
    ]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "None"])
def test_without_taints_only_what_is_to_have_no_effect_stays(effect: str) -> None:
    policy = GpuPolicy(taint_effect=effect)
    plan = plan_for(gpu(0, health=XID, policy=policy), abilities=WITHOUT)
    assert list(devices_of(plan)) == (["gpu-0"] if effect == "None" else [])
    assert [lost.why.value for lost in plan.left_out] == ([] if effect == "None" else ["unhealthy"])


def test_a_gpu_that_waits_keeps_claims_away_whatever_the_effect() -> None:
    policy = GpuPolicy(taint_effect="None")
    waits = gpu(0, policy=policy, held_back="a layout waits")
    (device,) = devices_of(plan_for(waits)).values()
    assert [taint["effect"] for taint in device["taints"]] == ["NoSchedule"]
    assert devices_of(plan_for(waits, abilities=WITHOUT)) == {}


def test_a_sick_partition_that_is_given_out_leaves_no_less_to_others() -> None:
    counting = ServerAbilities((1, 37, 2), counters=True)
    policy = GpuPolicy(Partitioning.DYNAMIC, taint_effect="None")
    parent = dynamic_gpu(0, policy=policy)
    slot = parent.slots[0]
    sick = partition(parent, slot.placement.start, slot.profile, slot.placement.size, health=XID)
    found = plan_for(replace(parent, mig_enabled=True, partitions=(sick,)), abilities=counting)
    assert devices_of(found) == devices_of(plan_for(parent, abilities=counting))
    assert found.left_out == ()


def test_one_key_stands_once() -> None:
    assert taints(combined((SILENT, DEAF))) == [
        ("gpu.nvidia.com/unmonitored", "not-answering", "None")
    ]


def test_the_worst_four_stay() -> None:
    """More would be refused by 1.34."""
    words = ("a", "b", "c", "d", "e")
    many = combined(Health(HealthState.UNHEALTHY, word, word) for word in words)
    found = taints(combined((DEAF, many)))
    assert [key for key, _, _ in found] == [f"gpu.nvidia.com/{word}" for word in "abcd"]


@pytest.mark.parametrize("bad", [Health(HealthState.UNHEALTHY), Health(HealthState.UNHEALTHY, "?")])
def test_a_reason_that_is_no_label_makes_a_taint_all_the_same(bad: Health) -> None:
    assert taints(bad) == [("gpu.nvidia.com/unhealthy", "", "NoSchedule")]


def test_partitions_have_their_own_taints_and_their_gpu_s() -> None:
    def found(parent: Gpu) -> list[list[str]]:
        all_of_it = inventory(parent)
        entries = [
            device_entry(device, all_of_it, "gpu.nvidia.com", NEW).device or {}
            for device in all_of_it.devices()
        ]
        return [[t["key"].partition("/")[2] for t in e.get("taints", ())] for e in entries]

    assert found(partitioned(0, 0, 1)) == [[], []]
    assert found(partitioned(0, 0, 1, health=LOST)) == [["gpu-lost"], ["gpu-lost"]]


@pytest.mark.parametrize(
    ("abilities", "expected"),
    [
        (ServerAbilities((1, 34, 4), taints=True), False),
        (ServerAbilities((1, 35, 0), taints=True), True),
        (ServerAbilities((1, 37, 2), taints=False), False),
        (ServerAbilities(), False),
    ],
)
def test_taints_without_effect_came_with_1_35(
    abilities: ServerAbilities,
    expected: bool,  # noqa: FBT001
) -> None:
    assert abilities.taints_without_effect is expected


@pytest.mark.parametrize("health", [Health(), SILENT, combined((LOST, XID))])
def test_a_gpu_that_waits_says_so_before_all_else(health: Health) -> None:
    words = [Health(HealthState.UNHEALTHY, word, word) for word in "abcd"]
    for each in (health, combined((health, *words))):
        found = inventory(gpu(0, health=each, held_back="a layout waits for claim a/b"))
        (device,) = found.devices()
        entry = device_entry(device, found, "gpu.nvidia.com", NEW).device or {}
        assert list(violations(slice_of(entry)["spec"], None, (1, 37, 2))) == []
        assert len(entry["taints"]) <= 4
        assert entry["taints"][0] == {
            "key": "gpu.nvidia.com/layout-pending",
            "effect": "NoSchedule",
        }
