"""`dra-driver bench` and `dra-driver bench compare`."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from dra_driver.cli import EXIT_FINDING
from dra_driver.cli.bench.figures import Result, read_result
from dra_driver.cli.bench.offer import GPU, MIG
from dra_driver.cli.bench.run import Plan, run_embedded, run_on
from dra_driver.cli.bench.sharing import Sharing, Wish
from dra_driver.cli.bench.target import socket_target
from dra_driver.cli.bench.text import comparison_text, result_text
from dra_driver.cli.interrupt import Check, Interrupted, signals
from dra_driver.config import DEFAULT_DRIVER_NAME
from dra_driver.model.errors import SettingInvalid, StorageFailed
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import MAX_GPUS

_QUICK: Final = Plan(usual=(0, 20), rounds=16, waves=1, starts=1, idle_seconds=2.0, warm_up=2)
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_OUTPUT: Final = click.Choice(["table", "json"])


@click.group(invoke_without_command=True)
@click.option("--embedded", is_flag=True, help="This driver on a simulated node, with stand-ins.")
@click.option("--socket", type=click.Path(path_type=Path), help="A driver's service socket.")
@click.option("--kubeconfig", type=_FILE, envvar="KUBECONFIG", help="API server of that driver.")
@click.option("--node", help="Node of that driver.")
@click.option("--driver", default=DEFAULT_DRIVER_NAME, show_default=True, help="Its name.")
@click.option(
    "--namespace", default="dra-bench", show_default=True, help="For the claims; made if missing."
)
@click.option(
    "--gpus", type=click.IntRange(1, MAX_GPUS), default=8, show_default=True, help="Embedded only."
)
@click.option(
    "--devices",
    type=click.Choice([GPU, MIG]),
    default=GPU,
    show_default=True,
    help="Measure claims with a whole GPU, or with a partition each.",
)
@click.option(
    "--sharing",
    type=click.Choice([each.value for each in Sharing]),
    default=Sharing.NONE.value,
    show_default=True,
    help="What claims with whole GPUs ask for: a time-slice, a share by count or by memory, MPS.",
)
@click.option(
    "--live",
    default="",
    help="Numbers of live claims, growing.  [default: 0,100,400; with partitions 0 and all]",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=100, show_default=True, help="Per figure."
)
@click.option("--quick", is_flag=True, help="Only see that it works: a few rounds.")
@click.option(
    "--records-disk",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=tempfile.gettempdir(),
    help="Folder on the disk with the driver's records, for the floor.  [default: temporary]",
)
@click.option("-o", "--output", type=_OUTPUT, default="table", show_default=True)
@click.option("--save", type=_FILE, help="Write the JSON into this file too.")
@click.pass_context
def bench(
    context: click.Context,
    *,
    embedded: bool,
    socket: Path | None,
    kubeconfig: Path | None,
    node: str | None,
    driver: str,
    namespace: str,
    gpus: int,
    devices: str,
    sharing: str,
    live: str,
    rounds: int,
    quick: bool,
    records_disk: Path,
    output: str,
    save: Path | None,
) -> None:
    """Measure what a DRA driver costs: Prepare, the same again, Unprepare.

    Claims are created with written allocations and sent to the driver as the kubelet sends them,
    one at a time and 16 at once, with more and more live claims on the node. The floor, one read
    from the API server and two durable writes, is measured between.

    With --devices mig the partitions of one GPU are measured, which has no others, while the live
    claims hold partitions of the other GPUs; the simulated node has one GPU more for that.

    With --sharing shares, memory or mps claims have shares of the GPUs, live claims too. With mps
    the start of a control daemon is measured by itself as well: a Prepare without live claims
    starts one, with live claims it joins one.

    Either --embedded, which needs nothing, or --socket with --kubeconfig and --node: on a real
    node, whose GPUs nobody else uses meanwhile.
    """
    if context.invoked_subcommand is not None:
        return
    plan = replace(_QUICK if quick else Plan(rounds=rounds), live=_numbers(live))
    wish = _wish(devices, Sharing(sharing), embedded=embedded)

    def run(check: Check) -> Result:
        if embedded:
            if socket is not None:
                raise click.UsageError("--embedded and --socket exclude each other")
            return run_embedded(plan, gpus, wish, namespace, check, _say)
        if socket is None or kubeconfig is None or node is None:
            raise click.UsageError("give --embedded, or --socket with --kubeconfig and --node")
        with socket_target(socket, kubeconfig, namespace, driver, node, wish, check) as target:
            return run_on(plan, target, records_disk, _say)

    result = _run(run)
    if save is not None:
        _write(save, result.to_json())
    click.echo(result.to_json() if output == "json" else result_text(result), nl=output == "table")


@bench.command()
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
def compare(before: Path, after: Path) -> None:
    """Show the ratios between two results that were saved as JSON.

    A ratio is AFTER through BEFORE; over the floors means that each is first divided by the floor
    of its own run, so that a slower machine does not count.
    """
    click.echo(comparison_text(read_result(before), read_result(after)))


def _run(measure: Callable[[Check], Result]) -> Result:
    try:
        with signals() as check:
            return measure(check)
    except Interrupted as interrupted:
        click.echo("interrupted: the claims are taken back, all processes have ended", err=True)
        sys.exit(interrupted.status)
    except CallFailed as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_FINDING)


def _wish(devices: str, sharing: Sharing, *, embedded: bool) -> Wish:
    if sharing is not Sharing.NONE and devices != GPU:
        raise click.UsageError("--sharing is for whole GPUs: leave out --devices")
    if sharing is Sharing.MEMORY and not embedded:
        raise click.UsageError("--sharing memory goes with --embedded: it needs cgroups of Pods")
    return Wish(devices, sharing)


def _numbers(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise SettingInvalid(f"--live {text!r}: give numbers such as 0,100,400")
    numbers = tuple(map(int, parts))
    if list(numbers) != sorted(set(numbers)):
        raise SettingInvalid(f"--live {text!r}: each number must be larger than the one before")
    return numbers


def _say(words: str) -> None:
    """Tell a person who waits how far it is; a file or a pipe hears nothing of it."""
    if sys.stderr.isatty():
        click.echo(f"measuring: {words}", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror}") from error
