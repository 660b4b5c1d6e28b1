"""Claims that share what is made or set for them, and begin and end at the same time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

SHARED, OWN = "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-3g40gb-9-0"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- match: {index: [0]}
  partitioning: {mode: Dynamic}
- shares: {count: 3}
"""
SLICING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


def share(bed: NodeBed, name: str, *devices: str, config: Any = ()) -> ClaimRef:
    results = [{"device": device, "shareID": str(uuid4())} for device in devices]
    return bed.claim(name, *results, config=config)


def standing(bed: NodeBed) -> list[str]:
    return sorted(each["profile"] for each in bed.node.gpu(0)["instances"])


def prepare(bed: NodeBed, *refs: ClaimRef) -> None:
    for ref in refs:
        bed.kubelet.prepare(DRIVER, [ref])


def unprepare(bed: NodeBed, *refs: ClaimRef) -> None:
    for ref in refs:
        bed.kubelet.unprepare(DRIVER, [ref])


@pytest.fixture
def flag(tmp_path: Path) -> str:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return f"--config={path}"


@pytest.fixture
def bed(make_bed: MakeBed, flag: str) -> NodeBed:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(flag, "--prepare-retry=10ms")
    return bed


def test_claims_that_begin_and_end_at_once_leave_no_partition(bed: NodeBed) -> None:
    refs = [share(bed, f"claim-{number}", SHARED) for number in range(3)]
    with ThreadPoolExecutor(len(refs)) as pods:
        for _ in range(5):
            list(pods.map(lambda ref: prepare(bed, ref), refs))
            assert standing(bed) == ["1g.10gb"]
            list(pods.map(lambda ref: unprepare(bed, ref), refs))
            assert standing(bed) == []


def test_b15_a_reboot_takes_it_and_all_its_claims_get_it_again(bed: NodeBed, flag: str) -> None:
    first, second = share(bed, "first", SHARED), share(bed, "second", SHARED)
    prepare(bed, first, second)
    bed.processes[-1].kill()
    bed.node.reboot()
    bed.serve(flag)
    eventually(lambda: standing(bed) == ["1g.10gb"], "it is made again")
    prepare(bed, first, second)
    unprepare(bed, first)
    assert standing(bed) == ["1g.10gb"]
    unprepare(bed, second)
    assert standing(bed) == []


def test_of_two_that_end_at_once_neither_leaves_a_setting_to_the_other(bed: NodeBed) -> None:
    slow = share(bed, "slow", "gpu-1", OWN, config=[SLICING])
    quick = share(bed, "quick", "gpu-1", config=[SLICING])
    prepare(bed, slow, quick)
    bed.node.state.fault(0, "nvmlComputeInstanceDestroy", 0, times=1, hang=1.0)
    with ThreadPoolExecutor(1) as pod:
        ending = pod.submit(unprepare, bed, slow)
        eventually(lambda: not bed.node.show()["faults"], "its partition is being removed")
        unprepare(bed, quick)
        ending.result(60)
    assert bed.node.gpu(1)["timeslice"] == 0
    assert standing(bed) == []
