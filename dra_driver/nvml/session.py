"""One use of one library: from loading and nvmlInit to nvmlShutdown, with a thread per GPU."""

import contextvars
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from dra_driver.host import HostRoot
from dra_driver.model import Bug, DriverError, Gpu, Problem
from dra_driver.model.errors import DriverNotReady, HardwareBusy
from dra_driver.nvml import reads
from dra_driver.nvml.calls import Handle
from dra_driver.nvml.errors import CallFailed, GpuAbsent, GpuLost, Notes
from dra_driver.nvml.event_service import EventService
from dra_driver.nvml.gpu import Reading, read_gpu
from dra_driver.nvml.library import Library, LibraryFile
from dra_driver.nvml.listener import Tell
from dra_driver.nvml.mig_gpu import MigGpu
from dra_driver.nvml.slots import SlotCache
from dra_driver.nvml.worker import Call, Worker
from dra_driver.telemetry import logger

T = TypeVar("T")
Outcome: TypeAlias = Reading | CallFailed | DriverError
Job: TypeAlias = Callable[[MigGpu], T]

OPEN_SECONDS: Final = 60.0  # nvmlInit wakes every GPU, which takes seconds each without persistence
READ_SECONDS: Final = 10.0  # all calls that one look at a GPU makes
_FIND_SECONDS: Final = 2.0  # that a GPU has to say which one it is

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class System:
    """What the GPU driver says of itself and the node."""

    driver_version: str
    cuda_driver_version: tuple[int, int] | None
    gpu_count: int
    problems: tuple[Problem, ...]
    kernel_gpus: frozenset[str] = frozenset()  # PCI addresses of the GPUs the kernel driver has


class _Moved(Exception):
    """Another GPU is at the index by now, or none."""


