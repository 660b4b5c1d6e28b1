"""The service by which the plugin asks for control daemons (`mps_v1.proto`)."""

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from dra_driver.model import Bug, DriverError
from dra_driver.mps_agent.sets import Sets
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.serving import Service, service, stream, unary
from dra_driver.sharing.mps_spec import from_message
from dra_driver.telemetry import logger, operation

_log = logger(__name__)

_CALLS: Final = 64
_STREAMS: Final = 16
_REPEAT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0  # between two looks whether a stream's client is still there
_MARGIN_SECONDS: Final = 0.5  # of a call's deadline, for the answer
_PATIENCE_SECONDS: Final = 60.0  # with a call that has none


class MpsService:
    """Translates between the plugin's messages and the sets."""

    def __init__(self, sets: Sets, client_limit: Callable[[], int]) -> None:
        """Serve `sets`; `client_limit` says how many clients a daemon can have."""
        self._sets = sets
        self._client_limit = client_limit
        self._id = secrets.token_hex(8)
        self._ended = False
        self._calls = ThreadPoolExecutor(_CALLS, "mps-call")
        self._streams = ThreadPoolExecutor(_STREAMS, "mps-watch")

    def service(self) -> Service:
        """Build the gRPC service."""
        return service(
            pb.DESCRIPTOR.services_by_name["Mps"],
            {
                "Ensure": unary(self._ensure, pb.EnsureRequest, self._calls),
                "Release": unary(self._release, pb.ReleaseRequest, self._calls),
                "List": unary(self._list, pb.ListRequest, self._calls),
                "Watch": stream(self._watch, pb.ListRequest, self._streams),
            },
        )

    def end_streams(self) -> None:
        """End all streams."""
        self._ended = True
        self._sets.wake()

    def close(self) -> None:
        """Give the threads back; only after the server that uses them has stopped."""
        for threads in (self._calls, self._streams):
            threads.shutdown(wait=False, cancel_futures=True)

    def _ensure(
        self, request: pb.EnsureRequest, context: grpc.ServicerContext
    ) -> pb.EnsureResponse:
        left: Any = context.time_remaining()  # None without a deadline, whatever its type says
        seconds = _PATIENCE_SECONDS if left is None else left - _MARGIN_SECONDS
        answer = pb.EnsureResponse(client_limit=self._client_limit())

        def work() -> None:
            spec = from_message(request.set)
            answer.state.CopyFrom(self._sets.ensure(spec, seconds, replace=request.replace))

        failure = _done("ensure", request.operation_id, request.set.id, work)
        if failure is not None:
            answer.failure.CopyFrom(failure)
        return answer

    def _release(self, request: pb.ReleaseRequest, _: grpc.ServicerContext) -> pb.ReleaseResponse:
        def work() -> None:
            self._sets.release(request.id)

        return pb.ReleaseResponse(failure=_done("release", request.operation_id, request.id, work))

    def _list(self, _: pb.ListRequest, __: grpc.ServicerContext) -> pb.Sets:
        return self._all()

    def _watch(self, _: pb.ListRequest, context: grpc.ServicerContext) -> Iterator[pb.Sets]:
        while not self._is_over(context):
            seen = self._sets.changes
            yield self._all()
            deadline = time.monotonic() + _REPEAT_SECONDS
            while self._sets.changes == seen and time.monotonic() < deadline:
                self._sets.wait(seen, _LOOK_SECONDS)
                if self._is_over(context):
                    return

    def _is_over(self, context: grpc.ServicerContext) -> bool:
        return self._ended or not context.is_active()

    def _all(self) -> pb.Sets:
        return pb.Sets(
            agent_id=self._id, sets=self._sets.states(), client_limit=self._client_limit()
        )


def _done(name: str, operation_id: str, set_id: str, work: Callable[[], None]) -> pb.Failure | None:
    """Do a piece of work; gives why it failed."""
    with operation(operation_id):
        _log.info(f"{name} begins", set=set_id)
        failure: DriverError | None = None
        try:
            work()
        except DriverError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the caller is to hear of it
            _log.exception("unexpected failure", operation=name)
            failure = Bug(f"the MPS agent failed unexpectedly: {error!r}")
        _log.info(f"{name} ends", set=set_id, **({"err": failure} if failure else {}))
        return pb.Failure(reason=failure.reason, message=str(failure)) if failure else None
