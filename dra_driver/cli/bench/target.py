"""The driver that is measured: how it is called, and what can be counted about it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cli.bench.claims import Claims, Place
from dra_driver.cli.bench.offer import GPU, Offer, partitions, shares, whole_devices
from dra_driver.cli.bench.process import listener
from dra_driver.cli.bench.sharing import Wish
from dra_driver.cli.interrupt import Check
from dra_driver.config import Settings
from dra_driver.kube import JsonObject, KubeClient
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
    programs: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A running DRA driver on a node."""

    place: Place
    offer: Offer
    plugin: PluginConnection
    claims: Claims
    pid: int | None
    counts: Callable[[], Counts]
    check: Check  # called between calls; raises when it is time to end
    start_daemon: Callable[[], float] | None = None  # of MPS, as anybody would; gives the seconds

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
    socket: Path,
    kubeconfig: Path,
    namespace: str,
    driver: str,
    node: str,
    wish: Wish,
    check: Check,
) -> Iterator[Target]:
    """Reach any DRA driver by its service socket. Raises DriverError."""
    settings = Settings(node_name=node, driver_name=driver, kubeconfig=kubeconfig)
    settings.check()
    slices = _published(settings)
    offer = offered(slices, wish, f"driver {driver} on node {node}")
    place = Place(driver, node, str(slices[0]["spec"]["pool"]["name"]))
    introduction = Introduction("DRAPlugin", driver, socket, ("v1.DRAPlugin",), 0.0)
    plugin = PluginConnection(introduction, _KUBELET_MINOR)
    try:
        _wait_connected(plugin, socket)
        claims = Claims(kubeconfig, namespace, place, wish)
        with claims.namespace():
            yield Target(place, offer, plugin, claims, listener(socket), Counts, check)
    finally:
        plugin.close()


def offered(slices: list[JsonObject], wish: Wish, who: str) -> Offer:
    """Choose the devices for what is measured. Raises DeviceNotFound when there are none."""
    slices = sorted(slices, key=lambda piece: str(piece["metadata"]["name"]))
    if wish.consumed is not None:
        found = shares(slices, wish.most)
    else:
        found = whole_devices(slices) if wish.devices == GPU else partitions(slices)
    if found is not None:
        return found
    if wish.consumed is not None and whole_devices(slices):
        raise DeviceNotFound(
            f"{who} publishes no shares; --sharing {wish.sharing.value} needs a node configuration "
            "with `shares`, and an API server that keeps them"
        )
    if wish.devices != GPU and whole_devices(slices):
        raise DeviceNotFound(
            f"{who} publishes no partitions; --devices mig needs some that exist, or a node "
            "configuration with mode Dynamic and an API server that keeps counters"
        )
    raise DeviceNotFound(
        f"the API server has no device of {who}; check --driver and --node, and that the driver "
        "has published"
    )


def _published(settings: Settings) -> list[JsonObject]:
    """Slices that the driver has published for the node."""
    kube = KubeClient(settings)
    try:
        return list(kube.list_slices().items)
    finally:
        kube.close()


def _wait_connected(plugin: PluginConnection, socket: Path) -> None:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while not plugin.connected:
        if time.monotonic() > deadline:
            raise DriverNotReady(f"nobody answers on --socket {socket}")
        time.sleep(0.01)
