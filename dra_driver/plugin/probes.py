"""The gRPC health service, for probes of those who watch this process."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from dra_driver.model.errors import SettingInvalid
from dra_driver.rpc import health_check_pb2 as pb
from dra_driver.serving import Service, service, unary
from dra_driver.telemetry import logger
from dra_driver.telemetry.http_server import Reasons

_log = logger(__name__)
_SERVICES: Final = ("", "liveness")  # `liveness` is the name that published charts ask for
_THREADS: Final = 4


class HealthService:
    """The standard gRPC health service, which answers yes or no; the log says why."""

    def __init__(self, alive: Reasons) -> None:
        """Answer SERVING while `alive` gives no reason against it."""
        self._alive = alive
        self._threads = ThreadPoolExecutor(_THREADS, "grpc-health")

    def service(self) -> Service:
        """Build the gRPC service."""
        return service(
            pb.DESCRIPTOR.services_by_name["Health"],
            {"Check": unary(self._check, pb.HealthCheckRequest, self._threads)},
        )

    def close(self) -> None:
        """Give the threads back; only after the server that uses them has stopped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(
        self, request: pb.HealthCheckRequest, context: grpc.ServicerContext
    ) -> pb.HealthCheckResponse:
        if request.service not in _SERVICES:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        reasons = self._alive()
        for reason in reasons:
            _log.warning("the liveness probe fails", err=reason)
        status = pb.HealthCheckResponse.ServingStatus
        return pb.HealthCheckResponse(status=status.NOT_SERVING if reasons else status.SERVING)


class HealthPort:
    """The health service on a TCP port of its own, for the kubelet's probes."""

    def __init__(self, port: int, alive: Reasons) -> None:
        self._port = port
        self._health = HealthService(alive)
        # Without this option two processes could share the port and each see half of the probes.
        options = (("grpc.so_reuseport", 0),)
        self._server = grpc.server(ThreadPoolExecutor(1, "grpc-health-port"), options=options)
        self._server.add_generic_rpc_handlers((self._health.service(),))

    def start(self) -> None:
        """Listen on all addresses. Raises SettingInvalid when the port is taken."""
        try:
            self._server.add_insecure_port(f"[::]:{self._port}")
        except RuntimeError as error:
            raise SettingInvalid(
                f"--healthcheck-port: cannot listen on port {self._port}; is it taken?"
            ) from error
        self._server.start()

    def stop(self) -> None:
        """Stop at once."""
        self._server.stop(None).wait(1.0)
        self._health.close()
