"""Gathers what each GPU has to offer, and what of it is left out and why."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from dra_driver.model import (
    Gpu,
    Inventory,
    Partition,
    PublishedDevice,
    Slot,
    existing_devices,
    gpu_device_name,
    made_devices,
)
from dra_driver.slices.abilities import ServerAbilities
from dra_driver.slices.counters import CounterSet, counter_set
from dra_driver.slices.devices import Entry, device_entry
from dra_driver.slices.layout import DynamicGpu
from dra_driver.slices.left_out import LeftOut, Why, partitions_of, told_once
from dra_driver.slices.rules import MAX_DEVICES, check_counter_set
from dra_driver.slices.taints import keeps_away

JsonObject = dict[str, Any]
Refusals: TypeAlias = Mapping[str, tuple[JsonObject, str]]  # by device: what was sent, and why not


class Collector:
    """Entries of all devices of a snapshot, GPU by GPU, in the order in which they are added."""

    def __init__(
        self,
        inventory: Inventory,
        driver: str,
        abilities: ServerAbilities,
        refused: Refusals,
        held: Mapping[str, str],
    ) -> None:
        """Begin with nothing; the arguments are those of `build_slices`."""
        self.plain: list[JsonObject] = []  # devices that use no counters
        self.dynamic: list[DynamicGpu] = []
        self.left_out: list[LeftOut] = []
        self.on_request: set[str] = set()  # UUIDs of the GPUs in `dynamic`
        self._inventory = inventory
        self._driver = driver
        self._abilities = abilities
        self._refused = refused
        self._held = held
        self._names: set[str] = set()  # of devices and of counter sets

    def add(self, gpu: Gpu) -> None:
        """Add what a GPU offers: what can be made of it, or what it is."""
        if gpu.is_dynamic:
            counters = self._counters(gpu)
            if isinstance(counters, CounterSet):
                self._add_dynamic(gpu, counters)
                return
            self.left_out.append(counters)
        left_out: list[LeftOut] = []
        for device in existing_devices(gpu):
            self.plain += self._published(device, self._entry(device), left_out)
        self.left_out += _shares_told_once(gpu, left_out)

    def _counters(self, gpu: Gpu) -> CounterSet | LeftOut:
        """Counters of the GPU, or why no partitions can be made of it on request."""
        partitions = partitions_of(gpu_device_name(gpu))
        if not self._abilities.counters:
            told = (
                "partitions are made on request only where the API server keeps counters, or two "
                "claims would get the same part of a GPU; switch on DRAPartitionableDevices, or "
                "set the partitioning mode to Existing or Static"
            )
            return LeftOut(partitions, "", Why.NO_COUNTERS, told)
        counters = counter_set(gpu, _slots(self._not_given(gpu)))
        for wrong in check_counter_set(counters.to_json()):
            return LeftOut(partitions, "", Why.INVALID, f"the GPU's counters are not: {wrong}")
        if counters.name in self._names:
            return LeftOut(partitions, "", Why.INVALID, "another GPU has the same name")
        self._names.add(counters.name)
        return counters

    def _not_given(self, gpu: Gpu) -> tuple[Partition, ...]:
        """Partitions that stand on the GPU and leave less of it: of others, and withdrawn ones."""
        if self._abilities.taints:
            return gpu.foreign
        sick = (part for part in gpu.partitions if keeps_away(part.health, gpu.policy))
        return (*gpu.foreign, *(part for part in sick if part not in gpu.foreign))

    def _add_dynamic(self, gpu: Gpu, counters: CounterSet) -> None:
        entries = DynamicGpu(counters.to_json())
        left_out: list[LeftOut] = []
        for device in made_devices(gpu):
            entry = self._entry(device, counters)
            if entry.device is not None and not counters.fits(device):
                left_out += _told_unfit(device)
                continue
            kind = entries.whole if device.slot is None else entries.partitions
            kind += self._published(device, entry, left_out)
        if not self._abilities.counters_apart:
            _cut(entries, left_out)
        self.left_out += [*_told_foreign(gpu), *told_once(gpu_device_name(gpu), left_out)]
        self.dynamic.append(entries)
        self.on_request.add(gpu.uuid)

    def _entry(self, device: PublishedDevice, counters: CounterSet | None = None) -> Entry:
        entry = device_entry(
            device,
            self._inventory,
            self._driver,
            self._abilities,
            counters,
        )
        return self._unless_held(device, self._unless_refused(entry))

    def _published(
        self, device: PublishedDevice, entry: Entry, left_out: list[LeftOut]
    ) -> Iterable[JsonObject]:
        """Give the entry if there is one and its name is free; note what is left out."""
        left_out += entry.left_out
        if entry.device is None:
            return ()
        if device.name in self._names:
            told = "another device has the same name"
            left_out.append(LeftOut(device.name, "", Why.INVALID, told))
            return ()
        self._names.add(device.name)
        return (entry.device,)

    def _unless_held(self, device: PublishedDevice, entry: Entry) -> Entry:
        """Leave out a whole GPU of which a claim holds a partition that is gone.

        Of a GPU that this driver partitions, counters keep the rest apart from what claims hold.
        """
        if device.slot is not None or device.is_made or device.gpu.uuid not in self._held:
            return entry
        told = (
            f"{self._held[device.gpu.uuid]}, which does not exist any more; make it again at the "
            "same placement, or delete the claim's Pods"
        )
        return Entry(None, (LeftOut(device.name, "", Why.HELD, told),))

    def _unless_refused(self, entry: Entry) -> Entry:
        if entry.device is None or entry.device["name"] not in self._refused:
            return entry
        name = entry.device["name"]
        sent, words = self._refused[name]
        if sent != entry.device:
            return entry
        return Entry(None, (*entry.left_out, LeftOut(name, "", Why.REFUSED, words)))


def _slots(partitions: Iterable[Partition]) -> list[Slot]:
    return [Slot(partition.profile, partition.placement) for partition in partitions]


def _told_unfit(device: PublishedDevice) -> list[LeftOut]:
    """Say why a GPU can't be given that shape now; that of foreign partitions is told once."""
    if device.gpu.foreign:
        return []
    if any(keeps_away(part.health, device.gpu.policy) for part in device.gpu.partitions):
        told = "a sick partition stands there, and the API server keeps no taints"
        return [LeftOut(device.name, "", Why.UNHEALTHY, told)]
    return [LeftOut(device.name, "", Why.INVALID, "it takes more than the GPU has")]


def _told_foreign(gpu: Gpu) -> list[LeftOut]:
    """Say once what the partitions of others keep from being published."""
    if not gpu.foreign:
        return []
    found = ", ".join(f"{p.profile.name} at slice {p.placement.start}" for p in gpu.foreign)
    told = f"partitions that no claim made stand there ({found}); what fits beside them is"
    return [LeftOut(gpu_device_name(gpu), "", Why.FOREIGN, told)]


def _shares_told_once(gpu: Gpu, left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """Say once why partitions are not shared: mostly it is so for all of a GPU."""
    shares = [entry for entry in left_out if entry.why is Why.NOT_SHARED]
    others = [entry for entry in left_out if entry.why is not Why.NOT_SHARED]
    return [*others, *told_once(gpu_device_name(gpu), shares)]


def _cut(entries: DynamicGpu, left_out: list[LeftOut]) -> None:
    """Leave out what is too much for one slice: the largest partitions, but not the whole GPU."""
    room = MAX_DEVICES - len(entries.whole)
    told = f"a slice takes {MAX_DEVICES} devices, and this API server wants all of a GPU in one"
    left_out += [LeftOut(each["name"], "", Why.INVALID, told) for each in entries.partitions[room:]]
    del entries.partitions[room:]
