"""Calls that hang cost their own GPU only, and nobody waits behind them."""

import threading
import time
from collections.abc import Iterator

import pytest

from dra_driver.model.errors import HardwareBusy
from dra_driver.nvml.worker import Worker

PATIENCE = 60.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("gpu 3")
    yield made
    made.close()


def until(condition: "threading.Event") -> None:
    assert condition.wait(PATIENCE)


def begin_and_wait(begun: threading.Event, release: threading.Event) -> None:
    begun.set()
    release.wait(PATIENCE)


def test_gives_the_result_from_its_own_thread(worker: Worker) -> None:
    assert worker.call(threading.get_ident, PATIENCE) != threading.get_ident()
    assert worker.call(lambda: 42, PATIENCE) == 42


def test_raises_what_the_job_raised_and_lives_on(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0, PATIENCE)
    assert worker.call(lambda: 1, PATIENCE) == 1


def test_an_overdue_call_fails_those_who_wait_and_those_who_come(worker: Worker) -> None:
    release, begun = threading.Event(), threading.Event()
    stuck = worker.submit(lambda: begin_and_wait(begun, release))
    until(begun)
    behind = worker.submit(lambda: 1)
    with pytest.raises(HardwareBusy, match="gpu 3 does not answer"):
        stuck.result(0.01)
    before = time.monotonic()
    with pytest.raises(HardwareBusy, match="gpu 3 does not answer"):
        behind.result(PATIENCE)
    with pytest.raises(HardwareBusy, match="gpu 3 does not answer"):
        worker.call(lambda: 1, PATIENCE)
    assert time.monotonic() - before < PATIENCE / 10
    assert not worker.answering
    release.set()


def test_answers_again_when_the_overdue_call_has_returned(worker: Worker) -> None:
    release, begun = threading.Event(), threading.Event()
    stuck = worker.submit(lambda: begin_and_wait(begun, release))
    until(begun)
    with pytest.raises(HardwareBusy):
        stuck.result(0.01)
    release.set()
    deadline = time.monotonic() + PATIENCE
    while not worker.answering:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert worker.call(lambda: "well", PATIENCE) == "well"


def test_a_job_that_has_not_begun_in_time_is_forgotten(worker: Worker) -> None:
    release, begun = threading.Event(), threading.Event()
    done: list[str] = []
    slow = worker.submit(lambda: begin_and_wait(begun, release))
    until(begun)
    late = worker.submit(lambda: done.append("late"))
    with pytest.raises(HardwareBusy, match="busy with an earlier call"):
        late.result(0.01)
    assert worker.answering, "the running call itself is not overdue"
    release.set()
    slow.result(PATIENCE)
    worker.call(lambda: done.append("next"), PATIENCE)
    assert done == ["next"]


def test_workers_do_not_wait_for_each_other(worker: Worker) -> None:
    release, other = threading.Event(), Worker("gpu 4")
    worker.submit(lambda: release.wait(PATIENCE))
    assert other.call(lambda: 4, PATIENCE) == 4
    release.set()
    other.close()


def test_a_closed_worker_ends_its_thread_and_refuses(worker: Worker) -> None:
    thread = worker.call(threading.current_thread, PATIENCE)
    worker.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    with pytest.raises(HardwareBusy):
        worker.submit(lambda: 1)


def test_a_thread_that_could_not_be_started_is_started_for_the_next_job(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the container may have no more processes for a while."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.submit(lambda: pytest.fail("the job was refused"))
    assert worker.call(lambda: 42, PATIENCE) == 42
