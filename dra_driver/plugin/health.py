"""The streams on which the kubelet learns how well each device is."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import grpc

from dra_driver.model import Health, HealthState, Inventory, PublishedDevice
from dra_driver.rpc import health_v1_pb2 as pb
from dra_driver.rpc import health_v1alpha1_pb2
from dra_driver.serving import Service, service, stream
from dra_driver.telemetry import logger

_log = logger(__name__)
_STREAMS: Final = 32  # the kubelet opens one per connection and version
_REPEAT_SECONDS: Final = 10.0
_TIMEOUT_SECONDS: Final = 30  # without a report the kubelet then shows Unknown
_MESSAGE_BYTES: Final = 1024

_STATES: Final = {
    HealthState.HEALTHY: pb.HealthStatus.HEALTHY,
    HealthState.UNHEALTHY: pb.HealthStatus.UNHEALTHY,
    HealthState.UNKNOWN: pb.HealthStatus.UNKNOWN,
}


class HealthReports:
    """Sends every kubelet the complete list: at once, after a change, and every ten seconds.

    The kubelet counts the timeout from the receipt of a report and forgets the health of the whole
    driver when a stream ends (kubelet/cm/dra/manager.go), so each stream repeats everything.
    """

    def __init__(
        self, pool: str, inventory: Callable[[], Inventory | None], stale: Callable[[], str]
    ) -> None:
        """Report the devices of `inventory()` as part of `pool`; no function given may block.

        `stale()` says why the inventory is old news; then no device is called healthy.
        """
        self._pool = pool
        self._inventory = inventory
        self._stale = stale
        self._threads = ThreadPoolExecutor(_STREAMS, "health-stream")
        self._wake = threading.Condition()
        self._changes = 0
        self._ended = False

    def services(self) -> tuple[Service, Service]:
        """Build the gRPC services v1 and v1alpha1, whose messages are the same on the wire."""
        methods = {
            "NodeWatchResources": stream(self._watch, pb.NodeWatchResourcesRequest, self._threads)
        }
        return (
            service(pb.DESCRIPTOR.services_by_name["DRAResourceHealth"], methods),
            service(health_v1alpha1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"], methods),
        )

    def changed(self) -> None:
        """Send a report on every stream now."""
        with self._wake:
            self._changes += 1
            self._wake.notify_all()

    def end_streams(self) -> None:
        """End all streams; new ones end at once."""
        with self._wake:
            self._ended = True
            self._wake.notify_all()

    def close(self) -> None:
        """Give the threads back; only after the server that uses them has stopped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _watch(
        self, _: pb.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        context.add_callback(self._look_up)
        _log.info("health stream begins")
        while not self._over(context):
            with self._wake:
                seen = self._changes
            yield self._report()
            with self._wake:
                self._wake.wait_for(partial(self._due, seen, context), _REPEAT_SECONDS)
        _log.info("health stream ends")

    def _due(self, seen: int, context: grpc.ServicerContext) -> bool:
        return self._changes != seen or self._over(context)

    def _over(self, context: grpc.ServicerContext) -> bool:
        return self._ended or not context.is_active()

    def _look_up(self) -> None:
        """Let each stream see whether it was its own client that went away."""
        with self._wake:
            self._wake.notify_all()

    def _report(self) -> pb.NodeWatchResourcesResponse:
        inventory = self._inventory() or Inventory()
        now, stale = int(time.time()), self._stale()
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=device.name),
                    health=_STATES[health.state],
                    last_updated_time=now,
                    health_check_timeout_seconds=_TIMEOUT_SECONDS,
                    message=_shorten(health.words),
                )
                for device in inventory.devices()
                for health in (_health(device, stale),)
            ]
        )


def _health(device: PublishedDevice, stale: str) -> Health:
    """Health of a device as far as it is known now."""
    if stale and device.health.state is HealthState.HEALTHY:
        return Health(HealthState.UNKNOWN, "old-news", stale)
    return device.health


def _shorten(text: str) -> str:
    """Cut to what the API server accepts, between characters."""
    return text.encode()[:_MESSAGE_BYTES].decode(errors="ignore")
