"""What the real plugin publishes of GPUs that are shared, and what unchanged Pods get of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.allocation import (
    Allocation,
    Claim,
    DeviceClass,
    Refusal,
    Slice,
    allocate,
    claim_for_pod,
    devices_in_use,
)
from dra_driver.cli.shipped import device_classes
from tests.support.api import wait_for
from tests.support.plugin_process import NODE, MakeBed, NodeBed

HEAD = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
"""
RENAMED = "- shares: {count: 4, rename: true}\n"
BY_MEMORY = "- shares: {by: memory, reserve: 1Gi}\n"
CLASSES = {c.name: c for c in map(DeviceClass.parse, device_classes())}


@pytest.fixture
def configure(tmp_path: Path) -> Callable[[str], Path]:
    def write(rules: str) -> Path:
        path = tmp_path / "node.yaml"
        path.write_text(HEAD + rules)
        return path

    return write


class Cluster:
    """Allocates claims of what the plugin has published, all of them for ever."""

    def __init__(self, bed: NodeBed) -> None:
        self._bed = bed
        self._allocated: list[dict[str, Any]] = []

    def pod(self, resource: str) -> str:
        """Device of an unchanged Pod; empty: it waits."""
        container = {"name": "c", "resources": {"limits": {resource: 1}}}
        manifest = {"metadata": {"name": "pod"}, "spec": {"containers": [container]}}
        wanted = claim_for_pod(manifest, CLASSES.values())
        assert wanted is not None, f"no class for {resource}"
        return self._device(wanted)

    def claim(self, **capacity: str) -> str:
        """Device of a claim that wants so much; empty: it waits."""
        body = {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": capacity}}
        spec = {"devices": {"requests": [{"name": "r", "exactly": body}]}}
        return self._device(Claim.parse({"metadata": {"name": "c"}, "spec": spec}))

    def _device(self, wanted: Claim) -> str:
        slices = [Slice.parse(obj) for obj in self._bed.slices()]
        in_use = devices_in_use(self._allocated)
        outcome = allocate(NODE, slices, CLASSES.values(), [wanted], in_use)
        return "" if isinstance(outcome, Refusal) else self._stored(*outcome)

    def _stored(self, found: Allocation) -> str:
        status = {"allocation": found.to_json(CLASSES)}
        self._allocated.append({"metadata": {"name": "c"}, "status": status})
        return found.grants[0].device.device


def shared(bed: NodeBed) -> dict[str, str]:
    """Resource names of the devices that several claims may have."""
    return {
        device["name"]: device["attributes"]["resourceName"]["string"]
        for obj in bed.slices()
        for device in obj["spec"].get("devices", ())
        if device.get("allowMultipleAllocations")
    }


def told(bed: NodeBed) -> list[str]:
    events = bed.api.objects.select("events")
    return [event["message"] for event in events if event["reason"] == "DeviceNotShared"]


def test_four_unchanged_pods_on_each_gpu_and_none_that_wants_one_alone(
    make_bed: MakeBed, configure: Callable[[str], Path]
) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(f"--config={configure(RENAMED)}")
    names = {"gpu-0": "gpu.shared", "gpu-1": "gpu.shared"}
    wait_for(lambda: shared(bed) == names, "both are shared")
    cluster = Cluster(bed)
    found = [cluster.pod("nvidia.com/gpu.shared") for _ in range(9)]
    assert found == ["gpu-0"] * 4 + ["gpu-1"] * 4 + [""]
    assert cluster.pod("nvidia.com/gpu") == ""


def test_memory_is_shared_out_after_the_configuration_has_changed(
    make_bed: MakeBed, configure: Callable[[str], Path]
) -> None:
    bed = make_bed(gpus=1, model="h100-80gb")
    bed.kubelet.start()
    bed.serve(f"--config={configure('- {}')}")
    wait_for(lambda: bed.device_names() == {"gpu-0"}, "published")
    assert shared(bed) == {}
    configure(BY_MEMORY)
    wait_for(lambda: shared(bed) == {"gpu-0": "gpu"}, "shared without a restart")
    cluster = Cluster(bed)
    assert [cluster.claim(memory="10Gi") for _ in range(8)] == ["gpu-0"] * 7 + [""]
    assert cluster.claim(memory="8855Mi") == "gpu-0"
    assert cluster.pod("nvidia.com/gpu") == ""
    configure(BY_MEMORY + "- requireMemoryLimit: cgroup\n")
    wait_for(lambda: shared(bed) == {}, "not shared where no limit holds")
    wait_for(lambda: len(told(bed)) == 1, "and why is told")
    assert "requireMemoryLimit is cgroup" in told(bed)[0]


def test_without_the_gate_gpus_are_not_shared_until_it_is_on(
    make_bed: MakeBed, configure: Callable[[str], Path]
) -> None:
    bed = make_bed(gpus=2)
    bed.api.become("1.34.4", {})
    bed.kubelet.start()
    bed.serve(f"--config={configure(RENAMED)}")
    wait_for(lambda: len(told(bed)) == 2, "one Event for each GPU")
    assert all("DRAConsumableCapacity" in message for message in told(bed))
    assert shared(bed) == {}
    assert 'gpu_dra_driver_left_out{reason="not-shared"} 2.0' in bed.get("/metrics")[1]
    cluster = Cluster(bed)
    assert [cluster.pod("nvidia.com/gpu") for _ in range(3)] == ["gpu-0", "gpu-1", ""]
    bed.api.become("1.34.4", {"DRAConsumableCapacity": True})
    wait_for(lambda: len(shared(bed)) == 2, "shared when the gate is on")


@pytest.mark.parametrize(("version", "count"), [("1.37.2", 26), ("1.34.4", 0)])
def test_partitions_on_request_are_shared_where_both_are_counted(
    make_bed: MakeBed, configure: Callable[[str], Path], version: str, count: int
) -> None:
    bed = make_bed(gpus=1)
    bed.api.become(version, {"DRAConsumableCapacity": True, "DRAPartitionableDevices": True})
    bed.kubelet.start()
    bed.serve(f"--config={configure(RENAMED + '  partitioning: {mode: Dynamic}')}")
    wait_for(lambda: len(bed.device_names()) == 26, "all that can be made is published")
    assert len(shared(bed)) == count
    cluster = Cluster(bed)
    name = "nvidia.com/mig-1g.10gb" + (".shared" if count else "")
    found = [cluster.pod(name) for _ in range(29 if count else 8)]
    assert [bool(device) for device in found] == [True] * (len(found) - 1) + [False]
    assert len(set(found) - {""}) == 7
    wait_for(lambda: len(told(bed)) == (0 if count else 2), "told of partitions and of the GPU")
