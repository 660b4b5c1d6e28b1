"""A node on which claims share GPUs: the engine and an MPS agent in this process, real below.

NVML calls, `nvidia-smi` and control daemons reach the simulator, whose state says what is true.
"""

import shutil
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims import Engine, GpuEffects, Janitor
from dra_driver.config import NodeConfig, configured, load
from dra_driver.health import Hardware
from dra_driver.mig import MigEffect
from dra_driver.model import Inventory
from dra_driver.mps_agent.agent import Agent
from dra_driver.mps_agent.options import Options
from dra_driver.sharing import SharingEffect, mps_client, time_slices
from dra_driver.sharing.mps_notes import MpsFolders
from dra_driver.simulator.native_library import ALL_GPUS, error_number
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.slices import ServerAbilities, build_slices
from dra_driver.state import Holding
from dra_driver.telemetry import EventQueue, Metrics
from tests.faults.machine_node import node_below
from tests.support.engine import FakeApi, FakeStatuses
from tests.support.kubelet import eventually

RESERVE_GIB: Final = 1
COUNT: Final = 3
BY_MEMORY, BY_COUNT, OLD, DYNAMIC = range(4)  # GPUs by minor
_SPEC: Final = NodeSpec.model_validate(
    {
        "driverVersion": "615.10.05",  # limits memory
        "gpus": [
            {"model": "h100-80gb", "count": 2},
            {"model": "p4"},  # neither time-slices nor MPS
            {"model": "h100-80gb"},
        ],
    }
)
_CONFIG: Final = f"""\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {{index: [{BY_MEMORY}]}}
  shares: {{by: memory, reserve: {RESERVE_GIB}Gi}}
- match: {{index: [{BY_COUNT}]}}
  shares: {{count: {COUNT}}}
- match: {{index: [{OLD}]}}
  shares: {{unlimited: true}}
- match: {{index: [{DYNAMIC}]}}
  partitioning: {{mode: Dynamic}}
  shares: {{count: {COUNT}}}
"""
_ABILITIES: Final = ServerAbilities(
    version=(1, 37, 2), taints=True, counters=True, multiple_allocations=True
)
_PATIENCE: Final = 30.0
_SHORT: Final = 0.2  # seconds that are waited for what is silent
_HANG: Final = 1.0
SILENT_SMI: Final = "silent nvidia-smi"
CALLS: Final = (
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "sim_set_timeslice",
    "mps.start",
    "mps.command.*",
)


