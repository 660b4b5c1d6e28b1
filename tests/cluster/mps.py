"""The MPS agent on the cluster's node, and CUDA programs in Pods that a test talks with."""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from dra_driver.simulator.node_file import NodeSpec
from tests.cluster import linux
from tests.cluster.api import Object
from tests.cluster.claims import by_uuid, claim
from tests.cluster.driver import DRIVER, Driver
from tests.cluster.process import HostProcess
from tests.cluster.workload import Namespace, pod
from tests.support.mps import CudaTalk, eventually

_CLIENT: Final = "usr/bin/sim-mps-client"
_TALK: Final = "/talk"  # of a container: the test writes to `in` and reads `out`
_SCRIPT: Final = f"exec /{_CLIENT} - <>{_TALK}/in >{_TALK}/out"
_numbers = itertools.count()
_NODE_MOUNTS: Final = Path("/proc/1/mountinfo")


class PodProgram(CudaTalk):
    """The CUDA program of a Pod; the test talks with it without API server or kubelet."""

    def __init__(self, folder: Path) -> None:
        """Make what it is to read and write, for any user."""
        folder.mkdir()
        self.folder = folder
        self._in, self._out = folder / "in", folder / "out"
        os.mkfifo(self._in)
        self._out.touch()
        for path in (self._in, self._out):
            path.chmod(0o666)
        self._read = 0
        self.start: dict[str, Any] = {}  # what it told when CUDA was there

    def _next_line(self) -> str:
        def lines() -> list[str]:
            return [
                line for line in self._out.read_text().splitlines(keepends=True) if line[-1] == "\n"
            ]

        eventually(lambda: len(lines()) > self._read, f"the program of {self.folder.name} speaks")
        self._read += 1
        return lines()[self._read - 1]

    def _say(self, line: str) -> None:
        # Without O_NONBLOCK this would wait for ever for a program that has ended.
        fifo = os.open(self._in, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fifo, line.encode())
        finally:
            os.close(fifo)


class MpsNode:
    """A driver with the MPS agent beside it."""

    agent: HostProcess

    def __init__(self, driver: Driver) -> None:
        """Take a node where the agent is looked after by somebody else; see `in_place_of`."""
        self.driver = driver
        self.node = driver.node
        self._plugin = driver.cluster.kubelet_root / "plugins" / DRIVER
        self._talk = driver.cluster.folder(f"programs-{next(_numbers)}")
        self._programs: dict[tuple[str, str], PodProgram] = {}

    @classmethod
    @contextmanager
    def in_place_of(cls, installed: Driver, spec: NodeSpec, config: str) -> Iterator[Self]:
        """Give the node other GPUs and the agent, until all of it is taken away again."""
        made = Driver(installed.cluster, spec, config)
        with made.in_place_of(installed):
            node = cls(made)
            node.agent = made.mps_agent()
            try:
                node.start()
                yield node
            finally:
                node.close()

    def start(self) -> None:
        """Start the agent for the first time; returns when it serves."""
        self.agent.start()
        self.agent.wait_for_socket(self._plugin / "mps/agent.sock")

    def close(self) -> None:
        """End the agent and what it has on the node, which after a test is nothing."""
        if self.agent.running:
            self.agent.stop()
        for path in self.mounts():
            linux.unmount(path)

    def claim(self, name: str, position: int, **settings: Any) -> Object:
        """Build a claim for one of the GPUs; `strategy=…` gives it a config of its own."""
        made = claim(name, selector=by_uuid(self.node.gpu(position)["uuid"]))
        return with_config(made, "GpuConfig", settings) if settings else made

    def pod(self, namespace: Namespace, name: str, *uses: str, user: int | None = None) -> Object:
        """Build a Pod whose program has these claims and runs as this user; see `attached`."""
        talk = PodProgram(self._talk / f"{namespace.name}-{name}")
        self._programs[namespace.name, name] = talk
        made = pod(name, "sh", "-c", _SCRIPT, claims={use: from_claim(use) for use in uses})
        spec, (container,) = made["spec"], made["spec"]["containers"]
        spec["volumes"] = [
            _volume("client", self.node.root / _CLIENT, "File"),
            _volume("talk", talk.folder, "Directory"),
        ]
        container["volumeMounts"] = [
            {"name": "client", "mountPath": f"/{_CLIENT}", "readOnly": True},
            {"name": "talk", "mountPath": _TALK},
        ]
        if user is not None:
            spec["securityContext"] = {"runAsUser": user, "runAsGroup": user}
        return made

    def attached(self, namespace: Namespace, name: str) -> PodProgram:
        """Wait until a Pod runs and its program has become a client of the daemon."""
        namespace.wait_pod(name, "Running")
        program = self._programs[namespace.name, name]
        program.start = program.event("attached")
        assert program.start["mps"], "it runs without MPS"
        return program

    def daemon(self) -> dict[str, Any]:
        """Give the one control daemon, by the node."""
        (found,) = self.node.show()["mps"]
        return dict(found)

    def clients(self) -> Mapping[int, int]:
        """Process ids of the one daemon's clients, with their user ids."""
        return {each["pid"]: each["uid"] for each in self.daemon()["server"]["clients"]}

    def modes(self) -> list[str]:
        """Compute modes of the GPUs."""
        return [gpu["computeMode"] for gpu in self.node.show()["gpus"]]

    def mounts(self) -> list[str]:
        """What is mounted for claims in the node's own mount namespace."""
        fields = [line.split() for line in _NODE_MOUNTS.read_text().splitlines()]
        return [each[4] for each in fields if each[4].startswith(f"{self._plugin}/mps/")]

    def leftovers(self) -> list[str]:
        """All that is there only while claims have MPS, or another time-slice."""
        found = [*self.mounts(), *(str(path) for path in (self._plugin / "mps/sets").iterdir())]
        state = self.node.show()
        found += [f"daemon {daemon['pid']}" for daemon in state["mps"]]
        for gpu in state["gpus"]:
            found += [f"process {each['pid']}" for each in gpu["processes"]]
            if (gpu["computeMode"], gpu["timeslice"]) != ("DEFAULT", 0):
                found.append(f"{gpu['computeMode']}, time-slice {gpu['timeslice']}")
        return found


def with_config(made: Object, kind: str, sharing: Mapping[str, Any]) -> Object:
    """Give a claim an opaque config of the driver."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    made["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return made


def from_claim(name: str) -> Object:
    """Say where a Pod's claim comes from."""
    return {"resourceClaimName": name}


def _volume(name: str, path: Path, kind: str) -> Object:
    return {"name": name, "hostPath": {"path": os.fspath(path), "type": kind}}
