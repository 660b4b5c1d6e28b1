"""Everything the kubelet talks to: two sockets, their services, and who keeps them in place."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Final

import grpc

from dra_driver.config import Settings
from dra_driver.host import RangeLock, ensure_folder
from dra_driver.model import Inventory
from dra_driver.model.errors import StorageFailed
from dra_driver.plugin.checks import Checks
from dra_driver.plugin.dra import Claims, DraService
from dra_driver.plugin.health import HealthReports
from dra_driver.plugin.keeper import Keeper
from dra_driver.plugin.probes import HealthService
from dra_driver.plugin.registration import Registration
from dra_driver.serving import Service, SocketServer, sweep_dead_sockets
from dra_driver.telemetry import Metrics

_ADVICE: Final = ", or give each instance of this driver its own --pod-uid"
_CALM_SECONDS: Final = 3.0  # that a moment without calls is waited for at the end

# What stands for an instance in the names of its sockets: a Pod's UID, a static Pod's, the short
# hash of one, or nothing.
_INSTANCE: Final = "(-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9A-Za-z_-]{11}))?"


class KubeletServices:
    """The plugin as the kubelet sees it. Needs nothing but the two folders to start."""

    def __init__(
        self,
        settings: Settings,
        claims: Claims,
        metrics: Metrics,
        inventory: Callable[[], Inventory | None],
        stale: Callable[[], str],
        on_registered: Callable[[], None],
    ) -> None:
        self._settings = settings
        # Two instances under one name would take each other's sockets away.
        instances = settings.data_folder / "instances.lock"
        self._lock = RangeLock(instances, settings.service_socket.name, timeout=0)
        self._threads = ThreadPoolExecutor(1, "unused")  # every method has a pool of its own
        self._dra = DraService(claims, metrics)
        self._reports = HealthReports(settings.pool, inventory, stale)
        self._serving = HealthService(list)  # an answer is all that is asked for
        self._registration = Registration(
            settings.driver_name, settings.service_socket, metrics, on_registered
        )
        services = (self._dra.service(), *self._reports.services(), self._serving.service())
        self._service = self._socket_server(settings.service_socket, services)
        self._registrar = self._socket_server(
            settings.registration_socket, (self._registration.service(),)
        )
        self._keeper = Keeper(self._service, self._registrar, self._registration, self._sweep)

    def checks(self, *problems: Callable[[], str]) -> Checks:
        """Build what the probes ask, with further `problems` that make the plugin unready."""
        return Checks(
            self._registrar.path,
            self._service.path,
            (lambda: self._keeper.problem, lambda: self._registration.problem, *problems),
        )

    def start(self) -> None:
        """Serve, and when that works let the kubelet know. Raises StorageFailed."""
        ensure_folder(self._settings.data_folder)
        if not self._lock.try_acquire():
            self._lock.release()
            raise StorageFailed(
                f"another process serves {self._service.path}: stop it first{_ADVICE}"
            )
        self._sweep()
        self._service.start()
        self._registrar.start()
        self._keeper.start()

    def health_changed(self) -> None:
        """Tell the kubelet about the health of all devices now."""
        self._reports.changed()

    def leave(self, grace: float) -> Event:
        """Unregister, end the streams, refuse new calls; cancel the rest after `grace` seconds.

        The kubelet cuts the calls of an instance that unregisters (dra_plugin_manager.go, remove)
        and makes a Pod wait a minute for the next, so a moment without calls is waited for first.
        The event tells when nobody waits for an answer any more.
        """
        self._keeper.stop()
        self._dra.wait_idle(_CALM_SECONDS)
        self._registrar.withdraw()
        self._reports.end_streams()
        return self._service.stop(grace)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no call is at work, also none that the kubelet has given up; false: too long.

        What such a call has begun it takes back, or the next call would find it.
        """
        return self._dra.wait_idle(seconds)

    def close(self) -> None:
        """Give everything back, after `leave`."""
        for server in (self._registrar, self._service):
            server.stop(0).wait(1.0)  # also what was made anew at the very end
        for part in (self._registration, self._dra, self._reports, self._serving):
            part.close()
        self._threads.shutdown(wait=False)
        self._lock.release()

    def _socket_server(self, path: Path, services: Sequence[Service]) -> SocketServer:
        def build() -> grpc.Server:
            server = grpc.server(self._threads)
            server.add_generic_rpc_handlers(services)
            return server

        return SocketServer(path, build, _ADVICE)

    def _sweep(self) -> None:
        """Remove what instances with other names left when they were killed."""
        driver = re.escape(self._settings.driver_name)
        sweep_dead_sockets(self._settings.data_folder, re.compile(rf"dra{_INSTANCE}\.sock"))
        sweep_dead_sockets(
            self._settings.registrar_folder, re.compile(rf"{driver}{_INSTANCE}-reg\.sock")
        )
