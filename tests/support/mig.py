"""Partitions made and removed on a simulated node's own NVML, within the test process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import Settings
from dra_driver.mig import MigEffect
from dra_driver.model import Gpu, Slot
from dra_driver.state import ClaimRecord, DeviceRecord
from tests.support.discovery import Watch
from tests.support.node import SimulatedNode


class MigBed:
    """The step `mig` over a running Discovery of one node."""

    def __init__(self, node: SimulatedNode, data: Path, *, looked: bool = True) -> None:
        """Begin to look at the node, and wait for the first look if it shall have `looked`."""
        self.node = node
        self.watch = Watch(node.root)
        if looked:
            self.watch.look()
        data.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            node_name="node-a",
            host_root=node.root,
            plugins_folder=data.parent,
            driver_name=data.name,
        )
        self.effect = MigEffect(self.watch.discovery, settings, list)

    def gpu(self, position: int = 0) -> Gpu:
        """Give one GPU of the last snapshot."""
        inventory = self.watch.discovery.current()
        assert inventory is not None
        return inventory.gpus[position]

    def slot(self, profile: str, start: int, position: int = 0) -> Slot:
        """Give a slot by profile name and first memory slice."""
        return next(
            slot
            for slot in self.gpu(position).slots
            if (slot.profile.name, slot.placement.start) == (profile, start)
        )

    def record(
        self, *wanted: tuple[str, int] | Slot | None, position: int = 0, **more: Any
    ) -> ClaimRecord:
        """Write down a claim for these slots of a GPU; None is the whole GPU."""
        slots = [self.slot(*each, position) if isinstance(each, tuple) else each for each in wanted]
        gpu = self.gpu(position)
        return ClaimRecord(
            namespace="default",
            name="claim",
            uid="uid",
            devices=tuple(_device(gpu, slot, **more) for slot in slots),
        )

    def standing(self, position: int = 0) -> list[tuple[str, int, int]]:
        """Profile, start and number of compute instances of all that stands, by the node."""
        return sorted(
            (each["profile"], each["start"], len(each["computeInstances"]))
            for each in self.node.gpu(position)["instances"]
        )

    def mode(self, position: int = 0) -> tuple[bool, bool]:
        """MIG mode now and after a reset, by the node."""
        shown = self.node.gpu(position)
        return shown["mig"]["current"], shown["mig"]["pending"]


def _device(gpu: Gpu, slot: Slot | None, **more: Any) -> DeviceRecord:
    return DeviceRecord(
        request="main",
        pool="node-a",
        device="gpu-x" if slot is None else f"gpu-x-mig-{slot.profile.name}-{slot.placement.start}",
        gpu_uuid=gpu.uuid,
        gpu_minor=gpu.minor,
        uuid=gpu.uuid if slot is None else "",
        placement=(slot.placement.start, slot.placement.size) if slot else None,
        gi_profile_id=slot.profile.gi_profile_id if slot else None,
        made=True,
        **more,
    )


MakeMigBed = Callable[..., MigBed]


@pytest.fixture
def mig_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeMigBed]:
    """Start the step on a node: `mig_bed(node)`."""
    monkeypatch.setattr("dra_driver.nvml.listener.WAIT_MILLISECONDS", 50)  # ends sooner
    made: list[MigBed] = []

    def make(node: SimulatedNode, **options: bool) -> MigBed:
        made.append(MigBed(node, tmp_path / "plugins" / "gpu.nvidia.com", **options))
        return made[-1]

    yield make
    for each in made:
        each.watch.discovery.stop()
