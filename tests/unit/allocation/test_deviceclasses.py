"""The DeviceClasses that we ship, evaluated on devices as we publish them."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.allocation import DeviceClass, Slice
from dra_driver.allocation.expression import Subject, matches
from dra_driver.model import GpuPolicy
from tests.support import inventories
from tests.support.dynamic_gpus import dynamic_gpu
from tests.unit.allocation.hardware import MIG_MODELS, every_kind, every_kind_shared
from tests.unit.slices.published import plan_for

FOLDER = Path(__file__).parents[3] / "deviceclasses"
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
EXTENDED = re.compile(r"nvidia\.com/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def shipped() -> list[dict[str, Any]]:
    """Return all manifests in the folder."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml")))
    return [document for text in texts for document in yaml.safe_load_all(text)]


CLASSES = {c.name: c for c in map(DeviceClass.parse, shipped())}
DEVICES = [device for manifest in every_kind() for device in Slice.parse(manifest).devices]
ON_REQUEST = [
    device
    for minor, model in enumerate(MIG_MODELS)
    for manifest in plan_for(dynamic_gpu(100 + minor, model)).objects()
    for device in Slice.parse(manifest).devices
]
SHARED = [device for manifest in every_kind_shared() for device in Slice.parse(manifest).devices]
DEVICES += ON_REQUEST + SHARED

SUBJECTS = {device.id: Subject(device) for device in DEVICES}


@cache
def _matching(name: str) -> set[str]:
    return {
        device.id.device
        for device in DEVICES
        if all(matches(text, SUBJECTS[device.id]) for text in CLASSES[name].selectors)
    }


def _resources(device_type: str) -> set[str]:
    return {
        str(device.attributes["resourceName"])
        for device in DEVICES
        if device.attributes["type"] == device_type
    }


@pytest.mark.parametrize("name", CLASSES)
def test_b08_every_class_answers_on_every_device(name: str) -> None:
    """A key that one kind of device lacks would raise here, and stop scheduling there."""
    assert {device.attributes["type"] for device in DEVICES} == {"gpu", "mig"}
    _matching(name)


def test_the_two_main_classes_split_the_devices() -> None:
    everything = {device.id.device for device in DEVICES}
    whole, partitions = _matching("gpu.nvidia.com"), _matching("mig.nvidia.com")
    shared = _matching("gpu.shared.nvidia.com")
    assert whole | partitions | shared == everything
    assert len(whole) + len(partitions) + len(shared) == len(everything)
    made = {d.id.device for d in ON_REQUEST if d.attributes["type"] == "gpu"}
    assert whole == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"} | made
    assert len(made) == len([key for key in MIG_MODELS if not key.startswith("a100")])


def test_a_gpu_that_is_shared_under_another_name_is_no_plain_gpu() -> None:
    shared = {device.id.device for device in SHARED}
    assert all(device.allows_multiple for device in SHARED)
    plain = [name for name in CLASSES if "shared" not in name and name != "mig.nvidia.com"]
    assert not shared & {device for name in plain for device in _matching(name)}
    found = {device for name in CLASSES if "shared" in name for device in _matching(name)}
    assert found == shared
    assert _matching("gpu.shared.nvidia.com") == {f"gpu-{200 + minor}" for minor in range(4)}


def test_partitions_on_request_are_in_the_class_of_their_profile() -> None:
    for device in ON_REQUEST:
        if device.attributes["type"] == "mig":
            profile = str(device.attributes["profile"]).replace("+", ".")
            assert device.id.device in _matching(f"mig-{profile}.gpu.nvidia.com")
            assert device.id.device in _matching("mig.nvidia.com")
    assert len(ON_REQUEST) == 25 * len(MIG_MODELS) + 4


def test_partitions_that_stand_for_gpus_are_in_both_main_classes() -> None:
    """Strategy `single`: unchanged Pods with `nvidia.com/gpu` get them, claims still find them."""
    policy = GpuPolicy(single_strategy=True)
    cut = inventories.partitioned(0, 0, 1, policy=policy)
    (manifest,) = plan_for(cut).objects()
    found = [Subject(device) for device in Slice.parse(manifest).devices]
    in_class = {
        name: sum(all(matches(text, each) for text in each_class.selectors) for each in found)
        for name, each_class in CLASSES.items()
    }
    assert {name for name, count in in_class.items() if count} == {
        "gpu.nvidia.com",
        "mig.nvidia.com",
    }
    assert in_class["gpu.nvidia.com"] == 2


def test_each_extended_resource_has_one_class() -> None:
    names = [c.extended_resource for c in CLASSES.values() if c.extended_resource]
    assert len(names) == len(set(names)) == len(CLASSES) - 1
    plain = {name for name in names if not name.endswith(".shared")}
    assert set(names) == plain | {f"{name}.shared" for name in plain}
    assert CLASSES["gpu.nvidia.com"].extended_resource == "nvidia.com/gpu"
    assert CLASSES["mig.nvidia.com"].extended_resource == ""


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "mig.nvidia.com"])
def test_a_class_takes_what_its_extended_resource_says(name: str) -> None:
    resource = CLASSES[name].extended_resource.removeprefix("nvidia.com/")
    wanted = {d.id.device for d in DEVICES if d.attributes["resourceName"] == resource}
    assert _matching(name) == wanted
    whole = {"gpu": "gpu.nvidia.com", "gpu.shared": "gpu.shared.nvidia.com"}
    assert name == whole.get(resource, f"{resource}.gpu.nvidia.com")


def test_every_profile_of_every_known_model_has_a_class() -> None:
    profiles = {
        "mig-" + profile.name.removeprefix("MIG ").replace("+", ".")
        for model in MIG_MODELS.values()
        for profile in model.gi
    }
    profiles |= {f"{name}.shared" for name in profiles}
    assert profiles == _resources("mig")
    assert profiles <= {c.extended_resource.removeprefix("nvidia.com/") for c in CLASSES.values()}


@pytest.mark.parametrize("manifest", shipped(), ids=lambda manifest: manifest["metadata"]["name"])
def test_the_api_server_takes_it(manifest: dict[str, Any]) -> None:
    assert (manifest["apiVersion"], manifest["kind"]) == ("resource.k8s.io/v1", "DeviceClass")
    assert set(manifest["spec"]) <= {"extendedResourceName", "selectors"}
    assert SUBDOMAIN.fullmatch(manifest["metadata"]["name"])
    assert EXTENDED.fullmatch(manifest["spec"].get("extendedResourceName", "nvidia.com/x"))


def test_names_are_unique() -> None:
    assert len(shipped()) == len(CLASSES)
