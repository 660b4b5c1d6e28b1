"""A simulated GPU driver with its own control daemon, and what all sets of an agent have."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_driver.config import Settings
from dra_driver.mps_agent.keeper import Tools
from dra_driver.mps_agent.options import Options
from dra_driver.mps_agent.programs import Programs
from dra_driver.mps_agent.sets import Sets
from dra_driver.sharing.mps_notes import MpsFolders, SetNotes
from dra_driver.sharing.mps_spec import MpsDevice, MpsSpec, set_id
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import alike
from tests.support.node import SimulatedNode


@dataclass
class AgentBed:
    """Sets of an agent within this process; `again` is the next agent."""

    node: SimulatedNode
    folder: Path

    def __post_init__(self) -> None:
        self.uuids = [gpu["uuid"] for gpu in self.node.show()["gpus"]]
        self.made: list[Sets] = []

    @property
    def settings(self) -> Settings:
        return Settings(
            node_name="",
            container_driver_root=self.node.root,
            host_root=self.node.root,
            plugins_folder=self.folder,
        )

    @property
    def folders(self) -> MpsFolders:
        return MpsFolders(self.settings)

    def begin(self, **options: float) -> Sets:
        """Begin as an agent does that has just started."""
        values = {"ready_seconds": 20.0, "poll_seconds": 0.1, "first_pause": 0.1} | options
        tools = Tools(
            Options(self.settings, tmpfs=False, **values),
            self.folders,
            SetNotes(self.folders),
            Programs(self.node.root, self.folders.top / "lib"),
        )
        self.made.append(Sets(tools))
        self.made[-1].begin()
        return self.made[-1]

    def spec(self, *gpus: int, limit: int | None = None, percentage: int | None = None) -> MpsSpec:
        """Describe a set of these GPUs."""
        uuids = sorted(self.uuids[gpu] for gpu in gpus)
        devices = tuple(MpsDevice(uuid, uuid, limit) for uuid in uuids)
        return MpsSpec(set_id(uuids), devices, percentage)


@pytest.fixture
def bed() -> Iterator[AgentBed]:
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    node = SimulatedNode.create(
        folder / "node", alike("h100-80gb", 2), device_nodes=NodeKind.PLAIN, seed="test"
    )
    bed = AgentBed(node, folder)
    yield bed
    for sets in bed.made:
        sets.stop()
    assert node.show()["mps"] == []
    node.close()
    shutil.rmtree(folder)
