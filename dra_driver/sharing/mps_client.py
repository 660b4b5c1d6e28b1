"""The plugin's calls to the MPS agent. Each has a deadline and a connection of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar
from urllib.parse import quote

import grpc

from dra_driver.model.errors import DriverError, DriverNotReady, HardwareBusy, HardwareFailed
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.rpc.mps_v1_pb2_grpc import MpsStub
from dra_driver.sharing.mps_spec import MpsSpec, to_message
from dra_driver.telemetry import operation_id

T = TypeVar("T")

_ENSURE_SECONDS: Final = 42.5  # the kubelet waits 45 s, and has a daemon's own words then
_RELEASE_SECONDS: Final = 42.0
_LIST_SECONDS: Final = 5.0
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)  # connect anew for each call


class AgentAway(DriverNotReady):
    """Nobody serves the agent's socket: no control daemon runs."""


class MpsAgent:
    """The agent behind a socket."""

    def __init__(self, socket: Path) -> None:
        """Connect when it is asked for something."""
        self._socket = socket

    def ensure(
        self, spec: MpsSpec, *, replace: bool, seconds: float | None = None
    ) -> tuple[pb.SetState, int]:
        """Let a daemon serve the set; gives its state, and how many clients it can have.

        Raises AgentAway, HardwareBusy when it takes too long, and what the agent answers.
        """
        request = pb.EnsureRequest(
            operation_id=operation_id(), set=to_message(spec), replace=replace
        )
        timeout = _ENSURE_SECONDS if seconds is None else seconds
        answer = self._call(lambda stub: stub.Ensure(request, timeout=timeout))
        if answer.WhichOneof("outcome") != "state":
            raise _explained(answer.failure)
        return answer.state, answer.client_limit

    def release(self, set_id: str) -> None:
        """End the set's daemon; raises as `ensure` does."""
        request = pb.ReleaseRequest(operation_id=operation_id(), id=set_id)
        answer = self._call(lambda stub: stub.Release(request, timeout=_RELEASE_SECONDS))
        if answer.HasField("failure"):
            raise _explained(answer.failure)

    def sets(self) -> dict[str, pb.SetState]:
        """Tell of all sets, by id; raises AgentAway or HardwareBusy."""
        request = pb.ListRequest(operation_id=operation_id())
        answer = self._call(lambda stub: stub.List(request, timeout=_LIST_SECONDS))
        return {state.set.id: state for state in answer.sets}

    def watch(self, until: Callable[[Callable[[], None]], None]) -> Iterator[pb.Sets]:
        """Yield all sets now and after each change; ends by raising AgentAway.

        `until` is given what ends the watch, to be called from another thread.
        """
        self._refuse_without_socket()
        with self._channel() as channel:
            stream = MpsStub(channel).Watch(pb.ListRequest())
            until(stream.cancel)
            try:
                yield from stream
            except grpc.RpcError as error:
                self._fail(error)
        raise AgentAway(self._away("ended the connection"))

    def _call(self, ask: Callable[[MpsStub], T]) -> T:
        self._refuse_without_socket()
        with self._channel() as channel:
            try:
                return ask(MpsStub(channel))
            except grpc.RpcError as error:
                self._fail(error)

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix:{quote(str(self._socket))}", _OPTIONS)

    def _refuse_without_socket(self) -> None:
        if not self._socket.is_socket():
            raise AgentAway(self._away("is not there"))

    def _fail(self, error: grpc.RpcError) -> NoReturn:
        code = getattr(error, "code", None)  # what a call raises is also a grpc.Call, which has it
        status = code() if callable(code) else grpc.StatusCode.UNKNOWN
        if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise AgentAway(self._away("does not answer")) from error
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise HardwareBusy(
                f"the MPS agent on {self._socket} has not answered in time; see its log"
            ) from error
        raise HardwareFailed(f"the MPS agent on {self._socket}: {status.name}") from error

    def _away(self, what: str) -> str:
        return (
            f"the MPS agent {what} ({self._socket}); it has the control daemons of MPS: start "
            "`dra-driver mps-agent` on this node, or see why it ended"
        )


def _explained(failure: pb.Failure) -> DriverError:
    """Error of the agent's reason word, as far as this plugin knows it."""
    kinds = {kind.reason: kind for kind in _leaves(DriverError)}
    return kinds.get(failure.reason, HardwareFailed)(failure.message)


def _leaves(kind: type[DriverError]) -> Iterator[type[DriverError]]:
    for each in kind.__subclasses__():
        if each.reason != kind.reason:  # else it is one of our own, with its parent's word
            yield each
            yield from _leaves(each)
