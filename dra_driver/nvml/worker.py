"""A thread that makes the calls that may hang, so that nobody else has to wait for them."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dra_driver.model.errors import HardwareBusy

T = TypeVar("T")


class Superseded(HardwareBusy):
    """The job was not begun: its worker ends, and another takes its place."""


class Call(Generic[T]):
    """A job handed to a worker, and its outcome once there is one."""

    def __init__(self, worker: "Worker", job: Callable[[], T]) -> None:
        self._worker = worker
        self._job = job
        self._done = threading.Event()
        self._result: T
        self._error: BaseException | None = None

    def result(self, timeout: float) -> T:
        """Wait at most `timeout` seconds; give the job's result or raise its error.

        Raises HardwareBusy when the time is up: a job that runs then blocks its worker until it
        returns, one that has not begun is forgotten.
        """
        if not self._done.wait(timeout):
            self._worker.give_up(self)
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self._done.is_set()

    def run(self) -> None:
        """Do the job, on the worker's thread."""
        try:
            self._result = self._job()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        self._done.set()

    def fail(self, error: HardwareBusy) -> None:
        """End the call without its having run, unless it has ended."""
        if not self.done:
            self._error = error
            self._done.set()


class Worker:
    """One daemon thread that does jobs in order, and says so when one does not come back."""

    def __init__(self, name: str) -> None:
        """Name it after what it talks to, as a person would: `gpu 3`."""
        self._name = name
        self._change = threading.Condition()
        self._waiting: deque[Call[Any]] = deque()
        self._running: Call[Any] | None = None
        self._overdue = False
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def answering(self) -> bool:
        """Whether no job is overdue."""
        return not self._overdue

    def call(self, job: Callable[[], T], timeout: float) -> T:
        """Run `job` and wait for it as `Call.result` does."""
        return self.submit(job).result(timeout)

    def submit(self, job: Callable[[], T]) -> Call[T]:
        """Queue `job`; raises HardwareBusy at once while an earlier one is overdue."""
        call = Call(self, job)
        with self._change:
            if self._overdue or self._closed:
                raise self._busy()
            if self._thread is None:
                thread = threading.Thread(
                    target=self._serve, name=f"nvml {self._name}", daemon=True
                )
                thread.start()  # may fail where processes are limited; the next job tries again
                self._thread = thread
            self._waiting.append(call)
            self._change.notify()
        return call

    def give_up(self, call: Call[Any]) -> None:
        """Stop waiting for `call`; if it is what runs, nothing queues until it returns."""
        with self._change:
            if call.done:
                return
            if call is self._running:
                self._overdue = True
                self._fail_waiting()
            elif call in self._waiting:
                self._waiting.remove(call)
            call.fail(self._busy())

    def close(self) -> None:
        """End the thread once it is idle; jobs that have not begun fail."""
        with self._change:
            self._closed = True
            self._fail_waiting()
            self._change.notify()

    def _busy(self) -> HardwareBusy:
        if self._closed:
            return Superseded(f"{self._name} is being looked up anew; try again")
        if self._overdue:
            return HardwareBusy(
                f"{self._name} does not answer: an NVML call is overdue; look at the kernel log"
            )
        return HardwareBusy(f"{self._name} is busy with an earlier call; try again")

    def _fail_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().fail(self._busy())

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call.run()

    def _next(self) -> Call[Any] | None:
        with self._change:
            self._running = None
            self._overdue = False
            while not self._waiting:
                if self._closed:
                    return None
                self._change.wait()
            self._running = self._waiting.popleft()
            return self._running
