"""The plugin's calls to an agent that is well, away, silent, or of another release."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import grpc
import pytest

from dra_driver.model.errors import (
    DeviceInUse,
    DriverError,
    DriverNotReady,
    HardwareBusy,
    HardwareFailed,
    StorageFailed,
)
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.rpc.mps_v1_pb2_grpc import MpsServicer, add_MpsServicer_to_server
from dra_driver.sharing import mps_client
from dra_driver.sharing.mps_client import AgentAway, MpsAgent
from dra_driver.sharing.mps_spec import MpsDevice, MpsSpec, set_id

SPEC = MpsSpec(set_id(["GPU-0"]), (MpsDevice("GPU-0", "GPU-0"),))


class Scripted:
    """Answers what the test wants."""

    def __init__(self) -> None:
        self.failure: pb.Failure | None = None
        self.wait = 0.0
        self.over = threading.Event()  # nothing is waited for any more
        self.code: grpc.StatusCode | None = None
        self.asked: list[object] = []

    def ensure(self, request: pb.EnsureRequest, context: grpc.ServicerContext) -> pb.EnsureResponse:
        self._meet(request, context)
        if self.failure is not None:
            return pb.EnsureResponse(failure=self.failure)
        return pb.EnsureResponse(state=pb.SetState(set=request.set, pid=7), client_limit=48)

    def release(
        self, request: pb.ReleaseRequest, context: grpc.ServicerContext
    ) -> pb.ReleaseResponse:
        self._meet(request, context)
        return pb.ReleaseResponse(failure=self.failure)

    def watch(self, request: pb.ListRequest, context: grpc.ServicerContext) -> Iterator[pb.Sets]:
        for number in range(2):
            yield pb.Sets(agent_id=str(number))
        self.over.wait(self.wait)

    def tell(self, request: pb.ListRequest, context: grpc.ServicerContext) -> pb.Sets:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "words")

    Ensure, Release, Watch, List = ensure, release, watch, tell

    def _meet(self, request: object, context: grpc.ServicerContext) -> None:
        self.asked.append(request)
        self.over.wait(self.wait)
        if self.code is not None:
            context.abort(self.code, "words")


@pytest.fixture
def socket() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    yield folder / "agent.sock"
    shutil.rmtree(folder)


@pytest.fixture
def scripted(socket: Path) -> Iterator[Scripted]:
    servicer = Scripted()
    server = grpc.server(ThreadPoolExecutor(4))
    add_MpsServicer_to_server(cast("MpsServicer", servicer), server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    yield servicer
    servicer.over.set()
    server.stop(None).wait(10)


def ensure(agent: MpsAgent) -> object:
    return agent.ensure(SPEC, replace=False)


def release(agent: MpsAgent) -> object:
    return agent.release(SPEC.id)  # type: ignore[func-returns-value]


CALLS = [ensure, release]


def test_an_answer_has_state_and_client_limit(socket: Path, scripted: Scripted) -> None:
    state, most = MpsAgent(socket).ensure(SPEC, replace=True)
    assert (state.pid, state.set.id, most) == (7, SPEC.id, 48)
    (asked,) = scripted.asked
    assert isinstance(asked, pb.EnsureRequest)
    assert asked.replace


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("DeviceInUse", DeviceInUse),
        ("StorageFailed", StorageFailed),
        ("DriverNotReady", DriverNotReady),
        ("WordOfANewerAgent", HardwareFailed),
    ],
)
def test_a_failure_is_the_error_of_its_word(
    socket: Path,
    scripted: Scripted,
    call: Callable[[MpsAgent], object],
    reason: str,
    kind: type[DriverError],
) -> None:
    scripted.failure = pb.Failure(reason=reason, message="what was wrong")
    with pytest.raises(kind, match=r"^what was wrong$") as caught:
        call(MpsAgent(socket))
    assert type(caught.value) is kind


@pytest.mark.parametrize("call", CALLS)
def test_an_agent_that_is_away_is_told_at_once(
    socket: Path, call: Callable[[MpsAgent], object]
) -> None:
    began = time.monotonic()
    with pytest.raises(AgentAway, match=r"agent is not there .*start `dra-driver mps-agent`"):
        call(MpsAgent(socket))
    socket.touch()
    with pytest.raises(AgentAway, match="is not there"):
        call(MpsAgent(socket))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("call", CALLS)
def test_a_killed_agents_socket_is_away_too(
    socket: Path, scripted: Scripted, call: Callable[[MpsAgent], object]
) -> None:
    dead = socket.with_name("dead.sock")
    socket.rename(dead)
    scripted.code = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(AgentAway, match="does not answer"):
        call(MpsAgent(dead))


@pytest.mark.parametrize("call", CALLS)
def test_an_agent_that_hangs_is_given_up(
    socket: Path,
    scripted: Scripted,
    call: Callable[[MpsAgent], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_ENSURE_SECONDS", "_RELEASE_SECONDS"):
        monkeypatch.setattr(mps_client, name, 0.2)
    scripted.wait = 1.0
    with pytest.raises(HardwareBusy, match="has not answered in time"):
        call(MpsAgent(socket))


def test_an_agent_that_lacks_the_call_is_told_of(socket: Path, scripted: Scripted) -> None:
    with pytest.raises(HardwareFailed, match="UNIMPLEMENTED"):
        MpsAgent(socket).sets()


def test_a_watch_ends_when_the_agent_does_or_when_it_is_told_to(
    socket: Path, scripted: Scripted
) -> None:
    agent = MpsAgent(socket)
    seen: list[str] = []
    with pytest.raises(AgentAway, match="ended the connection"):
        seen += [sets.agent_id for sets in agent.watch(lambda _: None)]
    scripted.wait = 60
    ends: list[Callable[[], object]] = []

    def read() -> None:
        for sets in agent.watch(ends.append):
            seen.append(sets.agent_id)
            if sets.agent_id == "1":
                ends[0]()

    with pytest.raises(AgentAway):
        read()
    assert seen == ["0", "1"]
