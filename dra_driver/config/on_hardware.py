"""What settings of sharing need of the devices they are for. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Final

from dra_driver.config.amounts import MIB, text_of
from dra_driver.model import (
    MemoryType,
    MpsSettings,
    PublishedDevice,
    SharingSettings,
)
from dra_driver.model.errors import ConfigInvalid

NODE_SOURCE: Final = "the node configuration"  # where settings are from that no config gave
_LIMIT: Final = "defaultPinnedDeviceMemoryLimit"
_LIMITS: Final = "defaultPerDevicePinnedMemoryLimit"


def check_on_hardware(
    settings: SharingSettings, devices: Sequence[PublishedDevice], source: str
) -> None:
    """Raise ConfigInvalid when the devices of one group can't have such settings.

    `source` says whose settings they are; the message begins with it. Time-slices are not looked
    at: only the GPU driver knows which GPUs have them (field report dra #41).
    """
    if settings.mps is None:
        return
    for device in devices:
        capability = device.gpu.compute_capability
        if capability is not None and not device.gpu.has_mps:
            raise ConfigInvalid(
                f"{source}: sharing.strategy: MPS needs compute capability 7.0 or higher; "
                f"{_named(device)} has {'.'.join(map(str, capability))}"
            )
    field = "sharing.mps" if source == NODE_SOURCE else "sharing.mpsConfig"
    try:
        _check_limits(settings.mps, devices)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{source}: {field}.{error}") from error


def limits_by_uuid(mps: MpsSettings, uuids: Sequence[str]) -> Mapping[str, int]:
    """Bytes that each client may have of each device of one control daemon; without entry: all.

    Keys count the devices in the order of their UUIDs, from 0. Raises ConfigInvalid.
    """
    ordered = sorted(uuids)
    named: dict[str, int] = {}
    for key, amount in mps.per_device_limits:
        uuid = key if key in ordered else ordered[_place(key, len(ordered))]
        if uuid in named:
            raise ConfigInvalid(f"{_entry(key)}: {uuid} is given twice; allowed: once")
        named[uuid] = amount
    if mps.pinned_memory_limit is None:
        return named
    return dict.fromkeys(ordered, mps.pinned_memory_limit) | named


def _check_limits(mps: MpsSettings, devices: Sequence[PublishedDevice]) -> None:
    if mps.pinned_memory_limit is not None:
        for device in devices:
            _check_amount(_LIMIT, mps.pinned_memory_limit, device)
    by_uuid = {device.uuid: device for device in devices}
    if len(by_uuid) == len(devices) and "" not in by_uuid:
        for uuid, amount in limits_by_uuid(mps, tuple(by_uuid)).items():
            _check_amount(_LIMITS, amount, by_uuid[uuid])
        return
    for key, amount in mps.per_device_limits:  # partitions that have no UUID yet, and no order
        if key not in by_uuid:
            _place(key, len(devices))
        _check_amount(
            _entry(key),
            amount,
            by_uuid.get(key) or max(devices, key=lambda each: _memory(each) or 0),
        )


def _check_amount(field: str, amount: int, device: PublishedDevice) -> None:
    """Raise ConfigInvalid for more than there is; what a GPU does not tell is no reason."""
    if device.slot is None and device.gpu.memory_type is MemoryType.UNIFIED:
        raise ConfigInvalid(
            f"{field}: invalid limit: {_named(device)} shares its memory with the CPU; allowed: no "
            "limit"
        )
    memory = _memory(device)
    if memory is not None and amount > memory:
        raise ConfigInvalid(
            f"{field}: invalid limit: {text_of(amount)} is more than {_named(device)} has; "
            f"allowed: {text_of(memory // MIB * MIB)} or less"
        )


def _place(key: str, count: int) -> int:
    """Read a key that counts devices."""
    if not key.isdecimal():
        raise ConfigInvalid(
            f"{_entry(key)}: invalid device: unable to parse key as an integer: none of the "
            f"{count} devices that have this config has that UUID"
        )
    if int(key) >= count:
        raise ConfigInvalid(
            f"{_entry(key)}: invalid device index: {count} devices have this config; allowed: 0 to "
            f"{count - 1}"
        )
    return int(key)


def _entry(key: str) -> str:
    return f'{_LIMITS}["{key}"]'


def _memory(device: PublishedDevice) -> int | None:
    return device.gpu.memory_bytes if device.slot is None else device.slot.profile.memory_bytes


def _named(device: PublishedDevice) -> str:
    return f"{device.name} ({device.uuid or device.gpu.uuid})"
