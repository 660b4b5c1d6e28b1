"""The service by which the kubelet prepares and unprepares claims."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import grpc

from dra_driver.model import ClaimRef, DriverError, PreparedClaim, PreparedDevice
from dra_driver.model.errors import Bug
from dra_driver.rpc import dra_v1_pb2 as pb
from dra_driver.serving import Service, service, unary
from dra_driver.telemetry import Metrics, logger, operation

_log = logger(__name__)
# A call may wait for the API server for most of the kubelet's 45 s, and there is one per starting
# Pod. Threads are made as they are needed.
_THREADS: Final = 64

T = TypeVar("T")
Cancelled = Callable[[], bool]
_Count = Callable[[Mapping[str, object]], None]


class Claims(Protocol):
    """The engine behind this service; an answer has exactly the UIDs asked for."""

    def prepare(
        self, refs: Sequence[ClaimRef], cancelled: Cancelled
    ) -> Mapping[str, PreparedClaim | DriverError]:
        """Prepare the claims of one Pod."""

    def unprepare(
        self, refs: Sequence[ClaimRef], cancelled: Cancelled
    ) -> Mapping[str, DriverError | None]:
        """Take back all that was done for the claims."""


class DraService:
    """Translates between the kubelet's messages and the engine."""

    def __init__(self, claims: Claims, metrics: Metrics) -> None:
        self._claims = claims
        self._metrics = metrics
        self._calls = 0  # in progress
        self._call_ended = threading.Condition()
        self._prepare_threads = ThreadPoolExecutor(_THREADS, "prepare")
        self._unprepare_threads = ThreadPoolExecutor(_THREADS, "unprepare")

    def service(self) -> Service:
        """Build the gRPC service v1.DRAPlugin."""
        return service(
            pb.DESCRIPTOR.services_by_name["DRAPlugin"],
            {
                "NodePrepareResources": unary(
                    self._prepare, pb.NodePrepareResourcesRequest, self._prepare_threads
                ),
                "NodeUnprepareResources": unary(
                    self._unprepare, pb.NodeUnprepareResourcesRequest, self._unprepare_threads
                ),
            },
        )

    def wait_idle(self, seconds: float) -> bool:
        """Wait for a moment without any call in progress; returns whether there was one."""
        with self._call_ended:
            return self._call_ended.wait_for(lambda: not self._calls, seconds)

    def close(self) -> None:
        """Give the threads back; only after the server that uses them has stopped."""
        for threads in (self._prepare_threads, self._unprepare_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        refs = _refs(request.claims)
        with self._call("prepare", refs) as count:
            answers = _complete(
                refs, lambda: self._claims.prepare(refs, lambda: not context.is_active())
            )
            count(answers)
        return pb.NodePrepareResourcesResponse(
            claims={uid: _prepared(answer) for uid, answer in answers.items()}
        )

    def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        refs = _refs(request.claims)
        with self._call("unprepare", refs) as count:
            answers = _complete(
                refs, lambda: self._claims.unprepare(refs, lambda: not context.is_active())
            )
            count(answers)
        return pb.NodeUnprepareResourcesResponse(
            claims={
                uid: pb.NodeUnprepareResourceResponse(error=_error_text(answer))
                for uid, answer in answers.items()
            }
        )

    @contextmanager
    def _call(self, name: str, refs: Sequence[ClaimRef]) -> Iterator[_Count]:
        """Give one call an operation id, its begin and end in the log, and its metrics.

        What it gives is to be told the answers. A probe's empty call leaves no trace.
        """
        if not refs:
            yield lambda _: None
            return
        begin = time.monotonic()
        with self._call_ended:
            self._calls += 1
        self._metrics.add("nvidia_dra_requests_inflight", len(refs), operation=name)
        with operation():
            _log.info(f"{name} begins", claims=", ".join(map(str, refs)))
            try:
                yield lambda answers: self._count(name, answers, time.monotonic() - begin)
            finally:
                seconds = time.monotonic() - begin
                with self._call_ended:
                    self._calls -= 1
                    self._call_ended.notify_all()
                self._metrics.add("nvidia_dra_requests_inflight", -len(refs), operation=name)
                _log.info(f"{name} ends", seconds=round(seconds, 4))

    def _count(self, name: str, answers: Mapping[str, object], seconds: float) -> None:
        """Count each claim; the peer's metrics know of successes only."""
        for answer in answers.values():
            result = "error" if isinstance(answer, DriverError) else "ok"
            self._metrics.observe(
                "gpu_dra_driver_request_duration_seconds", seconds, operation=name, result=result
            )
            if result == "ok":
                self._metrics.count("nvidia_dra_requests_total", operation=name)
                self._metrics.observe(
                    "nvidia_dra_request_duration_seconds", seconds, operation=name
                )


def _refs(claims: Sequence[pb.Claim]) -> tuple[ClaimRef, ...]:
    return tuple(ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims)


def _complete(
    refs: Sequence[ClaimRef], work: Callable[[], Mapping[str, T]]
) -> Mapping[str, T | DriverError]:
    """Answer for every claim whatever happens: the kubelet fails a Pod for one UID too few."""
    try:
        answers = work()
    except Exception as error:  # noqa: BLE001 - the last place that can explain it to a person
        _log.exception("the engine failed", err=error)
        bug = Bug(f"{type(error).__name__}: {error}; see this driver's log")
        return {ref.uid: bug for ref in refs}
    missing = Bug("the engine gave no answer for this claim; see this driver's log")
    return {ref.uid: answers.get(ref.uid, missing) for ref in refs}


def _prepared(answer: PreparedClaim | DriverError) -> pb.NodePrepareResourceResponse:
    if isinstance(answer, DriverError):
        return pb.NodePrepareResourceResponse(error=_error_text(answer))
    return pb.NodePrepareResourceResponse(devices=[_device(each) for each in answer.devices])


def _device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=[device.request],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _error_text(error: DriverError | None) -> str:
    """Reason word and message: the kubelet shows it as an event on the Pod."""
    return "" if error is None else f"{error.reason}: {error}"
