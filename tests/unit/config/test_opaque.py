"""Opaque configs: strict for what users send, precedence as published manifests rely on."""

from typing import Any

import pytest

from dra_driver.config import GpuConfig, MigDeviceConfig, decode_config, resolve_config
from dra_driver.model import AllocatedDevice, DeviceConfig
from dra_driver.model.errors import ConfigInvalid

API = "resource.nvidia.com/v1beta1"


def gpu_config(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "GpuConfig", **fields}


def mig_config(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "MigDeviceConfig", **fields}


def entry(parameters: dict[str, Any], *requests: str) -> DeviceConfig:
    return DeviceConfig(requests, "FromClaim", parameters)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "opaque config None/None is unknown; allowed: resource.nvidia.com/v1beta1"),
        ({"apiVersion": API, "kind": "Other"}, "kind GpuConfig or MigDeviceConfig"),
        (gpu_config(shared={}), 'strict decoding error: unknown field "shared"'),
        (
            gpu_config(sharing={"strategy": "TimeSlicing", "timeSlicing": {}}),
            'strict decoding error: unknown field "sharing.timeSlicing"',
        ),
        (gpu_config(sharing={}), "sharing.strategy: is missing; allowed: 'TimeSlicing', 'MPS'"),
        (
            gpu_config(sharing={"strategy": "Both"}),
            "sharing.strategy: unknown GPU sharing strategy: Both, supported GPU sharing",
        ),
        (
            gpu_config(
                sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Huge"}}
            ),
            "unknown time-slice interval: Huge, supported time-slice intervals: Default, Short",
        ),
        (
            mig_config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
            'unknown field "sharing.timeSlicingConfig"',
        ),
    ],
)
def test_a_bad_config_is_refused_with_its_field(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        decode_config(parameters)
    assert message in str(caught.value)


def test_the_last_matching_entry_wins() -> None:
    device = AllocatedDevice("main/big", "node", "gpu-0")
    short = gpu_config(
        sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
    )
    configs = (entry(gpu_config()), entry(short, "main"), entry(gpu_config(), "other"))
    chosen = resolve_config(device, GpuConfig, configs)
    assert isinstance(chosen, GpuConfig)
    assert chosen.sharing is not None
    assert resolve_config(device, GpuConfig, (*configs, entry(gpu_config(), "main/big"))) == (
        decode_config(gpu_config())
    )


def test_an_entry_for_all_requests_skips_devices_of_another_kind() -> None:
    device = AllocatedDevice("r", "node", "gpu-0-mig-1g10gb-19-0")
    assert resolve_config(device, MigDeviceConfig, (entry(gpu_config()),)) is None


def test_an_entry_that_names_the_request_must_fit() -> None:
    device = AllocatedDevice("r", "node", "gpu-0-mig-1g10gb-19-0")
    with pytest.raises(ConfigInvalid, match="cannot apply GpuConfig to device"):
        resolve_config(device, MigDeviceConfig, (entry(gpu_config(), "r"),))
