"""Events on claims and nodes: queued here by anybody, delivered by `kube`.

What fails fails again and again: the kubelet alone tries a claim once a minute, for ever. So the
same words about the same object are said at once, then after a pause that doubles each time, with
how often they were meant; and other words with the same reason only as far as a budget goes.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from dra_driver.model.claim import ClaimRef

_PENDING: Final = 256  # beyond this the oldest undelivered event is dropped: events are no state
_REMEMBERED: Final = 1024  # events, and objects, of which it is known when they were told last
_FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0  # the API server itself forgets Events after an hour
_BURST: Final = 25  # different events of one reason about one object at once, as in client-go
_REFILL: Final = 60.0  # seconds until one more may be told

V = TypeVar("V")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to tell the person who looks at `claim`, or at the node when it is None."""

    reason: str  # CamelCase word of the error tree or of a change
    message: str
    warning: bool
    claim: ClaimRef | None = None
    times: int = field(default=1, compare=False)  # that it was meant to be said until now
    since: float = field(default=0.0, compare=False)  # Unix seconds of the first; 0: it is this


@dataclass(slots=True)
class _Said:
    """What is known of an event that was told."""

    since: float
    until: float  # it is said no more
    pause: float
    last: float  # when it was meant to be said last
    times: int = 1


class EventQueue:
    """Bounded queue that says what repeats less and less often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing said; `clock` gives monotonic seconds."""
        self._clock = clock
        self._ready = threading.Condition()
        self._pending: OrderedDict[Event, Event] = OrderedDict()
        self._said: OrderedDict[Event, _Said] = OrderedDict()
        self._budgets: OrderedDict[tuple[ClaimRef | None, str], float] = OrderedDict()
        self._closed = False

    def add(self, event: Event) -> None:
        """Queue an event unless it is too soon to say it again. Never blocks, never fails."""
        now = self._clock()
        with self._ready:
            said = self._said.get(event)
            if said is not None and now - said.last > 2 * said.pause:
                said = None  # it has been well in between
            if said is None:
                if self._is_spent((event.claim, event.reason), now):
                    return
                said = _Said(time.time(), now + _FIRST_PAUSE, _FIRST_PAUSE, now)
            else:
                said.times, said.last = said.times + 1, now
                if now < said.until:
                    return
                said.pause = min(2 * said.pause, _LONGEST_PAUSE)
                said.until = now + said.pause
            _keep(self._said, event, said, _REMEMBERED)
            told = replace(event, times=said.times, since=said.since)
            _keep(self._pending, event, told, _PENDING)
            self._ready.notify()

    def take(self, timeout: float | None = None) -> Event | None:
        """Oldest undelivered event; None when none came in time, or comes any more."""
        with self._ready:
            self._ready.wait_for(lambda: self._pending or self._closed, timeout)
            if not self._pending:
                return None
            return self._pending.popitem(last=False)[1]

    def close(self) -> None:
        """Let nobody wait any longer; what is queued can still be taken."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def _is_spent(self, about: tuple[ClaimRef | None, str], now: float) -> bool:
        """Take one event from the budget of an object and reason; True when nothing is left of it.

        What is kept is the time at which the budget is full again.
        """
        full_at = max(self._budgets.get(about, now), now)
        if full_at - now > (_BURST - 1) * _REFILL:
            return True
        _keep(self._budgets, about, full_at + _REFILL, _REMEMBERED)
        return False


def _keep(entries: OrderedDict[T, V], key: T, value: V, most: int) -> None:
    """Enter something as the newest; the oldest go when there are too many."""
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > most:
        entries.popitem(last=False)
