"""Failpoints fire where and when they are asked to, once, and never by themselves."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROGRAM = """
import sys
from dra_driver.host import failpoint, failpoints_of
for turn in (1, 2):
    print("turn", turn, flush=True)
    with failpoints_of("step"):
        failpoint("here")
    failpoint("there")
print("end")
"""


@contextmanager
def started(order: str) -> Iterator["subprocess.Popen[str]"]:
    environment = os.environ | {"DRA_DRIVER_FAILPOINT": order}
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("step/here", ["turn 1"]),
        ("there#2", ["turn 1", "turn 2"]),
        ("here", ["turn 1", "turn 2", "end"]),  # it is known by its step only
        ("there#3", ["turn 1", "turn 2", "end"]),
        ("", ["turn 1", "turn 2", "end"]),
        ("@/no/such/file", ["turn 1", "turn 2", "end"]),
    ],
)
def test_a_place_is_known_by_its_step_and_its_turn(order: str, said: list[str]) -> None:
    with started(order) as process:
        output, _ = process.communicate(timeout=60)
        assert output.splitlines() == said
        assert process.returncode == (0 if said[-1] == "end" else -signal.SIGKILL)


def test_a_running_process_is_armed_by_a_file_and_halts_once(tmp_path: Path) -> None:
    order = tmp_path / "order"
    order.write_text("there=stop\n")
    with started(f"@{order}") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert not order.exists()
        order.write_text("there\n")
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == -signal.SIGKILL
        assert not order.exists()
        assert process.stdout is not None
        assert process.stdout.read().splitlines() == ["turn 1", "turn 2"]
