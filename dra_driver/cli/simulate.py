"""`dra-driver simulate`: make a simulated GPU node and change it as hardware and people would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from dra_driver.cli.simulate_text import calls_text, node_text
from dra_driver.model.errors import SettingInvalid
from dra_driver.model.quantity import Quantity
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.models import MODELS
from dra_driver.simulator.native_library import (
    ALL_GPUS,
    ANY_START,
    WHOLE_GPU,
    SimulatorError,
    error_number,
)
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import (
    DEFAULT_DRIVER_VERSION,
    MAX_GPUS,
    NodeSpec,
    alike,
    read_node_file,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
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


class _Bytes(click.ParamType[int]):
    """An amount of memory such as 4Gi."""

    name = "amount"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            amount = int(Quantity.parse(str(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if amount < 0:
            self.fail(f"{value} is negative", param, ctx)
        return amount


_root = click.argument("root", type=_FOLDER)
_gpu = click.option(
    "--gpu", "gpu_text", required=True, metavar="N", help="Number in PCI order, UUID or PCI bus id."
)


def _partition_options(function: _Function) -> _Function:
    """--gi and --ci: one partition of the GPU rather than all of it."""
    for name, what in (("--ci", "Compute instance"), ("--gi", "GPU instance")):
        option = click.option(name, type=click.IntRange(min=0), help=f"{what} id; default: none.")
        function = option(function)
    return function


def _instance(wanted: int | None) -> int:
    return WHOLE_GPU if wanted is None else wanted


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


def _position(node: Node, text: str) -> int:
    """Position of the GPU that the user means.

    Raises:
        SettingInvalid: there is none; the message tells which there are.

    """
    count = len(node.show()["gpus"])
    if text.isdigit():
        if int(text) >= count:
            there = f"GPUs 0 to {count - 1}" if count else "no GPU"
            raise SettingInvalid(f"--gpu {text}: the node has {there}")
        return int(text)
    try:
        return node.state.find_gpu(text)
    except SimulatorError as error:
        raise SettingInvalid(f"--gpu {text}: {error}") from error


@click.group()
def simulate() -> None:
    """Make a simulated GPU node and change it as hardware and people would.

    ROOT is the folder of the node: a GPU driver root with devices, libraries and programs, and the
    host's /proc and /sys. GPUs are numbered from 0 in PCI order.
    """


@simulate.command()
@_root
@click.option("--model", help=f"One of {', '.join(MODELS)}; default: h100-80gb.")
@click.option("--gpus", type=click.IntRange(0, MAX_GPUS), help="How many; default: 1.")
@click.option("--driver-version", help=f"Default: {DEFAULT_DRIVER_VERSION}.")
@click.option(
    "--file", "file", type=click.Path(dir_okay=False, path_type=Path), help="NODE.yaml (mixed)."
)
@click.option("--seed", help="Text from which UUIDs and serial numbers follow; default: random.")
@click.option(
    "--device-nodes",
    type=click.Choice([kind.value for kind in NodeKind]),
    default=NodeKind.AUTO.value,
    help="What ROOT/dev holds; auto: real device nodes where they can be made.",
)
def create(
    root: Path,
    model: str | None,
    gpus: int | None,
    driver_version: str | None,
    file: Path | None,
    seed: str | None,
    device_nodes: str,
) -> None:
    """Make a node in ROOT, which is empty or does not exist yet."""
    if file is not None and (model is not None or gpus is not None):
        raise click.UsageError("--file says which GPUs there are: leave out --model and --gpus")
    spec = (
        read_node_file(file) if file else alike(model or "h100-80gb", 1 if gpus is None else gpus)
    )
    if driver_version is not None:
        spec = spec.model_copy(update={"driver_version": driver_version})
    Node.create(root, spec, device_nodes=NodeKind(device_nodes), seed=seed).close()
    click.echo(f"{root}: {_summary(spec)}, driver {spec.driver_version}")


def _summary(spec: NodeSpec) -> str:
    return " + ".join(f"{gpu.count} x {gpu.model}" for gpu in spec.gpus) or "no GPU"


@simulate.command()
@_root
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def show(root: Path, output: str) -> None:
    """Show GPUs, partitions, processes and faults."""
    with Node(root) as node:
        shown = node.show()
    click.echo(json.dumps(shown, indent=2) if output == "json" else node_text(shown))


@simulate.command()
@_root
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def calls(root: Path, output: str) -> None:
    """Show the latest calls of NVML and nvidia-smi that change something."""
    with Node(root) as node:
        made = node.state.calls()
    click.echo(json.dumps(made, indent=2) if output == "json" else calls_text(made))


@simulate.command("mig-mode")
@_root
@_gpu
@click.argument("mode", type=click.Choice(["on", "off"]))
def mig_mode(root: Path, gpu_text: str, mode: str) -> None:
    """Switch MIG mode; on Ampere it is pending until reset or reboot."""
    with Node(root) as node:
        node.state.set_mig_mode(_position(node, gpu_text), on=mode == "on")


@simulate.command()
@_root
@_gpu
@click.option("--profile", required=True, help="Name such as 1g.10gb, or id.")
@click.option("--start", type=click.IntRange(min=0), help="First memory slice; default: any.")
@click.option("--no-compute-instance", is_flag=True, help="Leave the GPU instance without one.")
def partition(
    root: Path, gpu_text: str, profile: str, start: int | None, *, no_compute_instance: bool
) -> None:
    """Make a partition by hand, as an administrator would. Prints its GPU instance id."""
    with Node(root) as node:
        gpu = _position(node, gpu_text)
        _check_profile(node, gpu, profile)
        gi_id = node.state.partition(
            gpu,
            profile,
            ANY_START if start is None else start,
            compute_instance=not no_compute_instance,
        )
    click.echo(gi_id)


@simulate.command()
@_root
@_gpu
@click.option("--gi", type=click.IntRange(min=0), required=True, help="GPU instance id.")
def unpartition(root: Path, gpu_text: str, gi: int) -> None:
    """Remove a GPU instance with its compute instances."""
    with Node(root) as node:
        node.state.unpartition(_position(node, gpu_text), gi)


@simulate.command()
@_root
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
        gpu = ALL_GPUS if gpu_text == "all" else _position(node, gpu_text)
        try:
            number = 0 if error is None else error_number(error)
            node.state.fault(gpu, function, number, times=times or 0, hang=hang)
        except SimulatorError as refused:
            if refused.code not in _UNKNOWN_NAME:
                raise
            raise SettingInvalid(str(refused)) from refused


@simulate.command()
@_root
def clear(root: Path) -> None:
    """Forget all faults."""
    with Node(root) as node:
        node.state.clear()


@simulate.command()
@_root
@_gpu
@click.option("--xid", "xid_number", type=click.IntRange(1, 999), required=True, help="XID.")
@_partition_options
def xid(root: Path, gpu_text: str, xid_number: int, gi: int | None, ci: int | None) -> None:
    """Raise an XID error event."""
    with Node(root) as node:
        node.state.xid(_position(node, gpu_text), xid_number, _instance(gi), _instance(ci))


@simulate.command()
@_root
@_gpu
def ecc(root: Path, gpu_text: str) -> None:
    """Raise a double-bit ECC error."""
    with Node(root) as node:
        node.state.ecc(_position(node, gpu_text))


@simulate.command()
@_root
@_gpu
def lose(root: Path, gpu_text: str) -> None:
    """Let a GPU fall off the bus."""
    with Node(root) as node:
        node.state.lose(_position(node, gpu_text))


@simulate.command()
@_root
@_gpu
def restore(root: Path, gpu_text: str) -> None:
    """Bring a lost GPU back."""
    with Node(root) as node:
        node.state.restore(_position(node, gpu_text))


@simulate.command()
@_root
@click.option("--model", required=True, help=f"One of {', '.join(MODELS)}.")
@click.option("--seed", help="Text from which UUID and serial number follow; default: random.")
def add(root: Path, model: str, seed: str | None) -> None:
    """Plug another GPU in. Prints its number; those of others may change."""
    with Node(root) as node:
        click.echo(node.add_gpu(model, seed))


@simulate.command()
@_root
@_gpu
def remove(root: Path, gpu_text: str) -> None:
    """Take a GPU out. Numbers of those after it change."""
    with Node(root) as node:
        node.remove_gpu(_position(node, gpu_text))


@simulate.command()
@_root
@_gpu
@click.option("--pid", type=click.IntRange(min=1), required=True, help="Process id.")
@click.option("--memory", type=_Bytes(), required=True, help="GPU memory such as 4Gi; 0 ends it.")
@click.option("--sm", type=click.IntRange(0, 100), default=0, help="Utilisation in percent.")
@_partition_options
def process(
    root: Path, gpu_text: str, pid: int, memory: int, sm: int, gi: int | None, ci: int | None
) -> None:
    """Put a process on a GPU or partition."""
    with Node(root) as node:
        gpu = _position(node, gpu_text)
        node.state.process(gpu, pid, memory, sm, _instance(gi), _instance(ci))


@simulate.command("driver-version")
@_root
@click.argument("version")
def driver_version(root: Path, version: str) -> None:
    """Upgrade the GPU driver: files change name, and the driver is reloaded."""
    with Node(root) as node:
        node.set_driver_version(version)


@simulate.command("driver-reload")
@_root
def driver_reload(root: Path) -> None:
    """Unload and load the GPU driver."""
    with Node(root) as node:
        node.state.driver_reload()


@simulate.command()
@_root
@_gpu
def reset(root: Path, gpu_text: str) -> None:
    """Reset a GPU: a pending MIG mode becomes current, instances and processes go."""
    with Node(root) as node:
        node.state.reset(_position(node, gpu_text))


@simulate.command()
@_root
def reboot(root: Path) -> None:
    """Reboot the node: a new boot id, and all goes that does not survive a reboot."""
    with Node(root) as node:
        node.reboot()


@simulate.command()
@_root
@_gpu
@click.option("--minor", "number", type=click.IntRange(0, 253), required=True, help="New minor.")
def minor(root: Path, gpu_text: str, number: int) -> None:
    """Give a GPU another device minor; one that has it gets the old one."""
    with Node(root) as node:
        node.set_minor(_position(node, gpu_text), number)


@simulate.command()
@_root
@_gpu
@click.argument("mode", type=click.Choice(["on", "off"]))
def persistence(root: Path, gpu_text: str, mode: str) -> None:
    """Switch persistence mode."""
    with Node(root) as node:
        node.state.set_persistence(_position(node, gpu_text), on=mode == "on")


@simulate.command("recovery-action")
@_root
@_gpu
@click.argument("action", type=click.Choice(_RECOVERY_ACTIONS))
def recovery_action(root: Path, gpu_text: str, action: str) -> None:
    """Set what NVML says must be done about a GPU."""
    with Node(root) as node:
        node.state.set_recovery_action(_position(node, gpu_text), _RECOVERY_ACTIONS.index(action))


@simulate.command("capability-nodes")
@_root
@click.argument("action", type=click.Choice(["remove", "restore"]))
def capability_nodes(root: Path, action: str) -> None:
    """Remove /dev/nvidia-caps, which nothing may have made yet, or make it for what exists."""
    with Node(root) as node:
        if action == "remove":
            node.remove_capability_nodes()
        else:
            node.restore_capability_nodes()
