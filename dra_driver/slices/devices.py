"""A device of the snapshot as an entry of `spec.devices`: names, types and values people select on.

Names and types are those that manifests, exporters and schedulers already read from GPU slices.
`type`, `resourceName`, `memoryType` and `driverVersionText` stand on every kind of device (the
last where there is a version), since a selector that reads a missing key stops the scheduling of
the Pod (field report dra #744).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from dra_driver.model import Health, HealthState, Inventory, PublishedDevice, Quantity
from dra_driver.slices.rules import (
    MAX_TAINTS,
    MAX_VALUES,
    check_attribute,
    check_capacity,
    check_device,
    check_taint,
)
from dra_driver.slices.semver import to_semver

JsonObject = dict[str, Any]

PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
_NEEDED: Final = ("type", "resourceName")  # read by the DeviceClasses: none goes without
_MEMORY_SLICE: Final = re.compile(r"memorySlice\d+")
_ILL: Final = "unhealthy"  # taint of a device whose health gives no usable reason word
_UNMONITORED: Final = "unmonitored"  # taint without effect: how well the device is, is not known


class Why(Enum):
    """Why something is not published; the values are metric labels."""

    INVALID = "invalid"  # the API server would refuse it
    REFUSED = "refused"  # the API server did refuse it
    UNHEALTHY = "unhealthy"  # sick, and this server keeps no taints
    HELD = "held"  # a GPU of which a claim holds a partition that is not there


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device, or one value of it, that is not published."""

    device: str
    field: str  # attribute or capacity; empty: the whole device
    why: Why
    message: str

    def __str__(self) -> str:
        """One line for a person."""
        what = f"{self.field} of device {self.device}" if self.field else f"device {self.device}"
        return f"{what} is not published: {self.message}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Outcome for one device: its JSON, None when it is left out, and what is missing."""

    device: JsonObject | None
    left_out: tuple[LeftOut, ...] = ()


def device_entry(
    device: PublishedDevice, inventory: Inventory, driver: str, *, taints: bool, notes: bool = False
) -> Entry:
    """Describe one device. With `taints` a sick one is tainted, without it is left out.

    With `notes` a taint without effect says of a device that its health is not known.
    """
    if not device.health.usable and not taints:
        words = device.health.words or "it is sick"
        told = f"{words}; the API server keeps no taints that would say so"
        return Entry(None, (LeftOut(device.name, "", Why.UNHEALTHY, told),))
    lost: list[LeftOut] = []
    entry: JsonObject = {
        "name": device.name,
        "attributes": _valid(device.name, _attributes(device, inventory), check_attribute, lost),
        "capacity": _valid(device.name, _capacity(device), check_capacity, lost),
    }
    if marks := _taints(device.health, driver, notes=taints and notes):
        entry["taints"] = marks
    _fit(entry, lost)
    for key in _NEEDED:
        if key not in entry["attributes"]:
            told = f"its attribute {key} is not valid, without which it breaks scheduling"
            return Entry(None, (*lost, LeftOut(device.name, "", Why.INVALID, told)))
    for wrong in check_device(entry):
        return Entry(None, (*lost, LeftOut(device.name, "", Why.INVALID, str(wrong))))
    return Entry(entry, tuple(lost))


def resource_name(device: PublishedDevice) -> str:
    """Name the extended resource, without prefix, that the device plugin would offer it as.

    `gpu`, `mig-1g.10gb`, and `mig-1g.10gb.me` for profile `1g.10gb+me`.
    """
    if device.slot is None:
        return "gpu"
    return "mig-" + device.slot.profile.name.replace("+", ".")


