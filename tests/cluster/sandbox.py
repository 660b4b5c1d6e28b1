"""Runs a command in namespaces of its own, so that nothing outlives it whatever ends the run.

Three processes, each the parent of the next:

- the runner, which a person or CI started;
- the keeper, outside of the sandbox: it ends the sandbox when the runner is gone, however it went,
  and then removes the sandbox's control groups, the only thing that does not vanish by itself;
- the sandbox's first process: it lays out mounts and network, starts the command, and its end is
  the end of every process inside. It dies with the keeper.

What a killed keeper leaves (empty control groups) is named in a record that the next run sweeps up.
"""

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.cluster import cgroups, linux, mounts
from tests.cluster.cache import cache_root, locked, say

NODE_ADDRESS = "10.77.0.1"
SERVICE_ADDRESS = "10.96.0.1"
_PREFIX = "gpu-dra-cluster-"
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET


@dataclass(frozen=True, slots=True)
class Command:
    """What runs inside: arguments, environment, and where its logs go if it fails."""

    argv: list[str]
    env: Mapping[str, str]
    host_name: str
    kept_logs: Path


def run(command: Command) -> int:
    """Run the command in a new sandbox and return its exit status."""
    sweep()
    sys.stdout.flush()
    sys.stderr.flush()
    runner_lives, held_by_runner = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(held_by_runner)
        _finish(lambda: _keep(command, runner_lives))
    os.close(runner_lives)
    with _forwarded(lambda: os.kill(keeper, signal.SIGTERM)):
        _, status = os.waitpid(keeper, 0)
    os.close(held_by_runner)
    return _shell_status(os.waitstatus_to_exitcode(status))


def sweep() -> None:
    """Remove what killed runs have left."""
    with locked("runs"):
        for path in _records().glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # that run has just ended
                _sweep_up(path)


def _sweep_up(path: Path) -> None:
    with path.open() as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # that run lives
        if path.exists():  # else it ended between the two calls
            say(f"sweeping up after the killed run {path.stem}")
            _remove_groups(path)


def _records() -> Path:
    folder = cache_root() / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _control_groups() -> Iterator[str]:
    """Make control groups, with a record of them that says by its lock that their run lives."""
    name = _PREFIX + secrets.token_hex(4)
    path = _records() / f"{name}.json"
    with contextlib.ExitStack() as stack:
        with locked("runs"):  # no sweeper sees the record before it is locked and whole
            record = stack.enter_context(path.open("x"))
            fcntl.flock(record, fcntl.LOCK_EX)
            groups = [str(hierarchy.group(name)) for hierarchy in cgroups.hierarchies()]
            json.dump(groups, record)
            record.flush()
        try:
            cgroups.create(name)
            yield name
        finally:
            _remove_groups(path)


def _remove_groups(record: Path) -> None:
    text = record.read_text()
    for group in json.loads(text) if text else []:  # empty: killed before it made any
        cgroups.remove(Path(group))
    record.unlink()


def _keep(command: Command, runner_lives: int) -> int:
    """Be the keeper: start the sandbox, wait for its end or the runner's, and clean up."""
    os.setsid()  # what kills the runner's group or terminal leaves the keeper to its work
    with _control_groups() as groups:
        keeper = os.pidfd_open(os.getpid())
        linux.unshare(linux.CLONE_NEWPID)  # for the next child, which becomes process 1 of it
        first = os.fork()
        if first == 0:
            os.close(runner_lives)
            _finish(lambda: _be_first(command, groups, keeper))
        sandbox = os.pidfd_open(first)
        requests = 0

        def ask_to_end() -> None:
            nonlocal requests
            requests += 1
            os.kill(first, signal.SIGTERM if requests == 1 else signal.SIGKILL)

        with _forwarded(ask_to_end):
            ended, _, _ = select.select([runner_lives, sandbox], [], [])
        if sandbox not in ended:
            os.kill(first, signal.SIGKILL)
        _, status = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(status)


def _be_first(command: Command, groups: str, keeper: int) -> int:
    """Be process 1 of the sandbox: lay it out, run the command, reap what is orphaned."""
    linux.die_with_parent(keeper)
    cgroups.enter(groups)
    linux.unshare(_NAMESPACES)
    mounts.lay_out()
    linux.set_host_name(command.host_name)
    linux.bring_up_loopback(NODE_ADDRESS, SERVICE_ADDRESS)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
        os.execvpe(command.argv[0], command.argv, {**os.environ, **command.env})  # noqa: S606
    with _forwarded(lambda: os.kill(child, signal.SIGINT)):
        status = _reap_until(child)
    if status != 0:
        _keep_logs(command.kept_logs)
    return status


def _reap_until(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _keep_logs(folder: Path) -> None:
    shutil.copytree(
        mounts.STATE / "logs", folder, ignore_dangling_symlinks=True, dirs_exist_ok=True
    )
    say(f"the cluster's logs are kept in {folder}")


@contextlib.contextmanager
def _forwarded(ask_to_end: Callable[[], None]) -> Iterator[None]:
    """Turn requests to end this process into a call."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            ask_to_end()

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = [signal.signal(number, handle) for number in handled]
    try:
        yield
    finally:
        for number, handler in zip(handled, previous, strict=True):
            signal.signal(number, handler)


def _finish(body: Callable[[], int]) -> None:
    """End this forked process with the status that the body returns."""
    status = 1
    try:
        status = body()
    except BaseException:  # noqa: BLE001 - whatever it is must not run the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_shell_status(status))


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status  # ended by a signal
