"""MPS on a simulated node: control daemons, and CUDA programs that are their clients."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pytest

from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import alike
from tests.support.node import SimulatedNode

PATIENCE: Final = 60.0
_POLL: Final = 0.02

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as others")


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: it does not in a minute.

    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(_POLL)


class CudaTalk(ABC):
    """A running sim-mps-client, its events, and further words for it."""

    @abstractmethod
    def _next_line(self) -> str:
        """Wait for the next line that it writes; empty if it has ended."""

    @abstractmethod
    def _say(self, line: str) -> None:
        """Give it a line."""

    def event(self, name: str | None = None) -> dict[str, Any]:
        """Wait for its next event, which is to be of this name."""
        line = self._next_line()
        assert line, f"the program ended instead of telling {name or 'something'}"
        event: dict[str, Any] = json.loads(line)
        assert name in {None, event["event"]}, event
        return event

    def tell(self, words: str) -> dict[str, Any]:
        """Give it a word with its argument; gives the event that follows."""
        self._say(f"{words}\n")
        return self.event()

    def refused_by(self, amount: str) -> str:
        """Let it ask for memory that it does not get; gives who refuses."""
        event = self.tell(f"alloc {amount}")
        assert event["event"] == "refused", event
        assert event["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
        return str(event["by"])

    def gets(self, amount: str) -> None:
        """Let it ask for memory that it gets."""
        event = self.tell(f"alloc {amount}")
        assert event["event"] == "allocated", event


class CudaProgram(CudaTalk):
    """A sim-mps-client that is a child of the test."""

    def __init__(
        self,
        node: SimulatedNode,
        words: Sequence[str],
        environment: dict[str, str],
        user: int | None = None,
    ) -> None:
        """Start the program, as this user if one is given."""
        self.process = subprocess.Popen(
            [str(node.root / "usr/bin/sim-mps-client"), *words, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def _next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def end(self) -> int:
        """Let it end; gives its exit code."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def kill(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


class MpsDaemon:
    """One control daemon: its folders, its devices, and what is said to it."""

    def __init__(self, node: SimulatedNode, folder: Path, devices: str | None) -> None:
        """Describe a daemon that `start` starts."""
        self.node = node
        self.pipe = folder / "pipe"
        self.log = folder / "log"
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "TZ": "UTC",
        }
        self._devices = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}

    def control(
        self, *arguments: str, say: str = "", user: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run nvidia-cuda-mps-control with the daemon's environment."""
        return subprocess.run(
            [str(self.node.root / "usr/bin/nvidia-cuda-mps-control"), *arguments],
            input=say,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**self.environment, **(self._devices if arguments else {})},
            user=user,
        )

    def start(self, *arguments: str) -> Self:
        """Start it in the background."""
        done = self.control("-d", *arguments)
        assert done.returncode == 0, done
        return self

    def ask(self, command: str, user: int | None = None) -> list[str]:
        """Give a command; gives the lines of the answer."""
        done = self.control(say=f"{command}\n", user=user)
        assert done.returncode == 0, done
        return done.stdout.splitlines()

    def talk(self, command: str) -> subprocess.Popen[str]:
        """Give a command and do not wait for the answer."""
        running = subprocess.Popen(
            [str(self.node.root / "usr/bin/nvidia-cuda-mps-control")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )
        assert running.stdin is not None
        running.stdin.write(f"{command}\n")
        running.stdin.close()
        return running

    def server(self) -> int:
        """Pid of its server."""
        (pid,) = self.ask("get_server_list")
        return int(pid)

    def shown(self) -> dict[str, Any]:
        """Give its entry in the state of the node."""
        (entry,) = [
            entry for entry in self.node.show()["mps"] if entry["pipeDirectory"] == str(self.pipe)
        ]
        return dict(entry)

    @property
    def pid(self) -> int:
        """Its process id, as it wrote it down."""
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii"))

    def control_log(self) -> str:
        """What it logged."""
        return (self.log / "control.log").read_text(encoding="utf-8")

    def server_log(self) -> str:
        """What its servers logged."""
        return (self.log / "server.log").read_text(encoding="utf-8")


class MpsBed:
    """A node with control daemons and programs, all of which end with the test."""

    def __init__(self, folder: Path) -> None:
        """Use a folder whose path is short, as sockets need it."""
        self._folder = folder
        self._nodes: list[SimulatedNode] = []
        self._daemons: list[MpsDaemon] = []
        self._programs: list[CudaProgram] = []

    def node(self, model: str = "h100-80gb", gpus: int = 1) -> SimulatedNode:
        """Make a node that unprivileged programs can use too."""
        root = self._folder / f"node-{len(self._nodes)}"
        made = SimulatedNode.create(
            root, alike(model, gpus), device_nodes=NodeKind.PLAIN, seed="test"
        )
        self._nodes.append(made)
        return made

    def daemon(self, node: SimulatedNode, devices: str | None = None) -> MpsDaemon:
        """Describe a daemon; without `devices` it has all GPUs."""
        folder = self._folder / f"mps-{len(self._daemons)}"
        folder.mkdir(mode=0o755)
        self._daemons.append(MpsDaemon(node, folder, devices))
        return self._daemons[-1]

    def program(
        self,
        where: MpsDaemon | SimulatedNode,
        *words: str,
        user: int | None = None,
        **environment: str,
    ) -> CudaProgram:
        """Start a CUDA program, as a client of a daemon or without MPS."""
        if isinstance(where, MpsDaemon):
            node, base = where.node, where.environment
        else:
            node, base = where, {"CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "none")}
        self._programs.append(CudaProgram(node, words, {**base, **environment}, user))
        return self._programs[-1]

    def attached(
        self,
        where: MpsDaemon | SimulatedNode,
        *words: str,
        user: int | None = None,
        **environment: str,
    ) -> CudaProgram:
        """Start a CUDA program and wait until CUDA is initialised."""
        program = self.program(where, *words, user=user, **environment)
        program.event("attached")
        return program

    def close(self) -> None:
        """End all processes, remove all files."""
        for program in self._programs:
            program.kill()
        for node in self._nodes:
            for entry in node.show()["mps"]:
                _kill(entry["server"]["pid"] if entry["server"] else 0)
                _kill(entry["pid"])
            for gpu in node.show()["gpus"]:
                for process in gpu["processes"]:
                    if process["type"] == "mps-server":  # whose daemon was killed
                        _kill(process["pid"])
            node.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill(pid: int) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        eventually(lambda: not _lives(pid), f"process {pid} is gone")


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def mps() -> Iterator[MpsBed]:
    """Give a bed for nodes with MPS."""
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    folder.chmod(0o755)
    bed = MpsBed(folder)
    yield bed
    bed.close()