def _attributes(
    device: PublishedDevice, inventory: Inventory
) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield attributes in their order; None where there is no value to publish."""
    gpu, slot = device.gpu, device.slot
    yield "type", _string("gpu" if slot is None else "mig")
    yield "resourceName", _string(resource_name(device))
    yield "uuid", _string(device.uuid)
    if slot is not None:
        yield "parentUUID", _string(gpu.uuid)
        yield "profile", _string(slot.profile.name)
    yield "productName", _string(gpu.product_name)
    yield "brand", _string(gpu.brand)
    yield "architecture", _string(gpu.architecture)
    yield "cudaComputeCapability", _numbers(gpu.compute_capability)
    yield "memoryType", _string(gpu.memory_type.value)
    yield "driverVersion", _version(inventory.driver_version)
    yield "driverVersionText", _string(inventory.driver_version)
    yield "cudaDriverVersion", _numbers(inventory.cuda_driver_version)
    yield "addressingMode", _string(gpu.addressing_mode)
    yield PCI_BUS_ID, _string(gpu.pci_bus_id)
    yield PCIE_ROOT, _string(gpu.pcie_root)
    yield NUMA_NODE, None if gpu.numa_node is None else {"int": gpu.numa_node}


def _capacity(device: PublishedDevice) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield capacities; a memory of 0 is as good as no answer and would break comparisons."""
    if device.slot is None:
        yield "memory", _memory(device.gpu.memory_bytes)
        return
    profile = device.slot.profile
    yield "memory", _memory(profile.memory_bytes)
    for key, count in (
        ("multiprocessors", profile.multiprocessors),
        ("copyEngines", profile.copy_engines),
        ("decoders", profile.decoders),
        ("encoders", profile.encoders),
        ("jpegEngines", profile.jpeg_engines),
        ("ofaEngines", profile.ofa_engines),
    ):
        yield key, {"value": str(count)}
    placement = device.slot.placement
    for index in range(placement.start, placement.start + min(placement.size, MAX_VALUES)):
        yield f"memorySlice{index}", {"value": "1"}


def _valid(
    name: str,
    values: Iterator[tuple[str, JsonObject | None]],
    check: Callable[[str, Mapping[str, Any]], str | None],
    lost: list[LeftOut],
) -> JsonObject:
    """Values the API server takes; the others are noted in `lost`."""
    valid: JsonObject = {}
    for key, value in values:
        wrong = None if value is None else check(key, value)
        if wrong is not None:
            lost.append(LeftOut(name, key, Why.INVALID, wrong))
        elif value is not None:
            valid[key] = value
    return valid


def _fit(entry: JsonObject, lost: list[LeftOut]) -> None:
    """Give up the memory slices of a device that has too many values: nothing allocates by them."""
    if len(entry["attributes"]) + len(entry["capacity"]) <= MAX_VALUES:
        return
    for key in [key for key in entry["capacity"] if _MEMORY_SLICE.fullmatch(key)]:
        del entry["capacity"][key]
    told = f"the API server takes {MAX_VALUES} attributes and capacities"
    lost.append(LeftOut(entry["name"], "memorySlice", Why.INVALID, told))


def _taints(health: Health, driver: str, *, notes: bool) -> list[JsonObject]:
    """Taints of a device, the worst first, one for each key; the API server adds the times."""
    taints: dict[str, JsonObject] = {}
    for entry in health.entries():
        ill = entry.state is HealthState.UNHEALTHY
        if ill:
            taint = _taint(f"{driver}/{entry.reason}", entry.value, "NoSchedule")
            if check_taint(taint) is not None:
                taint = _taint(f"{driver}/{_ILL}", "", "NoSchedule")
        else:
            taint = _taint(f"{driver}/{_UNMONITORED}", entry.reason, "None")
        if ill or (entry.reason and notes):
            taints.setdefault(taint["key"], taint)
    return list(taints.values())[:MAX_TAINTS]


def _taint(key: str, value: str, effect: str) -> JsonObject:
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _string(value: str | None) -> JsonObject | None:
    return {"string": value} if value else None


def _version(text: str) -> JsonObject | None:
    """Version attribute; what makes no version stays as it is and is found out by the check."""
    return {"version": to_semver(text) or text} if text else None


def _numbers(pair: tuple[int, int] | None) -> JsonObject | None:
    return None if pair is None else {"version": f"{pair[0]}.{pair[1]}.0"}


def _memory(size: int | None) -> JsonObject | None:
    return {"value": str(Quantity.of(size))} if size else None
