"""`dra-driver layout`: this node's partitions in mig-parted's file format, printed or compared."""

import sys
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import yaml

from dra_driver.cli import EXIT_FINDING
from dra_driver.cli.layout_text import compare, exported
from dra_driver.cli.node_state import HARDWARE_FLAGS, NODE, look_at_hardware
from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.config import load_layouts
from dra_driver.model import Inventory
from dra_driver.model.errors import SettingInvalid

_LARGEST: Final = 1 << 20  # bytes, as of the node configuration


@click.group()
def layout() -> None:
    """Print the partitions of this node as mig-parted would, or compare them with a layout.

    Both only look, and may be run beside the plugin.
    """


@layout.command()
@settings_options(*HARDWARE_FLAGS)
@click.option("--name", default="current", show_default=True, help="Of the layout.")
def export(*, name: str, **flags: Any) -> None:  # noqa: ANN401 - fields of Settings
    """Print MIG mode and partitions of all GPUs, as a file that mig-parted and this driver read.

    Exit code 1 when a partition can't be told in that format; it is left out, and named.
    """
    document, left_out = exported(name, _look(flags))
    click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
    for line in left_out:
        click.echo(line, err=True)
    if left_out:
        sys.exit(EXIT_FINDING)


@layout.command(name="assert")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--layout", "name", required=True, help="Which of the file, or one such as all-1g.10gb."
)
@click.option("--valid-config", is_flag=True, help="Ask only whether the GPUs could have it.")
@click.option("--mode-only", is_flag=True, help="Compare MIG mode only.")
@settings_options(*HARDWARE_FLAGS)
def assert_layout(
    *,
    file: Path,
    name: str,
    valid_config: bool,
    mode_only: bool,
    **flags: Any,  # noqa: ANN401 - fields of Settings
) -> None:
    """Compare the GPUs of this node with a layout of FILE, which is mig-parted's.

    Exit code 0 when they are as it wants, else 1 and a line for each that is not. GPUs that the
    layout does not concern count as right.
    """
    try:
        layouts = load_layouts(_read(file))
    except SettingInvalid as error:
        _fail([f"{file}: {error}"])
    findings = compare(
        name,
        layouts,
        _look(flags),
        asks_mode=not valid_config,
        asks_partitions=not (valid_config or mode_only),
    )
    if findings:
        _fail(findings)
    can = "can have" if valid_config else "have MIG mode as in" if mode_only else "have"
    click.echo(f"{file}: the GPUs {can} layout {name}")


def _look(flags: dict[str, Any]) -> Inventory:
    return look_at_hardware(make_settings({"node_name": NODE} | flags))


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise SettingInvalid(f"is larger than {_LARGEST} bytes")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingInvalid(f"is not UTF-8: {error.reason}") from error
    except OSError as error:
        raise SettingInvalid(f"cannot be read: {error.strerror}") from error


def _fail(findings: list[str]) -> NoReturn:
    for line in findings:
        click.echo(f"Error: {line}", err=True)
    sys.exit(EXIT_FINDING)
