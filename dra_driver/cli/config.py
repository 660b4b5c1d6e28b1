"""`dra-driver config`: check a node configuration before a node reads it, and see what it does."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from dra_driver.config import Settings, config_schema
from dra_driver.model.errors import DriverNotReady, SettingInvalid
from dra_driver.plugin.config_source import Found, OneFile, folder_of, read_config

_file_argument: Final = click.argument("file", type=click.Path(exists=True, path_type=Path))
_entry_option: Final = click.option("--entry", default="", help="Of a folder: this entry only.")


@click.group()
def config() -> None:
    """Check a node configuration, show what it does on this node, or print its schema.

    FILE is what `serve --config` reads: a file, or a folder of entries.
    """


@config.command()
@_file_argument
@_entry_option
def check(file: Path, entry: str) -> None:
    """Say whether FILE is right; else the line, the field and what is allowed, and exit code 1.

    Of a folder all entries are checked.
    """
    folder = folder_of(_settings(file))
    with _finding():
        names = folder.names() if folder is not None and not entry else (entry,)
    if not names:
        click.echo(f"{file}: there are no entries")
    is_wrong = False
    for name in names:
        found = _entry(file, name)
        try:
            found.config()
        except SettingInvalid as error:
            click.echo(f"Error: {error}", err=True)
            is_wrong = True
        else:
            click.echo(f"{found.path}: ok")
    if is_wrong:
        sys.exit(EXIT_FINDING)


@config.command(name="show")
@_file_argument
@_entry_option
@settings_options(*HARDWARE_FLAGS, "default_config", "fallback_strategies")
@click.option("--node-label", "labels", multiple=True, type=NodeLabel(), help="Of the Node.")
@output_option
def show_policies(
    *,
    file: Path,
    entry: str,
    labels: tuple[tuple[str, str], ...],
    output: str,
    **flags: Any,  # noqa: ANN401 - fields of Settings
) -> None:
    """Show what FILE says of each GPU of this node; where there is none to be found, its rules.

    Changes nothing, and may be run beside the plugin. Exit code 1 when a GPU can't have what the
    file wants. Of a folder that entry counts which --entry or the label in
    --node-label nvidia.com/dra.config=NAME names, else that for Nodes without this label.
    """
    node_labels = dict(labels)
    settings = make_settings({"node_name": NODE, "config_file": file} | flags)
    with _finding():
        found = _entry(file, entry).config() if entry else None
        read = found or read_config(settings, node_labels)
    try:
        inventory = look_at_hardware(settings)
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


def _settings(file: Path) -> Settings:
    return Settings(node_name=NODE, config_file=file)


def _entry(file: Path, name: str) -> Found:
    """Look at an entry of the folder, or at the file, which has none."""
    folder = folder_of(_settings(file))
    if folder is None:
        if name:
            raise click.UsageError(f"--entry: {file} is a file, which has no entries")
        return OneFile(file).look("")
    with _finding():
        return folder.entry(name)


@contextmanager
def _finding() -> Iterator[None]:
    """Leave with exit code 1 when something is wrong: that is a finding here."""
    try:
        yield
    except SettingInvalid as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_FINDING)
