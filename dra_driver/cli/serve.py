"""`dra-driver serve`: the node plugin, with the flags and variables of the driver it replaces."""

from typing import Any

import click

from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.plugin.process import run


@click.command()
@settings_options()
def serve(**flags: Any) -> None:  # noqa: ANN401 - one field of Settings each
    """Run the node plugin: publish this node's GPUs and prepare claims for the kubelet.

    SIGTERM and SIGINT stop it; SIGUSR2 writes the stacks of all threads to standard error.
    """
    run(make_settings(flags))
