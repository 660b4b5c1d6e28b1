"""`dra-driver config`: check a node configuration before a node reads it, and see what it does."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from dra_driver.cli import EXIT_FINDING
from dra_driver.cli.config_text import (
    gpu_rows,
    gpus_document,
    gpus_text,
    rules_document,
    rules_text,
)
from dra_driver.cli.node_state import HARDWARE_FLAGS, NODE, look_at_hardware
from dra_driver.cli.option_types import NodeLabel
from dra_driver.cli.output import output_option, show
from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.config import NodeConfig, config_schema
from dra_driver.model.errors import DriverNotReady, SettingInvalid
from dra_driver.plugin.config_file import read_config

_file_argument: Final = click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@click.group()
def config() -> None:
    """Check a node configuration, show what it does on this node, or print its schema.

    FILE is what `serve --config` reads.
    """


@config.command()
@_file_argument
def check(file: Path) -> None:
    """Say whether FILE is right; else the line, the field and what is allowed, and exit code 1."""
    _read(file)
    click.echo(f"{file}: ok")


@config.command(name="show")
@_file_argument
@settings_options(*HARDWARE_FLAGS)
@click.option("--node-label", "labels", multiple=True, type=NodeLabel(), help="Of the Node.")
@output_option
def show_policies(
    *,
    file: Path,
    labels: tuple[tuple[str, str], ...],
    output: str,
    **flags: Any,  # noqa: ANN401 - fields of Settings
) -> None:
    """Show what FILE says of each GPU of this node; where there is none to be found, its rules.

    Changes nothing, and may be run beside the plugin. Exit code 1 when a GPU can't have what the
    file wants.
    """
    read = _read(file)
    node_labels = dict(labels)
    try:
        inventory = look_at_hardware(make_settings({"node_name": NODE} | flags))
    except DriverNotReady as error:
        why = f"no GPU can be asked, so these are the rules: {error}"
        show(output, rules_document(read, why), lambda _: rules_text(read, why))
        return
    rows = gpu_rows(read, inventory, node_labels)
    problems = [f"{each.subject}: {each.message}" for each in inventory.problems]
    document = {**gpus_document(read, rows), "problems": problems}
    show(output, document, lambda wide: gpus_text(rows, problems, wide=wide))
    if any(row.problem for row in rows):
        sys.exit(EXIT_FINDING)


@config.command()
def schema() -> None:
    """Print the JSON Schema of the file."""
    click.echo(json.dumps(config_schema(), indent=2))


def _read(file: Path) -> NodeConfig:
    """Read the file; leaves with exit code 1 when it is wrong: that is a finding here."""
    try:
        return read_config(file)
    except SettingInvalid as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_FINDING)
