"""The real plugin with layouts, on a simulated node, and what the node says became of them."""

from collections.abc import Callable
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.state import LayoutNote, LayoutNotes
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed, PluginProcess

GIB = 1 << 30
HALVES = [("3g.40gb", 2)]
BALANCED = [("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)]
CONFIG = """
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Static, layout: LAYOUT}
layouts:
  halves:
  - devices: all
    mig-enabled: true
    mig-devices: {3g.40gb: 2}
inventory: {interval: 300ms}
"""


def spec(*gpus: dict[str, Any]) -> NodeSpec:
    return NodeSpec.model_validate({"gpus": [{"model": "h100-80gb", **gpu} for gpu in gpus]})


class LayoutBed:
    """A node whose plugin reads a configuration that the test changes."""

    def __init__(self, bed: NodeBed) -> None:
        self.bed = bed
        self.file = bed.folder / "config.yaml"
        bed.kubelet.start()

    def configure(self, layout: str, text: str = CONFIG) -> None:
        new = self.file.with_suffix(".new")  # the plugin never reads half of it
        new.write_text(text.replace("LAYOUT", layout))
        new.replace(self.file)

    def serve(self, *more: str, **environment: str) -> PluginProcess:
        return self.bed.serve(f"--config={self.file}", *more, environment=environment)

    def partitions(self, gpu: int = 0) -> list[tuple[str, int]]:
        """Profile names, and how many of each stand, complete, by the simulator's word."""
        names = [
            each["profile"]
            for each in self.bed.node.gpu(gpu)["instances"]
            if len(each["computeInstances"]) == 1
        ]
        return sorted((name, names.count(name)) for name in set(names))

    def becomes(self, wanted: list[tuple[str, int]], gpu: int = 0) -> float:
        took = eventually(lambda: self.partitions(gpu) == wanted, f"GPU {gpu} has {wanted}")
        print(f"layout applied after {took:.1f} s")
        return took

    def events(self, reason: str) -> list[str]:
        return [
            each["message"]
            for each in self.bed.api.objects.select("events")
            if each["reason"] == reason
        ]

    def says(self, reason: str, *words: str) -> str:
        """Wait for an Event on the Node with these words."""
        found: list[str] = []

        def is_told() -> bool:
            found[:] = [text for text in self.events(reason) if all(word in text for word in words)]
            return bool(found)

        eventually(is_told, f"{reason} {words}: {self.events(reason)}")
        return found[0]

    def taints(self) -> set[str]:
        """Taint keys of all published devices."""
        return {
            taint["key"]
            for each in self.bed.slices()
            for device in each["spec"].get("devices", ())
            for taint in device.get("taints", ())
        }

    def held_back(self) -> set[str]:
        """GPUs of which a device has the taint of layouts that wait."""
        return {
            "-".join(device["name"].split("-")[:2])
            for each in self.bed.slices()
            for device in each["spec"].get("devices", ())
            if any(taint["key"].endswith("/layout-pending") for taint in device.get("taints", ()))
        }

    def metric(self, state: str) -> float:
        lines = self.bed.get("/metrics")[1].splitlines()
        (line,) = [
            each for each in lines if each.startswith(f'gpu_dra_driver_layouts{{state="{state}"}}')
        ]
        return float(line.split()[-1])

    def prepared(self, name: str, device: str) -> ClaimRef:
        claim = self.bed.claim(name, device)
        self.bed.kubelet.prepare(DRIVER, [claim])
        return claim

    def note(self, gpu: int = 0) -> LayoutNote:
        """What the plugin has noted of a GPU."""
        notes = LayoutNotes(self.bed.data_folder)
        found = notes.get(self.bed.node.gpu(gpu)["uuid"])
        assert found is not None
        return found

    def notes(self) -> list[str]:
        return sorted(path.name for path in (self.bed.data_folder / "layouts").iterdir())


MakeLayoutBed = Callable[..., LayoutBed]


@pytest.fixture
def layout_bed(make_bed: MakeBed) -> MakeLayoutBed:
    """Make beds: a dict of fields for each GPU, H100 if they don't say otherwise."""

    def make(*gpus: dict[str, Any]) -> LayoutBed:
        return LayoutBed(make_bed(spec=spec(*gpus)))

    return make
