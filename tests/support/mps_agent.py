"""The real `dra-driver mps-agent` beside the real plugin, and programs in made-up containers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.host import end_strays, is_mounted, unmount
from dra_driver.model import ClaimRef
from dra_driver.mps_agent.daemon import PIPE_VARIABLE
from dra_driver.mps_agent.programs import KERNEL_NAME
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import NodeSpec, alike
from tests.support.kubelet import DRIVER, eventually
from tests.support.mps import CudaProgram
from tests.support.node import SimulatedNode
from tests.support.plugin_process import NODE, NodeBed, PluginProcess

IS_ROOT = os.geteuid() == 0
QUICK = "--prepare-retry=10ms"


def mps_config(kind: str = "GpuConfig", **settings: Any) -> dict[str, Any]:
    """Opaque config of a claim that wants MPS."""
    sharing = {"strategy": "MPS", "mpsConfig": settings}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}


# Becomes a program that has the folder as its /dev/shm, as a container's mount would give it.
_CONTAINED = """
import ctypes, os, sys
shm, user, *program = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, 0x84000, None) == 0
assert libc.mount(os.fsencode(shm), b"/dev/shm", None, 0x1000, None) == 0
if user:
    os.setgroups([])
    os.setresgid(*[int(user)] * 3)
    os.setresuid(*[int(user)] * 3)
os.execv(program[0], program)
"""


class ContainedProgram(CudaProgram):
    """A CUDA program with the mounts of a claim's container, as far as MPS needs them."""

    def __init__(
        self,
        node: SimulatedNode,
        words: tuple[str, ...],
        environment: dict[str, str],
        shm: Path,
        user: int | None,
    ) -> None:
        command = [str(node.root / "usr/bin/sim-mps-client"), *words, "-"]
        if IS_ROOT:
            who = "" if user is None else str(user)
            command = [sys.executable, "-c", _CONTAINED, str(shm), who, *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )


