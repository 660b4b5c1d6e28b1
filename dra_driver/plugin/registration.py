"""The service by which the kubelet finds this plugin and tells whether it took it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from dra_driver.rpc import registration_v1_pb2 as pb
from dra_driver.serving import Service, service, unary
from dra_driver.telemetry import Metrics, logger

_log = logger(__name__)
_THREADS: Final = 4

# gRPC service names, preferred first: the kubelet takes the first DRA one it knows and ignores
# unknown ones (kubelet/cm/dra/plugin/dra_plugin_manager.go). Health v1 is for 1.37 and later.
SUPPORTED_VERSIONS: Final = (
    "v1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)


class Registration:
    """Answers GetInfo at once, whatever else hangs: it touches nothing but its own fields.

    The kubelet gives GetInfo one second and backs off for up to two minutes when it is late
    (kubelet/pluginmanager/operationexecutor).
    """

    def __init__(
        self,
        driver_name: str,
        service_socket: Path,
        metrics: Metrics,
        on_registered: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._on_registered = on_registered
        self._pool = ThreadPoolExecutor(_THREADS, "registration")
        self._lock = threading.Lock()
        self._asked = False
        self._registered = False
        self._problem = "the kubelet has not asked for this plugin yet"
        self._refused_at: float | None = None
        self._info = pb.PluginInfo(
            type="DRAPlugin",
            name=driver_name,
            endpoint=str(service_socket.absolute()),
            supported_versions=SUPPORTED_VERSIONS,
        )

    @property
    def problem(self) -> str:
        """Why this plugin is not registered; empty when it is."""
        with self._lock:
            return "" if self._registered else self._problem

    @property
    def asked(self) -> bool:
        """Whether a kubelet has ever asked who we are."""
        return self._asked

    def refused_for(self, seconds: float) -> bool:
        """Whether the kubelet refused this plugin that long ago and has not come back since."""
        with self._lock:
            return self._refused_at is not None and time.monotonic() - self._refused_at >= seconds

    def offered_anew(self) -> None:
        """Wait for the kubelet once more: it drops a plugin whose socket goes away."""
        with self._lock:
            self._registered = False
            self._problem = "the kubelet has not asked for this plugin again yet"
            self._refused_at = None
            self._metrics.set("gpu_dra_driver_registered", 0)

    def service(self) -> Service:
        """Build the gRPC service for the registration socket."""
        return service(
            pb.DESCRIPTOR.services_by_name["Registration"],
            {
                "GetInfo": unary(self._get_info, pb.InfoRequest, self._pool),
                "NotifyRegistrationStatus": unary(self._notify, pb.RegistrationStatus, self._pool),
            },
        )

    def close(self) -> None:
        """Give the threads back; only after the server that uses them has stopped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _get_info(self, _: pb.InfoRequest, _context: grpc.ServicerContext) -> pb.PluginInfo:
        self._asked = True
        return self._info

    def _notify(
        self, status: pb.RegistrationStatus, _: grpc.ServicerContext
    ) -> pb.RegistrationStatusResponse:
        """Note what the kubelet says; an error as answer would wedge kubelets before 1.36."""
        with self._lock:
            self._registered = status.plugin_registered
            self._problem = f"the kubelet refused this plugin: {' '.join(status.error.split())}"
            self._refused_at = None if status.plugin_registered else time.monotonic()
            self._metrics.set("gpu_dra_driver_registered", float(status.plugin_registered))
        if status.plugin_registered:
            _log.info("registered with the kubelet", endpoint=self._info.endpoint)
            self._tell()
        else:
            _log.error("the kubelet refused this plugin", err=status.error)
        return pb.RegistrationStatusResponse()

    def _tell(self) -> None:
        try:
            self._on_registered()
        except Exception as error:  # noqa: BLE001 - must not become the answer to the kubelet
            _log.exception("what follows a registration failed", err=error)