class Session:
    """Holds NVML, and with it the GPUs, open: compute modes last only while somebody does.

    Calls that belong to no GPU have a worker of their own; each GPU has one from the call that
    gives its handle on. A session whose calls hang is left behind as it is: its threads keep to
    its own library.
    """

    def __init__(
        self, file: LibraryFile, host: HostRoot, tell: Tell, deaf: Callable[[], None]
    ) -> None:
        """Open nothing yet. `tell` hears of events; `deaf` asks for another call of `listen`."""
        self.file = file
        self._host = host
        self._tell = tell
        self._deaf = deaf
        self._node = Worker("the GPU driver")
        self._gpus: dict[int, Worker] = {}
        self._library: Library | None = None  # as is _initialised: only the node worker's
        self._initialised = False
        self._events: EventService | None = None
        self._slots = SlotCache()
        self._count: int | None = None  # None: not counted yet, so that nothing is known of any GPU
        self._places: dict[str, int] = {}  # index by UUID, as last seen

    def open(self, timeout: float) -> System:
        """Load and initialise where that has not been done, and ask for the driver and its GPUs.

        Raises HardwareBusy when that takes longer than `timeout` seconds, else what went wrong.
        """
        try:
            return self._node.call(self._open, timeout)
        except CallFailed as failure:
            raise failure.explained(f"the GPU driver by {self.file.path}") from failure

    def read(self, count: int, known: Mapping[str, Gpu], timeout: float) -> tuple[Outcome, ...]:
        """Look at all GPUs at once; one that does not answer in time costs only itself."""
        deadline = time.monotonic() + timeout
        calls = [self._ask_for(index, known) for index in range(count)]
        outcomes: list[Outcome] = []
        for index, call in enumerate(calls):
            outcome = self._outcome(index, call, deadline)
            if isinstance(outcome, Reading):
                self._places[outcome.gpu.uuid] = index
            outcomes.append(outcome)
        return tuple(outcomes)

    def on_gpu(self, uuid: str, job: Job[T], timeout: float) -> T:
        """Run `job` on that GPU's own worker, whatever the others do; raises what it raises.

        Raises GpuAbsent when no GPU is that one, GpuLost when it is and can't be used any more,
        HardwareBusy when it does not answer in time or is blocked, DriverNotReady without NVML.
        """
        if self._library is None or not self._initialised or self._count is None:
            raise DriverNotReady("NVML is not open")
        deadline = time.monotonic() + timeout
        index = self._places.get(uuid)
        try:
            return self._at(self._find(uuid) if index is None else index, uuid, job, deadline)
        except _Moved:
            return self._at(self._find(uuid), uuid, job, deadline)

    def _at(self, index: int, uuid: str, job: Job[T], deadline: float) -> T:
        context = contextvars.copy_context()  # whose failpoints and log lines they are

        def run() -> T:
            device = self._identify(index, uuid)
            return context.run(job, MigGpu(uuid, device, self._host, deadline))

        call = self._submit(index, run)
        if isinstance(call, DriverError):
            raise call
        return call.result(max(0.0, deadline - time.monotonic()))

    def _identify(self, index: int, uuid: str) -> Handle:
        """Handle of the GPU at `index` if it is the one of that UUID; else raises _Moved."""
        self._adopt()
        try:
            device = reads.device(index)
            if reads.uuid(device) == uuid:
                return device
        except CallFailed as failure:
            if failure.past_the_end:
                raise _Moved from failure
            if failure.nowhere:
                raise GpuLost(f"GPU {uuid}: {failure}; look at the kernel log") from failure
            raise failure.explained(f"GPU {uuid}") from failure
        raise _Moved

    def _find(self, uuid: str) -> int:
        """Give the index at which a GPU is now, asking all of them."""
        self._places.pop(uuid, None)
        deadline = time.monotonic() + _FIND_SECONDS
        silent: DriverError | None = None
        count = self._count or 0
        asked = {index: self._submit(index, self._naming(index)) for index in range(count)}
        for index, call in asked.items():
            outcome = self._outcome(index, call, deadline)
            if isinstance(outcome, str):
                self._places[outcome] = index
            elif isinstance(outcome, DriverError):
                silent = outcome
            elif outcome.driver_gone:
                raise outcome.explained(f"gpu {index}")
            elif not (outcome.lost or outcome.nowhere or outcome.past_the_end):
                silent = outcome.explained(f"gpu {index}")
            if outcome == uuid:
                return index
        if silent is not None:
            raise HardwareBusy(f"GPU {uuid} is not found while not every GPU answers: {silent}")
        raise GpuAbsent(f"GPU {uuid} is not on this node any more")

    def _naming(self, index: int) -> Callable[[], str]:
        def job() -> str:
            self._adopt()
            return reads.uuid(reads.device(index))

        return job

    def _adopt(self) -> None:
        if self._library is None:
            raise Bug("a GPU was asked for before NVML was opened")
        self._library.adopt()

    def listen(self, gpus: Mapping[int, str]) -> frozenset[str]:
        """Let events of these GPUs (index to UUID) be told; gives those for which that works."""
        if self._library is None:
            return frozenset()
        if self._events is None:
            self._events = EventService(self._library, self._submit, self._tell, self._deaf)
        return self._events.listen(gpus)

    def close(self, timeout: float) -> None:
        """Let go of the GPUs, in at most `timeout` seconds; what hangs is left behind."""
        if self._events is not None:
            self._events.close(timeout)
        with suppress(CallFailed, DriverError):
            self._node.call(self._close, timeout)
        for worker in (self._node, *self._gpus.values()):
            worker.close()

    def _open(self) -> System:
        if self._library is None:
            self._library = Library(self.file)
        self._library.adopt()
        try:
            if not self._initialised:
                reads.initialise()
                self._initialised = True
            count = self._count = reads.device_count()
        except CallFailed as failure:
            if not failure.nowhere:
                raise
            self._count = 0
            return System("", None, 0, ())
        notes = Notes("node")
        return System(
            gpu_count=count,
            driver_version=_or(reads.driver_version, "", notes, "the driver version"),
            cuda_driver_version=_or(reads.cuda_driver_version, None, notes, "the CUDA version"),
            problems=notes.problems,
        )

    def _close(self) -> None:
        if self._library is None:
            return
        self._library.adopt()
        try:
            if self._initialised:
                reads.shut_down()
        finally:
            self._initialised = False
            self._library.retire()

    def _ask_for(self, index: int, known: Mapping[str, Gpu]) -> Call[Reading] | DriverError:
        library = self._library
        if library is None:
            return Bug("GPUs were asked for before NVML was opened")

        def job() -> Reading:
            library.adopt()
            return read_gpu(index, self._host, known, self._slots)

        return self._submit(index, job)

    def _submit(self, index: int, job: Callable[[], T]) -> Call[T] | DriverError:
        try:
            return self._gpus.setdefault(index, Worker(f"gpu {index}")).submit(job)
        except DriverError as error:
            return error

    def _outcome(
        self, index: int, call: Call[T] | DriverError, deadline: float
    ) -> T | CallFailed | DriverError:
        if isinstance(call, DriverError):
            return call
        try:
            return call.result(max(0.0, deadline - time.monotonic()))
        except (CallFailed, DriverError) as failure:
            return failure
        except Exception as error:  # noqa: BLE001 - our own mistake must not hide the other GPUs
            _log.exception("reading a GPU failed", gpu=index)
            return Bug(f"reading gpu {index} failed: {error}")


def _or(ask: Callable[[], T], default: T, notes: Notes, what: str) -> T:
    try:
        return ask()
    except CallFailed as failure:
        notes.failed(failure, f"{what} is left out")
        return default
