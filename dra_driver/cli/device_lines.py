"""The lines of `dra-driver devices`: hardware, records and the plugin's word put together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from dra_driver.cli.device_room import Room
from dra_driver.cli.isolation import keys_of
from dra_driver.model import (
    Gpu,
    Inventory,
    Partitioning,
    PublishedDevice,
    Quantity,
    Slot,
    existing_devices,
    gpu_device_name,
    made_devices,
)
from dra_driver.model.gpu import partition_device_name
from dra_driver.state import ClaimRecord, DeviceRecord, Phase, is_reservation

GPU: Final = "gpu"
MIG: Final = "mig"
MISSING: Final = "missing"  # in place of a health
FREE: Final = "free"
PREPARED: Final = "prepared"
FOREIGN: Final = "foreign"
BLOCKED: Final = "blocked"  # what claims or others have leaves no room for it
NOT_OURS: Final = "foreign: not made by this driver"

Told: TypeAlias = Mapping[str, tuple[str, str]]  # health and words by device, as the plugin says


@dataclass(frozen=True, slots=True)
class Line:
    """One device, there or only held."""

    name: str
    kind: str  # GPU or MIG
    model: str  # product name, or profile of a partition
    uuid: str
    health: str
    why: str
    holders: tuple[str, ...]
    memory: str = ""
    pci: str = ""
    numa: int | None = None
    architecture: str = ""
    mode: str = ""
    isolation: str = "alone"  # keys of `isolation.WAYS`
    state: str = PREPARED  # FREE, PREPARED, FOREIGN or BLOCKED
    can_be_made: Mapping[str, int] = field(default_factory=dict)  # of a GPU, by profile

    @property
    def is_only_possible(self) -> bool:
        """Whether it is a partition that neither exists nor is promised to a claim."""
        return self.kind == MIG and not self.uuid and self.state in (FREE, BLOCKED)

    def document(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {
            "name": self.name,
            "type": self.kind,
            "model": self.model,
            "memory": self.memory or None,
            "uuid": self.uuid,
            "health": self.health,
            "message": self.why or None,
            "claims": list(self.holders),
            "pciBusID": self.pci or None,
            "numaNode": self.numa,
            "architecture": self.architecture or None,
            "isolation": self.isolation,
        }

    def configured_document(self) -> dict[str, Any]:
        """Give it as JSON, with what only a node configuration can tell."""
        more: dict[str, Any] = {"mode": self.mode or None, "state": self.state}
        if self.kind == GPU and self.mode == Partitioning.DYNAMIC.value:
            more["canBeMade"] = dict(self.can_be_made)
        return self.document() | more


def device_lines(
    inventory: Inventory, claims: Sequence[ClaimRecord], told: Told | None
) -> list[Line]:
    """Describe all devices of the snapshot, then what claims hold and nobody finds."""
    reader = _Reader(claims, told or {})
    lines: list[Line] = []
    for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.minor):
        lines += reader.dynamic(gpu) if gpu.is_dynamic else reader.existing(gpu)
    dynamic = (_itself(gpu) for gpu in inventory.gpus if gpu.is_dynamic)
    return [*lines, *_missing([*inventory.devices(), *dynamic], claims)]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Knows who holds what, and what the plugin says of it."""

    claims: Sequence[ClaimRecord]
    told: Told

    def existing(self, gpu: Gpu) -> Iterator[Line]:
        """Yield what the GPU is now."""
        for device in existing_devices(gpu):
            line = self._line(device)
            yield replace(line, state=PREPARED if self._owner(device) else FREE)

    def dynamic(self, gpu: Gpu) -> Iterator[Line]:
        """Yield the GPU itself, whether or not it can be had whole, and all that it can be."""
        room = Room.of(gpu, self.claims)
        devices = list(made_devices(gpu))
        whole = next((device for device in devices if device.slot is None), None)
        if whole is not None:
            itself = self._made(whole, room)
        else:
            itself = replace(self._line(_itself(gpu)), state=BLOCKED)
        yield replace(itself, can_be_made=room.profiles())
        lines = [(device, self._made(device, room)) for device in devices if device is not whole]
        lines += [
            (device, replace(self._line(device), state=FOREIGN)) for device in _foreign_devices(gpu)
        ]
        yield from (line for _, line in sorted(lines, key=lambda each: _place(each[0])))

    def _made(self, device: PublishedDevice, room: Room) -> Line:
        line, owner = self._line(device), self._owner(device)
        if owner is None:
            return replace(line, state=FREE if room.has(device) else BLOCKED)
        if device.uuid or owner.phase is not Phase.PREPARED:
            return line
        return replace(line, health=MISSING, why="held by this claim, but not there now")

    def _line(self, device: PublishedDevice) -> Line:
        gpu, slot, health = device.gpu, device.slot, device.health
        size = gpu.memory_bytes if slot is None else slot.profile.memory_bytes
        state, why = self.told.get(device.name) or (health.state.value, health.words)
        holders = [pair for pair in _held(self.claims) if _is_on(pair[1], device)]
        return Line(
            name=device.name,
            kind=GPU if slot is None else MIG,
            model=gpu.product_name if slot is None else slot.profile.name,
            uuid=device.uuid,
            health=state,
            why="; ".join(filter(None, (why, gpu.waits))),
            holders=tuple(_holder(*pair) for pair in holders),
            memory="" if size is None else str(Quantity.of(size)),
            pci=gpu.pci_bus_id or "",
            numa=gpu.numa_node,
            architecture=gpu.architecture,
            mode=_mode(gpu),
            isolation=keys_of(device, [held for _, held in holders]),
        )

    def _owner(self, device: PublishedDevice) -> ClaimRecord | None:
        """Claim that holds the very device, not only with admin access."""
        for record, held in _held(self.claims):
            if not held.admin_access and _is_on(held, device):
                return record
        return None


