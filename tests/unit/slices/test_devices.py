"""Names, types and values of published devices: a contract that other software relies on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.allocation import DeviceClass, Slice
from dra_driver.allocation.expression import Subject, matches
from dra_driver.model import (
    Gpu,
    GpuPolicy,
    Health,
    HealthState,
    Inventory,
    MemoryType,
    MigProfile,
    Partitioning,
    PublishedDevice,
    Slot,
    existing_devices,
    made_devices,
)
from dra_driver.slices import LeftOut, Why, resource_name
from dra_driver.slices.devices import device_entry
from tests.support.api import slice_of
from tests.support.dynamic_gpus import dynamic_gpu
from tests.support.inventories import (
    MIB,
    SMALL,
    SMALL_MEDIA,
    WHOLE,
    gpu,
    inventory,
    partition,
    partitioned,
)
from tests.unit.slices.published import NEW, WITHOUT

CLASSES = Path(__file__).parents[3] / "deviceclasses"
SICK = Health(HealthState.UNHEALTHY, "xid", "XID 79", 1.0)
ON_EVERY_DEVICE = {"type", "resourceName", "uuid", "memoryType"}


def entry(
    device: Gpu, *, taints: bool = True, snapshot: Inventory | None = None, index: int = 0
) -> Any:
    found = snapshot or inventory(device)
    published = list(replace(found, gpus=(device,)).devices())[index]
    abilities = NEW if taints else WITHOUT
    return device_entry(published, found, "gpu.nvidia.com", abilities)


def text(value: str) -> dict[str, str]:
    return {"string": value}


def version(value: str) -> dict[str, str]:
    return {"version": value}


def test_a_whole_gpu_in_full() -> None:
    assert entry(gpu(3)).left_out == ()
    assert entry(gpu(3)).device == {
        "name": "gpu-3",
        "attributes": {
            "type": text("gpu"),
            "resourceName": text("gpu"),
            "uuid": text("GPU-00000000-0000-0000-0000-000000000003"),
            "productName": text("NVIDIA H100 80GB HBM3"),
            "brand": text("Nvidia"),
            "architecture": text("Hopper"),
            "cudaComputeCapability": version("9.0.0"),
            "memoryType": text("dedicated"),
            "driverVersion": version("580.95.5"),
            "driverVersionText": text("580.95.05"),
            "cudaDriverVersion": version("13.0.0"),
            "addressingMode": text("HMM"),
            "resource.kubernetes.io/pciBusID": text("0000:1e:00.0"),
            "resource.kubernetes.io/pcieRoot": text("pci0000:17"),
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def test_a_partition_in_full() -> None:
    found = entry(partitioned(1, 2)).device
    assert found["name"] == "gpu-1-mig-1g10gb-19-2"
    attributes = found["attributes"]
    assert attributes["type"] == text("mig")
    assert attributes["resourceName"] == text("mig-1g.10gb")
    assert attributes["uuid"] == text("MIG-00000001-0000-0000-0000-000000000002")
    assert attributes["parentUUID"] == text("GPU-00000000-0000-0000-0000-000000000001")
    assert attributes["profile"] == text("1g.10gb")
    shared = set(entry(gpu(1)).device["attributes"])
    assert set(attributes) == shared | {"parentUUID", "profile"}
    assert found["capacity"] == {
        "memory": {"value": "9856Mi"},
        "multiprocessors": {"value": "16"},
        "copyEngines": {"value": "1"},
        "decoders": {"value": "1"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "1"},
        "ofaEngines": {"value": "0"},
        "memorySlice2": {"value": "1"},
    }


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "mig-1g.10gb"),
        ("1g.10gb+me", "mig-1g.10gb.me"),
        ("1g.24gb-me", "mig-1g.24gb-me"),
        ("2g.48gb+gfx", "mig-2g.48gb.gfx"),
    ],
)
def test_the_resource_name_is_what_the_device_plugin_would_say(profile: str, name: str) -> None:
    parent = gpu(0, mig_enabled=True)
    made = partition(parent, profile=replace(SMALL, name=profile))
    slot = Slot(made.profile, made.placement)
    assert resource_name(PublishedDevice("x", parent, slot, made)) == name
    assert resource_name(PublishedDevice("x", parent)) == "gpu"


def single(*profiles: MigProfile, mode: Partitioning = Partitioning.EXISTING) -> list[str]:
    """Resource names under strategy `single` of partitions with these profiles."""
    policy = GpuPolicy(mode, single_strategy=True)
    parent = gpu(0, mig_enabled=True, policy=policy)
    parts = [partition(parent, i, profile) for i, profile in enumerate(profiles)]
    found = inventory(replace(parent, partitions=tuple(parts)))
    return [resource_name(device) for device in existing_devices(found.gpus[0])]


@pytest.mark.parametrize("mode", [Partitioning.EXISTING, Partitioning.STATIC])
def test_partitions_of_a_uniformly_cut_gpu_are_gpus_under_strategy_single(
    mode: Partitioning,
) -> None:
    assert single(SMALL, SMALL, mode=mode) == ["gpu", "gpu"]
    assert single(SMALL, SMALL_MEDIA, mode=mode) == ["mig-1g.10gb", "mig-1g.10gb.me"]
    assert single(WHOLE, mode=mode) == ["gpu"]


def test_strategy_single_counts_instances_that_cannot_be_used() -> None:
    parent = gpu(0, mig_enabled=True, policy=GpuPolicy(single_strategy=True))
    useless = partition(parent, 1, SMALL_MEDIA, uuid=None, ci_id=None)
    cut = replace(parent, partitions=(partition(parent, 0), useless))
    assert [resource_name(device) for device in existing_devices(cut)] == ["mig-1g.10gb"]
    same = replace(cut, partitions=(cut.partitions[0], replace(useless, profile=SMALL)))
    assert [resource_name(device) for device in existing_devices(same)] == ["gpu"]


def test_partitions_on_request_are_never_gpus() -> None:
    assert single(SMALL, SMALL, mode=Partitioning.DYNAMIC) == ["mig-1g.10gb", "mig-1g.10gb"]
    policy = GpuPolicy(Partitioning.DYNAMIC, single_strategy=True)
    names = {resource_name(device) for device in made_devices(dynamic_gpu(policy=policy))}
    assert {"gpu", "mig-1g.10gb", "mig-7g.80gb"} <= names


def test_the_largest_partition_just_fits() -> None:
    parent = gpu(0, mig_enabled=True)
    parent = replace(parent, partitions=(partition(parent, 0, WHOLE, size=8),))
    found = entry(parent)
    assert found.left_out == ()
    assert len(found.device["attributes"]) + len(found.device["capacity"]) == 32
    assert {f"memorySlice{n}" for n in range(8)} <= set(found.device["capacity"])


def test_memory_slices_go_before_the_device_does() -> None:
    parent = gpu(0, mig_enabled=True)
    parent = replace(parent, partitions=(partition(parent, 0, WHOLE, size=12),))
    found = entry(parent)
    assert not [key for key in found.device["capacity"] if key.startswith("memorySlice")]
    assert [lost.field for lost in found.left_out] == ["memorySlice"]


@pytest.mark.parametrize("memory", [None, 0])
def test_memory_that_is_not_known_is_no_capacity(memory: int | None) -> None:
    found = entry(gpu(0, memory_bytes=memory, memory_type=MemoryType.UNIFIED)).device
    assert found["capacity"] == {}
    assert found["attributes"]["memoryType"] == text("unified")


@pytest.mark.parametrize(
    ("driver", "published"),
    [("550.127.08", "550.127.8"), ("570.86", "570.86.0"), ("1.2.3.4", None), ("none", None)],
)
def test_b06_the_raw_text_stands_beside_the_version(driver: str, published: str | None) -> None:
    device = gpu()
    found = entry(device, snapshot=inventory(device, driver_version=driver))
    attributes = found.device["attributes"]
    assert attributes["driverVersionText"] == text(driver)
    if published is None:
        assert "driverVersion" not in attributes
        assert [(lost.field, lost.why) for lost in found.left_out] == [
            ("driverVersion", Why.INVALID)
        ]
    else:
        assert attributes["driverVersion"] == version(published)


def test_b06_without_a_version_the_device_is_published_without() -> None:
    device = gpu()
    found = entry(device, snapshot=inventory(device, driver_version="", cuda_driver_version=None))
    assert not {"driverVersion", "driverVersionText", "cudaDriverVersion"} & set(
        found.device["attributes"]
    )
    assert found.left_out == ()


@pytest.mark.parametrize(
    "value", ["x" * 65, "ä" * 33, "line\nbreak", "\x00", "\ud800"], ids=range(5)
)
def test_b06_a_value_that_would_be_refused_is_left_out_alone(value: str) -> None:
    found = entry(gpu(0, product_name=value))
    assert "productName" not in found.device["attributes"]
    assert found.device["attributes"]["brand"] == text("Nvidia")
    assert [lost.field for lost in found.left_out] == ["productName"]
    assert str(found.left_out[0]).startswith("productName of device gpu-0 is not published: ")


def test_a_device_with_an_impossible_name_is_left_out() -> None:
    found = entry(gpu(-1))
    assert found.device is not None  # "gpu--1" is a label
    parent = gpu(0, mig_enabled=True)
    long = replace(SMALL, name="1g." + "x" * 49)  # its other values fit
    found = entry(replace(parent, partitions=(partition(parent, profile=long),)))
    assert found.device is None
    assert found.left_out[-1].field == ""


def test_a_sick_device_is_tainted() -> None:
    found = entry(gpu(0, health=SICK)).device
    assert found["taints"] == [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    unnamed = replace(SICK, reason="no label!")
    found = entry(gpu(0, health=unnamed)).device
    assert found["taints"] == [{"key": "gpu.nvidia.com/unhealthy", "effect": "NoSchedule"}]


def test_a_sick_device_is_withdrawn_where_taints_are_dropped() -> None:
    found = entry(gpu(0, health=SICK), taints=False)
    assert found.device is None
    assert found.left_out == (
        LeftOut(
            "gpu-0",
            "",
            Why.UNHEALTHY,
            "XID 79; the API server keeps no taints that would say so",
        ),
    )


def test_an_unknown_health_is_not_held_against_a_device() -> None:
    found = entry(gpu(0, health=Health(HealthState.UNKNOWN)), taints=False)
    assert "taints" not in found.device


def every_kind_of_device() -> Iterator[Gpu]:
    """Yield GPUs of all shapes: unified memory, sick, partitioned, without any optional value."""
    yield gpu()
    yield gpu(memory_bytes=None, memory_type=MemoryType.UNIFIED)
    yield gpu(health=SICK)
    yield Gpu(uuid="GPU-bare", minor=7, product_name="")
    profiles: tuple[MigProfile, ...] = (SMALL, SMALL_MEDIA, WHOLE)
    for number, profile in enumerate(profiles):
        parent = gpu(number, mig_enabled=True)
        yield replace(parent, partitions=(partition(parent, 0, profile),))


def test_b08_every_device_has_the_attributes_of_the_contract() -> None:
    for device in every_kind_of_device():
        found = entry(device).device
        assert set(found["attributes"]) >= ON_EVERY_DEVICE, found["name"]


def test_b08_shipped_classes_answer_on_every_device() -> None:
    """Evaluating a selector that reads a missing key raises, here as in the scheduler."""
    files = sorted(CLASSES.glob("*.yaml"))
    assert files, "there are no DeviceClasses to check"
    manifests = [each for path in files for each in yaml.safe_load_all(path.read_text())]
    found = [entry(gpu).device for gpu in every_kind_of_device()]
    subjects = [Subject(device) for each in found for device in Slice.parse(slice_of(each)).devices]
    for device_class in map(DeviceClass.parse, manifests):
        for selector in device_class.selectors:
            answers = [matches(selector, subject) for subject in subjects]
            assert len(answers) == len(found)


def test_b08_a_device_without_a_needed_attribute_is_not_published() -> None:
    parent = gpu(0, mig_enabled=True)
    odd = replace(SMALL, name="1g.10gb\n")
    found = entry(replace(parent, partitions=(partition(parent, profile=odd),)))
    assert found.device is None
    assert "resourceName" in found.left_out[-1].message


def test_sizes_are_written_exactly() -> None:
    assert entry(gpu(0, memory_bytes=80 * 1024 * MIB)).device["capacity"] == {
        "memory": {"value": "80Gi"}
    }
    assert entry(gpu(0, memory_bytes=12345)).device["capacity"] == {"memory": {"value": "12345"}}