class SharingBed:
    """The node, and what runs on it; `start` is a new process of the plugin."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dra"))
        self.node, self.settings = node_below(self.folder, _SPEC)
        self._cgroups = self.node.root / "sys/fs/cgroup"
        (self._cgroups / "kubepods").mkdir(parents=True)
        (self._cgroups / "cgroup.controllers").write_text("memory\n")
        self._config: NodeConfig = load(_CONFIG)
        self._agent: Agent | None = None
        self._silence: socket.socket | None = None
        self._haste = ExitStack()  # while what does not answer is waited for only shortly
        self._agent_haste = ExitStack()
        self.is_hasty = False
        self.api = FakeApi()
        self.start()
        self.begin_agent()

    # The plugin

    def start(self) -> None:
        """Begin anew from what is on disk."""
        metrics, events = Metrics(), EventQueue()
        specs = ClaimSpecs(self.settings)
        self.hardware = Hardware(
            self.settings, metrics, events, lambda _: None, self._configured, self.holdings
        )
        effects = GpuEffects(
            MigEffect(self.hardware, self.settings, self.holdings),
            SharingEffect(self.hardware, self.settings, self.holdings, frozenset),
        )
        api = cast("Any", self.api)
        self.engine = Engine(
            self.settings, api, self.hardware, effects, specs, FakeStatuses(), metrics, events
        )
        self.janitor = Janitor(self.engine, specs, api, self.folder / "kubelet.sock", 3600.0)
        self.engine.start()
        specs.install_hook()
        self.hardware.start()
        self.look()

    def stop(self) -> None:
        """End the plugin, as it is: nobody holds the GPUs open any more but daemons."""
        self.hardware.stop()

    def look(self) -> Inventory:
        """Look until it is sure which partitions are somebody else's."""
        for _ in range(2):
            self.hardware.look(_PATIENCE)
        return self.hardware.look(_PATIENCE)

    def holdings(self) -> list[Holding]:
        return self.engine.records.holdings()

    def published(self) -> dict[str, dict[str, Any]]:
        """Devices by name as the API server has them."""
        plan = build_slices(self.look(), self.settings, _ABILITIES)
        return {device["name"]: device for part in plan.slices for device in part.devices}

    # The agent

    def begin_agent(self) -> None:
        """Start the agent, or another one."""
        self.end_agent()
        self._agent = Agent(Options(self.settings, tmpfs=False, poll_seconds=0.1, first_pause=0.1))
        self._agent.start()

    def end_agent(self) -> None:
        """Stop it, and its daemons with it."""
        self._agent_haste.close()
        if self._agent is not None:
            self._agent.stop()
            self._agent = None
        if self._silence is not None:
            self._silence.close()
            self._silence = None
            MpsFolders(self.settings).socket.unlink()

    def silence_agent(self) -> None:
        """Let somebody listen in its place who never says a word."""
        self.end_agent()
        self._silence = socket.socket(socket.AF_UNIX)
        self._silence.bind(str(MpsFolders(self.settings).socket))
        self._silence.listen()
        for name in ("_ENSURE_SECONDS", "_RELEASE_SECONDS", "_LIST_SECONDS"):
            self._agent_haste.enter_context(mock.patch.object(mps_client, name, _SHORT))

    @property
    def has_agent(self) -> bool:
        return self._agent is not None

    # Bad luck

    def fail(self, call: str, times: int) -> None:
        """Let something fail that often from now on."""
        if call == SILENT_SMI:
            self._haste.enter_context(mock.patch.object(time_slices, "_SECONDS", _SHORT))
            self.is_hasty = True
            self.node.state.fault(ALL_GPUS, "sim_set_timeslice", 0, times=times, hang=_HANG)
        else:
            self.node.state.fault(ALL_GPUS, call, error_number("UNKNOWN"), times=times)

    def mend(self) -> None:
        """Put everything right."""
        self.node.state.clear()
        self._haste.close()
        self.is_hasty = False
        if self._agent is None:
            self.begin_agent()

    def reboot(self) -> None:
        """Let the node go down and come up again; an agent comes back if there was one."""
        had_agent = self.has_agent
        self.stop()
        self.end_agent()
        self.node.reboot()
        shutil.rmtree(self.settings.cdi_root, ignore_errors=True)
        if had_agent:
            self.begin_agent()
        self.start()

    # Pods

    def cgroup(self, pod: str) -> Path:
        return self._cgroups / "kubepods" / f"pod{pod}"

    # What is true

    def state(self) -> "TrueState":
        return TrueState(self.node.show())

    def wait_for_daemons(self, wanted: set[frozenset[str]]) -> None:
        """Wait until these sets of devices have a daemon each, and no others."""
        eventually(lambda: self.state().daemons() == wanted, f"daemons for {wanted}")

    def leftovers(self) -> list[str]:
        """All files of claims and sets."""
        data = self.settings.data_folder
        found = [*self.settings.cdi_root.glob("*claim*"), *(data / "claims").iterdir()]
        return [str(path) for path in (*found, *(data / "mps/sets").iterdir())]

    def close(self) -> None:
        """End everything."""
        self._haste.close()
        self._agent_haste.close()
        self.stop()
        self.end_agent()
        self.node.close()
        shutil.rmtree(self.folder)

    def _configured(self, inventory: Inventory) -> Inventory:
        return configured(inventory, self._config, {})


class TrueState:
    """What the simulator says, by the names that devices have."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self._shown = shown
        self.is_faulty = bool(shown["faults"])
        self.slices: dict[str, int] = {}
        self.modes: dict[str, str] = {}
        self.limits: dict[tuple[str, str], int] = {}  # bytes by GPU and name of the cgroup
        self._names: dict[str, str] = {}
        for gpu in shown["gpus"]:
            self._read(gpu)

    def daemons(self) -> set[frozenset[str]]:
        """Sets of devices that have one."""
        visible = [daemon["visibleDevices"].split(",") for daemon in self._shown["mps"]]
        sets = [frozenset(self._names.get(uuid, uuid) for uuid in each) for each in visible]
        assert len(set(sets)) == len(sets), "two daemons serve the same devices"
        return set(sets)

    @property
    def partitions(self) -> set[str]:
        return {name for name in self._names.values() if "mig" in name}

    def _read(self, gpu: dict[str, Any]) -> None:
        name = f"gpu-{gpu['minor']}"
        self._names[gpu["uuid"]] = name
        self.slices[name], self.modes[name] = gpu["timeslice"], gpu["computeMode"]
        for limit in gpu["memoryLimits"]:
            self.limits[name, Path(limit["cgroup"]).name] = limit["hardBytes"]
        for instance in gpu["instances"]:
            profile = instance["profile"].replace(".", "")
            part = f"{name}-mig-{profile}-{instance['profileId']}-{instance['start']}"
            for compute in instance["computeInstances"]:
                self._names[compute["uuid"]] = part
                self.modes[part] = compute["computeMode"]
