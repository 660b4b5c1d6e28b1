"""A device of the snapshot as an entry of `spec.devices`: names, types and values people select on.

Names and types are those that manifests, exporters and schedulers already read from GPU slices.
`type`, `resourceName`, `memoryType` and `driverVersionText` stand on every kind of device (the
last where there is a version), since a selector that reads a missing key stops the scheduling of
the Pod (field report dra #744). `memoryLimit` stands on every device of a node that shares one by
memory, and on no other: a partition of the whole GPU has room for no more values.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.model import Gpu, Inventory, Partitioning, PublishedDevice, Quantity, SharesMode
from dra_driver.slices.abilities import ServerAbilities
from dra_driver.slices.counters import CounterSet, engines, most_engines
from dra_driver.slices.left_out import LeftOut, Why
from dra_driver.slices.rules import MAX_VALUES, check_attribute, check_capacity, check_device
from dra_driver.slices.semver import to_semver
from dra_driver.slices.shares import shared_capacity, wants_shares, why_not_shared
from dra_driver.slices.taints import keeps_away, taints_of

JsonObject = dict[str, Any]

PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
_NEEDED: Final = ("type", "resourceName")  # read by the DeviceClasses: none goes without
_MEMORY_SLICE: Final = re.compile(r"memorySlice\d+")


@dataclass(frozen=True, slots=True)
class Entry:
    """Outcome for one device: its JSON, None when it is left out, and what is missing."""

    device: JsonObject | None
    left_out: tuple[LeftOut, ...] = ()


def device_entry(
    device: PublishedDevice,
    inventory: Inventory,
    driver: str,
    abilities: ServerAbilities,
    counters: CounterSet | None = None,
) -> Entry:
    """Describe one device, as far as the API server has the abilities for it.

    One that is not for new claims is tainted, or left out. A device that is made for a claim
    consumes of its GPU's `counters`.
    """
    if not abilities.taints and (withdrawn := _withdrawn(device)) is not None:
        return Entry(None, (withdrawn,))
    lost: list[LeftOut] = []
    entry: JsonObject = {"name": device.name}
    capacity = _valid(device.name, _capacity(device), check_capacity, lost)
    shared = _is_shared(device, capacity, abilities, lost)
    if shared:
        entry["allowMultipleAllocations"] = True
        capacity = shared_capacity(capacity, device.gpu.policy.shares)
    attributes = _attributes(device, inventory, shared=shared)
    entry["attributes"] = _valid(device.name, attributes, check_attribute, lost)
    entry["capacity"] = capacity
    if counters is not None:
        entry["consumesCounters"] = [counters.consumption(device)]
    notes = abilities.taints_without_effect
    if abilities.taints and (marks := taints_of(device, driver, notes=notes)):
        entry["taints"] = marks
    _fit(entry, lost)
    for key in _NEEDED:
        if key not in entry["attributes"]:
            told = f"its attribute {key} is not valid, without which it breaks scheduling"
            return Entry(None, (*lost, LeftOut(device.name, "", Why.INVALID, told)))
    for wrong in check_device(entry):
        return Entry(None, (*lost, LeftOut(device.name, "", Why.INVALID, str(wrong))))
    return Entry(entry, tuple(lost))


def _is_shared(
    device: PublishedDevice,
    capacity: Mapping[str, JsonObject],
    abilities: ServerAbilities,
    lost: list[LeftOut],
) -> bool:
    """Whether several claims may have the device; why not, if they should, is noted in `lost`."""
    if not wants_shares(device):
        return False
    if told := why_not_shared(device, capacity, abilities):
        lost.append(LeftOut(device.name, "shares", Why.NOT_SHARED, told))
    return not told


def resource_name(device: PublishedDevice, *, shared: bool = False) -> str:
    """Name the extended resource, without prefix, that the device plugin would offer it as.

    `gpu`, `mig-1g.10gb`, and `mig-1g.10gb.me` for profile `1g.10gb+me`; with `.shared` at its end
    if the device is shared and the configuration has shared ones renamed. Under strategy `single`
    the partitions of a uniformly cut GPU are `gpu` as well: one on which all GPU instances that
    exist, usable or not, have the same profile. A GPU of which partitions are made for claims is
    never that, since the next claim may cut it otherwise.
    """
    ending = ".shared" if shared and device.gpu.policy.shares.rename else ""
    if device.slot is None or _counts_as_gpus(device.gpu):
        return f"gpu{ending}"
    return "mig-" + device.slot.profile.name.replace("+", ".") + ending


def _counts_as_gpus(gpu: Gpu) -> bool:
    """Whether partitions of this GPU stand for GPUs: strategy `single`."""
    if gpu.policy.partitioning is Partitioning.DYNAMIC or not gpu.policy.single_strategy:
        return False
    return len({partition.profile.gi_profile_id for partition in gpu.partitions}) == 1


def _withdrawn(device: PublishedDevice) -> LeftOut | None:
    """Why the device is not published where the API server keeps no taints, None if it is."""
    if keeps_away(device.health, device.gpu.policy):
        why, words = Why.UNHEALTHY, device.health.words or "it is sick"
    elif device.gpu.held_back:
        why, words = Why.HELD_BACK, device.gpu.held_back
    else:
        return None
    told = f"{words}; the API server keeps no taints that would say so"
    return LeftOut(device.name, "", why, told)


def _attributes(
    device: PublishedDevice, inventory: Inventory, *, shared: bool
) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield attributes in their order; None where there is no value to publish."""
    gpu, slot = device.gpu, device.slot
    yield "type", _string("gpu" if slot is None else "mig")
    yield "resourceName", _string(resource_name(device, shared=shared))
    if slot is None or not device.is_made:  # else it has another UUID for each claim
        yield "uuid", _string(device.uuid)
    if slot is not None:
        yield "parentUUID", _string(gpu.uuid)
        yield "profile", _string(slot.profile.name)
    yield "productName", _string(gpu.product_name)
    yield "brand", _string(gpu.brand)
    yield "architecture", _string(gpu.architecture)
    yield "cudaComputeCapability", _numbers(gpu.compute_capability)
    yield "memoryType", _string(gpu.memory_type.value)
    if any(each.policy.shares.mode is SharesMode.MEMORY for each in inventory.gpus):
        yield "memoryLimit", _string(device.memory_limit.value)
    yield "driverVersion", _version(inventory.driver_version)
    yield "driverVersionText", _string(inventory.driver_version)
    yield "cudaDriverVersion", _numbers(inventory.cuda_driver_version)
    yield "addressingMode", _string(gpu.addressing_mode)
    yield PCI_BUS_ID, _string(gpu.pci_bus_id)
    yield PCIE_ROOT, _string(gpu.pcie_root)
    yield NUMA_NODE, None if gpu.numa_node is None else {"int": gpu.numa_node}


def _capacity(device: PublishedDevice) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield capacities; a memory of 0 is as good as no answer and would break comparisons."""
    slot = device.slot
    if slot is None:
        yield "memory", _memory(device.gpu.memory_bytes)
        if device.is_made:
            for (key, _), count in most_engines(device.gpu.slots).items():
                yield key, {"value": str(count)}
        return
    yield "memory", _memory(slot.profile.memory_bytes)
    for key, _, count in engines(slot.profile):
        yield key, {"value": str(count)}
    if not device.is_made:
        start = slot.placement.start
        for index in range(start, start + min(slot.placement.size, MAX_VALUES)):
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


def _string(value: str | None) -> JsonObject | None:
    return {"string": value} if value else None


def _version(text: str) -> JsonObject | None:
    """Version attribute; what makes no version stays as it is and is found out by the check."""
    return {"version": to_semver(text) or text} if text else None


def _numbers(pair: tuple[int, int] | None) -> JsonObject | None:
    return None if pair is None else {"version": f"{pair[0]}.{pair[1]}.0"}


def _memory(size: int | None) -> JsonObject | None:
    return {"value": str(Quantity.of(size))} if size else None
