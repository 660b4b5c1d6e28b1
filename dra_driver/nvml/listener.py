"""A thread that waits for NVML's events, and holds up nobody when NVML does not answer."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dra_driver.nvml.errors import CallFailed
from dra_driver.nvml.events import EventSet, HardwareEvent
from dra_driver.nvml.library import Library
from dra_driver.telemetry import logger

WAIT_MILLISECONDS: Final = 500  # also how long a stop may take to be noticed
_GATHER_MILLISECONDS: Final = 20  # pause in a burst of events after which they are told together
_GATHER_MOST: Final = 64  # events told at once
_GATHER_SECONDS: Final = 0.25  # a burst that goes on is told after this long
_PACE_SECONDS: Final = 0.5  # from one round to the next at least, whatever NVML answers
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # between two attempts while waiting fails
_PROVEN_SECONDS: Final = 10.0  # a set that worked this long is good
_STUCK_SECONDS: Final = 10.0  # a wait that has not come back so long after it should is stuck
_TROUBLED: Final = 2  # failures in a row after which events are not relied on

_log = logger(__name__)
Tell = Callable[[tuple[HardwareEvent, ...]], None]


class Listener:
    """Waits on the newest event set it was given; one that fails is dropped, and that is told.

    Who made the sets makes a new one then. The pause before each further failure is told grows,
    so that an NVML that fails at once and for ever costs next to nothing.
    """

    def __init__(self, library: Library, tell: Tell, failed: Callable[[], None]) -> None:
        """Start nothing yet. `tell` and `failed` are called from the thread; must not block."""
        self._library = library
        self._tell = tell
        self._failed = failed
        self._change = threading.Condition()  # guards the rest; never held over a call
        self._newest: EventSet | None = None
        self._given = 0.0  # when, monotonic
        self._turned = 0.0  # when the thread last came back from NVML, monotonic
        self._failures = 0  # in a row
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="nvml events", daemon=True)

    def use(self, event_set: EventSet | None) -> None:
        """Wait on this set from now on, None: on nothing; the one before is freed."""
        with self._change:
            self._newest = event_set
            self._given = self._turned = time.monotonic()
            self._change.notify_all()
            if event_set is not None and not self._thread.is_alive() and not self._stopped:
                self._thread.start()

    def listens_to(self) -> frozenset[str] | None:
        """GPUs in the present set; None when there is none and one should be given."""
        with self._change:
            return None if self._newest is None else self._newest.gpus

    def heard(self) -> frozenset[str]:
        """GPUs whose events can be relied on to be heard."""
        with self._change:
            stuck = time.monotonic() - self._turned > _STUCK_SECONDS
            if self._newest is None or stuck or self._failures >= _TROUBLED:
                return frozenset()
            return self._newest.gpus

    def stop(self, timeout: float) -> None:
        """End the thread; one that hangs in NVML is left behind after `timeout` seconds."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        self._library.adopt()
        mine: EventSet | None = None
        while (newest := self._next()) is not None:
            if newest is not mine:
                self._leave(mine)
                mine = newest
            began = time.monotonic()
            try:
                batch = self._gather(mine, WAIT_MILLISECONDS)
            except Exception as failure:  # noqa: BLE001 - the thread outlives our own mistakes
                self._drop(mine, failure)
                continue
            if batch:
                self._tell_safely(batch)
            self._rest(began + _PACE_SECONDS - time.monotonic())
        self._leave(mine)

    def _leave(self, event_set: EventSet | None) -> None:
        """Tell what a set still holds, then free it: its successor knows later events only."""
        if event_set is None:
            return
        with suppress(Exception):  # it may be the one that failed
            if batch := self._gather(event_set, 0):
                self._tell_safely(batch)
        _free(event_set)

    def _next(self) -> EventSet | None:
        """Set to wait on, once there is one; None when the listener stops."""
        with self._change:
            self._turned = time.monotonic()
            if self._newest is not None and self._turned - self._given > _PROVEN_SECONDS:
                self._failures = 0
            self._change.wait_for(lambda: self._stopped or self._newest is not None)
            return None if self._stopped else self._newest

    def _gather(self, event_set: EventSet, milliseconds: int) -> tuple[HardwareEvent, ...]:
        """Wait for an event, and for those that come right after it."""
        batch: list[HardwareEvent] = []
        event = event_set.wait(milliseconds)
        until = time.monotonic() + _GATHER_SECONDS
        while event is not None:
            batch.append(event)
            if len(batch) == _GATHER_MOST or time.monotonic() > until:
                break
            try:
                event = event_set.wait(_GATHER_MILLISECONDS)
            except CallFailed:
                break  # what was heard is told first; the next wait fails again
        return tuple(batch)

    def _drop(self, event_set: EventSet, failure: Exception) -> None:
        with self._change:
            self._failures += 1
            doubled = _FIRST_PAUSE * 2.0 ** min(self._failures - 2, 10)
            pause = min(doubled, _LONGEST_PAUSE) if self._failures > 1 else 0.0
            if self._newest is event_set:
                self._newest = None
            is_news = self._failures <= _TROUBLED and not self._stopped
        if is_news:
            _log.warning("waiting for GPU events failed; it begins anew", err=failure)
        self._rest(pause)
        if not self._stopped:
            self._failed()

    def _rest(self, seconds: float) -> None:
        with self._change:
            if seconds > 0:
                self._change.wait_for(lambda: self._stopped, seconds)

    def _tell_safely(self, batch: tuple[HardwareEvent, ...]) -> None:
        try:
            self._tell(batch)
        except Exception:  # noqa: BLE001 - whoever listens must not end the listening
            _log.exception("a listener failed on an event of the hardware")


def _free(event_set: EventSet) -> None:
    with suppress(CallFailed):  # NVML is gone, and with it the set
        event_set.free()
