"""The command line: `dra-driver COMMAND`. Each command's module is imported only when it runs."""

import importlib
import sys
from dataclasses import dataclass
from typing import Final

import click

from dra_driver.model.errors import (
    ApiUnavailable,
    DriverError,
    DriverFilesMissing,
    DriverNotReady,
    SettingInvalid,
    StorageFailed,
)

EXIT_FINDING: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3

_UNREACHABLE = (ApiUnavailable, DriverFilesMissing, DriverNotReady, StorageFailed)


@dataclass(frozen=True, slots=True)
class _Command:
    target: str  # module:attribute
    summary: str  # shown by --help, so that it needs no import


_COMMANDS: Final = {
    "bench": _Command("dra_driver.cli.bench.command:bench", "Measure what a DRA driver costs."),
    "config": _Command("dra_driver.cli.config:config", "Check and show a node configuration."),
    "demo": _Command("dra_driver.cli.demo:demo", "Run the main job on a simulated node."),
    "devices": _Command("dra_driver.cli.devices:devices", "Show this node's devices."),
    "layout": _Command("dra_driver.cli.layout:layout", "Print or compare this node's partitions."),
    "metrics": _Command("dra_driver.cli.metrics:metrics", "Show which metrics there are."),
    "mps-agent": _Command("dra_driver.cli.mps_agent:mps_agent", "Run the agent for MPS."),
    "prepared": _Command("dra_driver.cli.prepared:prepared", "Show this node's prepared claims."),
    "schema": _Command("dra_driver.cli.schema:schema", "Print the schema of configs of claims."),
    "serve": _Command("dra_driver.cli.serve:serve", "Run the node plugin."),
    "simulate": _Command("dra_driver.cli.simulate:simulate", "Make and change a simulated node."),
    "version": _Command("dra_driver.cli.version:version", "Print the version."),
    "webhook": _Command("dra_driver.cli.webhook:webhook", "Run the admission webhook."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands by name only."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Kubernetes DRA driver for NVIDIA GPUs.

    Exit codes: 0 fine, 1 a finding or a failure, 2 wrong usage, 3 what is needed can't be reached.
    """


def exit_code(error: DriverError) -> int:
    """Give the exit code for a failure that the driver explains."""
    if isinstance(error, SettingInvalid):
        return EXIT_USAGE
    return EXIT_UNREACHABLE if isinstance(error, _UNREACHABLE) else EXIT_FINDING


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process; explained failures are one line on stderr."""
    try:
        root.main(args=arguments, prog_name="dra-driver")
    except DriverError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(exit_code(error))
