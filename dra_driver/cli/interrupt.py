"""How a command that starts processes ends in order when a signal asks it to."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Check = Callable[[], None]


class Interrupted(Exception):
    """A signal asked to end."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number."""
        super().__init__()
        self.number = number

    @property
    def status(self) -> int:
        """Exit status of a program that a signal ended."""
        return 128 + self.number


@contextmanager
def signals() -> Iterator[Check]:
    """Yield a check that raises Interrupted once a signal has asked to end.

    The handler itself raises nothing: it may run between the start of a process and the note that
    it must be ended.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
