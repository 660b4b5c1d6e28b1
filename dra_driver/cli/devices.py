"""`dra-driver devices`: what this node has, how well it is, and who holds it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from dra_driver.cli import EXIT_FINDING
from dra_driver.cli.node_state import (
    HARDWARE_FLAGS,
    NODE,
    RECORD_FLAGS,
    NodeRecords,
    look_at_hardware,
    read_records,
    told_health,
)
from dra_driver.cli.output import output_option, show
from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.cli.tables import table
from dra_driver.model import Health, HealthState, Inventory, PublishedDevice, Quantity
from dra_driver.model.errors import DriverNotReady
from dra_driver.state import ClaimRecord, DeviceRecord

_HEAD: Final = ("NAME", "TYPE", "MODEL", "MEMORY", "UUID", "HEALTH", "CLAIMS")
_WIDE: Final = ("PCI", "NUMA", "ARCHITECTURE", "WHY")
_MISSING: Final = "missing"
_GPU: Final = "gpu"
_MIG: Final = "mig"


@dataclass(frozen=True, slots=True)
class Line:
    """One device, there or only held."""

    name: str
    kind: str  # `gpu` or `mig`
    model: str  # product name, or profile of a partition
    uuid: str
    health: str
    why: str
    holders: tuple[str, ...]
    memory: str = ""
    pci: str = ""
    numa: int | None = None
    architecture: str = ""

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
        }


@click.command()
@settings_options(*RECORD_FLAGS, *HARDWARE_FLAGS)
@output_option
def devices(*, output: str, **flags: Any) -> None:  # noqa: ANN401 - fields of Settings
    """Show this node's devices, how well each is, and which claims hold it.

    Changes nothing, and may be run beside the plugin. Health is what the plugin tells the kubelet;
    while none runs it is what one look at the hardware shows. Exit code 1 when a device is
    unhealthy, or held and missing.
    """
    settings = make_settings({"node_name": NODE} | flags)
    inventory = look_at_hardware(settings)
    try:
        records = read_records(settings)
    except DriverNotReady:
        records = NodeRecords((), {}, frozenset())  # a node that has yet to be used
    lines = device_lines(inventory, records.claims, told_health(settings))
    problems = [f"{each.subject}: {each.message}" for each in inventory.problems]
    document = {
        "driverVersion": inventory.driver_version,
        "devices": [line.document() for line in lines],
        "problems": problems,
    }
    show(output, document, lambda wide: devices_text(lines, problems, wide=wide))
    if any(line.health in (_MISSING, HealthState.UNHEALTHY.value) for line in lines):
        sys.exit(EXIT_FINDING)


def device_lines(
    inventory: Inventory,
    claims: Sequence[ClaimRecord],
    told: Mapping[str, tuple[str, str]] | None,
) -> list[Line]:
    """Put together hardware, records and the plugin's word."""
    there = list(inventory.devices())
    lines = [_line(device, claims, told) for device in there]
    return [*lines, *_missing(there, claims)]


def devices_text(lines: Sequence[Line], problems: Sequence[str], *, wide: bool) -> str:
    """Show them as a table, and what discovery could not find out."""
    head = _HEAD + _WIDE if wide else _HEAD
    rows = [(*_cells(line), *(_wide_cells(line) if wide else ())) for line in lines]
    parts = [table(head, rows) if rows else "no devices"]
    whys = [f"{line.name}: {line.why}" for line in lines if line.why and not wide]
    parts += ["\n".join(words) for words in (whys, problems) if words]
    return "\n\n".join(parts)


def _line(
    device: PublishedDevice,
    claims: Sequence[ClaimRecord],
    told: Mapping[str, tuple[str, str]] | None,
) -> Line:
    gpu, slot = device.gpu, device.slot
    size = gpu.memory_bytes if slot is None else slot.profile.memory_bytes
    state, why = (told or {}).get(device.name) or _seen(device.health)
    return Line(
        name=device.name,
        kind=_GPU if slot is None else _MIG,
        model=gpu.product_name if slot is None else slot.profile.name,
        uuid=device.uuid,
        health=state,
        why=why,
        holders=tuple(_holders(device, claims)),
        memory="" if size is None else str(Quantity.of(size)),
        pci=gpu.pci_bus_id or "",
        numa=gpu.numa_node,
        architecture=gpu.architecture,
    )


def _seen(health: Health) -> tuple[str, str]:
    return health.state.value, health.words


def _holders(device: PublishedDevice, claims: Sequence[ClaimRecord]) -> Iterator[str]:
    for record in claims:
        for held in record.devices:
            if _is_on(held, device):
                yield f"{record.ref}{' (admin)' if held.admin_access else ''}"


def _missing(there: Sequence[PublishedDevice], claims: Sequence[ClaimRecord]) -> Iterator[Line]:
    """Yield what claims hold and nobody finds any more."""
    for record in claims:
        for held in record.devices:
            if any(_is_on(held, device) for device in there):
                continue
            kind = _GPU if held.span is None else _MIG
            why = "held by this claim, but not on this node any more"
            yield Line(held.device, kind, "", held.uuid, _MISSING, why, (str(record.ref),))


def _is_on(held: DeviceRecord, device: PublishedDevice) -> bool:
    """Whether the claim has this very hardware: names and UUIDs of partitions may change."""
    if held.gpu_uuid != device.gpu.uuid:
        return False
    slot = device.slot
    if held.span is None or slot is None:
        return held.span is None and slot is None
    same_slot = (held.span, held.gi_profile_id) == (slot.placement, slot.profile.gi_profile_id)
    return same_slot and (device.is_made or held.ci_profile_id == slot.profile.ci_profile_id)


def _cells(line: Line) -> Sequence[object]:
    holders = ", ".join(line.holders) or "-"
    model, memory = line.model or "-", line.memory or "-"
    return line.name, line.kind, model, memory, line.uuid, line.health, holders


def _wide_cells(line: Line) -> Sequence[object]:
    numa = "-" if line.numa is None else line.numa
    return line.pci or "-", numa, line.architecture or "-", line.why or "-"