class MpsNodeBed(NodeBed):
    """A node bed with an agent; its folders can be passed by programs of other users."""

    def __init__(self, node: SimulatedNode, folder: Path) -> None:
        super().__init__(node, folder)
        self.agents: list[PluginProcess] = []
        self.programs: list[CudaProgram] = []

    @property
    def sets_folder(self) -> Path:
        """Where the agent has its sets."""
        return self.data_folder / "mps" / "sets"

    def start_agent(
        self,
        *more: str,
        environment: dict[str, str] | None = None,
        wait: bool = True,
        wrapper: tuple[str, ...] = (),
    ) -> PluginProcess:
        """Start the agent; `wait` until it serves."""
        arguments = [
            f"--nvidia-driver-root={self.node.root}",
            f"--container-driver-root={self.node.root}",
            f"--host-root={self.node.root}",
            f"--kubelet-plugins-directory-path={self.folder / 'plugins'}",
            f"--shm={'tmpfs' if IS_ROOT else 'folder'}",
            "--mps-poll-interval=200ms",
            *more,
        ]
        log = self.folder / f"agent-{len(self.agents)}.log"
        process = PluginProcess(arguments, log, environment or {}, "mps-agent", wrapper)
        self.agents.append(process)
        if wait:
            self.wait_for(lambda: bool(process.lines("serving control daemons")), process)
        return process

    def wait_for(self, condition: Callable[[], object], process: PluginProcess) -> None:
        """Wait for something that a process does."""

        def met() -> object:
            assert process.running, process.log.read_text()
            return condition()

        eventually(met, f"what {process.log.name} is to do")

    def share(self, name: str, *devices: str, **settings: Any) -> ClaimRef:
        """Make a claim that has shares of these devices, with MPS."""
        shares = [{"device": device, "shareID": str(uuid4())} for device in devices]
        return self.claim(name, *shares, config=[mps_config(**settings)])

    def claim_of_requests(self, name: str, **configs: dict[str, Any] | None) -> ClaimRef:
        """Make a claim with a request for each device: `gpu_0=config`."""
        ref = self.claim(name, *(device.replace("_", "-") for device in configs))
        claim = self.api.objects.get("resourceclaims", name)
        claim["status"]["allocation"]["devices"]["config"] = [
            {
                "source": "FromClaim",
                "requests": [f"request-{number}"],
                "opaque": {"driver": DRIVER, "parameters": parameters},
            }
            for number, parameters in enumerate(configs.values())
            if parameters is not None
        ]
        self.api.objects.replace("resourceclaims", claim, part="status")
        return ref

    def prepare(self, *refs: ClaimRef) -> None:
        """Let the kubelet prepare them as claims of one Pod."""
        self.kubelet.prepare(DRIVER, list(refs))

    def unprepare(self, *refs: ClaimRef) -> None:
        """Let the kubelet unprepare them."""
        self.kubelet.unprepare(DRIVER, list(refs))

    def edits(self, ref: ClaimRef) -> list[dict[str, Any]]:
        """Container edits of the claim's devices."""
        file = self.cdi_folder / f"k8s.{DRIVER}-claim_{ref.uid}.json"
        return [device["containerEdits"] for device in json.loads(file.read_text())["devices"]]

    def folders(self, ref: ClaimRef) -> dict[str, Path]:
        """Folders on the host that the claim's containers have, by their place there."""
        mounts = [mount for edits in self.edits(ref) for mount in edits.get("mounts", ())]
        return {mount["containerPath"]: Path(mount["hostPath"]) for mount in mounts}

    def environment(self, ref: ClaimRef) -> dict[str, str]:
        """Variables that the claim's containers have."""
        found = [variable for edits in self.edits(ref) for variable in edits.get("env", ())]
        return dict(variable.split("=", 1) for variable in found)

    def run(
        self, ref: ClaimRef, *words: str, user: int | None = None, unset: tuple[str, ...] = ()
    ) -> CudaProgram:
        """Start a CUDA program as a container of the claim would, without these variables."""
        folders = self.folders(ref)
        pipe, shm = folders["/tmp/nvidia-mps"], folders["/dev/shm"]
        variables = self.environment(ref) | {PIPE_VARIABLE: str(pipe)}
        kept = {name: value for name, value in variables.items() if name not in unset}
        self.programs.append(ContainedProgram(self.node, words, kept, shm, user))
        return self.programs[-1]

    def attach(
        self, ref: ClaimRef, *words: str, user: int | None = None, unset: tuple[str, ...] = ()
    ) -> CudaProgram:
        """Start a CUDA program that attaches to the claim's daemon."""
        program = self.run(ref, *words, user=user, unset=unset)
        assert program.event("attached")["mps"], "it runs without MPS"
        return program

    def daemons(self) -> list[dict[str, Any]]:
        """Control daemons that run, by the node."""
        found: list[dict[str, Any]] = self.node.show()["mps"]
        return found

    def modes(self) -> list[str]:
        """Compute modes of the GPUs, by the node."""
        return [gpu["computeMode"] for gpu in self.node.show()["gpus"]]

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Events of that reason."""
        return [event for event in self.api.objects.select("events") if event["reason"] == reason]

    def health(self, device: str = "gpu-0") -> tuple[str, str]:
        """How well a device is, as the kubelet was told, and why."""
        report = self.kubelet.wait_registered(DRIVER, 60).health.reports[NODE, device]
        return report.state, report.message

    def leftovers(self) -> list[str]:
        """All that is there only while claims have MPS."""
        folders = self.sets_folder.iterdir() if self.sets_folder.is_dir() else ()
        found = [path.name for path in folders]
        found += [mode for mode in self.modes() if mode != "DEFAULT"]
        return found + [f"daemon {daemon['pid']}" for daemon in self.daemons()]

    def metric(self, line: str) -> float:
        """Value of one series of the plugin's metrics."""
        text = self.get("/metrics")[1]
        (found,) = [each for each in text.splitlines() if each.startswith(f"{line} ")]
        return float(found.rpartition(" ")[2])

    def close(self) -> None:
        """End programs, agents and plugins; what ends well must."""
        try:
            for program in self.programs:
                program.kill()
            for agent in self.agents:
                if agent.running:
                    assert agent.stop() == 0, agent.log.read_text()
        finally:
            for agent in self.agents:
                if agent.running:
                    agent.kill()
            end_strays(KERNEL_NAME, PIPE_VARIABLE, self.folder, 10)
            self.clear()
            super().close()

    def clear(self) -> None:
        """Remove what agents that were killed have left."""
        for folder in self.sets_folder.glob("*/shm"):
            if is_mounted(folder):
                unmount(folder)
        for path in (*self.sets_folder.glob("*/pipe/*"), self.data_folder / "mps/agent.sock"):
            path.unlink(missing_ok=True)


MakeMpsBed = Callable[..., MpsNodeBed]


@pytest.fixture
def make_mps_bed() -> Iterator[MakeMpsBed]:
    """Make beds: `make_mps_bed(gpus=2)`; `start=False` starts neither agent nor plugin."""
    beds: list[MpsNodeBed] = []

    def make(
        *more: str,
        model: str = "h100-80gb",
        gpus: int = 1,
        spec: NodeSpec | None = None,
        start: bool = True,
        agent: tuple[str, ...] = (),
    ) -> MpsNodeBed:
        folder = Path(tempfile.mkdtemp(prefix="mps"))
        folder.chmod(0o755)
        node = SimulatedNode.create(
            folder / "node", spec or alike(model, gpus), device_nodes=NodeKind.PLAIN, seed="test"
        )
        bed = MpsNodeBed(node, folder)
        beds.append(bed)
        bed.kubelet.start()
        if start:
            bed.start_agent(*agent)
            bed.serve(QUICK, *more)
        return bed

    yield make
    try:
        for bed in beds:
            bed.close()
    finally:
        for bed in beds:
            for process in (*bed.processes, *bed.agents):
                print(f"---- {process.log.name}\n{process.log.read_text()}")
            bed.node.close()
            shutil.rmtree(bed.folder)
