"""Field reports about MIG, for partitions that this driver makes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

PLACE = "gpu-0-mig-1g10gb-19-{}"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- partitioning: {mode: Dynamic}
"""


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return f"--config={path}", "--prepare-retry=10ms"


@pytest.fixture
def bed(make_bed: MakeBed) -> NodeBed:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    return bed


def nodes(bed: NodeBed) -> set[str]:
    """Device nodes in the CDI file of the only claim, but for those that all have."""
    (path,) = bed.cdi_folder.glob("*claim_*")
    (device,) = json.loads(path.read_text())["devices"]
    return {node["path"] for node in device["containerEdits"]["deviceNodes"]}


def instances(bed: NodeBed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bed.node.gpu(0)["instances"]
    return found


def expected_nodes(bed: NodeBed) -> set[str]:
    (made,) = instances(bed)
    (compute,) = made["computeInstances"]
    minors = (made["capabilityMinor"], compute["capabilityMinor"])
    return {"/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)}


def test_b11_a_partition_that_is_made_has_its_three_nodes_each_time(
    bed: NodeBed, flags: tuple[str, ...]
) -> None:
    bed.serve(*flags)
    for start in (6, 2):
        bed.node.state.set_mig_mode(0, on=True)
        other = bed.node.state.partition(0, "1g.10gb", 4)  # moves the ids along
        ref = bed.claim(f"at-{start}", PLACE.format(start))
        bed.kubelet.prepare(DRIVER, [ref])
        bed.node.state.unpartition(0, other)
        assert nodes(bed) == expected_nodes(bed)
        bed.kubelet.unprepare(DRIVER, [ref])
    assert instances(bed) == []
    assert bed.claim_files() == set()


def test_b11_without_capability_nodes_the_claim_fails_and_nothing_is_left(
    bed: NodeBed, flags: tuple[str, ...]
) -> None:
    bed.serve(*flags)
    proc = bed.node.root / "proc/driver/nvidia/capabilities"
    away = proc.with_name("capabilities.away")
    proc.rename(away)
    ref = bed.claim("one", PLACE.format(0))
    with pytest.raises(CallFailed, match="capabilities"):
        bed.kubelet.prepare(DRIVER, [ref])
    assert instances(bed) == []
    assert bed.claim_files() == set()
    if proc.exists():
        shutil.rmtree(proc)
    away.rename(proc)
    bed.kubelet.prepare(DRIVER, [ref])
    assert nodes(bed) == expected_nodes(bed)


def test_b37_a_start_touches_no_partition_that_is_there(
    bed: NodeBed, flags: tuple[str, ...]
) -> None:
    bed.node.state.set_mig_mode(0, on=True)
    bed.node.state.partition(0, "3g.40gb", 0)
    bed.serve(*flags)
    eventually(lambda: "gpu-0" not in bed.device_names(), "the whole GPU is not offered")
    before = instances(bed)
    ref = bed.claim("one", PLACE.format(6))
    answer = bed.kubelet.prepare(DRIVER, [ref])
    both = instances(bed)
    assert [each for each in both if each["start"] == 0] == before
    bed.processes[-1].kill()
    bed.serve(*flags)
    assert bed.kubelet.prepare(DRIVER, [ref]) == answer
    assert instances(bed) == both
    bed.kubelet.unprepare(DRIVER, [ref])
    assert instances(bed) == before


def test_b37_mig_mode_without_instances_is_a_gpu_of_which_all_can_be_made(
    bed: NodeBed, flags: tuple[str, ...]
) -> None:
    bed.node.state.set_mig_mode(0, on=True)
    bed.serve(*flags)
    assert {"gpu-0", PLACE.format(6)} <= bed.device_names()
    ref = bed.claim("whole", "gpu-0")
    bed.kubelet.prepare(DRIVER, [ref])
    assert not bed.node.gpu(0)["mig"]["current"]
