"""Commands of `dra-driver simulate` that concern one GPU: partitions, faults, events, processes."""

from pathlib import Path
from typing import Final

import click

from dra_driver.cli.simulate_options import (
    Bytes,
    gpu_option,
    instance,
    partition_options,
    position,
    root_argument,
)
from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.models import MODELS
from dra_driver.simulator.native_library import (
    ALL_GPUS,
    ANY_START,
    SimulatorError,
    error_number,
)
from dra_driver.simulator.node import Node

_UNKNOWN_NAME: Final = (2, 13)  # NVML_ERROR_INVALID_ARGUMENT (no such error), FUNCTION_NOT_FOUND
# nvml.h: nvmlDeviceGpuRecoveryAction_t, in its order
_RECOVERY_ACTIONS: Final = (
    "none",
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
)


@click.command("mig-mode")
@root_argument
@gpu_option
@click.argument("mode", type=click.Choice(["on", "off"]))
def mig_mode(root: Path, gpu_text: str, mode: str) -> None:
    """Switch MIG mode; on Ampere it is pending until reset or reboot."""
    with Node(root) as node:
        node.state.set_mig_mode(position(node, gpu_text), on=mode == "on")


def _check_profile(node: Node, gpu: int, profile: str) -> None:
    """Refuse a profile that the GPU's model does not have.

    Raises:
        SettingInvalid: the message lists those there are.

    """
    model = MODELS[node.show()["gpus"][gpu]["model"]]
    names = {entry.name.removeprefix("MIG "): str(entry.id) for entry in model.gi}
    if profile not in {*names, *names.values()}:
        there = ", ".join(f"{name} ({number})" for name, number in names.items())
        raise SettingInvalid(f"--profile {profile}: {model.key} has {there or 'no MIG profiles'}")


@click.command()
@root_argument
@gpu_option
@click.option("--profile", required=True, help="Name such as 1g.10gb, or id.")
@click.option("--start", type=click.IntRange(min=0), help="First memory slice; default: any.")
@click.option("--no-compute-instance", is_flag=True, help="Leave the GPU instance without one.")
def partition(
    root: Path, gpu_text: str, profile: str, start: int | None, *, no_compute_instance: bool
) -> None:
    """Make a partition by hand, as an administrator would. Prints its GPU instance id."""
    with Node(root) as node:
        gpu = position(node, gpu_text)
        _check_profile(node, gpu, profile)
        gi_id = node.state.partition(
            gpu,
            profile,
            ANY_START if start is None else start,
            compute_instance=not no_compute_instance,
        )
    click.echo(gi_id)


@click.command()
@root_argument
@gpu_option
@click.option("--gi", type=click.IntRange(min=0), required=True, help="GPU instance id.")
def unpartition(root: Path, gpu_text: str, gi: int) -> None:
    """Remove a GPU instance with its compute instances."""
    with Node(root) as node:
        node.state.unpartition(position(node, gpu_text), gi)


@click.command()
@root_argument
@click.option("--gpu", "gpu_text", required=True, metavar="N|all", help="Where.")
@click.option("--call", "function", required=True, metavar="NVML_FUNCTION", help="Which call.")
@click.option("--error", metavar="NAME", help="NVML error, such as NOT_SUPPORTED.")
@click.option("--times", type=click.IntRange(min=1), help="How often; default: for ever.")
@click.option("--hang", type=click.FloatRange(min=0), default=0.0, help="Seconds to sleep first.")
def fault(
    root: Path, gpu_text: str, function: str, error: str | None, times: int | None, hang: float
) -> None:
    """Let an NVML call fail or hang. A name without _vN means all its versions, a final * any rest.

    With --hang and no --error the call goes on as usual after the sleep.
    """
    if error is None and not hang:
        raise click.UsageError("--error or --hang is needed")
    with Node(root) as node:
        gpu = ALL_GPUS if gpu_text == "all" else position(node, gpu_text)
        try:
            number = 0 if error is None else error_number(error)
            node.state.fault(gpu, function, number, times=times or 0, hang=hang)
        except SimulatorError as refused:
            if refused.code not in _UNKNOWN_NAME:
                raise
            raise SettingInvalid(str(refused)) from refused


