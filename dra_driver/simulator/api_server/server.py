"""A stand-in for the Kubernetes API server: real HTTP, objects in memory, faults on request.

It serves what this driver, its tests and `dra-driver demo` need: ResourceSlices with the rules and
feature gates of each release from 1.34 on, claims with the rules of their device status, classes,
nodes, Pods, Events and what the webhook keeps, with resourceVersions, watches, conflicts,
preconditions and dry runs. It allocates nothing, authorises everybody unless told otherwise, and
proves nothing that only the real server can prove.

    with ApiServer(version="1.34.4") as server:
        server.objects.create("nodes", {"metadata": {"name": "node-a"}})
        server.write_kubeconfig(path)
        server.faults.fail("create", "resourceslices", status=503, times=2)
        ...
        assert server.requests.count("create", "resourceslices") == 3
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from dra_driver.simulator.api_server.claims import ClaimAdmission
from dra_driver.simulator.api_server.http import Listener
from dra_driver.simulator.api_server.log import Faults, RequestLog
from dra_driver.simulator.api_server.objects import Admit, Objects
from dra_driver.simulator.api_server.slices import SliceAdmission
from dra_driver.simulator.ports import free_port


class ApiServer:
    """The stand-in. Objects, log and faults outlive `stop`; `start` serves on the same port."""

    def __init__(
        self,
        version: str = "1.37.2",
        gates: Mapping[str, bool] | None = None,
        *,
        history: int = 4096,
        bookmark_seconds: float = 60.0,
        tokens: set[str] | None = None,
    ) -> None:
        """Make a server of that release; `gates` differ from its defaults.

        `tokens` are the bearer tokens it accepts, None accepts everybody.
        """
        self.slices = SliceAdmission(_parse(version), gates or {})
        self.claims = ClaimAdmission(_parse(version), gates or {})
        self.objects = Objects(self._admission(), history)
        self.requests = RequestLog()
        self.faults = Faults()
        self.tokens = tokens
        self.bookmark_seconds = bookmark_seconds
        self.stopping = threading.Event()
        self.watches = 0  # raised to end all open watches
        self._port = 0
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> tuple[int, int, int]:
        """Release that this server is."""
        return self.slices.version

    @property
    def url(self) -> str:
        """Where it listens, on loopback."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen and serve."""
        self.stopping.clear()
        self._port = self._port or free_port()
        self._listener = Listener(self, self._port)
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.05,), name="api-server", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and cut all connections; objects stay."""
        if self._listener is None or self._thread is None:
            return
        self.stopping.set()
        self.objects.wake()
        self._listener.shutdown()
        self._listener.drop_connections()
        self._listener.server_close()
        self._thread.join()
        self._listener = self._thread = None

    def become(self, version: str, gates: Mapping[str, bool] | None = None) -> None:
        """Turn into another release or other gates, as by an upgrade: all connections end."""
        self.slices = SliceAdmission(_parse(version), gates or {})
        self.claims = ClaimAdmission(_parse(version), gates or {})
        self.objects.admit_with(self._admission())
        self.end_watches()

    def end_watches(self) -> None:
        """End all open watches; clients come back."""
        self.watches += 1
        self.objects.wake()
        if self._listener is not None:
            self._listener.drop_connections()

    def write_kubeconfig(self, path: Path, token: str = "") -> Path:
        """Write a kubeconfig file that leads here; answers the path."""
        user = {"token": token} if token else {}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "contexts": [
                {"name": "stand-in", "context": {"cluster": "stand-in", "user": "stand-in"}}
            ],
            "clusters": [{"name": "stand-in", "cluster": {"server": self.url}}],
            "users": [{"name": "stand-in", "user": user}],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def _admission(self) -> Mapping[str, Admit]:
        return {"resourceslices": self.slices, "resourceclaims": self.claims}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _parse(version: str) -> tuple[int, int, int]:
    major, minor, patch = version.split(".")
    return int(major), int(minor), int(patch)
