"""Partitions that are made for claims, by the real plugin on a simulated node."""

from pathlib import Path

import pytest

from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

FIRST, LAST, BIG, WHOLE = (
    "gpu-0-mig-1g10gb-19-0",
    "gpu-0-mig-1g10gb-19-6",
    "gpu-0-mig-3g40gb-9-4",
    "gpu-0",
)
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- partitioning: {mode: %s}
"""


def partitions(bed: NodeBed, gpu: int = 0) -> list[tuple[str, int]]:
    """Profile and start of all GPU instances that the simulator has."""
    found = bed.node.gpu(gpu)["instances"]
    return sorted((each["profile"], each["start"]) for each in found)


def is_whole(bed: NodeBed, gpu: int = 0) -> bool:
    return partitions(bed, gpu) == [] and not bed.node.gpu(gpu)["mig"]["current"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG % "Dynamic")
    return path


@pytest.fixture
def bed(make_bed: MakeBed, config: Path) -> NodeBed:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(f"--config={config}")
    return bed


def test_a_claim_gets_its_partition_and_leaves_the_gpu_whole(bed: NodeBed) -> None:
    assert {FIRST, LAST, BIG, WHOLE, "gpu-1"} <= bed.device_names()
    writes = len(bed.api.requests.writes())
    ref = bed.claim("one", LAST)
    (device,) = bed.kubelet.prepare(DRIVER, [ref])[ref.uid]
    assert partitions(bed) == [("1g.10gb", 6)]
    assert bed.kubelet.prepare(DRIVER, [ref])[ref.uid] == (device,)
    bed.kubelet.unprepare(DRIVER, [ref])
    assert is_whole(bed)
    whole = bed.claim("whole", WHOLE)
    bed.kubelet.prepare(DRIVER, [whole])
    bed.kubelet.unprepare(DRIVER, [whole])
    assert len(bed.api.requests.writes()) == writes


def test_what_overlaps_a_claims_partition_is_refused(make_bed: MakeBed, config: Path) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve(f"--config={config}", "--prepare-retry=10ms")
    ref = bed.claim("one", LAST)
    bed.kubelet.prepare(DRIVER, [ref])
    for device in (BIG, WHOLE, LAST):
        with pytest.raises(CallFailed, match="still held by claim default/one"):
            bed.kubelet.prepare(DRIVER, [bed.claim(f"other-{device}", device)])
    assert partitions(bed) == [("1g.10gb", 6)]


def test_a_partition_of_others_withdraws_what_it_overlaps_until_it_goes(bed: NodeBed) -> None:
    offered = bed.device_names()
    bed.node.state.set_mig_mode(0, on=True)
    gi_id = bed.node.state.partition(0, "3g.40gb", 4)
    gone = {WHOLE, LAST, BIG, "gpu-0-mig-7g80gb-0-0"}
    eventually(lambda: not gone & bed.device_names(), "what overlaps is withdrawn")
    assert {FIRST, "gpu-0-mig-4g40gb-5-0", "gpu-1"} <= bed.device_names()
    ref = bed.claim("beside", FIRST)
    bed.kubelet.prepare(DRIVER, [ref])
    assert partitions(bed) == [("1g.10gb", 0), ("3g.40gb", 4)]
    bed.kubelet.unprepare(DRIVER, [ref])
    assert partitions(bed) == [("3g.40gb", 4)]
    bed.node.state.unpartition(0, gi_id)
    eventually(lambda: bed.device_names() == offered, "all is offered again")


def test_b15_a_reboot_takes_the_partition_and_the_claim_gets_it_again(
    bed: NodeBed, config: Path
) -> None:
    ref = bed.claim("one", LAST)
    bed.kubelet.prepare(DRIVER, [ref])
    bed.processes[-1].kill()
    bed.node.state.reboot()
    assert is_whole(bed)
    bed.serve(f"--config={config}")
    eventually(lambda: partitions(bed) == [("1g.10gb", 6)], "the partition is made again")
    bed.kubelet.prepare(DRIVER, [ref])
    bed.kubelet.unprepare(DRIVER, [ref])
    assert is_whole(bed)


def test_a_claim_outlives_the_end_of_dynamic_mode(bed: NodeBed, config: Path) -> None:
    ref = bed.claim("one", LAST)
    answer = bed.kubelet.prepare(DRIVER, [ref])
    config.write_text(CONFIG % "Existing")
    eventually(lambda: bed.device_names() == {LAST, "gpu-1"}, "what is there is published")
    assert bed.kubelet.prepare(DRIVER, [ref]) == answer
    bed.kubelet.unprepare(DRIVER, [ref])
    eventually(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "the GPU is whole")
    config.write_text(CONFIG % "Dynamic")
    eventually(lambda: BIG in bed.device_names(), "partitions are offered again")