@click.command()
@root_argument
@gpu_option
@click.option("--xid", "xid_number", type=click.IntRange(1, 999), required=True, help="XID.")
@partition_options
def xid(root: Path, gpu_text: str, xid_number: int, gi: int | None, ci: int | None) -> None:
    """Raise an XID error event."""
    with Node(root) as node:
        node.state.xid(position(node, gpu_text), xid_number, instance(gi), instance(ci))


@click.command()
@root_argument
@gpu_option
def ecc(root: Path, gpu_text: str) -> None:
    """Raise a double-bit ECC error."""
    with Node(root) as node:
        node.state.ecc(position(node, gpu_text))


@click.command()
@root_argument
@gpu_option
def lose(root: Path, gpu_text: str) -> None:
    """Let a GPU fall off the bus."""
    with Node(root) as node:
        node.state.lose(position(node, gpu_text))


@click.command()
@root_argument
@gpu_option
def restore(root: Path, gpu_text: str) -> None:
    """Bring a lost GPU back."""
    with Node(root) as node:
        node.state.restore(position(node, gpu_text))


@click.command()
@root_argument
@gpu_option
def remove(root: Path, gpu_text: str) -> None:
    """Take a GPU out. Numbers of those after it change."""
    with Node(root) as node:
        node.remove_gpu(position(node, gpu_text))


@click.command()
@root_argument
@gpu_option
@click.option("--pid", type=click.IntRange(min=1), required=True, help="Process id.")
@click.option("--memory", type=Bytes(), required=True, help="GPU memory such as 4Gi; 0 ends it.")
@click.option("--sm", type=click.IntRange(0, 100), default=0, help="Utilisation in percent.")
@partition_options
def process(
    root: Path, gpu_text: str, pid: int, memory: int, sm: int, gi: int | None, ci: int | None
) -> None:
    """Put a process on a GPU or partition."""
    with Node(root) as node:
        gpu = position(node, gpu_text)
        node.state.process(gpu, pid, memory, sm, instance(gi), instance(ci))


@click.command()
@root_argument
@gpu_option
def reset(root: Path, gpu_text: str) -> None:
    """Reset a GPU: a pending MIG mode becomes current, instances and processes go."""
    with Node(root) as node:
        node.state.reset(position(node, gpu_text))


@click.command()
@root_argument
@gpu_option
@click.option("--minor", "number", type=click.IntRange(0, 253), required=True, help="New minor.")
def minor(root: Path, gpu_text: str, number: int) -> None:
    """Give a GPU another device minor; one that has it gets the old one."""
    with Node(root) as node:
        node.set_minor(position(node, gpu_text), number)


@click.command()
@root_argument
@gpu_option
@click.argument("mode", type=click.Choice(["on", "off"]))
def persistence(root: Path, gpu_text: str, mode: str) -> None:
    """Switch persistence mode."""
    with Node(root) as node:
        node.state.set_persistence(position(node, gpu_text), on=mode == "on")


@click.command("recovery-action")
@root_argument
@gpu_option
@click.argument("action", type=click.Choice(_RECOVERY_ACTIONS))
def recovery_action(root: Path, gpu_text: str, action: str) -> None:
    """Set what NVML says must be done about a GPU."""
    with Node(root) as node:
        node.state.set_recovery_action(position(node, gpu_text), _RECOVERY_ACTIONS.index(action))


COMMANDS: Final = (
    mig_mode,
    partition,
    unpartition,
    fault,
    xid,
    ecc,
    lose,
    restore,
    remove,
    process,
    reset,
    minor,
    persistence,
    recovery_action,
)
