"""The kubelet stand-in's side of a health stream."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from dra_driver.rpc import health_v1_pb2 as v1
from dra_driver.rpc import health_v1alpha1_pb2 as v1alpha1
from dra_driver.rpc.health_v1_pb2_grpc import DRAResourceHealthStub as V1Stub
from dra_driver.rpc.health_v1alpha1_pb2_grpc import DRAResourceHealthStub as V1Alpha1Stub

_RETRY_SECONDS: Final = 5.0
_V1: Final = "v1.DRAResourceHealth"
_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"
_V1_MINOR: Final = 37  # first kubelet that knows v1, and that reads what is advertised

_Stream: TypeAlias = (
    "grpc.CallIterator[v1.NodeWatchResourcesResponse]"
    " | grpc.CallIterator[v1alpha1.NodeWatchResourcesResponse]"
)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Health of one device as last reported."""

    state: str  # HEALTHY, UNHEALTHY or UNKNOWN
    message: str
    timeout: int  # seconds
    received: float  # monotonic clock


class HealthWatch:
    """Keeps a health stream of one plugin open, in a thread of its own."""

    def __init__(self, channel: grpc.Channel, advertised: Sequence[str], minor: int) -> None:
        """Choose the version as kubelet 1.`minor` does, and open the stream."""
        self.version = _choose(advertised, minor)  # empty: this plugin reports no health
        self.reports: Mapping[tuple[str, str], DeviceReport] = {}  # by pool and device
        self.received = 0  # reports so far
        self._channel = channel
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream, and with it the connection."""
        self._closed.set()
        self._channel.close()
        self._thread.join(2.0)

    def _run(self) -> None:
        while self.version and not self._closed.is_set():
            try:
                stream = self._open()
            except ValueError:  # the channel was closed meanwhile
                return
            try:
                self._read(stream)
            except grpc.RpcError:
                if stream.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            self.reports = {}  # the end of a stream clears the health of all the driver's devices
            self._closed.wait(_RETRY_SECONDS)

    def _open(self) -> _Stream:
        if self.version == _V1:
            return V1Stub(self._channel).NodeWatchResources(v1.NodeWatchResourcesRequest())
        request = v1alpha1.NodeWatchResourcesRequest()
        return V1Alpha1Stub(self._channel).NodeWatchResources(request)

    def _read(self, stream: _Stream) -> None:
        for report in stream:
            now = time.monotonic()
            self.reports = {
                **self.reports,
                **{
                    (line.device.pool_name, line.device.device_name): DeviceReport(
                        v1.HealthStatus.DESCRIPTOR.values_by_number[line.health].name,
                        line.message,
                        line.health_check_timeout_seconds,
                        now,
                    )
                    for line in report.devices
                },
            }
            self.received += 1


def _choose(advertised: Sequence[str], minor: int) -> str:
    """Before 1.37 the kubelet tries v1alpha1 whatever is advertised."""
    if minor < _V1_MINOR:
        return _V1ALPHA1
    return next((version for version in (_V1, _V1ALPHA1) if version in advertised), "")
