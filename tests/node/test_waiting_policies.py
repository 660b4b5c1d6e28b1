"""What is published of a GPU stays while its shares are held, whatever its configuration says."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from tests.support.api import wait_for
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import MakeBed, NodeBed

PROGRAM = Path(sys.executable).with_name("dra-driver")
HEAD = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
"""
FOUR = "- shares: {count: 4, rename: true}\n"


class Bed:
    """A node whose configuration changes."""

    def __init__(self, bed: NodeBed, path: Path) -> None:
        self.bed = bed
        self.path = path
        bed.kubelet.start()

    def configure(self, rules: str) -> None:
        self.path.write_text(HEAD + rules)

    def serve(self) -> None:
        self.bed.serve("--prepare-retry=10ms", f"--config={self.path}")

    def share(self, name: str, **capacity: str) -> ClaimRef:
        result = {"device": "gpu-0", "shareID": str(uuid4()), "consumedCapacity": capacity}
        ref = self.bed.claim(name, result)
        self.bed.kubelet.prepare(DRIVER, [ref])
        return ref

    def end(self, ref: ClaimRef) -> None:
        self.bed.kubelet.unprepare(DRIVER, [ref])

    def published(self) -> tuple[dict[str, Any], ...]:
        """Devices of each GPU, by name; none while the slices are being written anew."""
        pools = [obj["spec"]["pool"] for obj in self.bed.slices()]
        if len({pool["generation"] for pool in pools}) != 1:
            return {}, {}
        if len(pools) != pools[0]["resourceSliceCount"]:
            return {}, {}
        return self._devices(0), self._devices(1)

    def _devices(self, number: int) -> dict[str, Any]:
        found = {
            device["name"]: device
            for obj in self.bed.slices()
            for device in obj["spec"].get("devices", ())
            if f"{device['name']}-".startswith(f"gpu-{number}-")
        }
        for device in found.values():  # stands on all devices as soon as one is shared by memory
            device["attributes"].pop("memoryLimit", None)
        return found

    def is_alike(self) -> bool:
        """Whether both GPUs are published, in the same way."""
        one, other = (
            {
                name.removeprefix(f"gpu-{number}"): (
                    device["capacity"],
                    device.get("allowMultipleAllocations"),
                    device["attributes"]["resourceName"],
                    "consumesCounters" in device,
                )
                for name, device in found.items()
            }
            for number, found in enumerate(self.published())
        )
        return bool(one) and one == other

    def told(self, reason: str) -> list[str]:
        events = self.bed.api.objects.select("events")
        return [event["message"] for event in events if event["reason"] == reason]

    def shown(self) -> str:
        """What `dra-driver devices` says of this node."""
        arguments = [
            str(PROGRAM),
            "devices",
            f"--config={self.path}",
            f"--nvidia-driver-root={self.bed.node.root}",
            f"--container-driver-root={self.bed.node.root}",
            f"--host-root={self.bed.node.root}",
            f"--cdi-root={self.bed.cdi_folder}",
            f"--kubelet-plugins-directory-path={self.bed.folder / 'plugins'}",
        ]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout


@pytest.fixture
def node(make_bed: MakeBed, tmp_path: Path) -> Bed:
    made = Bed(make_bed(gpus=2), tmp_path / "node.yaml")
    made.configure(FOUR)
    made.serve()
    wait_for(made.is_alike, "published")
    return made


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ("- shares: {by: memory}\n", "shares"),
        ("- {}\n", "shares"),
        (FOUR + "  partitioning: {mode: Dynamic}\n", "partitioning"),
        (FOUR + "  requireMemoryLimit: cgroup\n", "requireMemoryLimit"),
    ],
    ids=["by memory", "not at all", "cut on request", "limited harder"],
)
def test_shares_that_are_held_stay_as_they_are(node: Bed, rules: str, field: str) -> None:
    refs = [node.share("first", shares="1"), node.share("second", shares="1")]
    before = node.published()
    node.configure(rules)
    wait_for(
        lambda: node.published()[1] not in ({}, before[1]), "what nobody has is published anew"
    )
    assert node.published()[0] == before[0]
    wait_for(lambda: len(node.told("ConfigurationWaits")) == 1, "it is told")
    (told,) = node.told("ConfigurationWaits")
    assert told.startswith("gpu-0 (GPU-")
    assert f": {field} of its configuration" in told
    assert told.endswith("claim default/first, claim default/second")
    assert f"gpu-0: {field} of its configuration: wait until no claim has a share" in node.shown()
    refs.append(node.share("third", shares="1"))
    node.bed.processes[-1].kill()
    node.serve()
    wait_for(lambda: len(node.told("ConfigurationWaits")) >= 2, "the next process knows of it")
    assert node.published()[0] == before[0]
    for ref in refs[1:]:
        node.end(ref)
    node.end(refs[0])
    wait_for(node.is_alike, "what waited is published")
    wait_for(lambda: node.told("ConfigurationApplied"), "and told")
    assert "of its configuration" not in node.shown()
