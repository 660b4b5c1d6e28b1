"""Child processes: how they end, and what is kept of them."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dra_driver.host import Child

LIMIT = 60.0  # seconds; what is waited for happens in a few milliseconds
PARENT = """
import os, sys
from pathlib import Path
from dra_driver.host import Child
child = Child(["sleep", "600"], Path(sys.argv[1]), {"PATH": os.environ["PATH"]})
print(child.pid, flush=True)
sys.stdin.read()
"""


def _child(tmp_path: Path, script: str) -> Child:
    return Child(["sh", "-c", script], tmp_path / "log", {"PATH": os.environ["PATH"]})


def _until(condition: object, what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _running(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody waits for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_exit_status_and_last_words(tmp_path: Path) -> None:
    child = _child(tmp_path, "for i in 1 2 3 4; do echo line $i; done; echo wrong >&2; exit 3")
    _until(lambda: child.ended() is not None, "it did not end")
    assert child.ended() == 3
    assert child.last_words(2) == "line 4\nwrong"
    assert child.stop(LIMIT) == 3


def test_stop_asks_first(tmp_path: Path) -> None:
    child = _child(
        tmp_path, "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    )
    _until(lambda: "ready" in child.last_words(), "it did not start")
    assert child.stop(LIMIT) == 7
    assert child.last_words(1) == "asked"


def test_stop_ends_what_does_not_listen(tmp_path: Path) -> None:
    child = _child(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    _until(lambda: "ready" in child.last_words(), "it did not start")
    assert child.stop(0.2) == -signal.SIGKILL


def test_it_has_a_session_of_its_own(tmp_path: Path) -> None:
    child = _child(tmp_path, "exec sleep 600")
    assert os.getsid(child.pid) == child.pid
    child.stop(LIMIT)


def test_it_sees_only_the_environment_it_is_given(tmp_path: Path) -> None:
    child = Child(["/usr/bin/env"], tmp_path / "log", {"ONLY": "this", "LC_ALL": "C.UTF-8"})
    _until(lambda: child.ended() is not None, "it did not end")
    assert set(child.last_words().splitlines()) == {"ONLY=this", "LC_ALL=C.UTF-8"}


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    _until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "it did not become sleep")
    parent.kill()
    parent.communicate()
    _until(lambda: not _running(pid), "it outlived its parent")


def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    child = Child(["/nonexistent/program"], tmp_path / "log", {})
    _until(lambda: child.ended() is not None, "it did not end")
    assert child.ended() == 1
    assert "/nonexistent/program" in child.last_words() or "No such file" in child.last_words()


def test_an_end_is_told_and_can_be_waited_for(tmp_path: Path) -> None:
    child = _child(tmp_path, "read line; exit 4")
    assert child.wait(LIMIT) == 4 or child.ended() is not None
    told = threading.Event()
    later = _child(tmp_path, "sleep 0.2; exit 5")
    later.when_ended(told.set)
    assert later.wait(0.01) is None
    assert told.wait(LIMIT)
    assert later.ended() == 5
    told.clear()
    later.when_ended(told.set)
    assert told.wait(LIMIT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_folder_of_its_own_as_dev_shm(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    command = ["sh", "-c", "echo mine > /dev/shm/test-of-children"]
    child = Child(command, tmp_path / "log", {"PATH": os.environ["PATH"]}, shm)
    assert child.wait(LIMIT) == 0, child.last_words()
    assert (shm / "test-of-children").read_text() == "mine\n"
    assert not Path("/dev/shm/test-of-children").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_folder_that_can_not_be_bound_is_told_of(tmp_path: Path) -> None:
    child = Child(["true"], tmp_path / "log", {"PATH": os.environ["PATH"]}, tmp_path / "gone")
    assert child.wait(LIMIT) == 1
    assert child.last_words() == "/dev/shm can't be bound: No such file or directory"
