"""`dra-driver devices`: what this node has, how well it is, and who holds it."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from dra_driver.cli import EXIT_FINDING
from dra_driver.cli.device_lines import FOREIGN, MISSING, NOT_OURS, Line, device_lines
from dra_driver.cli.isolation import isolation_document, isolation_text
from dra_driver.cli.node_state import (
    CONFIG_FLAGS,
    HARDWARE_FLAGS,
    NODE,
    RECORD_FLAGS,
    NodeRecords,
    look_at_hardware,
    look_under,
    read_records,
    told_health,
)
from dra_driver.cli.option_types import NodeLabel
from dra_driver.cli.output import output_option, show
from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.cli.tables import table
from dra_driver.config import NodeConfig, Settings
from dra_driver.model import HealthState, Inventory
from dra_driver.model.errors import DriverNotReady
from dra_driver.plugin.config_source import folder_of, label_of, read_config
from dra_driver.plugin.last_good import LastGoodFile

_HEAD: Final = ("NAME", "TYPE", "MODEL", "MEMORY", "UUID", "HEALTH", "CLAIMS")
_CONFIGURED_HEAD: Final = ("NAME", "TYPE", "MODEL", "MEMORY", "UUID", "HEALTH", "MODE", "CLAIMS")
_WIDE: Final = ("PCI", "NUMA", "ARCHITECTURE", "ISOLATION", "WHY")
_CONFIGURED_WIDE: Final = ("PCI", "NUMA", "ARCHITECTURE", "ISOLATION", "CAN BE MADE", "WHY")


@click.command()
@settings_options(*RECORD_FLAGS, *HARDWARE_FLAGS, *CONFIG_FLAGS)
@click.option(
    "--node-label",
    "labels",
    multiple=True,
    type=NodeLabel(),
    help="Label of the Node, for rules of the configuration that ask for it.",
)
@click.option(
    "--isolation",
    is_flag=True,
    help="Show instead what is kept apart between those who share a device, for each way to share.",
)
@output_option
def devices(
    *,
    labels: tuple[tuple[str, str], ...],
    isolation: bool,
    output: str,
    **flags: Any,  # noqa: ANN401 - fields of Settings
) -> None:
    """Show this node's devices, how well each is, and which claims hold it.

    Changes nothing, and may be run beside the plugin. Health is what the plugin tells the kubelet;
    while none runs it is what one look at the hardware shows. Exit code 1 when a device is
    unhealthy, or held and missing.

    With the plugin's --config each line has the mode of its GPU. Of a GPU in mode Dynamic the table
    shows the GPU itself and the partitions that exist, whose they are, and (wide) how many more of
    each profile can be made; JSON and YAML have all that can be made. Of a folder of configurations
    that counts which --node-label nvidia.com/dra.config=NAME names, else what the plugin had last.

    Column ISOLATION (wide) has keys that --isolation explains: what those who share a device can
    do to each other. It looks at no hardware.
    """
    if isolation:
        show(output, {"ways": isolation_document()}, lambda _: isolation_text())
        return
    settings = make_settings({"node_name": NODE} | flags)
    is_configured = settings.config_file is not None
    inventory = _look(settings, dict(labels))
    records = _records(settings)
    held = (*records.claims, *records.reservations)
    lines = device_lines(inventory, held, told_health(settings))
    problems = [f"{each.subject}: {each.message}" for each in inventory.problems]
    document = {
        "driverVersion": inventory.driver_version,
        "devices": [
            line.configured_document() if is_configured else line.document() for line in lines
        ],
        "problems": problems,
    }

    def text(wide: bool) -> str:  # noqa: FBT001 - as `show` calls it
        return devices_text(lines, problems, wide=wide, configured=is_configured)

    show(output, document, text)
    if any(line.health in (MISSING, HealthState.UNHEALTHY.value) for line in lines):
        sys.exit(EXIT_FINDING)


def devices_text(
    lines: Sequence[Line], problems: Sequence[str], *, wide: bool, configured: bool
) -> str:
    """Show them as a table, and what discovery could not find out."""
    head: tuple[str, ...] = _CONFIGURED_HEAD if configured else _HEAD
    if wide:
        head += _CONFIGURED_WIDE if configured else _WIDE
    shown = [line for line in lines if not line.is_only_possible]
    rows = [
        (*_cells(line, configured), *(_wide_cells(line, configured) if wide else ()))
        for line in shown
    ]
    parts = [table(head, rows) if rows else "no devices"]
    whys = [f"{line.name}: {line.why}" for line in shown if line.why and not wide]
    parts += ["\n".join(words) for words in (whys, problems) if words]
    return "\n\n".join(parts)


def _look(settings: Settings, labels: Mapping[str, str]) -> Inventory:
    if settings.config_file is None:
        return look_at_hardware(settings)
    return look_under(_config(settings, labels), settings, labels, lambda: _records(settings))


def _config(settings: Settings, labels: Mapping[str, str]) -> NodeConfig:
    """Give the entry that the label names, else what the plugin had last, else as it would."""
    if folder_of(settings) is not None and not label_of(labels):
        kept = LastGoodFile(settings.data_folder).read()
        if kept is not None:
            return kept.config()
    return read_config(settings, labels)


def _records(settings: Settings) -> NodeRecords:
    try:
        return read_records(settings)
    except DriverNotReady:
        return NodeRecords()  # a node that has yet to be used


def _cells(line: Line, configured: bool) -> Sequence[object]:  # noqa: FBT001 - of the table
    holders = NOT_OURS if line.state == FOREIGN else ", ".join(line.holders) or "-"
    mode = (line.mode or "-",) if configured else ()
    return (
        line.name,
        line.kind,
        line.model or "-",
        line.memory or "-",
        line.uuid or "-",
        line.health,
        *mode,
        holders,
    )


def _wide_cells(line: Line, configured: bool) -> Sequence[object]:  # noqa: FBT001 - of the table
    numa = "-" if line.numa is None else line.numa
    possible = ", ".join(f"{count} x {profile}" for profile, count in line.can_be_made.items())
    can_be_made = (possible or "-",) if configured else ()
    place = (line.pci or "-", numa, line.architecture or "-")
    return *place, line.isolation, *can_be_made, line.why or "-"
