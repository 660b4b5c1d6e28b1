"""The real `dra-driver serve` as a process on a simulated node, between stand-ins."""

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.api_server.kinds import ApiError
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.native_library import ALL_GPUS, error_number
from dra_driver.simulator.ports import free_port
from tests.support.kubelet import DRIVER, eventually
from tests.support.node import MakeNode, SimulatedNode

NODE = "node-a"
PROGRAM = Path(sys.executable).with_name("dra-driver")
_STOP_SECONDS = 60.0  # it promises to be gone in a few
_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")  # of ours; no NODE_NAME or KUBECONFIG slips in


class PluginProcess:
    """One run of `dra-driver serve`, or of another command; standard error goes to a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: dict[str, str],
        command: str = "serve",
        wrapper: Sequence[str] = (),
    ) -> None:
        """Start it, by another program that becomes it if there is a `wrapper`."""
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*wrapper, str(PROGRAM), command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={name: os.environ[name] for name in _VARIABLES if name in os.environ}
                | environment,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def lines(self, *words: str) -> list[str]:
        """Log lines that contain all these words."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if all(word in line for word in words)]

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, timeout: float = _STOP_SECONDS) -> int:
        """Exit status; raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._process.kill()
        self._process.wait(_STOP_SECONDS)

    def stop(self) -> int:
        """End it as a Pod's end does, and give its exit status."""
        self._process.terminate()
        return self._process.wait(_STOP_SECONDS)


