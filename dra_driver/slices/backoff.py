"""Pauses between attempts that grow and differ from node to node."""

import random


class Backoff:
    """Doubles from `first` to `longest` seconds; each pause is shortened by up to half at random.

    Without the randomness all nodes of a cluster would come back to a restarted server at once.
    """

    def __init__(self, first: float, longest: float) -> None:
        """Start with the shortest pause."""
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets

    def reset(self) -> None:
        """Start over: it worked."""
        self._next = self._first
