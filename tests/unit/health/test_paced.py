"""Requests that come too soon are passed on later, together, and none is lost."""

import threading
import time

from dra_driver.health.paced import Paced

PACE = 0.5
HOUR = 3600.0


class Passed:
    """Keeps when requests were passed on."""

    def __init__(self, seconds: float) -> None:
        self.at: list[float] = []
        self._came = threading.Condition()
        self.paced = Paced(self._take, seconds)

    def _take(self) -> None:
        with self._came:
            self.at.append(time.monotonic())
            self._came.notify_all()

    def wait(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.at) >= count, 60)


def test_the_first_is_passed_on_at_once_and_many_soon_after_once_later() -> None:
    passed = Passed(PACE)
    passed.paced.ask()
    assert len(passed.at) == 1
    began = time.monotonic()
    while time.monotonic() - began < PACE / 2:
        passed.paced.ask()
    passed.wait(2)
    assert passed.at[1] - passed.at[0] >= PACE
    passed.paced.ask()
    passed.wait(3)
    assert passed.at[2] - passed.at[1] >= PACE


def test_what_is_urgent_does_not_wait_and_serves_what_waits() -> None:
    passed = Passed(HOUR)
    passed.paced.ask()
    passed.paced.ask()
    waits = passed.paced._waits
    assert waits is not None
    passed.paced.ask(at_once=True)
    waits.join()
    assert len(passed.at) == 2


def test_after_a_stop_nothing_waits() -> None:
    passed = Passed(HOUR)
    passed.paced.ask()
    passed.paced.ask()
    waits = passed.paced._waits
    assert waits is not None
    passed.paced.stop()
    waits.join()
    passed.paced.ask()
    assert passed.paced._waits is None
    assert len(passed.at) == 1
