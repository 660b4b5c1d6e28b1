"""Which config holds for which device of a claim, as published manifests rely on it.

The node configuration is below the class, the class below the claim; of several entries the last
that matches wins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.config.on_hardware import NODE_SOURCE
from dra_driver.config.opaque import Config, GpuConfig, MigDeviceConfig, decode_config
from dra_driver.model import (
    AllocatedDevice,
    DeviceConfig,
    PublishedDevice,
    ResourceClaim,
    SharingSettings,
    Strategy,
)
from dra_driver.model.errors import ConfigInvalid

_FROM_CLASS: Final = "FromClass"


@dataclass(frozen=True, slots=True)
class DeviceSharing:
    """What one device of a claim is to have."""

    settings: SharingSettings
    source: str  # who says so: `GpuConfig of the claim for all requests`
    group: int  # devices of one group have these settings together: one control daemon of MPS


@dataclass(frozen=True, slots=True)
class ClaimSharing:
    """What the devices of a claim are to have."""

    devices: tuple[DeviceSharing | None, ...]  # as those of the claim; None: nothing is set
    remarks: tuple[str, ...] = ()  # what its author should know: entries without effect

    def groups(self) -> Iterator[tuple[DeviceSharing, tuple[int, ...]]]:
        """Yield each group, with the places of its devices in the claim."""
        places: dict[int, list[int]] = {}
        first: dict[int, DeviceSharing] = {}
        for place, device in enumerate(self.devices):
            if device is not None:
                places.setdefault(device.group, []).append(place)
                first.setdefault(device.group, device)
        for group, sharing in first.items():
            yield sharing, tuple(places[group])


@dataclass(frozen=True, slots=True)
class _Entry:
    """A config, decoded, and whose it is."""

    requests: tuple[str, ...]
    config: Config
    of: str  # `GpuConfig of the claim for request main`

    def names(self, device: AllocatedDevice) -> bool:
        return device.request in self.requests

    def covers(self, device: AllocatedDevice) -> bool:
        """Whether it is for the device's request, for all, or for the one it is an answer to."""
        return not self.requests or self.names(device) or device.main_request in self.requests


def resolve_configs(claim: ResourceClaim, devices: Sequence[PublishedDevice]) -> ClaimSharing:
    """Find out what each device of a claim is to have; `devices` are those of the claim.

    Admin access sets nothing. Raises ConfigInvalid with claim, config and field when one is wrong
    or names the request of a device that it does not fit.
    """
    entries = [_decoded(claim, each) for each in _in_order(claim.configs)]
    chosen: list[int | None] = []
    found: list[DeviceSharing | None] = []
    defaults: dict[SharingSettings, int] = {}  # of the node configuration, with their groups
    for allocated, device in zip(claim.devices, devices, strict=True):
        place = _last_that_matches(claim, entries, allocated, device)
        chosen.append(place)
        if allocated.admin_access:
            found.append(None)
        elif place is not None:
            found.append(_by_entry(entries[place], place))
        else:
            found.append(_by_default(device, defaults, len(entries)))
    remarks = _remarks(claim, devices, entries, chosen)
    return ClaimSharing(tuple(found), tuple(remarks))


def kind_for(device: PublishedDevice) -> type[Config]:
    """Kind of config that such a device takes."""
    return GpuConfig if device.slot is None else MigDeviceConfig


def _in_order(configs: Sequence[DeviceConfig]) -> list[DeviceConfig]:
    return sorted(configs, key=lambda each: each.source != _FROM_CLASS)


def _decoded(claim: ResourceClaim, entry: DeviceConfig) -> _Entry:
    owner = "the class" if entry.source == _FROM_CLASS else "the claim"
    try:
        config = decode_config(entry.parameters)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"claim {claim.ref}: config of {owner}: {error}") from error
    scope = f"request {', '.join(entry.requests)}" if entry.requests else "all requests"
    return _Entry(entry.requests, config, f"{config.kind} of {owner} for {scope}")


