"""Configs as published manifests have them: their messages, and what they come to."""

from typing import Any

import pytest

from dra_driver.config import decode_config
from dra_driver.model import MpsSettings, SharingSettings, Strategy, TimeSlice
from dra_driver.model.errors import ConfigInvalid

API = "resource.nvidia.com/v1beta1"
KIB, MIB, GIB = 2**10, 2**20, 2**30


def gpu_config(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "GpuConfig", **fields}


def mig_config(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "MigDeviceConfig", **fields}


def mps(**fields: Any) -> dict[str, Any]:
    return gpu_config(sharing={"strategy": "MPS", "mpsConfig": fields})


def slices(**fields: Any) -> dict[str, Any]:
    return gpu_config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": fields})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, f"opaque config None/None is unknown; allowed: {API} with kind GpuConfig or Mig"),
        ({"apiVersion": API, "kind": "Other"}, "allowed: resource.nvidia.com/v1beta1 with kind "),
        ({"apiVersion": API, "kind": ["GpuConfig"]}, f"opaque config {API}/['GpuConfig'] is un"),
        ({"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"}, "is unknown; allowed: "),
        (gpu_config(shared={}), 'strict decoding error: unknown field "shared"; allowed: apiVers'),
        (gpu_config(sharing={}), "sharing.strategy: is missing; allowed: 'TimeSlicing', 'MPS'"),
        (
            gpu_config(sharing={"strategy": "Both"}),
            (
                "sharing.strategy: unknown GPU sharing strategy: Both, supported GPU sharing "
                "strategies: TimeSlicing, MPS"
            ),
        ),
        (
            slices(interval="Huge"),
            (
                "unknown time-slice interval: Huge, supported time-slice intervals: Default, "
                "Short, Medium, Long"
            ),
        ),
        (mps(defaultActiveThreadPercentage=-1), "active thread percentage must not be negative"),
        (
            mps(defaultActiveThreadPercentage=101),
            "active thread percentage must not be greater than 100",
        ),
        (mps(defaultPinnedDeviceMemoryLimit="1023Ki"), "invalid limit: value set too low: "),
        (
            mps(defaultPerDevicePinnedMemoryLimit={"first": "1Gi"}),
            "invalid device: unable to parse key as an integer: first; allowed: the place of a ",
        ),
        (mps(defaultPerDevicePinnedMemoryLimit={"-1": "1Gi"}), "invalid device index: -1; allowed"),
        (mps(defaultPerDevicePinnedMemoryLimit={"01": "1Gi"}), "invalid device index: 01; allowed"),
        (
            gpu_config(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
            "sharing.mpsConfig: cannot use MpsConfig with the 'TimeSlicing' strategy",
        ),
        (
            gpu_config(sharing={"strategy": "MPS", "timeSlicingConfig": {}}),
            "sharing.timeSlicingConfig: cannot use TimeSlicingConfig with the 'MPS' strategy",
        ),
        (
            mig_config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
            'unknown field "sharing.timeSlicingConfig"; allowed: strategy, mpsConfig',
        ),
        (mps(seLinuxLabel='a:b:c",suid'), "is not an SELinux label such as system_u:object_r:"),
        (mps(seLinuxLabel=f"a:b:{'c' * 255}"), "is not an SELinux label such as system_u:obj"),
    ],
)
def test_a_bad_config_is_refused_with_its_field(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        decode_config(parameters)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "settings"),
    [
        (gpu_config(), None),
        (mig_config(), None),
        (gpu_config(sharing=None), None),
        (
            gpu_config(sharing={"strategy": "TimeSlicing"}),
            SharingSettings(Strategy.TIME_SLICING, TimeSlice.DEFAULT),
        ),
        (slices(), SharingSettings(Strategy.TIME_SLICING, TimeSlice.DEFAULT)),
        (slices(interval="Long"), SharingSettings(Strategy.TIME_SLICING, TimeSlice.LONG)),
        (
            mig_config(sharing={"strategy": "TimeSlicing"}),
            SharingSettings(Strategy.TIME_SLICING),
        ),
        (
            gpu_config(sharing={"strategy": "MPS"}),
            SharingSettings(Strategy.MPS, mps=MpsSettings()),
        ),
        (
            mig_config(sharing={"strategy": "MPS", "mpsConfig": {}}),
            SharingSettings(Strategy.MPS, mps=MpsSettings()),
        ),
        (
            mps(
                defaultActiveThreadPercentage=0,
                defaultPinnedDeviceMemoryLimit="10Gi",
                defaultPerDevicePinnedMemoryLimit={"MIG-1": "2Gi", "0": "1Gi"},
                multiUser=True,
                shmSize="64Mi",
                seLinuxLabel="u:r:t:s0",
            ),
            SharingSettings(
                Strategy.MPS,
                mps=MpsSettings(
                    thread_percentage=0,
                    pinned_memory_limit=10 * GIB,
                    per_device_limits=(("0", GIB), ("MIG-1", 2 * GIB)),
                    multi_user=True,
                    shm_size=64 * MIB,
                    selinux_label="u:r:t:s0",
                ),
            ),
        ),
    ],
)
def test_defaults_are_filled_in(
    parameters: dict[str, Any], settings: SharingSettings | None
) -> None:
    assert decode_config(parameters).settings() == settings


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        ("1Mi", MIB),
        ("1536Ki", MIB),
        (2 * MIB, 2 * MIB),
        (3e9, 3_000_000_000 // MIB * MIB),
        ("3e9", 3_000_000_000 // MIB * MIB),
        ("3G", 3_000_000_000 // MIB * MIB),
        ("1.5Gi", 1536 * MIB),
        ("8Ei", None),
        ("1e999", None),
        ("0x400000", None),
        ("10 Gi", None),
        ("10gi", None),
        ("NaN", None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_equal_limits_are_equal_however_they_are_written(written: Any, limit: int | None) -> None:
    config = mps(defaultPinnedDeviceMemoryLimit=written)
    if limit is None:
        with pytest.raises(
            ConfigInvalid, match=r"defaultPinnedDeviceMemoryLimit: .*(such as|less)"
        ):
            decode_config(config)
        return
    settings = decode_config(config).settings()
    assert settings
    assert settings.mps == MpsSettings(pinned_memory_limit=limit)


def test_a_size_is_kept_to_the_byte() -> None:
    settings = decode_config(mps(shmSize="1500Ki")).settings()
    assert settings
    assert settings.mps == MpsSettings(shm_size=1500 * KIB)
