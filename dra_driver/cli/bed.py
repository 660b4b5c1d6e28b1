"""The ground on which `demo` and `bench` play: one simulated node with all that a real one has.

Hardware, API server and kubelet are stand-ins; the plugin is the real program in a process of its
own. All of it lives in one temporary folder, on loopback and on sockets in that folder.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dra_driver.cli.interrupt import Check
from dra_driver.host import Child
from dra_driver.model.errors import BadNode, StorageFailed
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import NodeSpec

DRIVER: Final = "gpu.nvidia.com"
PATIENCE: Final = 60.0  # seconds that any single step may take on a busy machine

_LONGEST_BASE: Final = 40  # bytes; socket paths have 107 in all
_POLL_SECONDS: Final = 0.005
_STOP_SECONDS: Final = 30.0  # before it is killed; an agent that is killed leaves its daemons
_AGENT_SOCKET: Final = Path("mps/agent.sock")
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")  # of our variables; no KUBECONFIG


class PluginFailed(BadNode):
    """The plugin did not do what it was asked."""

    reason = "PluginFailed"


class Bed:
    """Node, API server, kubelet and plugin; all end with the `with` block, whatever happens."""

    def __init__(self, check: Check, name: str, spec: NodeSpec) -> None:
        """Make a folder and nothing else yet: a node called `name` is to have the GPUs of `spec`.

        `check` is called before each step and in waits; what it raises ends all at a point where
        everything that was started is known.
        """
        self.check = check
        self.node_name = name
        self._spec = spec
        self._ends = ExitStack()
        self.folder = _short_folder(name)
        self._ends.callback(shutil.rmtree, self.folder)
        self.api = ApiServer()
        self.kubelet = Kubelet(self.folder / "registry")
        self.plugin: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    @property
    def root(self) -> Path:
        """Driver root and host root of the simulated node."""
        return self.folder / "node"

    @property
    def cdi_folder(self) -> Path:
        """Where the runtime would look for CDI files."""
        return self.folder / "cdi"

    @property
    def records_folder(self) -> Path:
        """Where the plugin keeps one record per claim."""
        return self.folder / "plugins" / DRIVER / "claims"

    def make_node(self) -> Node:
        """Make the hardware."""
        self.check()
        # Plain files for device nodes: no rights are needed, and no container will open them.
        node = Node.create(self.root, self._spec, device_nodes=NodeKind.PLAIN, seed=self.node_name)
        self._ends.callback(node.close)
        return node

    def start_cluster(self) -> None:
        """Start what stands for API server and kubelet."""
        self.check()
        self.api.start()
        self._ends.callback(self.api.stop)
        self.api.objects.create("nodes", {"metadata": {"name": self.node_name}})
        for folder in ("registry", "plugins", "cdi"):
            (self.folder / folder).mkdir()
        self.kubelet.start()
        self._ends.callback(self.kubelet.stop)

    def start_plugin(self, *more: str) -> int:
        """Start the real `dra-driver serve`, with `more` flags; return its process id."""
        self.check()
        kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
        arguments = [
            sys.executable,
            "-m",
            "dra_driver.cli",
            "serve",
            f"--node-name={self.node_name}",
            f"--kubeconfig={kubeconfig}",
            f"--cdi-root={self.cdi_folder}",
            f"--nvidia-driver-root={self.root}",
            f"--container-driver-root={self.root}",
            f"--host-root={self.root}",
            f"--hook-folder={self.folder / 'hook'}",
            f"--kubelet-plugins-directory-path={self.folder / 'plugins'}",
            f"--kubelet-registrar-directory-path={self.folder / 'registry'}",
            *more,
        ]
        self.plugin = Child(arguments, self.folder / "plugin.log", _environment())
        self._ends.callback(self.plugin.stop, _STOP_SECONDS)
        return self.plugin.pid

    def start_agent(self) -> None:
        """Start the real `dra-driver mps-agent`; returns when it serves. Raises PluginFailed."""
        self.check()
        arguments = [
            sys.executable,
            "-m",
            "dra_driver.cli",
            "mps-agent",
            f"--nvidia-driver-root={self.root}",
            f"--container-driver-root={self.root}",
            f"--host-root={self.root}",
            f"--kubelet-plugins-directory-path={self.folder / 'plugins'}",
            "--shm=folder",  # a mount would stay behind a process that is killed
        ]
        agent = Child(arguments, self.folder / "agent.log", _environment())
        self._ends.callback(agent.stop, _STOP_SECONDS)
        socket = self.folder / "plugins" / DRIVER / _AGENT_SOCKET
        deadline = time.monotonic() + PATIENCE
        while not socket.exists():
            self.check()
            if agent.ended() is not None or time.monotonic() > deadline:
                raise PluginFailed(f"the MPS agent does not serve: {agent.last_words()}")
            time.sleep(_POLL_SECONDS)

    def stop_plugin(self) -> None:
        """End the plugin as its Pod's end does. Raises PluginFailed if it does not end well."""
        self.check()
        status = None if self.plugin is None else self.plugin.stop(PATIENCE)
        # Not by rglob, which fails when a folder goes meanwhile: those of the agent's sets do.
        names = [name for _, _, files in os.walk(self.folder) for name in files]
        sockets = [n for n in names if n.endswith(".sock") and n != _AGENT_SOCKET.name]
        if status != 0 or sockets:
            raise PluginFailed(f"the plugin ended with status {status} and left {sockets}")

    def last_words(self) -> str:
        """Return the end of the plugin's log."""
        return "" if self.plugin is None else self.plugin.last_words()

    def wait_registered(self) -> float:
        """Wait until the kubelet has found the plugin; return how long it took to introduce itself.

        Raises PluginFailed.
        """
        self.wait_for(lambda: bool(self._registrations()), "to register with the kubelet")
        return self._registrations()[-1]

    def wait_published(self) -> list[dict[str, Any]]:
        """Wait for the complete pool; return its ResourceSlices. Raises PluginFailed."""
        self.wait_for(lambda: _complete(self.slices()), "to publish its devices")
        return self.slices()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds. Raises PluginFailed with the plugin's last words."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.check()
            status = None if self.plugin is None else self.plugin.ended()
            if status is not None:
                raise PluginFailed(
                    f"the plugin was asked {what}, but it ended with status {status}"
                )
            if time.monotonic() > deadline:
                raise PluginFailed(f"the plugin was asked {what}, but did not in {PATIENCE:g} s")
            time.sleep(_POLL_SECONDS)

    def slices(self) -> list[dict[str, Any]]:
        """Return the ResourceSlices in the API server."""
        return self.api.objects.select("resourceslices")

    def claim_files(self) -> tuple[int, int]:
        """Return how many CDI files and records of claims there are."""
        cdi = sum("-claim_" in path.name for path in self.cdi_folder.iterdir())
        return cdi, len(list(self.records_folder.glob("*.json")))

    def _registrations(self) -> list[float]:
        return [each.seconds for each in self.kubelet.history if each.what == "registered"]


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def _complete(slices: list[dict[str, Any]]) -> bool:
    pools = [piece["spec"]["pool"] for piece in slices]
    newest = max((pool["generation"] for pool in pools), default=0)
    current = [pool for pool in pools if pool["generation"] == newest]
    devices = any(piece["spec"].get("devices") for piece in slices)
    return devices and len(current) == current[0]["resourceSliceCount"]


def _short_folder(name: str) -> Path:
    """Make a folder whose sockets have room in their addresses."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _LONGEST_BASE:
        base = "/tmp"  # noqa: S108 # mkdtemp makes a private folder in it
    try:
        return Path(tempfile.mkdtemp(prefix=f"dra-{name}-", dir=base))
    except OSError as error:
        raise StorageFailed(f"a temporary folder is needed: {error}") from error
