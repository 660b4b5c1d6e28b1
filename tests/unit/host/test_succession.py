"""Who came last among living processes: nobody waits, and the dead are forgotten."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.host.succession import Succession
from dra_driver.model.errors import StorageFailed

_CHILD = """
import sys, time
from pathlib import Path
from dra_driver.host.succession import Succession
succession = Succession(Path(sys.argv[1]))
succession.join()
print(succession.is_last(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "made" / "publisher.lock"


def test_the_last_to_come_is_last_until_it_leaves(file: Path) -> None:
    old, new = Succession(file), Succession(file)
    assert not old.is_last(), "not in yet"
    old.join()
    assert old.is_last()
    new.join()
    assert (old.is_last(), new.is_last()) == (False, True)
    old.join()
    assert not old.is_last(), "who is in does not move"
    new.leave()
    assert (old.is_last(), new.is_last()) == (True, False)
    new.join()
    assert not new.is_last(), "who has left stays out"


def test_leaving_unasked_and_twice_does_nothing(file: Path) -> None:
    alone = Succession(file)
    alone.leave()
    alone.leave()
    assert not file.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_dies_is_forgotten_and_one_that_halts_is_passed_over(
    file: Path, number: int
) -> None:
    old = Succession(file)
    old.join()
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(file)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "True\n"
            assert not old.is_last()
            child.send_signal(signal.SIGSTOP)
            newest = Succession(file)
            newest.join()  # and nobody waits for one that hangs
            assert newest.is_last()
            newest.leave()
            assert not old.is_last(), "it is halted, not dead"
            child.send_signal(signal.SIGCONT)
            child.send_signal(number)
            child.wait(60)
            assert old.is_last()
        finally:
            child.kill()


@given(st.lists(st.integers(0, 5), max_size=30))
def test_exactly_the_newest_of_the_living_is_last(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int]
) -> None:
    """Each number lets somebody come; or go, if that one is there."""
    file = tmp_path_factory.mktemp("order") / "lock"
    there: dict[int, Succession] = {}  # in order of arrival
    for number in moves:
        if number in there:
            there.pop(number).leave()
        else:
            there[number] = Succession(file)
            there[number].join()
        expected = [False] * (len(there) - 1) + [True] * bool(there)
        assert [each.is_last() for each in there.values()] == expected
    for each in there.values():
        each.leave()


def test_those_who_come_at_once_get_places_of_their_own(file: Path) -> None:
    script = _CHILD.replace("time.sleep(600)", "sys.stdin.read()")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    mine = Succession(file)
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline().strip() in ("True", "False")
        mine.join()
        assert mine._place == len(children)
        assert mine.is_last()
    finally:
        mine.leave()
        for child in children:
            child.communicate()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=f"cannot open the lock {tmp_path}"):
        Succession(tmp_path).join()


def test_a_place_lost_to_a_faster_one_is_not_shared(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else comes between our look and our lock."""
    from dra_driver.host import succession as module  # noqa: PLC0415

    ask, looks, faster = module._held_from, itertools.count(), Succession(file)

    def slow(descriptor: int, start: int) -> int | None:
        found = ask(descriptor, start)
        if next(looks) == 0:
            monkeypatch.setattr(module, "_held_from", ask)
            faster.join()
        return found

    monkeypatch.setattr(module, "_held_from", slow)
    slower = Succession(file)
    slower.join()
    assert (faster.is_last(), slower.is_last()) == (False, True)
