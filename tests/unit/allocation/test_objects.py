"""Reading of manifests: what is wrong is named by object and field."""

from typing import Any

import pytest

from dra_driver.allocation import Claim, DeviceClass, DeviceId, ObjectInvalid, Slice, devices_in_use
from dra_driver.allocation.devices import Version
from dra_driver.model import Quantity
from tests.unit.allocation.build import CLASSES, claim, exactly, gpu, resource_slice


def _changed(manifest: Any, path: str, value: object) -> Any:
    """Return a copy with another value at a dotted path."""
    key, _, rest = path.partition(".")
    copy: Any = list(manifest) if isinstance(manifest, list) else dict(manifest)
    index: Any = int(key) if isinstance(manifest, list) else key
    copy[index] = _changed(copy[index], rest, value) if rest else value
    return copy


CLAIM = claim("c", {"gpu": exactly("gpu")})
MEMORY = "spec.devices.0.capacity.memory"
EXACTLY = "spec.devices.requests.0.exactly"


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec", [], "ResourceClaim default/c.spec: an object is wanted, found a list"),
        ("spec.devices.requests", {}, ".devices.requests: a list is wanted, found an object"),
        ("spec.devices.requests.0", "gpu", ".requests[0]: an object is wanted, found 'gpu'"),
        ("spec.devices.requests.0.exactly", None, "[0]: exactly or firstAvailable is wanted"),
        (f"{EXACTLY}.deviceClassName", "", ".exactly.deviceClassName: a text is wanted, found ''"),
        (f"{EXACTLY}.count", "2", ".exactly.count: a whole number is wanted, found '2'"),
        (f"{EXACTLY}.count", True, ".exactly.count: a whole number is wanted, found True"),
        (f"{EXACTLY}.count", 0, ".exactly.count: at least 1 is wanted, found 0"),
        (f"{EXACTLY}.adminAccess", "yes", ".adminAccess: true or false is wanted, found 'yes'"),
        (f"{EXACTLY}.allocationMode", "Some", ".allocationMode: ExactCount or All is wanted"),
        (f"{EXACTLY}.derivedAttributes", {}, ".derivedAttributes: not evaluated by this"),
        (f"{EXACTLY}.capacity", [], ".capacity: an object is wanted, found a list"),
        (f"{EXACTLY}.capacity", {"requests": {"m": 1}}, "requests.m: a text is wanted, found 1"),
        (f"{EXACTLY}.capacity", {"requests": {"m": "x"}}, "requests.m: 'x' is not a quantity"),
        (f"{EXACTLY}.selectors", [{}], ".selectors[0].cel.expression: a text is wanted"),
        ("spec.devices.constraints", [{}], "[0]: matchAttribute or distinctAttribute is wanted"),
        ("spec.devices.config", [{}], ".config[0].opaque: opaque parameters are wanted"),
        ("spec.devices.config", [{"requests": [1], "opaque": {}}], ".requests[0]: a text is"),
        ("metadata.name", None, "ResourceClaim.metadata.name: a text is wanted, found nothing"),
    ],
)
def test_a_bad_claim(path: str, value: object, complaint: str) -> None:
    with pytest.raises(ObjectInvalid) as caught:
        Claim.parse(_changed(CLAIM, path, value))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.driver", None, "ResourceSlice s.spec.driver: a text is wanted, found nothing"),
        ("spec.devices.0.attributes.type", {}, "[type]: one of string, int, bool or version"),
        ("spec.devices.0.attributes.type", {"int": "1"}, "[type].int: a whole number is wanted"),
        ("spec.devices.0.capacity.memory", {"value": "much"}, "[memory].value: 'much' is not a"),
        ("spec.devices.0.taints", [{"key": "k"}], ".taints[0].effect: a text is wanted"),
        (f"{MEMORY}.requestPolicy", [], "[memory].requestPolicy: an object is wanted"),
        (f"{MEMORY}.requestPolicy", {"default": "x"}, ".requestPolicy.default: 'x' is not a"),
        (f"{MEMORY}.requestPolicy", {"validValues": ["x"]}, ".validValues[0]: 'x' is not a"),
        (f"{MEMORY}.requestPolicy", {"validRange": {}}, ".validRange.min: a text is wanted"),
        (f"{MEMORY}.requestPolicy", {"validRange": {"min": "0", "step": "0"}}, ".step: more than"),
    ],
)
def test_a_bad_slice(path: str, value: object, complaint: str) -> None:
    with pytest.raises(ObjectInvalid) as caught:
        Slice.parse(_changed(resource_slice("s", [gpu("gpu-0")]), path, value))
    assert complaint in str(caught.value)


def test_a_bad_class_is_named() -> None:
    with pytest.raises(ObjectInvalid, match=r"DeviceClass gpu\.spec\.selectors: a list is wanted"):
        DeviceClass.parse(_changed(CLASSES[0], "spec.selectors", {}))


def test_a_slice_becomes_typed_devices() -> None:
    manifest = resource_slice("s", [gpu("gpu-0", driverVersion="v580.95.5", index=3)])
    (device,) = Slice.parse(manifest).devices
    assert device.id == DeviceId("gpu.nvidia.com", "node-a", "gpu-0")
    assert device.capacity == {"memory": Quantity.parse("80Gi")}
    assert device.attribute("gpu.nvidia.com/driverVersion") == Version("580.95.5")
    assert device.attribute("gpu.nvidia.com/index") == 3
    assert device.attribute("other.example.com/index") is None


def test_a_template_is_a_claim_under_another_name() -> None:
    template = {
        "metadata": {"name": "one-gpu", "namespace": "team"},
        "spec": {"spec": CLAIM["spec"]},
    }
    made = Claim.from_template(template, "pod-gpu-x7z2p")
    assert str(made) == "team/pod-gpu-x7z2p"
    assert made.requests == Claim.parse(CLAIM).requests


def test_devices_in_use_leave_out_admin_access_and_add_up_shares() -> None:
    def result(device: str, **more: object) -> dict[str, object]:
        return {"driver": "d", "pool": "p", "device": device, "request": "r", **more}

    held = {
        "metadata": {"name": "held", "namespace": "team"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        result("gpu-0"),
                        result("gpu-1", adminAccess=True),
                        result("gpu-2", shareID="5a3f", consumedCapacity={"memory": "1Gi"}),
                        result(
                            "gpu-2",
                            shareID="5a40",
                            consumedCapacity={"memory": "512Mi", "shares": "1"},
                        ),
                        result("gpu-3", shareID="5a41"),
                        result("gpu-2", shareID="5a42", adminAccess=True),
                    ]
                }
            }
        },
    }
    in_use = devices_in_use([CLAIM, held])
    assert in_use.holders == {DeviceId("d", "p", "gpu-0"): "team/held"}
    assert in_use.shared == {
        DeviceId("d", "p", "gpu-2"): {
            "memory": Quantity.parse("1536Mi"),
            "shares": Quantity.parse("1"),
        },
        DeviceId("d", "p", "gpu-3"): {},
    }
