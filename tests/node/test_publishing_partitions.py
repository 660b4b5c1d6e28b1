"""What the real plugin publishes of GPUs in mode Dynamic, and what can be allocated of it."""

from pathlib import Path

import pytest
import yaml

from dra_driver.allocation import (
    Allocation,
    Claim,
    DeviceClass,
    DeviceId,
    InUse,
    Slice,
    allocate,
)
from dra_driver.model import ClaimRef
from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec
from tests.support.api import wait_for
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import NODE, MakeBed, NodeBed

CLASSES = Path(__file__).parents[2] / "deviceclasses"
GATE = {"DRAPartitionableDevices": True}
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- partitioning: {mode: Dynamic}
"""
_OTHERS = tuple(PartitionSpec(profile=name) for name in ("3g.40gb", "1g.10gb"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return path


def classes() -> list[DeviceClass]:
    manifests = (yaml.safe_load_all(path.read_text()) for path in sorted(CLASSES.glob("*.yaml")))
    return [DeviceClass.parse(each) for several in manifests for each in several]


class Scheduler:
    """Gives devices of the published slices to claims, as they stand there."""

    def __init__(self, bed: NodeBed) -> None:
        self._bed = bed
        self._classes = classes()
        self._taken: dict[DeviceId, str] = {}

    def claim(self, name: str, class_name: str) -> ClaimRef | None:
        """Allocate one device of a class to a claim; None when there is none left."""
        request = {"name": "r", "exactly": {"deviceClassName": class_name}}
        spec = {"devices": {"requests": [request]}}
        outcome = allocate(
            NODE,
            [Slice.parse(obj) for obj in self._bed.slices()],
            self._classes,
            [Claim.parse({"metadata": {"name": name}, "spec": spec})],
            InUse(self._taken),
        )
        if not isinstance(outcome, tuple):
            return None
        (allocation,) = outcome
        return self._store(name, allocation)

    def _store(self, name: str, allocation: Allocation) -> ClaimRef:
        (grant,) = allocation.grants
        self._taken[grant.device] = name
        return self._bed.claim(name, grant.device.device)

    def forget_all(self) -> None:
        self._taken.clear()


def layout(bed: NodeBed) -> list[tuple[int, int]]:
    """Counter sets and devices of each slice, in the order of their names."""
    found = sorted(bed.slices(), key=lambda obj: str(obj["metadata"]["name"]))
    return [
        (len(obj["spec"].get("sharedCounters", ())), len(obj["spec"].get("devices", ())))
        for obj in found
    ]


def instances(bed: NodeBed) -> list[list[tuple[str, int]]]:
    """Profile and start of all that the simulated GPUs are cut into."""
    return [
        sorted((each["profile"], each["start"]) for each in gpu["instances"])
        for gpu in bed.node.state.show()["gpus"]
    ]


def test_208_devices_take_at_most_one_write_for_each_slice(make_bed: MakeBed, config: Path) -> None:
    bed = make_bed(gpus=8)
    bed.kubelet.start()
    bed.serve(f"--config={config}")
    wait_for(lambda: len(bed.device_names()) == 208, "all that can be made is published")
    assert layout(bed) == [(8, 0), *[(0, 25)] * 8, (0, 8)]
    assert len(bed.api.requests.writes()) == 10


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.37.2", [(2, 0), (0, 25), (0, 25), (0, 2)]), ("1.34.4", [(1, 26), (1, 26)])],
)
def test_14_claims_on_two_gpus_run_at_once_and_not_one_more(
    make_bed: MakeBed, config: Path, version: str, expected: list[tuple[int, int]]
) -> None:
    bed = make_bed(gpus=2)
    bed.api.become(version, GATE)
    bed.kubelet.start()
    bed.serve(f"--config={config}")
    wait_for(lambda: layout(bed) == expected, "all that can be made is published")
    before = len(bed.api.requests.writes())
    scheduler = Scheduler(bed)
    small = "mig-1g.10gb.gpu.nvidia.com"
    claims = [scheduler.claim(f"small-{number}", small) for number in range(15)]
    assert claims[14] is None
    assert scheduler.claim("whole", "gpu.nvidia.com") is None
    refs = [ref for ref in claims if ref is not None]
    assert len(refs) == 14
    for ref in refs:
        bed.kubelet.prepare(DRIVER, [ref])
    assert instances(bed) == [[("1g.10gb", start) for start in range(7)]] * 2
    for ref in refs:
        bed.kubelet.unprepare(DRIVER, [ref])
    assert instances(bed) == [[], []]
    scheduler.forget_all()
    for number in range(2):
        whole = scheduler.claim(f"whole-{number}", "gpu.nvidia.com")
        assert whole is not None
        bed.kubelet.prepare(DRIVER, [whole])
        bed.kubelet.unprepare(DRIVER, [whole])
    assert len(bed.api.requests.writes()) == before, "claims come and go without a write"


def test_without_counters_gpus_are_whole_and_the_reason_is_shown(
    make_bed: MakeBed, config: Path
) -> None:
    bed = make_bed(gpus=2)
    bed.api.become("1.34.4", {})
    bed.kubelet.start()
    bed.serve(f"--config={config}")
    wait_for(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "whole GPUs only")
    scheduler = Scheduler(bed)
    assert scheduler.claim("small", "mig.nvidia.com") is None
    refs = [scheduler.claim(f"whole-{number}", "gpu.nvidia.com") for number in range(3)]
    assert [ref is not None for ref in refs] == [True, True, False]

    def told() -> list[str]:
        events = bed.api.objects.select("events")
        return [e["message"] for e in events if e["reason"] == "DeviceNotPublished"]

    wait_for(lambda: len(told()) == 2, "one Event for each GPU")
    assert all("DRAPartitionableDevices" in message for message in told())
    assert 'gpu_dra_driver_left_out{reason="no-counters"} 2.0' in bed.get("/metrics")[1]


@pytest.mark.parametrize("at_start", [True, False])
def test_partitions_of_others_are_not_offered_for_a_moment(
    make_bed: MakeBed, tmp_path: Path, *, at_start: bool
) -> None:
    """The first slices of GPUs in mode Dynamic leave them out already: there is one change."""
    bed = make_bed(spec=NodeSpec(gpus=(GpuSpec(model="h100-80gb", partitions=_OTHERS),)))
    bed.kubelet.start()
    used = tmp_path / "used.yaml"
    used.write_text(CONFIG if at_start else CONFIG.partition("rules:")[0])
    process = bed.serve(f"--config={used}")
    if not at_start:
        used.write_text(CONFIG)
    wait_for(
        lambda: "gpu-0-mig-1g10gb-19-1" in bed.device_names(), "what fits beside them is offered"
    )
    wait_for(lambda: process.lines("device=gpu-0", "no claim made"), "it says what is left out")
    assert {"gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-3g40gb-9-4"}.isdisjoint(bed.device_names())
    (generation,) = {each["spec"]["pool"]["generation"] for each in bed.slices()}
    assert generation == (1 if at_start else 2)
