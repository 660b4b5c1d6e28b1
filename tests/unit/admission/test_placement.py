"""Configs that are right by themselves, on requests that they can't be for."""

from typing import Any

import pytest

from tests.unit.admission.build import (
    GPU_CLASS,
    MIG_CLASS,
    PLACES,
    VERSIONS,
    Asked,
    Object,
    entry,
    first_of,
    gpu_config,
    mig_config,
    obj,
    request,
)

PROFILE_CLASS = "mig-1g.10gb.me.gpu.nvidia.com"
SHARED_CLASS = "mig-1g.10gb.shared.gpu.nvidia.com"
MPS: dict[str, Any] = {"strategy": "MPS"}
TIME_SLICING: dict[str, Any] = {"strategy": "TimeSlicing"}
CONFIG = "spec.devices.config[0]"
KIND = f"{CONFIG}.opaque.parameters.kind"


@pytest.fixture
def asked() -> Asked:
    return Asked()


def no_effect_on(classes: str) -> str:
    return (
        f"GpuConfig has no effect on partitions, the devices of {classes}; allowed: MigDeviceConfig"
    )


def claim(config: Object, *requests: Object, version: str = "v1") -> Object:
    return obj("ResourceClaim", [config], requests, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_requests_that_do_not_exist_are_named(asked: Asked, kind: str, version: str) -> None:
    requests = [request("a"), first_of("b", big=GPU_CLASS, small=MIG_CLASS)]
    configs = [entry(gpu_config(), "a", "c"), entry(mig_config(), "b/small", "b/none", "a/x")]
    place = PLACES[kind]
    allowed = "allowed: a, b, b/big, b/small"
    assert asked.faults(obj(kind, configs, requests, version)) == {
        f"{place}[0].requests[1]": f"no request has the name 'c'; {allowed}",
        f"{place}[1].requests[1]": f"no request has the name 'b/none'; {allowed}",
        f"{place}[1].requests[2]": f"no request has the name 'a/x'; {allowed}",
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("device_class", [MIG_CLASS, PROFILE_CLASS, SHARED_CLASS])
def test_a_gpu_config_for_a_request_of_partitions_is_refused(
    asked: Asked, device_class: str, version: str
) -> None:
    requests = [request("gpu"), request("part", device_class)]
    made = claim(entry(gpu_config(), "gpu", "part"), *requests, version=version)
    assert asked.faults(made) == {
        KIND: f"cannot apply GpuConfig to request part of class {device_class}, whose devices are "
        "partitions; allowed: MigDeviceConfig"
    }


def test_it_is_refused_for_an_alternative_that_is_named_too(asked: Asked) -> None:
    requests = first_of("gpu", big=GPU_CLASS, small=MIG_CLASS)
    assert list(asked.faults(claim(entry(gpu_config(), "gpu/small"), requests))) == [KIND]
    assert asked.ask(claim(entry(gpu_config(), "gpu/big"), requests)).keys() == {"uid", "allowed"}


def test_the_kind_and_what_is_wrong_inside_are_told_together(asked: Asked) -> None:
    made = claim(entry(gpu_config(strategy="Both"), "p"), request("p", MIG_CLASS))
    assert list(asked.faults(made)) == [f"{CONFIG}.opaque.parameters.sharing.strategy", KIND]


@pytest.mark.parametrize(
    ("config", "requests"),
    [
        # Whole GPUs or, with strategy `single`, partitions.
        (entry(mig_config(), "a"), [request("a", GPU_CLASS)]),
        # Nobody knows what these give.
        (entry(gpu_config(), "a"), [request("a", "mig.example.com")]),
        (entry(mig_config(), "a"), [request("a", "my-gpus")]),
        # For all requests that it fits.
        (entry(gpu_config()), [request("a"), request("b", MIG_CLASS)]),
        # For the alternatives that it fits.
        (entry(gpu_config(), "a"), [first_of("a", x=GPU_CLASS, y=MIG_CLASS)]),
        (entry(mig_config(**MPS), "a"), [request("a", MIG_CLASS)]),
    ],
)
def test_what_may_be_right_is_allowed(asked: Asked, config: Object, requests: list[Object]) -> None:
    assert asked.warnings(claim(config, *requests)) == []


@pytest.mark.parametrize(
    ("config", "requests", "warning"),
    [
        (
            entry(gpu_config(**MPS)),
            [request("a", MIG_CLASS), request("b", PROFILE_CLASS)],
            no_effect_on(f"{MIG_CLASS}, {PROFILE_CLASS}"),
        ),
        (
            entry(gpu_config(**MPS), "a"),
            [first_of("a", x=MIG_CLASS)],
            no_effect_on(MIG_CLASS),
        ),
        (
            entry(gpu_config(**MPS), "a"),
            [request("a", adminAccess=True)],
            "GpuConfig has no effect: admin access changes nothing",
        ),
        (
            entry(mig_config(**TIME_SLICING), "a"),
            [request("a", MIG_CLASS)],
            "MigDeviceConfig has no effect: a partition has no time-slice of its own",
        ),
    ],
)
def test_what_comes_to_nothing_is_told(
    asked: Asked, config: Object, requests: list[Object], warning: str
) -> None:
    assert asked.warnings(claim(config, *requests)) == [f"{CONFIG}: {warning}"]


def test_a_class_of_partitions_has_no_use_for_a_gpu_config(asked: Asked) -> None:
    made = obj("DeviceClass", [entry(gpu_config(**MPS))], name=MIG_CLASS)
    assert asked.warnings(made) == [f"spec.config[0]: {no_effect_on(MIG_CLASS)}"]
    assert asked.warnings(obj("DeviceClass", [entry(gpu_config(**MPS))], name=GPU_CLASS)) == []


def limits(*keys: str) -> Object:
    by_device = dict.fromkeys(keys, "1Gi")
    return gpu_config(**MPS, mpsConfig={"defaultPerDevicePinnedMemoryLimit": by_device})


@pytest.mark.parametrize(
    ("requests", "most"),
    [
        ([request("a")], 1),
        ([request("a", count=3)], 3),
        ([request("a", count=2), request("b", count=2)], 4),
        ([request("a", count=2), request("b", MIG_CLASS, count=4)], 2),
        ([first_of("a", x=GPU_CLASS, y=GPU_CLASS)], 1),
        ([request("a", allocationMode="All")], None),
        ([request("a"), request("b", allocationMode="All")], None),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_limit_for_a_device_beyond_the_last_is_refused(
    asked: Asked, requests: list[Object], most: int | None, version: str
) -> None:
    last = str((most or 1000) - 1)
    assert asked.faults(claim(entry(limits("0", last, "GPU-1")), *requests, version=version)) == {}
    if most is not None:
        faults = asked.faults(claim(entry(limits("0", str(most))), *requests, version=version))
        place = f"{CONFIG}.opaque.parameters.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"
        assert faults == {
            f"{place}.{most}": f"invalid device index: {most}; allowed: less than {most}, the "
            "number of devices that this config is for"
        }


def test_only_the_requests_of_a_config_count(asked: Asked) -> None:
    requests = [request("a"), request("b", count=5)]
    assert asked.faults(claim(entry(limits("1"), "a"), *requests))
    assert not asked.faults(claim(entry(limits("4"), "b"), *requests))


def test_nobody_knows_how_many_devices_a_class_will_be_for(asked: Asked) -> None:
    assert asked.faults(obj("DeviceClass", [entry(limits("7"))])) == {}
