"""One use of one library: from loading and nvmlInit to nvmlShutdown, with a thread per GPU."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from dra_driver.host import HostRoot
from dra_driver.model import Bug, DriverError, Gpu, Problem
from dra_driver.nvml import reads
from dra_driver.nvml.errors import CallFailed, Notes
from dra_driver.nvml.event_service import EventService
from dra_driver.nvml.gpu import Reading, read_gpu
from dra_driver.nvml.library import Library, LibraryFile
from dra_driver.nvml.listener import Tell
from dra_driver.nvml.worker import Call, Worker
from dra_driver.telemetry import logger

T = TypeVar("T")
Outcome: TypeAlias = Reading | CallFailed | DriverError

OPEN_SECONDS: Final = 60.0  # nvmlInit wakes every GPU, which takes seconds each without persistence
READ_SECONDS: Final = 10.0  # all calls that one look at a GPU makes

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class System:
    """What the GPU driver says of itself and the node."""

    driver_version: str
    cuda_driver_version: tuple[int, int] | None
    gpu_count: int
    problems: tuple[Problem, ...]
    kernel_gpus: frozenset[str] = frozenset()  # PCI addresses of the GPUs the kernel driver has


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
        return tuple(self._outcome(index, call, deadline) for index, call in enumerate(calls))

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
            count = reads.device_count()
        except CallFailed as failure:
            if not failure.nowhere:
                raise
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
            return read_gpu(index, self._host, known)

        return self._submit(index, job)

    def _submit(self, index: int, job: Callable[[], T]) -> Call[T] | DriverError:
        try:
            return self._gpus.setdefault(index, Worker(f"gpu {index}")).submit(job)
        except DriverError as error:
            return error

    def _outcome(self, index: int, call: Call[Reading] | DriverError, deadline: float) -> Outcome:
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
