"""Events on claims and nodes: queued here by anybody, delivered by `kube`."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from dra_driver.model.claim import ClaimRef

_CAPACITY = 256  # beyond this the oldest undelivered event is dropped: events are help, not state
_QUIET_SECONDS = 60.0  # the same words about the same object are said once in this time


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to tell the person who looks at `claim`, or at the node when it is None."""

    reason: str  # CamelCase word of the error tree or of a change
    message: str
    warning: bool
    claim: ClaimRef | None = None


class EventQueue:
    """Bounded queue that forgets repetitions."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._pending: OrderedDict[Event, None] = OrderedDict()
        self._said: OrderedDict[Event, float] = OrderedDict()
        self._closed = False

    def add(self, event: Event) -> None:
        """Queue an event unless the same was said a moment ago. Never blocks, never fails."""
        now = time.monotonic()
        with self._ready:
            if now - self._said.get(event, -_QUIET_SECONDS) < _QUIET_SECONDS:
                return
            self._said[event] = now
            self._said.move_to_end(event)
            self._pending[event] = None
            for entries in (self._said, self._pending):
                while len(entries) > _CAPACITY:
                    entries.popitem(last=False)
            self._ready.notify()

    def take(self, timeout: float | None = None) -> Event | None:
        """Oldest undelivered event; None when none came in time, or comes any more."""
        with self._ready:
            self._ready.wait_for(lambda: self._pending or self._closed, timeout)
            if not self._pending:
                return None
            return self._pending.popitem(last=False)[0]

    def close(self) -> None:
        """Let nobody wait any longer; what is queued can still be taken."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