class NodeBed:
    """A simulated node with its folders, an API server and a kubelet, ready for plugins."""

    def __init__(
        self, node: SimulatedNode, folder: Path, *, minor: int = 37, wipe_seconds: float = 30.0
    ) -> None:
        """Lay out `folder`, whose path must be short because of the sockets in it."""
        self.node = node
        self.folder = folder
        self.api = ApiServer()
        self.api.start()
        self.api.objects.create("nodes", {"metadata": {"name": NODE}})
        self.kubelet = Kubelet(
            self.registrar_folder,
            minor=minor,
            wipe_slices=self._wipe_slices,
            wipe_seconds=wipe_seconds,
        )
        self.processes: list[PluginProcess] = []
        self.port = 0

    @property
    def registrar_folder(self) -> Path:
        """The kubelet's plugins_registry."""
        return self.folder / "registry"

    @property
    def data_folder(self) -> Path:
        """Where the plugin has its service socket and its records."""
        return self.folder / "plugins" / DRIVER

    @property
    def cdi_folder(self) -> Path:
        """Where runtimes find CDI files."""
        return self.folder / "cdi"

    def serve(
        self, *more: str, environment: dict[str, str] | None = None, wait: bool = True
    ) -> PluginProcess:
        """Start the plugin; `wait` until it says that it is ready."""
        self.port = free_port()
        kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
        arguments = [
            f"--node-name={NODE}",
            f"--kubeconfig={kubeconfig}",
            f"--cdi-root={self.cdi_folder}",
            f"--nvidia-driver-root={self.node.root}",
            f"--container-driver-root={self.node.root}",
            f"--host-root={self.node.root}",
            f"--hook-folder={self.folder / 'hook'}",
            f"--kubelet-plugins-directory-path={self.folder / 'plugins'}",
            f"--kubelet-registrar-directory-path={self.registrar_folder}",
            f"--http-endpoint=127.0.0.1:{self.port}",
            *more,
        ]
        log = self.folder / f"plugin-{len(self.processes)}.log"
        process = PluginProcess(arguments, log, environment or {})
        self.processes.append(process)
        if wait:
            self.wait_ready(process)
        return process

    def wait_ready(self, process: PluginProcess) -> float:
        """Wait until /readyz says yes; gives the seconds it took."""
        answers: list[tuple[int, str]] = []

        def ready() -> bool:
            assert process.running, f"it ended: {process.log.read_text()}"
            answers.append(self.get("/readyz"))
            return answers[-1][0] == 200

        try:
            return eventually(ready, "the plugin is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{answers[-1:]}\n{process.log.read_text()}") from error

    def get(self, path: str) -> tuple[int, str]:
        """Ask the plugin over HTTP; status 0 when nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def claim(
        self, name: str, *devices: str | dict[str, Any], config: Sequence[dict[str, Any]] = ()
    ) -> ClaimRef:
        """Make a claim that is allocated to these devices, each for a request of its own.

        A device is its name, or the fields of a result that matter; `config` are the parameters of
        opaque configs for all requests.
        """
        entries = [
            {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
            for parameters in config
        ]
        results = [
            {"request": f"request-{number}", "driver": DRIVER, "pool": NODE}
            | ({"device": device} if isinstance(device, str) else device)
            for number, device in enumerate(devices)
        ]
        claim = self.api.objects.create(
            "resourceclaims",
            {
                "metadata": {"namespace": "default", "name": name},
                "spec": {"devices": {"requests": []}},
                "status": {"allocation": {"devices": {"results": results, "config": entries}}},
            },
        )
        return ClaimRef("default", name, claim["metadata"]["uid"])

    def fault(self, call: str, error: str = "", *, hang: float = 0) -> None:
        """Let an NVML call fail or hang on all GPUs from now on."""
        number = error_number(error) if error else 0
        self.node.state.fault(ALL_GPUS, call, number, times=0, hang=hang)

    def slices(self) -> list[dict[str, Any]]:
        """Slices in the API server."""
        return self.api.objects.select("resourceslices")

    def device_names(self) -> set[str]:
        """Names of all published devices."""
        return {
            device["name"] for each in self.slices() for device in each["spec"].get("devices", ())
        }

    def claim_files(self) -> set[str]:
        """CDI files and records of claims that are there now."""
        files = [*self.cdi_folder.glob("*claim*"), *(self.data_folder / "claims").glob("*.json")]
        return {path.name for path in files}

    def sockets(self) -> set[str]:
        """Sockets in the kubelet's folders, also while processes make and remove some there."""
        return {
            name
            for top in (self.registrar_folder, self.folder / "plugins")
            for folder, _, names in os.walk(top)
            for name in names
            if Path(folder, name).is_socket()
        }

    def close(self) -> None:
        """Stop everything; what still runs must end well and leave no socket."""
        try:
            for process in self.processes:
                if process.running:
                    assert process.stop() == 0, process.log.read_text()
            assert self.sockets() == set() or self._killed()
        finally:
            for process in self.processes:
                if process.running:
                    process.kill()
            self.kubelet.stop()
            self.api.stop()

    def _killed(self) -> bool:
        """Whether the last process was ended by a signal, which leaves sockets."""
        return bool(self.processes) and self.processes[-1].wait(0) < 0

    def _wipe_slices(self) -> None:
        for each in self.slices():
            with suppress(ApiError):  # the plugin may have deleted it meanwhile
                self.api.objects.delete("resourceslices", each["metadata"]["name"])


MakeBed = Callable[..., NodeBed]


@pytest.fixture
def make_bed(make_node: MakeNode) -> Iterator[MakeBed]:
    """Make node beds: `make_bed(gpus=2)` as `make_node` takes them, `minor` of the kubelet."""
    beds: list[NodeBed] = []

    def make(*, minor: int = 37, wipe_seconds: float = 30.0, **node: Any) -> NodeBed:
        # Not pytest's own folder: its long names leave little room for a socket path.
        folder = Path(tempfile.mkdtemp(prefix="dra"))
        bed = NodeBed(make_node(**node), folder, minor=minor, wipe_seconds=wipe_seconds)
        beds.append(bed)
        return bed

    yield make
    try:
        for bed in beds:
            bed.close()
    finally:
        for bed in beds:
            for process in bed.processes:
                print(f"---- {process.log.name}\n{process.log.read_text()}")
            shutil.rmtree(bed.folder)
