"""`dra-driver mps-agent`: the process that owns the control daemons of MPS."""

from typing import Any

import click

from dra_driver.cli.option_types import Duration
from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.mps_agent.options import Options
from dra_driver.mps_agent.process import run

_FIELDS = (
    "driver_name",
    "driver_root",
    "container_driver_root",
    "host_root",
    "plugins_folder",
    "log_format",
    "log_level",
)


@click.command("mps-agent")
@settings_options(*_FIELDS)
@click.option(
    "--shm",
    type=click.Choice(["tmpfs", "folder"]),
    default="tmpfs",
    show_default=True,
    envvar="MPS_SHM",
    help="What the clients of a daemon have together as /dev/shm; a plain folder needs no root.",
)
@click.option(
    "--ready-timeout",
    "ready_seconds",
    type=Duration(),
    default="41s",
    show_default=True,
    envvar="MPS_READY_TIMEOUT",
    help="Time that a daemon has until it answers; the kubelet waits 45s for a Prepare.",
)
@click.option(
    "--mps-poll-interval",
    "poll_seconds",
    type=Duration(),
    default="10s",
    show_default=True,
    envvar="MPS_POLL_INTERVAL",
    help="Time between two looks at each daemon, its limits and its devices' compute mode.",
)
def mps_agent(shm: str, ready_seconds: float, poll_seconds: float, **flags: Any) -> None:  # noqa: ANN401
    """Run the MPS agent: one control daemon for each set of devices that claims share by MPS.

    Daemons end with it, and with them their clients: the plugin can be replaced at any time, this
    only when no claim has MPS. SIGTERM and SIGINT stop it.
    """
    settings = make_settings(flags | {"node_name": ""})
    settings.check_folders()
    run(Options(settings, shm == "tmpfs", ready_seconds, poll_seconds))
