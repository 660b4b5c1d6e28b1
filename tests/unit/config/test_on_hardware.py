"""What settings need of the hardware (field reports B33 and B35)."""

from typing import Any

import pytest

from dra_driver.config import NODE_SOURCE, check_on_hardware, limits_by_uuid
from dra_driver.model import (
    MemoryType,
    MpsSettings,
    PublishedDevice,
    SharingSettings,
    Slot,
    Strategy,
    TimeSlice,
)
from dra_driver.model.errors import ConfigInvalid
from tests.support.inventories import GIB, MIB, gpu, partition

SOURCE = "GpuConfig of the claim for all requests"
LIMIT = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"
LIMITS = "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"


def whole(minor: int = 0, **changes: Any) -> PublishedDevice:
    return PublishedDevice(f"gpu-{minor}", gpu(minor, **changes))


def part(start: int = 0, *, is_there: bool = True, **changes: Any) -> PublishedDevice:
    parent = gpu(0, mig_enabled=True, **changes)
    made = partition(parent, start)
    slot = Slot(made.profile, made.placement)
    return PublishedDevice(f"part-{start}", parent, slot, made if is_there else None, is_made=True)


def mps(**fields: Any) -> SharingSettings:
    return SharingSettings(Strategy.MPS, mps=MpsSettings(**fields))


def by_device(**limits: int) -> SharingSettings:
    return mps(per_device_limits=tuple((k.strip("_"), v) for k, v in limits.items()))


def refusal(settings: SharingSettings, *devices: PublishedDevice) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        check_on_hardware(settings, devices, SOURCE)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{SOURCE}: ")


PASCAL: dict[str, Any] = {"compute_capability": (6, 1), "architecture": "Pascal"}


@pytest.mark.parametrize("interval", [None, *TimeSlice])
def test_b33_only_the_gpu_driver_knows_which_gpus_have_time_slices(
    interval: TimeSlice | None,
) -> None:
    settings = SharingSettings(Strategy.TIME_SLICING, interval)
    check_on_hardware(settings, [whole(**PASCAL), whole(1), part()], SOURCE)


@pytest.mark.parametrize("settings", [mps(), mps(multi_user=True)])
def test_b35_mps_needs_volta(settings: SharingSettings) -> None:
    check_on_hardware(settings, [whole(compute_capability=(7, 0))], SOURCE)
    check_on_hardware(settings, [whole(compute_capability=None)], SOURCE)
    assert refusal(settings, whole(), whole(1, **PASCAL)) == (
        "sharing.strategy: MPS needs compute capability 7.0 or higher; gpu-1 "
        f"({gpu(1).uuid}) has 6.1"
    )


def test_b35_a_limit_is_not_more_than_the_device_has() -> None:
    check_on_hardware(mps(pinned_memory_limit=81_559 * MIB), [whole(), whole(1)], SOURCE)
    small = whole(1, memory_bytes=16 * GIB)
    assert refusal(mps(pinned_memory_limit=16 * GIB + MIB), whole(), small) == (
        f"{LIMIT}: invalid limit: 16385Mi is more than gpu-1 ({gpu(1).uuid}) has; allowed: 16Gi "
        "or less"
    )
    check_on_hardware(mps(pinned_memory_limit=9856 * MIB), [part()], SOURCE)
    assert "10Gi is more than part-0 (MIG-" in refusal(mps(pinned_memory_limit=10 * GIB), part())


def test_b35_memory_that_is_shared_with_the_cpu_has_no_limit() -> None:
    unified = whole(memory_bytes=None, memory_type=MemoryType.UNIFIED)
    check_on_hardware(mps(thread_percentage=10), [unified], SOURCE)
    for settings in (mps(pinned_memory_limit=MIB), by_device(_0=MIB)):
        assert "shares its memory with the CPU; allowed: no limit" in refusal(settings, unified)
    check_on_hardware(mps(pinned_memory_limit=MIB), [whole(memory_bytes=None)], SOURCE)


@pytest.mark.parametrize("is_there", [True, False])
def test_places_count_the_devices_of_the_config(is_there: bool) -> None:  # noqa: FBT001
    """Partitions that are made for the claim have no UUID before."""
    two = (part(0, is_there=is_there), part(1, is_there=is_there))
    check_on_hardware(by_device(_0=MIB, _1=GIB), two, SOURCE)
    assert refusal(by_device(_2=MIB), *two) == (
        f'{LIMITS}["2"]: invalid device index: 2 devices have this config; allowed: 0 to 1'
    )
    assert refusal(by_device(_1=10 * GIB), *two).startswith(f"{LIMITS}")


def test_b35_keys_are_those_of_the_claims_devices() -> None:
    one, other = gpu(0).uuid, gpu(1).uuid
    limits = mps(per_device_limits=((one, MIB),))
    check_on_hardware(limits, [whole(0), whole(1)], SOURCE)
    assert refusal(limits, whole(1)) == (
        f'{LIMITS}["{one}"]: invalid device: unable to parse key as an integer: none of the 1 '
        "devices that have this config has that UUID"
    )
    assert "none of the 1 devices" in refusal(limits, part(is_there=False))
    twice = mps(per_device_limits=(("1", GIB), (other, MIB)))
    assert refusal(twice, whole(0), whole(1)) == (
        f'{LIMITS}["{other}"]: {other} is given twice; allowed: once'
    )


def test_a_limit_of_one_device_is_compared_with_that_device() -> None:
    devices = [whole(1, memory_bytes=GIB), whole(0)]
    check_on_hardware(by_device(_0=2 * GIB, _1=GIB), devices, SOURCE)
    assert "2Gi is more than gpu-1" in refusal(by_device(_1=2 * GIB), *devices)


def test_the_node_configuration_has_its_own_words() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_on_hardware(mps(pinned_memory_limit=100 * GIB), [whole()], NODE_SOURCE)
    assert str(caught.value).startswith(
        "the node configuration: sharing.mps.defaultPinnedDeviceMemoryLimit: invalid limit: 100Gi "
    )


def test_b35_limits_reach_the_device_they_are_for() -> None:
    uuids = ("GPU-b", "GPU-a", "GPU-c")
    assert limits_by_uuid(MpsSettings(), uuids) == {}
    assert limits_by_uuid(MpsSettings(pinned_memory_limit=GIB), uuids) == dict.fromkeys(uuids, GIB)
    limits = (("0", 2 * GIB), ("GPU-c", 3 * GIB))
    assert limits_by_uuid(MpsSettings(per_device_limits=limits), uuids) == {
        "GPU-a": 2 * GIB,
        "GPU-c": 3 * GIB,
    }
    both = MpsSettings(pinned_memory_limit=GIB, per_device_limits=limits)
    assert limits_by_uuid(both, uuids) == {"GPU-a": 2 * GIB, "GPU-b": GIB, "GPU-c": 3 * GIB}
