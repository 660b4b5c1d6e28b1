"""Shares: what is published of devices that several claims may have, and where it is not."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.model import (
    Gpu,
    GpuPolicy,
    MemoryLimitLevel,
    MemoryType,
    MpsSettings,
    Partitioning,
    SharesMode,
    SharesPolicy,
    SharingSettings,
    Strategy,
)
from dra_driver.simulator.api_server.validation import violations
from dra_driver.slices import PoolPlan, ServerAbilities, Why
from tests.support.dynamic_gpus import dynamic_gpu
from tests.support.inventories import GIB, MIB, WHOLE, gpu, partition, partitioned
from tests.unit.slices.published import NEW, WITHOUT, devices_of, plan_for

FOUR = SharesPolicy(SharesMode.COUNT, 4)
RENAMED = SharesPolicy(SharesMode.COUNT, 4, rename=True)
BY_MEMORY = SharesPolicy(SharesMode.MEMORY, reserve_bytes=GIB)
UNLIMITED = SharesPolicy(SharesMode.UNLIMITED)
NOTHING = {"default": "0"}  # what a claim takes that does not ask


def sharing(shares: SharesPolicy, **policy: Any) -> GpuPolicy:
    return GpuPolicy(shares=shares, **policy)


def published(device: Gpu, abilities: ServerAbilities = NEW) -> dict[str, Any]:
    """The only device of a node, which the API server takes."""
    plan = taken_by_server(plan_for(device, abilities=abilities), abilities)
    (found,) = devices_of(plan).values()
    return found


def taken_by_server(plan: PoolPlan, abilities: ServerAbilities = NEW) -> PoolPlan:
    for obj in plan.objects():
        assert list(violations(obj["spec"], None, abilities.version)) == []
    return plan


def not_shared(plan: PoolPlan) -> list[tuple[str, str]]:
    return [(lost.device, lost.message) for lost in plan.left_out if lost.why is Why.NOT_SHARED]


def name_of(device: dict[str, Any]) -> str:
    return str(device["attributes"]["resourceName"]["string"])


def test_four_shares_of_a_gpu_in_full() -> None:
    found = published(gpu(0, policy=sharing(FOUR)))
    assert found["allowMultipleAllocations"] is True
    assert found["capacity"] == {
        "memory": {
            "value": "81559Mi",
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "max": "81559Mi", "step": "1Mi"},
            },
        },
        "shares": {
            "value": "4",
            "requestPolicy": {
                "default": "1",
                "validRange": {"min": "1", "max": "4", "step": "1"},
            },
        },
    }


def test_a_gpu_by_memory_in_full() -> None:
    found = published(gpu(0, policy=sharing(BY_MEMORY)))
    assert found["allowMultipleAllocations"] is True
    assert found["capacity"] == {
        "memory": {
            "value": "80535Mi",
            "requestPolicy": {
                "default": "80535Mi",
                "validRange": {"min": "1Mi", "max": "80535Mi", "step": "1Mi"},
            },
        }
    }


def test_a_gpu_for_everybody_in_full() -> None:
    found = published(gpu(0, policy=sharing(UNLIMITED)))
    assert found["allowMultipleAllocations"] is True
    (memory,) = found["capacity"].values()
    assert memory["requestPolicy"]["default"] == "0"
    assert memory["requestPolicy"]["validRange"]["min"] == "0"


@pytest.mark.parametrize("shares", [FOUR, BY_MEMORY, UNLIMITED])
def test_a_claim_takes_of_a_partition_no_more_than_it_asks_for(shares: SharesPolicy) -> None:
    found = published(partitioned(0, 2, policy=sharing(shares)))
    capacity = dict(found["capacity"])
    memory = capacity.pop("memory")
    assert "validRange" in memory["requestPolicy"]
    assert ("shares" in capacity) == (shares is FOUR)
    capacity.pop("shares", None)
    assert {name: value["value"] for name, value in capacity.items()} == {
        "multiprocessors": "16",
        "copyEngines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "0",
        "memorySlice2": "1",
    }
    assert all(value["requestPolicy"] == NOTHING for value in capacity.values())


@pytest.mark.parametrize("shares", [FOUR, BY_MEMORY, UNLIMITED])
@pytest.mark.parametrize(
    ("size", "whole"), [(80 * GIB + 5, 80 * GIB), (80 * GIB - 1, 80 * GIB - MIB)]
)
def test_memory_is_handed_out_in_whole_mebibytes(
    shares: SharesPolicy, size: int, whole: int
) -> None:
    found = published(gpu(0, memory_bytes=size, policy=sharing(replace(shares, reserve_bytes=0))))
    most = "80Gi" if whole == 80 * GIB else "81919Mi"
    memory = found["capacity"]["memory"]
    assert memory["requestPolicy"]["validRange"]["max"] == most
    assert memory["value"] == (most if shares is BY_MEMORY else str(size))


@pytest.mark.parametrize("shares", [FOUR, UNLIMITED])
def test_a_gpu_that_tells_no_memory_is_shared_without(shares: SharesPolicy) -> None:
    found = published(gpu(0, memory_bytes=None, policy=sharing(shares)))
    assert set(found["capacity"]) == ({"shares"} if shares is FOUR else set())
    assert found["allowMultipleAllocations"] is True


@pytest.mark.parametrize("size", [1, MIB - 1, MIB, MIB + 1, 2 * MIB])
@pytest.mark.parametrize("shares", [FOUR, BY_MEMORY, UNLIMITED])
def test_any_memory_makes_a_slice_that_the_server_takes(shares: SharesPolicy, size: int) -> None:
    assert published(gpu(0, memory_bytes=GIB + size, policy=sharing(shares)))["name"] == "gpu-0"
    assert published(gpu(0, memory_bytes=size, policy=sharing(shares)))["name"] == "gpu-0"


@pytest.mark.parametrize("shares", [SharesPolicy(), SharesPolicy(SharesMode.COUNT, 1, rename=True)])
def test_without_shares_nothing_of_them_is_published(shares: SharesPolicy) -> None:
    assert published(gpu(0, policy=sharing(shares))) == published(gpu(0))
    assert plan_for(gpu(0, policy=sharing(shares)), abilities=WITHOUT).left_out == ()


def test_only_what_is_shared_and_to_be_renamed_has_another_resource_name() -> None:
    assert name_of(published(gpu(0, policy=sharing(RENAMED)))) == "gpu.shared"
    assert name_of(published(gpu(0, policy=sharing(FOUR)))) == "gpu"
    assert name_of(published(partitioned(0, 0, policy=sharing(RENAMED)))) == "mig-1g.10gb.shared"
    single = sharing(RENAMED, single_strategy=True)
    assert name_of(published(partitioned(0, 0, policy=single))) == "gpu.shared"
    alone = published(gpu(0, policy=sharing(RENAMED)), WITHOUT)
    assert name_of(alone) == "gpu", "one claim has it alone: it is what nvidia.com/gpu promises"


def test_a_server_that_keeps_no_shares_gets_none_and_it_is_told() -> None:
    plan = plan_for(gpu(0, policy=sharing(FOUR)), abilities=WITHOUT)
    assert published(gpu(0, policy=sharing(FOUR)), WITHOUT) == published(gpu(0), WITHOUT)
    (lost,) = plan.left_out
    assert (lost.device, lost.field, lost.why) == ("gpu-0", "shares", Why.NOT_SHARED)
    assert str(lost) == (
        "device gpu-0 is not shared: the API server keeps no shares; switch on "
        "DRAConsumableCapacity"
    )


@pytest.mark.parametrize(
    ("version", "counts"),
    [
        ((1, 34, 4), False),
        ((1, 34, 99), False),
        ((1, 35, 3), False),
        ((1, 35, 4), True),
        ((1, 36, 0), False),
        ((1, 36, 1), False),
        ((1, 36, 2), True),
        ((1, 37, 0), True),
        ((2, 0, 0), True),
    ],
)
def test_what_is_made_on_request_is_shared_where_both_are_counted(
    version: tuple[int, int, int],
    counts: bool,  # noqa: FBT001
) -> None:
    abilities = ServerAbilities(version, taints=True, counters=True, multiple_allocations=True)
    assert abilities.counts_shares is counts
    policy = sharing(RENAMED, partitioning=Partitioning.DYNAMIC)
    plan = taken_by_server(plan_for(dynamic_gpu(0, policy=policy), abilities=abilities), abilities)
    devices = devices_of(plan).values()
    assert len(devices) == 26
    assert all("consumesCounters" in device for device in devices)
    assert {device.get("allowMultipleAllocations", False) for device in devices} == {counts}
    assert all(("shares" in device["capacity"]) == counts for device in devices)
    assert all(name_of(device).endswith(".shared") == counts for device in devices)
    told = not_shared(plan)
    assert [device for device, _ in told] == ([] if counts else ["gpu-0-mig-*", "gpu-0"])
    assert all("1.36.2 (or 1.35.4)" in message for _, message in told)


def test_a_gpu_that_is_published_as_it_is_can_be_shared_by_any_server() -> None:
    """Also one for which partitions on request are configured, where counters are dropped."""
    abilities = ServerAbilities((1, 34, 4), multiple_allocations=True)
    policy = sharing(FOUR, partitioning=Partitioning.DYNAMIC)
    plan = plan_for(dynamic_gpu(0, policy=policy), abilities=abilities)
    (found,) = devices_of(taken_by_server(plan, abilities)).values()
    assert found["allowMultipleAllocations"]
    assert [lost.why for lost in plan.left_out] == [Why.NO_COUNTERS]


def test_below_the_required_level_nothing_is_shared() -> None:
    for required in MemoryLimitLevel:
        for level in MemoryLimitLevel:
            policy = sharing(BY_MEMORY, required_limit=required)
            device = gpu(0, policy=policy, memory_limit=level)
            plan = plan_for(device)
            assert ("allowMultipleAllocations" in published(device)) == (level >= required)
            assert bool(not_shared(plan)) == (level < required)
    policy = sharing(FOUR, required_limit=MemoryLimitLevel.CGROUP)
    plan = plan_for(gpu(0, policy=policy, memory_limit=MemoryLimitLevel.MPS))
    assert not_shared(plan) == [
        ("gpu-0", "limits of its memory hold at level mps, and requireMemoryLimit is cgroup")
    ]


@pytest.mark.parametrize(
    ("policy", "level"),
    [
        ({}, MemoryLimitLevel.MPS_CLIENT),
        ({"required_limit": MemoryLimitLevel.MPS}, MemoryLimitLevel.MPS),
        ({"shares": FOUR}, MemoryLimitLevel.NONE),
        ({"sharing": SharingSettings(Strategy.TIME_SLICING)}, MemoryLimitLevel.NONE),
    ],
)
def test_mps_limits_what_is_shared_by_memory(
    policy: dict[str, Any], level: MemoryLimitLevel
) -> None:
    mps: dict[str, Any] = {
        "shares": BY_MEMORY,
        "sharing": SharingSettings(Strategy.MPS, mps=MpsSettings()),
    }
    wanted = GpuPolicy(**(mps | policy))
    others = gpu(9, policy=sharing(BY_MEMORY))  # so that the level is published
    cgroup = MemoryLimitLevel.CGROUP
    devices = (
        gpu(0, policy=wanted, compute_capability=(7, 0)),
        partitioned(1, 0, policy=wanted, memory_limit=cgroup),
        gpu(2, policy=wanted, memory_limit=cgroup),
        gpu(3, policy=wanted, compute_capability=(6, 1)),
    )
    found = devices_of(plan_for(*devices, others)).values()
    levels = [each["attributes"]["memoryLimit"]["string"] for each in found]
    assert levels[:4] == [level.value, level.value, "cgroup", "none"]


def test_the_gpu_driver_limits_no_partitions() -> None:
    policy = sharing(BY_MEMORY, required_limit=MemoryLimitLevel.CGROUP)
    plan = plan_for(partitioned(0, 0, 1, policy=policy, memory_limit=MemoryLimitLevel.CGROUP))
    assert not_shared(plan) == [
        (
            "gpu-0-mig-*",
            "limits of its memory hold at level none, and requireMemoryLimit is cgroup",
        )
    ]
    assert {each["attributes"]["memoryLimit"]["string"] for each in devices_of(plan).values()} == {
        "none"
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_bytes": None, "memory_type": MemoryType.UNIFIED}, "how much memory it has"),
        ({"memory_bytes": GIB}, "a reserve of 1Gi leaves too little of its 1Gi"),
        ({"memory_bytes": GIB // 2}, "a reserve of 1Gi leaves too little of its 512Mi"),
        ({"memory_bytes": GIB + MIB}, "leaves too little"),
    ],
)
def test_a_gpu_without_memory_to_hand_out_is_not_shared(
    changes: dict[str, Any], words: str
) -> None:
    device = gpu(0, policy=sharing(BY_MEMORY), **changes)
    ((name, message),) = not_shared(plan_for(device))
    assert name == "gpu-0"
    assert words in message
    assert "allowMultipleAllocations" not in published(device)
    assert (
        published(device)["capacity"] == published(replace(device, policy=GpuPolicy()))["capacity"]
    )


def test_the_level_stands_on_every_device_of_a_node_that_shares_by_memory() -> None:
    level = MemoryLimitLevel.CGROUP
    plain, cut = gpu(0, memory_limit=level), partitioned(1, 0, 1)
    devices = devices_of(plan_for(plain, cut))
    assert not any("memoryLimit" in device["attributes"] for device in devices.values())
    by_memory = gpu(2, policy=sharing(BY_MEMORY), memory_limit=level)
    plan = plan_for(plain, cut, by_memory, dynamic_gpu(3))
    levels = {
        name: device["attributes"]["memoryLimit"]["string"]
        for name, device in devices_of(plan).items()
    }
    assert (levels["gpu-0"], levels["gpu-1-mig-1g10gb-19-0"]) == ("cgroup", "none")
    assert (levels["gpu-2"], levels["gpu-3"]) == ("cgroup", "none")
    assert set(levels) == set(devices_of(plan))


@pytest.mark.parametrize("shares", [FOUR, BY_MEMORY, UNLIMITED])
def test_the_largest_partition_gives_its_memory_slices_for_shares(shares: SharesPolicy) -> None:
    parent = gpu(0, mig_enabled=True, policy=sharing(shares))
    whole = replace(parent, partitions=(partition(parent, 0, WHOLE, size=8),))
    plan = taken_by_server(plan_for(whole))
    (found,) = devices_of(plan).values()
    assert len(found["attributes"]) + len(found["capacity"]) <= 32
    assert ("memorySlice0" in found["capacity"]) == (shares is UNLIMITED)
    assert [lost.field for lost in plan.left_out] == (
        [] if shares is UNLIMITED else ["memorySlice"]
    )
    half = replace(parent, partitions=(partition(parent, 0, WHOLE, size=4),))
    assert plan_for(half).left_out == ()