def _last_that_matches(
    claim: ResourceClaim,
    entries: Sequence[_Entry],
    allocated: AllocatedDevice,
    device: PublishedDevice,
) -> int | None:
    """Place of the entry that holds for a device; None: nobody said anything.

    An entry that names the device's request must fit it. One for all requests, or for the request
    to which this is one of several alternatives, passes over devices of another kind.
    """
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if not entry.covers(allocated):
            continue
        if isinstance(entry.config, kind_for(device)):
            return place
        if entry.names(allocated):
            raise ConfigInvalid(
                f'claim {claim.ref}: cannot apply {entry.config.kind} to device "{device.name}" '
                f'of type "{_type(device)}" (request: {allocated.request}); allowed: '
                f"{kind_for(device).__name__}"
            )
    return None


def _by_entry(entry: _Entry, place: int) -> DeviceSharing | None:
    settings = entry.config.settings()
    return DeviceSharing(settings, entry.of, place) if settings else None


def _by_default(
    device: PublishedDevice, defaults: dict[SharingSettings, int], first: int
) -> DeviceSharing | None:
    settings = device.gpu.policy.sharing
    if settings is None:
        return None
    if device.slot is not None:
        settings = replace(settings, interval=None)
    group = defaults.setdefault(settings, first + len(defaults))
    return DeviceSharing(settings, NODE_SOURCE, group)


def _remarks(
    claim: ResourceClaim,
    devices: Sequence[PublishedDevice],
    entries: Sequence[_Entry],
    chosen: Sequence[int | None],
) -> Iterator[str]:
    allocated = list(zip(claim.devices, devices, chosen, strict=True))
    for place, entry in enumerate(entries):
        covered = [each for each in allocated if entry.covers(each[0])]
        if not covered:
            yield f"{entry.of}: has no effect: no device was allocated for it on this node"
            continue
        fits_any = any(isinstance(entry.config, kind_for(device)) for _, device, _ in covered)
        without = [device for _, device, choice in covered if choice is None]
        if without and not fits_any:
            yield (
                f"{entry.of}: has no effect on {_names(without)}, of type "
                f'"{_type(without[0])}"; allowed: {kind_for(without[0]).__name__}'
            )
        mine = [(each, device) for each, device, choice in covered if choice == place]
        yield from _remarks_on(entry, mine)


def _remarks_on(
    entry: _Entry, devices: Sequence[tuple[AllocatedDevice, PublishedDevice]]
) -> Iterator[str]:
    """Yield on which of its devices an entry changes nothing."""
    settings = entry.config.settings()
    if settings is None:
        return
    admins = [device for each, device in devices if each.admin_access]
    if admins:
        yield f"{entry.of}: has no effect on {_names(admins)}: admin access changes nothing"
    parts = [device for each, device in devices if device.slot and not each.admin_access]
    if parts and settings.strategy is Strategy.TIME_SLICING:
        yield f"{entry.of}: has no effect on {_names(parts)}: a partition has no time-slice"


def _names(devices: Sequence[PublishedDevice]) -> str:
    return ", ".join(device.name for device in devices)


def _type(device: PublishedDevice) -> str:
    return "gpu" if device.slot is None else "mig"


def resolve_config(
    device: AllocatedDevice, kind: type[Config], configs: tuple[DeviceConfig, ...]
) -> Config | None:
    """Config that holds for one allocated device of this kind; None: nobody wrote one."""
    for entry in reversed(configs):
        decoded = decode_config(entry.parameters)
        covers = not entry.requests or {device.request, device.main_request} & set(entry.requests)
        if covers and isinstance(decoded, kind):
            return decoded
        if device.request in entry.requests:
            raise ConfigInvalid(
                f"cannot apply {decoded.kind} to device {device.device!r} (request: "
                f"{device.request}): it takes {kind.__name__}"
            )
    return None