def _itself(gpu: Gpu) -> PublishedDevice:
    """Give the whole GPU, whether or not it can be had."""
    return PublishedDevice(gpu_device_name(gpu), gpu)


def _foreign_devices(gpu: Gpu) -> Iterator[PublishedDevice]:
    """Yield partitions of others, also those that nobody can use."""
    for part in gpu.foreign:
        slot = Slot(part.profile, part.placement)
        yield PublishedDevice(partition_device_name(gpu, slot), gpu, slot, part)


def _mode(gpu: Gpu) -> str:
    """Mode that the GPU can have: without MIG it is published as it is."""
    mode = gpu.policy.partitioning
    possible = mode is not Partitioning.DYNAMIC or gpu.is_dynamic
    return (mode if possible else Partitioning.EXISTING).value


def _place(device: PublishedDevice) -> tuple[int, int, int]:
    if device.slot is None:
        return -1, 0, 0
    place = device.slot.placement
    return place.start, place.size, device.slot.profile.gi_profile_id


def _held(claims: Sequence[ClaimRecord]) -> Iterator[tuple[ClaimRecord, DeviceRecord]]:
    for record in claims:
        for held in record.devices:
            yield record, held


def _holder(record: ClaimRecord, held: DeviceRecord) -> str:
    if is_reservation(record.ref):
        return record.name
    return f"{record.ref}{' (admin)' if held.admin_access else ''}"


def _missing(there: Sequence[PublishedDevice], claims: Sequence[ClaimRecord]) -> Iterator[Line]:
    """Yield what claims hold and nobody finds any more."""
    for record, held in _held(claims):
        if any(_is_on(held, device) for device in there):
            continue
        kind = GPU if held.span is None else MIG
        why = "held by this claim, but not on this node any more"
        yield Line(held.device, kind, "", held.uuid, MISSING, why, (_holder(record, held),))


def _is_on(held: DeviceRecord, device: PublishedDevice) -> bool:
    """Whether the claim has this very hardware: names and UUIDs of partitions may change."""
    if held.gpu_uuid != device.gpu.uuid:
        return False
    slot = device.slot
    if held.span is None or slot is None:
        return held.span is None and slot is None
    same_slot = (held.span, held.gi_profile_id) == (slot.placement, slot.profile.gi_profile_id)
    return same_slot and (device.is_made or held.ci_profile_id == slot.profile.ci_profile_id)
