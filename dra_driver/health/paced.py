"""A request that is passed on at once, or a little later when the last one was only just now."""

import threading
import time
from collections.abc import Callable
from typing import Final

_NEVER: Final = float("-inf")


class Paced:
    """Passes requests on once in so many seconds; what comes sooner waits and is never dropped."""

    def __init__(self, pass_on: Callable[[], None], seconds: float) -> None:
        """Call `pass_on`, which must not block, for requests."""
        self._pass_on = pass_on
        self._seconds = seconds
        self._guard = threading.Lock()  # of the rest
        self._last = _NEVER  # monotonic seconds
        self._waits: threading.Timer | None = None
        self._stopped = False

    def ask(self, *, at_once: bool = False) -> None:
        """Request it; `at_once`: however short ago the last one was. Returns at once."""
        with self._guard:
            wait = 0.0 if at_once else self._last + self._seconds - time.monotonic()
            if wait > 0:
                self._wait(wait)
                return
            self._begin()
        self._pass_on()

    def stop(self) -> None:
        """Forget what waits, and let nothing wait any more."""
        with self._guard:
            self._stopped = True
            self._forget()

    def _begin(self) -> None:
        """Count from now; what is passed on now is also for those who wait."""
        self._last = time.monotonic()
        self._forget()

    def _forget(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _wait(self, seconds: float) -> None:
        if self._waits is None and not self._stopped:
            self._waits = threading.Timer(seconds, self._late)
            self._waits.daemon = True
            self._waits.start()

    def _late(self) -> None:
        with self._guard:
            if self._waits is not threading.current_thread():
                return  # forgotten a moment ago
            self._begin()
        self._pass_on()
