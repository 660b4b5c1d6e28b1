"""Shares of partitions that are made on request: made for the first, removed after the last."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import MakeBed, NodeBed

PART, WHOLE = "gpu-0-mig-1g10gb-19-6", "gpu-0"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Dynamic}
  shares: {count: 4}
"""


@pytest.fixture
def bed(make_bed: MakeBed, tmp_path: Path) -> NodeBed:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve("--prepare-retry=10ms", f"--config={path}")
    return bed


@pytest.fixture
def share(bed: NodeBed) -> Callable[..., ClaimRef]:
    def make(name: str, *devices: str) -> ClaimRef:
        results = ({"device": device, "shareID": str(uuid4())} for device in devices)
        return bed.claim(name, *results)

    return make


def partitions(bed: NodeBed) -> list[int]:
    """First memory slices of all GPU instances."""
    return [each["start"] for each in bed.node.gpu(0)["instances"]]


def test_a_partition_is_there_from_the_first_share_to_the_last(
    bed: NodeBed, share: Callable[..., ClaimRef]
) -> None:
    first, second, third = (share(name, PART) for name in ("first", "second", "third"))
    uuids = set()
    for ref in (first, second):
        (device,) = bed.kubelet.prepare(DRIVER, [ref])[ref.uid]
        uuids.add(bed.node.gpu(0)["instances"][0]["computeInstances"][0]["uuid"])
        assert device.name == PART
    bed.kubelet.unprepare(DRIVER, [first])
    assert partitions(bed) == [6]
    bed.kubelet.prepare(DRIVER, [third])
    bed.kubelet.unprepare(DRIVER, [second])
    assert partitions(bed) == [6]
    uuids.add(bed.node.gpu(0)["instances"][0]["computeInstances"][0]["uuid"])
    assert len(uuids) == 1
    bed.kubelet.unprepare(DRIVER, [third])
    assert partitions(bed) == []
    assert not bed.node.gpu(0)["mig"]["current"]


def test_a_prepare_that_fails_leaves_the_partition_to_who_has_it(
    bed: NodeBed, share: Callable[..., ClaimRef]
) -> None:
    first = share("first", PART)
    bed.kubelet.prepare(DRIVER, [first])
    missing = bed.node.root / "dev/nvidia-uvm"
    missing.rename(missing.with_name("hidden"))
    with pytest.raises(CallFailed, match="DriverFilesMissing"):
        bed.kubelet.prepare(DRIVER, [share("second", PART)])
    assert partitions(bed) == [6]
    bed.kubelet.unprepare(DRIVER, [first])
    assert partitions(bed) == []


def test_two_shares_of_one_claim_end_together(bed: NodeBed, share: Callable[..., ClaimRef]) -> None:
    both = share("both", PART, PART)
    bed.kubelet.prepare(DRIVER, [both])
    assert partitions(bed) == [6]
    with pytest.raises(CallFailed, match="still held by claim default/both"):
        bed.kubelet.prepare(DRIVER, [share("whole", WHOLE)])
    bed.kubelet.unprepare(DRIVER, [both])
    assert partitions(bed) == []
