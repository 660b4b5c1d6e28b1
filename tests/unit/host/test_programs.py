"""Programs that are run to their end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.host import programs, programs_run, run_program
from dra_driver.model.errors import DriverFilesMissing, HardwareBusy

LIMIT = 60.0

# A process that is killed while another traces it (ptrace(2), PTRACE_SEIZE) does not end for its
# parent until the other does: as one that hangs in a call to the kernel. Here the first starts the
# second, lets itself be traced by it (prctl(2), PR_SET_PTRACER), and waits.
HANGING = """
import ctypes, os, sys, time
folder, libc = sys.argv[1], ctypes.CDLL(None, use_errno=True)
if os.path.exists(folder + "/well"):
    sys.exit()
libc.prctl(0x59616d61, ctypes.c_ulong(-1))
traced = os.getpid()
if os.fork() == 0:
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    failed = libc.ptrace(0x4206, traced, 0, 0)
    with open(folder + "/new", "w") as file:
        file.write(os.strerror(ctypes.get_errno()) if failed else str(os.getpid()))
    os.rename(folder + "/new", folder + "/tracer")
    if failed:
        sys.exit()
time.sleep(300)
"""


def test_what_is_said_is_read_and_what_is_written_is_kept() -> None:
    done = run_program(["/bin/sh", "-c", "cat; echo wrong >&2; exit 3"], {}, 60, "line\n")
    assert (done.status, done.output, done.words) == (3, "line\nwrong\n", "wrong")


def test_nothing_is_said_by_default() -> None:
    before = programs_run()
    assert run_program(["/bin/cat"], {}, 60).output == ""
    assert programs_run() - before == 1


def test_a_program_that_does_not_read_may_end() -> None:
    assert run_program(["/bin/true"], {}, 60, "x" * 10**6).status == 0


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(HardwareBusy, match=r"/bin/sleep did not end within 0\.1 s"):
        run_program(["/bin/sleep", "600"], {}, 0.1)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(DriverFilesMissing, match="can't be run: No such file"):
        run_program(["/nowhere/program"], {}, 1)


def test_a_program_that_can_not_be_killed_is_left_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-I", "-S", "-c", HANGING, str(tmp_path)]
    tracer = tmp_path / "tracer"
    communicate = subprocess.Popen.communicate

    def when_traced(
        process: "subprocess.Popen[bytes]", said: bytes, timeout: float
    ) -> tuple[bytes, bytes]:
        until(tracer.exists)
        return communicate(process, said, 0.1)

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "communicate", when_traced)
        patch.setattr(programs, "_KILL_SECONDS", 0.1)
        call = thread.submit(run_program, command, {}, LIMIT)
        until(tracer.exists)
        pid = tracer.read_text()
        assert pid.isdecimal(), f"no process can be traced here: {pid}"
        try:
            with pytest.raises(HardwareBusy, match="did not end within 60 s and can't be killed"):
                call.result(LIMIT)
            before = programs_run()
            with pytest.raises(HardwareBusy, match=r"\(PID \d+\) was run before and has not ended"):
                run_program(command, {}, LIMIT)
            assert programs_run() == before
        finally:
            (tmp_path / "well").touch()
            os.kill(int(pid), signal.SIGKILL)
    until(lambda: is_run(command))


def is_run(command: list[str]) -> bool:
    try:
        return run_program(command, {}, LIMIT).status == 0
    except HardwareBusy:
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
