"""Calls that begin at the same time, and what they have to say in common."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from dra_driver.model import DriverError, PreparedClaim

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make the calls at the same time, each in a thread of its own."""
    begin = Barrier(len(calls))

    def work(call: Callable[[], T]) -> T:
        begin.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(work, calls))


def outcome(answer: PreparedClaim | DriverError) -> PreparedClaim | str:
    """Give what does not depend on who was first: the words of an error may."""
    return answer if isinstance(answer, PreparedClaim) else answer.reason
