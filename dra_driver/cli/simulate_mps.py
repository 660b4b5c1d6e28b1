"""`dra-driver simulate mps`: what MPS control daemons do wrong from now on."""

from pathlib import Path
from typing import Final

import click

from dra_driver.cli.simulate_options import position, root_argument
from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.native_library import ALL_GPUS, FOR_EVER, error_number
from dra_driver.simulator.node import Node

# What each action is called in native/sim.h, and whether it fails, or takes its time.
_FAILS: Final = {
    "exit": "mps.start",
    "refuse": "mps.command.",
    "reject": "mps.attach",
    "server-exit": "mps.server",
    "crash": "mps.crash",
    "server-crash": "mps.server.crash",
}
_DELAYS: Final = {
    "slow": "mps.start",
    "silent": "mps.command.",
    "stall": "mps.attach",
    "server-slow": "mps.server",
}
_ONCE: Final = {"crash", "server-crash"}
_ERROR: Final = "UNKNOWN"


@click.command()
@root_argument
@click.argument("action", type=click.Choice([*_DELAYS, *_FAILS]))
@click.option("--gpu", "gpu_text", default="all", metavar="N|all", help="Daemons that have it.")
@click.option("--command", metavar="NAME", help="silent, refuse: only this one; default: all.")
@click.option("--seconds", type=click.FloatRange(min=0), help="Delays: default is for ever.")
@click.option("--times", type=click.IntRange(min=1), help="How often; default: for ever.")
def mps(
    root: Path,
    action: str,
    gpu_text: str,
    command: str | None,
    seconds: float | None,
    times: int | None,
) -> None:
    r"""Let MPS control daemons do something wrong, until `clear`.

    \b
    slow          a daemon is ready only after --seconds
    exit          a daemon exits as soon as it is started
    silent        commands are accepted and not answered (or after --seconds)
    refuse        commands are answered by an error and have no effect
    stall         CUDA programs are not let in (or after --seconds)
    reject        CUDA programs are refused
    server-slow   a server is ready only after --seconds
    server-exit   a server fails to start
    crash         the running daemon dies; its server lives on without it
    server-crash  the running server dies, and its clients with it
    """
    if command is not None and action not in {"silent", "refuse"}:
        raise click.UsageError(f"--command does not go with {action}")
    if seconds is not None and action not in _DELAYS:
        raise click.UsageError(f"--seconds does not go with {action}")
    delays = action in _DELAYS
    name = _DELAYS[action] if delays else _FAILS[action]
    if name.endswith("."):
        name += command or "*"
    with Node(root) as node:
        if action in _ONCE and not node.show()["mps"]:
            raise SettingInvalid(f"{action}: no MPS daemon runs on the node")
        node.state.fault(
            ALL_GPUS if gpu_text == "all" else position(node, gpu_text),
            name,
            0 if delays else error_number(_ERROR),
            times=times or (1 if action in _ONCE else 0),
            hang=(FOR_EVER if seconds is None else seconds) if delays else 0,
        )
