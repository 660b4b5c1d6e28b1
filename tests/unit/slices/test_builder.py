"""Slices from snapshots: valid whatever the hardware says, stable, cut, named for first-fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import Settings
from dra_driver.model import Gpu, Inventory, PublishedDevice, gpu_device_name
from dra_driver.simulator.api_server.slices import SliceAdmission
from dra_driver.slices import (
    PoolPlan,
    ServerAbilities,
    Why,
    build_slices,
    check_spec,
    slice_object,
)
from dra_driver.slices.builder import slice_name
from dra_driver.slices.compare import same_spec
from tests.support.inventories import gpu, inventory, partition, partitioned
from tests.unit.slices.published import NEW, OLD, WITHOUT, devices_of, names
from tests.unit.slices.strategies import INVENTORIES

ALL = NEW
SETTINGS = Settings(node_name="node-a")


def build(*gpus: Gpu, abilities: ServerAbilities = ALL) -> PoolPlan:
    return build_slices(inventory(*gpus), SETTINGS, abilities)


def is_told(device: PublishedDevice, plan: PoolPlan) -> bool:
    """Whether somebody who misses the device finds out why."""
    name = gpu_device_name(device.gpu)
    told = {lost.device for lost in plan.left_out if not lost.field}
    together = {f"{name}-mig-*"} if device.slot is not None or device.is_made else set()
    foreign = {name} if device.is_made and device.gpu.foreign else set()
    return bool(told & ({device.name} | together | foreign))


@given(INVENTORIES, st.sampled_from((NEW, OLD, WITHOUT)))
def test_b06_any_hardware_gives_slices_that_the_server_takes(
    found: Inventory, abilities: ServerAbilities
) -> None:
    plan = build_slices(found, SETTINGS, abilities)
    gates = {
        "DRAPartitionableDevices": abilities.counters,
        "DRADeviceTaints": abilities.taints,
        "DRAConsumableCapacity": abilities.multiple_allocations,
    }
    server = SliceAdmission(abilities.version, gates)
    seen: set[str] = set()
    sets: dict[str, set[str]] = {}
    for obj in plan.objects():
        assert list(check_spec(obj["spec"])) == []
        stored = server(obj, None)  # raises when the stand-in would refuse it
        assert same_spec(obj["spec"], stored["spec"])
        devices = {device["name"] for device in obj["spec"].get("devices", ())}
        assert not devices & seen
        seen |= devices
        for group in obj["spec"].get("sharedCounters", ()):
            assert group["name"] not in sets
            sets[group["name"]] = set(group["counters"])
    for entry in devices_of(plan).values():
        for use in entry.get("consumesCounters", ()):
            assert set(use["counters"]) <= sets[use["counterSet"]], "else the pool is invalid"
    for device in found.devices():
        assert device.name in seen or is_told(device, plan)


@given(INVENTORIES)
def test_the_same_snapshot_gives_the_same_slices(found: Inventory) -> None:
    shuffled = replace(found, gpus=found.gpus[::-1], generation=99)
    if len({g.minor for g in found.gpus}) == len(found.gpus):
        first, second = (build_slices(each, SETTINGS, ALL) for each in (found, shuffled))
        assert first.slices == second.slices


def test_a_node_without_gpus_has_one_empty_slice() -> None:
    plan = build()
    assert names(plan) == [[]]
    assert plan.objects(7, "uid-1") == [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": slice_name(0, SETTINGS),
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": "node-a",
                        "uid": "uid-1",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": "node-a",
                "pool": {"name": "node-a", "generation": 7, "resourceSliceCount": 1},
                "devices": [],
            },
        }
    ]


def test_devices_stand_in_the_order_of_their_minors() -> None:
    plan = build(gpu(10), partitioned(1, 3, 0), gpu(2))
    assert names(plan) == [["gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-3", "gpu-2", "gpu-10"]]


@pytest.mark.parametrize(
    ("count", "sizes"), [(64, [64]), (65, [64, 1]), (128, [64, 64]), (200, [64, 64, 64, 8])]
)
def test_slices_are_cut_at_64_devices(count: int, sizes: list[int]) -> None:
    plan = build(*(gpu(minor) for minor in range(count)))
    assert [len(part.devices) for part in plan.slices] == sizes
    assert all(obj["spec"]["pool"]["resourceSliceCount"] == len(sizes) for obj in plan.objects())


def test_a_mig_gpu_is_not_published_whole_and_unusable_instances_not_at_all() -> None:
    parent = gpu(0, mig_enabled=True)
    assert names(build(parent)) == [[]]
    useless = partition(parent, 0, uuid=None, ci_id=None)
    assert names(build(replace(parent, partitions=(useless, partition(parent, 1))))) == [
        ["gpu-0-mig-1g10gb-19-1"]
    ]


def test_a_gpu_is_not_published_whole_while_a_claim_holds_a_partition_that_is_gone() -> None:
    held = {"GPU-0": "claim team/train (uid) holds partition gpu-0-mig-1g10gb-19-1 of it"}
    plan = build_slices(inventory(gpu(0, uuid="GPU-0"), gpu(1)), SETTINGS, ALL, held=held)
    assert names(plan) == [["gpu-1"]]
    (lost,) = plan.left_out
    assert (lost.device, lost.field, lost.why) == ("gpu-0", "", Why.HELD)
    assert "claim team/train" in str(lost)
    parent = gpu(0, uuid="GPU-0", mig_enabled=True)
    there = replace(parent, partitions=(partition(parent, 1),))
    plan = build_slices(inventory(there, gpu(1)), SETTINGS, ALL, held=held)
    assert names(plan) == [["gpu-0-mig-1g10gb-19-1", "gpu-1"]]
    assert plan.left_out == ()


def test_two_devices_of_one_name_are_not_both_published() -> None:
    plan = build(gpu(0), gpu(0, uuid="GPU-twin"))
    assert names(plan) == [["gpu-0"]]
    assert [(lost.device, lost.why) for lost in plan.left_out] == [("gpu-0", Why.INVALID)]


def test_b06_one_bad_device_does_not_take_the_others_with_it() -> None:
    parent = gpu(1, mig_enabled=True)
    bad = partition(parent, 0)
    bad = replace(bad, profile=replace(bad.profile, name="1g." + "x" * 49))
    plan = build(gpu(0), replace(parent, partitions=(bad, partition(parent, 1))), gpu(2))
    assert names(plan) == [["gpu-0", "gpu-1-mig-1g10gb-19-1", "gpu-2"]]
    assert [lost.field for lost in plan.left_out][-1] == ""


def test_a_refused_device_stays_out_until_it_changes() -> None:
    first = build(gpu(0), gpu(1))
    sent = first.slices[0].devices[1]
    refused = {"gpu-1": (sent, "no")}
    again = build_slices(inventory(gpu(0), gpu(1)), SETTINGS, ALL, refused)
    assert names(again) == [["gpu-0"]]
    assert [(lost.device, lost.why, lost.message) for lost in again.left_out] == [
        ("gpu-1", Why.REFUSED, "no")
    ]
    changed = inventory(gpu(0), gpu(1, brand="Tesla"))
    assert names(build_slices(changed, SETTINGS, ALL, refused)) == [["gpu-0", "gpu-1"]]


def test_names_sort_as_the_slices_do_and_tell_nodes_apart() -> None:
    made = [slice_name(index, SETTINGS) for index in (0, 1, 9, 10, 16, 255)]
    assert made == sorted(made)
    assert made[0].startswith("00000-gpu.nvidia.com-node-a-")
    others = [
        replace(SETTINGS, node_name="node-b"),
        replace(SETTINGS, pool_name="node-a/gpu"),
        replace(SETTINGS, driver_name="gpu.nvidia.com-node", node_name="a"),
    ]
    assert len({slice_name(0, each) for each in (SETTINGS, *others)}) == 4


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]{1,60}){0,3}", fullmatch=True))
def test_a_name_is_always_a_dns_subdomain(node: str) -> None:
    settings = Settings(node_name=node[:253].rstrip(".-"))
    obj = slice_object(build_slices(inventory(), settings, ALL).slices[0], 1, 1, "")
    name = slice_name(0, settings)
    assert len(name) <= 253
    assert list(check_spec(obj["spec"])) == []
    assert all(part and part[0].isalnum() and part[-1].isalnum() for part in name.split("."))
