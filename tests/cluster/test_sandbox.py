"""The sandbox leaves nothing, whoever is killed; needs no cluster."""

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import linux, mounts, sandbox
from tests.cluster.cgroups import hierarchies

_CHECKOUT = Path(__file__).parents[2]
_RUN = """
import sys
from pathlib import Path
from tests.cluster import sandbox
command = sandbox.Command(sys.argv[2:], {}, "inner", Path(sys.argv[1]))
sys.exit(sandbox.run(command))
"""
_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Nested:
    """A sandbox started in this one: its runner, its cache folder, what marks its processes."""

    runner: subprocess.Popen[bytes]
    cache: Path
    marker: str

    @property
    def keeper(self) -> int:
        (pid,) = _children(self.runner.pid)
        return pid

    def processes(self) -> list[str]:
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        return [line for line in found.stdout.splitlines() if self.marker in line]

    def control_groups(self) -> list[Path]:
        return [
            group
            for hierarchy in hierarchies()
            for group in hierarchy.own.iterdir()
            if group.name.startswith("gpu-dra-cluster-")
        ]

    def records(self) -> list[Path]:
        return list((self.cache / "runs").iterdir())


def test_the_machine_is_seen_but_not_written(tmp_path: Path) -> None:
    places = ("/etc/cdi/x", "/var/lib/kubelet/x", "/var/lib/other/x", "/run/cdi/x", "/dev/shm/x")
    script = " && ".join(f"mkdir -p {Path(path).parent} && touch {path}" for path in places)
    done = _start(tmp_path, f"test -e /etc/passwd && {script} && hostname")
    output, _ = done.communicate(timeout=_LIMIT_SECONDS)
    assert (done.returncode, output.decode().splitlines()[-1]) == (0, "inner")
    assert [path for path in places if Path(path).exists()] == []


@pytest.mark.parametrize(("status", "kept"), [(0, ""), (7, "hello\n")])
def test_the_exit_status_is_handed_on_and_logs_are_kept_on_failure(
    tmp_path: Path, outside: Path, status: int, kept: str
) -> None:
    script = f"echo hello > {mounts.STATE}/logs/part.log; exit {status}"
    done = _start(tmp_path, script, logs=outside / "logs")
    done.communicate(timeout=_LIMIT_SECONDS)
    assert done.returncode == status
    log = outside / "logs" / "part.log"
    assert (log.read_text() if log.exists() else "") == kept


def test_a_request_to_end_reaches_the_command(tmp_path: Path, nested: Nested) -> None:
    nested.runner.send_signal(signal.SIGTERM)
    assert nested.runner.wait(_LIMIT_SECONDS) == 128 + signal.SIGINT
    assert (nested.processes(), nested.control_groups(), nested.records()) == ([], [], [])


def test_nothing_is_left_when_the_runner_is_killed(nested: Nested) -> None:
    nested.runner.kill()
    _eventually(lambda: not nested.records())
    assert (nested.processes(), nested.control_groups()) == ([], [])


@pytest.mark.parametrize("killed", ["keeper", "keeper and runner"])
def test_a_killed_keeper_ends_the_sandbox_and_the_next_run_sweeps_up(
    nested: Nested, killed: str
) -> None:
    keeper = nested.keeper
    if "runner" in killed:
        nested.runner.kill()
    os.kill(keeper, signal.SIGKILL)
    _eventually(lambda: not nested.processes())
    assert nested.control_groups() != []
    following = _start(nested.cache, "exit 0")
    output, _ = following.communicate(timeout=_LIMIT_SECONDS)
    assert b"sweeping up after the killed run" in output
    assert (nested.control_groups(), nested.records()) == ([], [])


def test_a_run_does_not_sweep_up_after_one_that_lives(nested: Nested) -> None:
    following = _start(nested.cache, "exit 0")
    output, _ = following.communicate(timeout=_LIMIT_SECONDS)
    assert b"sweeping" not in output
    assert len(nested.processes()) > 0
    assert len(nested.records()) == 1


@pytest.mark.parametrize("ends", ["before it is opened", "before it is locked"])
def test_a_run_that_ends_while_another_looks_for_killed_ones_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setenv("GPU_DRA_DRIVER_CACHE", str(tmp_path))
    record = tmp_path / "runs" / "gpu-dra-cluster-0.json"
    record.parent.mkdir()
    record.write_text("[]")
    place, name = (Path, "open") if "opened" in ends else (fcntl, "flock")
    call = getattr(place, name)

    def end_then_call(*arguments: Any, **more: Any) -> Any:
        if record.name in str(arguments[0]):  # a path, or what was opened
            record.unlink(missing_ok=True)
        return call(*arguments, **more)

    monkeypatch.setattr(place, name, end_then_call)
    sandbox.sweep()
    assert list(record.parent.iterdir()) == []


@pytest.fixture
def outside() -> Iterator[Path]:
    """Mount a folder where the nested sandbox sees and writes it."""
    place = Path("/mnt")
    linux.mount("tmpfs", place, "tmpfs")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[Nested]:
    """Start a sandbox whose command has orphans, control groups and mounts of its own."""
    marker = f"9{secrets.randbelow(10**8):08}"
    group = next(item.mount for item in hierarchies()) / "sub"
    script = f"mkdir {group}; echo $$ > {group}/cgroup.procs; mount -t tmpfs none /mnt;"
    script += f"setsid sleep {marker} & exec sleep {marker}"
    made = Nested(_start(tmp_path, script), tmp_path, marker)
    sleeping = f"sleep {marker}"
    _eventually(lambda: made.processes().count(sleeping) == 2)
    yield made
    made.runner.kill()
    _eventually(lambda: not made.processes())
    made.runner.communicate()
    _start(tmp_path, "exit 0").communicate(timeout=_LIMIT_SECONDS)


def _start(cache: Path, script: str, logs: Path = Path("/mnt/logs")) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, logs, "sh", "-c", script],
        cwd=_CHECKOUT,
        env={**os.environ, "GPU_DRA_DRIVER_CACHE": os.fspath(cache)},
        stdout=subprocess.PIPE,
    )


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def _eventually(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)
