"""The listening thread: what it tells, how often it calls, and how it ends."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import pynvml
import pytest

from dra_driver.nvml import listener as module
from dra_driver.nvml.errors import CallFailed
from dra_driver.nvml.events import EventKind, EventSet, HardwareEvent
from dra_driver.nvml.listener import Listener

PACE = 0.1  # seconds, instead of 0.5
ALMOST = 0.95  # clocks are not compared to the last tick
EVENT = HardwareEvent("GPU-0", EventKind.XID, 48)


class FakeLibrary:
    """Stands for a loaded library, which the fake sets do not use."""

    def adopt(self) -> None:
        """Do nothing."""


class FakeSet(EventSet):
    """An event set whose waits a test decides on."""

    def __init__(self, answer: Callable[[int], HardwareEvent | None], *gpus: str) -> None:
        self._gpus = dict(enumerate(gpus or ("GPU-0",)))
        self._answer = answer
        self.waits: list[int] = []
        self.freed = threading.Event()

    def wait(self, milliseconds: int) -> HardwareEvent | None:
        assert not self.freed.is_set(), "a set that was freed is waited on"
        self.waits.append(milliseconds)
        return self._answer(milliseconds)

    def free(self) -> None:
        self.freed.set()


class Ear:
    """A listener and all that it said."""

    def __init__(self) -> None:
        self.told: list[tuple[HardwareEvent, ...]] = []
        self.failures = 0
        self.listener = Listener(FakeLibrary(), self.told.append, self._fail)  # type: ignore[arg-type]

    def _fail(self) -> None:
        self.failures += 1


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    monkeypatch.setattr(module, "_PACE_SECONDS", PACE)
    monkeypatch.setattr(module, "_FIRST_PAUSE", 4 * PACE)
    monkeypatch.setattr(module, "WAIT_MILLISECONDS", 200)
    made = Ear()
    yield made
    made.listener.stop(5)
    assert not [t for t in threading.enumerate() if t.name == "nvml events" and t.is_alive()]


def quiet(milliseconds: int) -> None:
    time.sleep(milliseconds / 1000)


def fail(code: int) -> Callable[[int], HardwareEvent | None]:
    def answer(_: int) -> HardwareEvent | None:
        raise CallFailed("nvmlEventSetWait", code)

    return answer


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def once(*events: HardwareEvent) -> Callable[[int], HardwareEvent | None]:
    """Give these events at once, then nothing."""
    left = list(events)

    def answer(milliseconds: int) -> HardwareEvent | None:
        if left:
            return left.pop(0)
        quiet(milliseconds)
        return None

    return answer


def test_events_that_come_together_are_told_together(ear: Ear) -> None:
    ear.listener.use(FakeSet(once(EVENT, EVENT, EVENT)))
    until(lambda: ear.told)
    assert ear.told == [(EVENT, EVENT, EVENT)]


def test_b42_a_wait_that_is_over_at_once_is_no_busy_loop(ear: Ear) -> None:
    event_set = FakeSet(lambda _: None)
    begun = time.monotonic()
    ear.listener.use(event_set)
    until(lambda: len(event_set.waits) >= 6)
    took = time.monotonic() - begun
    print(f"6 waits took {took:.2f} s")
    assert took >= 5 * PACE * ALMOST
    assert ear.listener.heard() == {"GPU-0"}


def test_b42_events_without_end_are_no_busy_loop(ear: Ear) -> None:
    event_set = FakeSet(lambda _: EVENT)
    begun = time.monotonic()
    ear.listener.use(event_set)
    until(lambda: len(ear.told) >= 6)
    took = time.monotonic() - begun
    print(f"{len(event_set.waits)} waits, told 6 times in {took:.2f} s")
    assert took >= 5 * PACE * ALMOST
    assert max(map(len, ear.told)) <= 64


@pytest.mark.parametrize("name", ["GPU_IS_LOST", "UNINITIALIZED", "UNKNOWN"])
def test_b42_failures_are_answered_later_and_later(ear: Ear, name: str) -> None:
    """Whoever is told makes a new set at once, as discovery does after a look."""
    answer = fail(getattr(pynvml, f"NVML_ERROR_{name}"))
    sets: list[FakeSet] = []
    told: list[float] = []

    def anew() -> None:
        told.append(time.monotonic())
        if len(told) < 4:
            sets.append(FakeSet(answer))
            ear.listener.use(sets[-1])

    ear.listener._failed = anew
    anew()
    until(lambda: len(told) == 4)
    pauses = [after - before for before, after in pairwise(told)]
    print(f"pauses of {pauses} s")
    assert pauses[1] >= 4 * PACE * ALMOST
    assert pauses[2] >= 8 * PACE * ALMOST
    assert ear.listener.heard() == frozenset(), "not relied on any more"
    assert all(each.freed.is_set() for each in sets[:-1])


def test_one_failure_does_not_deafen(ear: Ear) -> None:
    ear.listener.use(FakeSet(fail(pynvml.NVML_ERROR_GPU_IS_LOST)))
    until(lambda: ear.failures)
    assert ear.listener.listens_to() is None
    ear.listener.use(FakeSet(quiet, "GPU-1"))
    assert ear.listener.heard() == {"GPU-1"}


def _has_failed(ear: Ear, times: int) -> bool:
    return ear.failures == times


def test_a_set_that_lasts_forgives_earlier_failures(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROVEN_SECONDS", 0.2)
    for expected in (1, 2):
        ear.listener.use(FakeSet(fail(pynvml.NVML_ERROR_UNKNOWN)))
        until(partial(_has_failed, ear, expected))
    ear.listener.use(FakeSet(once()))
    assert ear.listener.heard() == frozenset()
    until(lambda: ear.listener.heard() == {"GPU-0"})


def test_a_wait_that_hangs_is_noticed(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.3)
    release = threading.Event()

    def hang(_: int) -> None:
        release.wait(60)

    ear.listener.use(FakeSet(hang))
    until(lambda: ear.listener.heard() == frozenset())
    begun = time.monotonic()
    ear.listener.stop(0.2)
    assert time.monotonic() - begun < 30.0, "a stop does not wait for it"
    release.set()


def test_what_a_set_still_holds_is_told_before_it_is_freed(ear: Ear) -> None:
    old = FakeSet(quiet)
    ear.listener.use(old)
    until(lambda: old.waits)
    ear.listener.use(FakeSet(quiet, "GPU-1"))
    old._answer = once(EVENT)
    until(old.freed.is_set)
    assert ear.told == [(EVENT,)]


def test_without_a_set_it_sleeps(ear: Ear) -> None:
    old = FakeSet(once())
    ear.listener.use(old)
    until(lambda: old.waits)
    ear.listener.use(None)
    waits = len(old.waits)
    time.sleep(0.6)
    assert len(old.waits) <= waits + 1
    assert ear.listener.heard() == frozenset()


def test_our_own_mistakes_end_nothing(ear: Ear) -> None:
    def mistake(_: tuple[HardwareEvent, ...]) -> None:
        raise ValueError("ours")

    ear.listener._tell = mistake
    ear.listener.use(FakeSet(once(EVENT)))
    broken = FakeSet(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    time.sleep(0.2)
    ear.listener.use(broken)
    until(lambda: ear.failures == 1)
    ear.listener._tell = ear.told.append
    ear.listener.use(FakeSet(once(EVENT)))
    until(lambda: ear.told == [(EVENT,)])
