"""The API stand-in and what runs against it, for tests."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.config import Settings
from dra_driver.kube import KubeClient
from dra_driver.simulator.api_server import ApiServer
from dra_driver.slices import Publisher
from dra_driver.telemetry import EventQueue, Metrics

NODE = "node-a"
DRIVER = "gpu.nvidia.com"
LONGEST_WAIT = 60.0  # seconds; ten times and more what is promised anywhere


def settings_for(server: ApiServer, folder: Path, **changes: Any) -> Settings:
    """Make settings of a plugin on node-a that talks to the stand-in."""
    kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
    base: dict[str, Any] = {
        "node_name": NODE,
        "kubeconfig": kubeconfig,
        "plugins_folder": folder / "plugins",
    }
    return Settings(**(base | changes))


def add_node(server: ApiServer, name: str = NODE) -> str:
    """Create a Node; answers its UID."""
    uid: str = server.objects.create("nodes", {"metadata": {"name": name}})["metadata"]["uid"]
    return uid


def wait_for(condition: Callable[[], object], what: str, seconds: float = LONGEST_WAIT) -> float:
    """Wait until the condition holds, print and answer how long it took; fail after `seconds`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.002)
    took = time.monotonic() - began
    print(f"{what}: {took:.3f} s")
    return took


def slice_of(*devices: dict[str, Any], name: str = "slice", **spec: Any) -> dict[str, Any]:
    """Make a ResourceSlice of node-a as somebody might write it."""
    base: dict[str, Any] = {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": base | spec,
    }


@dataclass(slots=True)
class Publishing:
    """A publisher at work against the stand-in."""

    server: ApiServer
    publisher: Publisher
    metrics: Metrics
    events: EventQueue

    def slices(self) -> list[dict[str, Any]]:
        """All slices that the server has."""
        return self.server.objects.select("resourceslices")

    def devices(self) -> list[str]:
        """Names of all published devices, slice by slice."""
        return [
            device["name"] for obj in self.slices() for device in obj["spec"].get("devices", [])
        ]

    def wait(self, what: str = "complete") -> float:
        """Wait until the publisher says that all is as it should be."""
        return wait_for(self.publisher.complete, what)


@contextmanager
def publishing(server: ApiServer, folder: Path, **changes: Any) -> Iterator[Publishing]:
    """Run a publisher; the caller publishes."""
    settings = settings_for(server, folder, **changes)
    kube, metrics, events = KubeClient(settings), Metrics(), EventQueue()
    publisher = Publisher(kube, settings, metrics, events)
    publisher.start()
    try:
        yield Publishing(server, publisher, metrics, events)
    finally:
        publisher.stop()
        kube.close()
