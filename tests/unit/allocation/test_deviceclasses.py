"""The DeviceClasses that we ship, evaluated on devices as we publish them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.allocation import DeviceClass, Slice
from dra_driver.allocation.expression import Subject, matches
from tests.unit.allocation.hardware import MIG_MODELS, every_kind

FOLDER = Path(__file__).parents[3] / "deviceclasses"
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
EXTENDED = re.compile(r"nvidia\.com/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def shipped() -> list[dict[str, Any]]:
    """Return all manifests in the folder."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml")))
    return [document for text in texts for document in yaml.safe_load_all(text)]


CLASSES = {c.name: c for c in map(DeviceClass.parse, shipped())}
DEVICES = [device for manifest in every_kind() for device in Slice.parse(manifest).devices]

SUBJECTS = {device.id: Subject(device) for device in DEVICES}


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
    assert whole | partitions == everything
    assert not whole & partitions
    assert whole == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}


def test_each_extended_resource_has_one_class() -> None:
    names = [c.extended_resource for c in CLASSES.values() if c.extended_resource]
    assert len(names) == len(set(names)) == len(CLASSES) - 1
    assert CLASSES["gpu.nvidia.com"].extended_resource == "nvidia.com/gpu"
    assert CLASSES["mig.nvidia.com"].extended_resource == ""


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "mig.nvidia.com"])
def test_a_class_takes_what_its_extended_resource_says(name: str) -> None:
    resource = CLASSES[name].extended_resource.removeprefix("nvidia.com/")
    wanted = {d.id.device for d in DEVICES if d.attributes["resourceName"] == resource}
    assert _matching(name) == wanted
    assert name == ("gpu.nvidia.com" if resource == "gpu" else f"{resource}.gpu.nvidia.com")


def test_every_profile_of_every_known_model_has_a_class() -> None:
    profiles = {
        "mig-" + profile.name.removeprefix("MIG ").replace("+", ".")
        for model in MIG_MODELS.values()
        for profile in model.gi
    }
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
