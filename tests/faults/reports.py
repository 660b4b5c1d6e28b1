"""What the tests of field reports have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.model import ClaimRef
from dra_driver.simulator.node_file import NodeSpec
from tests.faults.scene import reason_of
from tests.support.cdi_rules import read_document
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import NodeBed

QUICK = ("--prepare-retry=500ms", "--poll-interval=200ms")
PART = "gpu-1-mig-1g10gb-19-0"
MADE = "gpu-0-mig-2g20gb-14-2"  # made for the claim
_DYNAMIC = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {index: [0]}
  partitioning: {mode: Dynamic}
"""
WITH_PARTITION = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            # Ampere: it keeps its MIG mode over a reboot, never its partitions.
            {"model": "a100-80gb", "partitions": [{"profile": "1g.10gb", "start": 0}]},
        ]
    }
)


def started(bed: NodeBed) -> NodeBed:
    """Start kubelet and plugin."""
    bed.kubelet.start()
    bed.serve(*QUICK)
    return bed


def dynamic(bed: NodeBed) -> tuple[str, ...]:
    """Options with which partitions of the first GPU are made for claims."""
    config = bed.folder / "node.yaml"
    config.write_text(_DYNAMIC)
    return (*QUICK, f"--config={config}")


def partitions(bed: NodeBed) -> list[str]:
    """Profiles of the partitions that stand on the first GPU."""
    return [instance["profile"] for instance in bed.node.gpu(0)["instances"]]


@contextmanager
def while_dead(bed: NodeBed) -> Iterator[None]:
    """Kill the plugin, let things happen, start it again."""
    bed.processes[-1].kill()
    yield
    bed.serve(*QUICK)


def prepare(bed: NodeBed, ref: ClaimRef) -> list[str]:
    """Prepare as the kubelet does; gives the names of the devices."""
    return [device.name for device in bed.kubelet.prepare(DRIVER, [ref])[ref.uid]]


def unprepare(bed: NodeBed, ref: ClaimRef) -> None:
    """Unprepare as the kubelet does."""
    bed.kubelet.unprepare(DRIVER, [ref])


def refused(bed: NodeBed, ref: ClaimRef) -> str:
    """Reason for which a Prepare is refused; empty when it is not."""
    return reason_of(lambda: prepare(bed, ref))


def line_of(bed: NodeBed, ref: ClaimRef) -> str:
    """Line of the log that says why the last Prepare of a claim failed."""
    return bed.processes[-1].lines("call failed", "operation=prepare", f"/{ref.name} ")[-1]


def cdi_file(bed: NodeBed, ref: ClaimRef) -> Path:
    """CDI file of a claim."""
    return bed.cdi_folder / f"k8s.{DRIVER}-claim_{ref.uid}.json"


def record_file(bed: NodeBed, ref: ClaimRef) -> Path:
    """Record of a claim."""
    return bed.data_folder / "claims" / f"{ref.uid}.json"


def nodes_of(bed: NodeBed, ref: ClaimRef) -> set[str]:
    """Device nodes that a container of the claim gets beside those that all GPUs share."""
    found = read_document(cdi_file(bed, ref))["devices"]
    return {node["path"] for each in found for node in each["containerEdits"]["deviceNodes"]}
