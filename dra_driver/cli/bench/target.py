"""The driver that is measured: how it is called, and what can be counted about it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.cli.bench.claims import Claims, Place
from dra_driver.cli.bench.process import listener
from dra_driver.cli.interrupt import Check
from dra_driver.config import Settings
from dra_driver.kube import KubeClient
from dra_driver.model import ClaimRef
from dra_driver.model.errors import DeviceNotFound, DriverNotReady
from dra_driver.simulator.kubelet_plugin import Introduction, PluginConnection

CALL_SECONDS: Final = 45.0  # as the kubelet
_KUBELET_MINOR: Final = 37
_CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What calls have caused so far; None where nobody counts it."""

    api_requests: int | None = None
    api_writes: int | None = None
    nvml_calls: int | None = None
    fsyncs: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A running DRA driver on a node."""

    place: Place
    devices: tuple[str, ...]  # that claims are measured with, one claim each at a time
    plugin: PluginConnection
    claims: Claims
    pid: int | None
    counts: Callable[[], Counts]
    check: Check  # called between calls; raises when it is time to end

    def prepare(self, ref: ClaimRef) -> float:
        """Prepare a claim; gives the seconds. Raises CallFailed."""
        begin = time.perf_counter()
        self.plugin.prepare([ref], CALL_SECONDS)
        return time.perf_counter() - begin

    def unprepare(self, ref: ClaimRef) -> float:
        """Unprepare a claim; gives the seconds. Raises CallFailed."""
        begin = time.perf_counter()
        self.plugin.unprepare([ref], CALL_SECONDS)
        return time.perf_counter() - begin


@contextmanager
def socket_target(
    socket: Path, kubeconfig: Path, namespace: str, driver: str, node: str, check: Check
) -> Iterator[Target]:
    """Reach any DRA driver by its service socket. Raises DriverError."""
    settings = Settings(node_name=node, driver_name=driver, kubeconfig=kubeconfig)
    settings.check()
    pool, devices = _offer(settings)
    place = Place(driver, node, pool)
    introduction = Introduction("DRAPlugin", driver, socket, ("v1.DRAPlugin",), 0.0)
    plugin = PluginConnection(introduction, _KUBELET_MINOR)
    try:
        _wait_connected(plugin, socket)
        claims = Claims(kubeconfig, namespace, place)
        with claims.namespace():
            yield Target(place, devices, plugin, claims, listener(socket), Counts, check)
    finally:
        plugin.close()


def whole_devices(slices: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Names of the devices of type `gpu`; of all where the driver has no such type."""
    found = [device for piece in slices for device in piece["spec"].get("devices") or ()]
    whole = [device for device in found if _type(device) == "gpu"]
    return tuple(device["name"] for device in whole or found)


def _type(device: dict[str, Any]) -> str:
    attributes = device.get("attributes") or {}
    return str((attributes.get("type") or {}).get("string", ""))


def _offer(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """Pool and devices that the driver publishes for the node. Raises DeviceNotFound."""
    kube = KubeClient(settings)
    try:
        slices = kube.list_slices().items
    finally:
        kube.close()
    devices = whole_devices(slices)
    if not devices:
        raise DeviceNotFound(
            f"the API server has no device of driver {settings.driver_name} on node "
            f"{settings.node_name}; check --driver and --node, and that the driver has published"
        )
    return str(slices[0]["spec"]["pool"]["name"]), devices


def _wait_connected(plugin: PluginConnection, socket: Path) -> None:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while not plugin.connected:
        if time.monotonic() > deadline:
            raise DriverNotReady(f"nobody answers on --socket {socket}")
        time.sleep(0.01)
