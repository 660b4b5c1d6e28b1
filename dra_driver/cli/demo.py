"""`dra-driver demo`: the main job on a simulated node, in half a minute and without a cluster."""

import sys
import time
from typing import Final, NoReturn

import click

from dra_driver.cli import EXIT_FINDING, exit_code
from dra_driver.cli.bed import Bed, PluginFailed
from dra_driver.cli.demo_claims import Scheduler, Served, devices_of
from dra_driver.cli.demo_view import View, make_console
from dra_driver.cli.interrupt import Interrupted, signals
from dra_driver.cli.shipped import example
from dra_driver.model.errors import DriverError
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec

# Examples with one Pod each. The last asks for a model that the node lacks, and stays pending.
_EXAMPLES: Final = ("03-by-memory", "06-mig-profile", "02-unchanged-pod")
_PENDING: Final = "04-by-model"
_SMALL: Final = ("1g.10gb",) * 7
_MIXED: Final = ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
_NODE: Final = NodeSpec(
    gpus=(
        GpuSpec(model="h100-80gb", count=6),
        *(
            GpuSpec(
                model="h100-80gb",
                partitions=tuple(PartitionSpec(profile=profile) for profile in layout),
            )
            for layout in (_SMALL, _MIXED)
        ),
    )
)


@click.command()
def demo() -> None:
    """Run the main job on a simulated node.

    Eight H100, two of them partitioned; API server and kubelet are stand-ins, the plugin is the
    real program. Shows what is published, what Pods of the examples get, and what is left when
    they have gone: nothing. Needs no GPU, no cluster and no rights.
    """
    view, begin = View(make_console()), time.monotonic()
    try:
        with signals() as check, Bed(check, "demo", _NODE) as bed:
            try:
                _tell(view, bed)
            except (DriverError, CallFailed, OSError) as error:
                _fail(bed, error)
    except Interrupted as interrupted:
        click.echo("interrupted: all processes have ended, all files are removed", err=True)
        sys.exit(interrupted.status)
    except OSError as error:
        click.echo(f"Error: the demo could not tidy up: {error}", err=True)
        sys.exit(EXIT_FINDING)
    view.end(f"Done in {time.monotonic() - begin:.1f} s; nothing is left behind.")


def _tell(view: View, bed: Bed) -> None:
    view.title(
        "dra-driver demo",
        "One simulated node; the plugin is the real one, API server and kubelet are stand-ins.",
    )
    with view.step("making the node") as say:
        bed.make_node()
        say("node with 8 x NVIDIA H100, two of them partitioned")
    with view.step("starting API server and kubelet") as say:
        bed.start_cluster()
        scheduler = Scheduler(bed)
        say(f"API server at {bed.api.url}, kubelet watches for plugins")
    with view.step("starting the plugin") as say:
        process = bed.start_plugin()
        bed.wait_registered()
        slices = bed.wait_published()
        devices = sum(len(piece["spec"].get("devices", ())) for piece in slices)
        say(f"plugin runs as process {process}, is registered, publishes {devices} devices")
    view.node(slices, {})
    served = _serve(view, scheduler)
    view.node(bed.slices(), {d.device: at for d, at in devices_of(served).items()})
    partition = served[1]
    (path,) = bed.cdi_folder.glob(f"*{partition.ref.uid}*")
    view.cdi_file(path.name, path.read_text(encoding="utf-8"))
    with view.step("unpreparing the claims") as say:
        seconds = scheduler.retire(served)
        left = bed.claim_files()
        if left != (0, 0):
            raise PluginFailed(
                f"after Unprepare {left[0]} CDI files and {left[1]} records are left"
            )
        say(f"Unprepare took {seconds * 1000:.1f} ms for {len(served)} claims, no file is left")
    with view.step("stopping the plugin") as say:
        bed.stop_plugin()
        say("plugin has ended well, its sockets are gone")


def _serve(view: View, scheduler: Scheduler) -> list[Served]:
    """Serve the Pods of the examples, and one that must wait."""
    with view.step("serving Pods") as say:
        served = [scheduler.serve(example(name)) for name in _EXAMPLES]
        waiting = scheduler.serve(example(_PENDING).replace("H100", "B200"))
        say(f"{len(served)} Pods have their devices, one waits for a B200")
    for position, (name, each) in enumerate(zip(_EXAMPLES, served, strict=True)):
        view.pod(position, _summary(name), each)
    view.pod(len(served), "A GPU by its model, B200.", waiting)
    return served


def _summary(name: str) -> str:
    return example(name).splitlines()[0].removeprefix("# ")


def _fail(bed: Bed, error: Exception) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    words = bed.last_words()
    if words:
        click.echo(f"The plugin's last words:\n{words}", err=True)
    sys.exit(exit_code(error) if isinstance(error, DriverError) else EXIT_FINDING)
