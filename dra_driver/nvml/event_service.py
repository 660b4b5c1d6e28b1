"""Keeps event sets for the GPUs that answer, so that their events are heard."""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from dra_driver.model import DriverError
from dra_driver.nvml.errors import CallFailed
from dra_driver.nvml.events import EventSet, EventsUnsupported
from dra_driver.nvml.library import Library
from dra_driver.nvml.listener import WAIT_MILLISECONDS, Listener, Tell
from dra_driver.nvml.worker import Call, Worker
from dra_driver.telemetry import logger

LISTEN_SECONDS: Final = 2.0  # that GPUs have to be added to an event set
_LEAVE_SECONDS: Final = 3 * WAIT_MILLISECONDS / 1000  # for the listener to leave NVML
_REFUSAL_SECONDS: Final = 60.0  # before a GPU whose events failed to be added is tried again
_FOR_EVER: Final = float("inf")

_log = logger(__name__)
Submit: TypeAlias = Callable[[int, Callable[[], None]], Call[None] | DriverError]


class EventService:
    """Events of one session. A set is never changed: when the GPUs change, a new one is made.

    Each GPU is added by its own worker, so one that hangs costs only its own events.
    """

    def __init__(
        self, library: Library, submit: Submit, tell: Tell, failed: Callable[[], None]
    ) -> None:
        """Start nothing yet. `tell` hears of events; `failed` asks for another call of `listen`."""
        self._library = library
        self._submit = submit
        self._maker = Worker("the GPU driver's event service")
        self._listener = Listener(library, tell, failed)
        self._refused: dict[str, float] = {}  # GPUs without events, until when

    def listen(self, gpus: Mapping[int, str]) -> frozenset[str]:
        """Let events of these GPUs (index to UUID) be told; gives those for which that works.

        Does nothing while it does so already. Takes a few seconds at most.
        """
        while True:
            now = time.monotonic()
            wanted = {i: uuid for i, uuid in gpus.items() if self._refused.get(uuid, 0.0) <= now}
            if not wanted:
                self._listener.use(None)
                return frozenset()
            if self._listener.listens_to() == frozenset(wanted.values()):
                return self._listener.heard()
            event_set = self._new_set()
            if event_set is None:
                return frozenset()
            if self._add_all(event_set, wanted):
                self._listener.use(event_set)
                return self._listener.heard()

    def close(self, timeout: float) -> None:
        """End the listening, in at most `timeout` seconds; what hangs is left behind."""
        self._listener.stop(min(timeout, _LEAVE_SECONDS))
        self._maker.close()

    def _new_set(self) -> EventSet | None:
        def job() -> EventSet:
            self._library.adopt()
            return EventSet()

        try:
            return self._maker.call(job, LISTEN_SECONDS)
        except (CallFailed, DriverError) as error:
            _log.debug("there are no GPU events", err=error)
            return None

    def _add_all(self, event_set: EventSet, gpus: Mapping[int, str]) -> bool:
        """Add the GPUs to a new set; gives whether it can be used, else it is left to itself.

        A GPU that failed is left out next time: after some errors the set is undefined (nvml.h,
        nvmlDeviceRegisterEvents), and a call that hangs may use it yet.
        """
        deadline = time.monotonic() + LISTEN_SECONDS
        calls = {
            uuid: self._submit(index, self._adding(event_set, index, uuid))
            for index, uuid in gpus.items()
        }
        added = [self._is_added(uuid, call, deadline) for uuid, call in calls.items()]
        return all(added)  # each was waited for

    def _adding(self, event_set: EventSet, index: int, uuid: str) -> Callable[[], None]:
        def job() -> None:
            self._library.adopt()
            event_set.add(index, uuid)

        return job

    def _is_added(self, uuid: str, call: Call[None] | DriverError, deadline: float) -> bool:
        """Wait for a GPU; gives whether the set is still good."""
        try:
            if isinstance(call, DriverError):
                raise call
            call.result(max(0.0, deadline - time.monotonic()))
        except EventsUnsupported:
            self._refused[uuid] = _FOR_EVER
        except CallFailed as failure:
            self._refused[uuid] = (
                _FOR_EVER if failure.absent else time.monotonic() + _REFUSAL_SECONDS
            )
            if not failure.absent:
                _log.warning("a GPU's events can't be had", gpu=uuid, err=failure)
                return False
        except DriverError as error:
            self._refused[uuid] = time.monotonic() + _REFUSAL_SECONDS
            _log.warning("a GPU's events can't be had", gpu=uuid, err=error)
            return False
        return True
