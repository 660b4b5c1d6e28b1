"""Counts for metrics."""

import threading


class Tally:
    """Counts what many threads do."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.total = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one more."""
        with self._lock:
            self.total += 1
