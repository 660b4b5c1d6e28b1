"""What is certainly wrong with an object, on any hardware; what depends on it Prepare finds.

DeviceClasses are known by their names only: those that give nothing but partitions wherever this
project's own classes are installed. `gpu.nvidia.com` gives partitions, too, where a node offers
them as plain GPUs, so no kind is wrong there.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.admission.objects import Devices, Entry, Request, Wish
from dra_driver.config import GpuConfig, MigDeviceConfig, examine_config
from dra_driver.config.strict import Fault, shown
from dra_driver.config.yaml_text import path_text
from dra_driver.model import Strategy

_PARTITION_CLASSES: Final = re.compile(r"mig\.nvidia\.com|mig-[^/]+\.gpu\.nvidia\.com")
_LIMITS: Final = ("sharing", "mpsConfig", "defaultPerDevicePinnedMemoryLimit")


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong, and what is right but comes to nothing."""

    faults: tuple[Fault, ...] = ()  # paths start at the object
    warnings: tuple[str, ...] = ()


def examine(devices: Devices) -> Findings:
    """Check all configs of an object."""
    faults: list[Fault] = []
    warnings: list[str] = []
    for entry in devices.entries:
        found = _examine_entry(entry, devices)
        faults += found.faults
        warnings += found.warnings
    return Findings(tuple(faults), tuple(warnings))


def _examine_entry(entry: Entry, devices: Devices) -> Findings:
    if not isinstance(entry.parameters, Mapping):
        words = f"{shown(entry.parameters)} is not allowed; allowed: a mapping"
        return Findings((Fault(entry.at(), words),))
    config, wrong = examine_config(entry.parameters)
    faults = [Fault(entry.at(*fault.path), fault.words) for fault in wrong]
    faults += _unknown_requests(entry, devices)
    faults += _misfits(entry, devices)
    if config is None:
        return Findings(tuple(faults))
    faults += _places_that_nobody_has(config, entry, devices)
    warnings = _without_effect(config, entry, devices) if not faults else ()
    return Findings(tuple(faults), tuple(warnings))


def _unknown_requests(entry: Entry, devices: Devices) -> Iterator[Fault]:
    names = [name for request in devices.requests for name in _names(request)]
    for number, name in enumerate(entry.requests):
        if name not in names:
            words = f"no request has the name {shown(name)}; allowed: {', '.join(names)}"
            yield Fault((*entry.path, "requests", number), words)


def _names(request: Request) -> list[str]:
    return list(dict.fromkeys([request.name, *(wish.name for wish in request.wishes)]))


def _misfits(entry: Entry, devices: Devices) -> Iterator[Fault]:
    """Yield wishes that the entry names and whose devices its kind can't fit: Prepare refuses."""
    for wish in _covered(entry, devices):
        if wish.name in entry.requests and _can_not_fit(entry, wish.device_class):
            yield Fault(
                entry.at("kind"),
                f"cannot apply GpuConfig to request {wish.name} of class {wish.device_class}, "
                f"whose devices are partitions; allowed: {MigDeviceConfig.__name__}",
            )


def _places_that_nobody_has(
    config: GpuConfig | MigDeviceConfig, entry: Entry, devices: Devices
) -> Iterator[Fault]:
    """Yield limits for the n-th device of a config that is for fewer, whichever they will be."""
    settings = config.settings()
    most = _most_devices(entry, devices)
    if settings is None or settings.mps is None or not most:
        return
    for key, _ in settings.mps.per_device_limits:
        if key.isdecimal() and int(key) >= most:
            yield Fault(
                entry.at(*_LIMITS, key),
                f"invalid device index: {key}; allowed: less than {most}, the number of devices "
                "that this config is for",
            )


def _most_devices(entry: Entry, devices: Devices) -> int | None:
    """Upper bound of the number of devices that an entry is for; None: there is none."""
    most = 0
    for request in devices.requests:
        counts = [
            wish.count
            for wish in _covered(entry, devices)
            if wish in request.wishes and not _can_not_fit(entry, wish.device_class)
        ]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return None
        most += max(known, default=0)
    return most or None


def _without_effect(
    config: GpuConfig | MigDeviceConfig, entry: Entry, devices: Devices
) -> Iterator[str]:
    """Yield what Prepare would pass over without a word to the author but an Event."""
    begin = f"{path_text(entry.path)}: {config.kind} has no effect"
    settings = config.settings()
    covered = _covered(entry, devices)
    classes = [wish.device_class for wish in covered] or [devices.class_name]
    if all(_can_not_fit(entry, name) for name in classes):
        yield (
            f"{begin} on partitions, the devices of {', '.join(dict.fromkeys(classes))}; allowed: "
            f"{MigDeviceConfig.__name__}"
        )
    elif settings and covered and all(wish.admin_access for wish in covered):
        yield f"{begin}: admin access changes nothing"
    elif (
        settings
        and isinstance(config, MigDeviceConfig)
        and settings.strategy is Strategy.TIME_SLICING
    ):
        yield f"{begin}: a partition has no time-slice of its own"


def _covered(entry: Entry, devices: Devices) -> list[Wish]:
    """Wishes that an entry is for: by name, by that of their request, or all."""
    return [
        wish
        for request in devices.requests
        for wish in request.wishes
        if not entry.requests or {request.name, wish.name} & set(entry.requests)
    ]


def _can_not_fit(entry: Entry, device_class: str) -> bool:
    is_for_gpus = entry.parameters.get("kind") == GpuConfig.__name__
    return is_for_gpus and bool(_PARTITION_CLASSES.fullmatch(device_class))
