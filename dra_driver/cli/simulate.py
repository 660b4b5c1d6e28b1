"""`dra-driver simulate`: make a simulated GPU node and change it as hardware and people would."""

import json
from pathlib import Path

import click

from dra_driver.cli.simulate_gpu import COMMANDS
from dra_driver.cli.simulate_mps import mps
from dra_driver.cli.simulate_options import root_argument
from dra_driver.cli.simulate_text import calls_text, node_text
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.models import MODELS
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import (
    DEFAULT_DRIVER_VERSION,
    MAX_GPUS,
    NodeSpec,
    alike,
    read_node_file,
)


@click.group()
def simulate() -> None:
    """Make a simulated GPU node and change it as hardware and people would.

    ROOT is the folder of the node: a GPU driver root with devices, libraries and programs, and the
    host's /proc and /sys. GPUs are numbered from 0 in PCI order.
    """


for _command in (*COMMANDS, mps):
    simulate.add_command(_command)


@simulate.command()
@root_argument
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
@root_argument
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def show(root: Path, output: str) -> None:
    """Show GPUs, partitions, processes and faults."""
    with Node(root) as node:
        shown = node.show()
    click.echo(json.dumps(shown, indent=2) if output == "json" else node_text(shown))


@simulate.command()
@root_argument
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def calls(root: Path, output: str) -> None:
    """Show the latest calls of NVML and nvidia-smi that change something."""
    with Node(root) as node:
        made = node.state.calls()
    click.echo(json.dumps(made, indent=2) if output == "json" else calls_text(made))


@simulate.command()
@root_argument
def clear(root: Path) -> None:
    """Forget all faults."""
    with Node(root) as node:
        node.state.clear()


@simulate.command()
@root_argument
@click.option("--model", required=True, help=f"One of {', '.join(MODELS)}.")
@click.option("--seed", help="Text from which UUID and serial number follow; default: random.")
def add(root: Path, model: str, seed: str | None) -> None:
    """Plug another GPU in. Prints its number; those of others may change."""
    with Node(root) as node:
        click.echo(node.add_gpu(model, seed))


@simulate.command("driver-version")
@root_argument
@click.argument("version")
def driver_version(root: Path, version: str) -> None:
    """Upgrade the GPU driver: files change name, and the driver is reloaded."""
    with Node(root) as node:
        node.set_driver_version(version)


@simulate.command("driver-reload")
@root_argument
def driver_reload(root: Path) -> None:
    """Unload and load the GPU driver."""
    with Node(root) as node:
        node.state.driver_reload()


@simulate.command()
@root_argument
def reboot(root: Path) -> None:
    """Reboot the node: a new boot id, and all goes that does not survive a reboot."""
    with Node(root) as node:
        node.reboot()


@simulate.command("capability-nodes")
@root_argument
@click.argument("action", type=click.Choice(["remove", "restore"]))
def capability_nodes(root: Path, action: str) -> None:
    """Remove /dev/nvidia-caps, which nothing may have made yet, or make it for what exists."""
    with Node(root) as node:
        if action == "remove":
            node.remove_capability_nodes()
        else:
            node.restore_capability_nodes()
