"""The cache folder outside the checkout, and how finished things are put into it."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster import linux

_STARTED = time.monotonic()
_HEARTBEAT_SECONDS = 30.0
_TAIL_CHARACTERS = 3000
_KEY_FILE = ".key"


class HarnessError(Exception):
    """The cluster can't be built or started; the message says what is missing or what failed."""


def say(message: str) -> None:
    """Print one line of progress with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED:7.1f}s] {message}", flush=True)


def cache_root() -> Path:
    """Return the cache folder: $GPU_DRA_DRIVER_CACHE, or one in the user's cache folder."""
    chosen = os.environ.get("GPU_DRA_DRIVER_CACHE")
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "gpu-dra-driver"


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of this name; the kernel drops it with its holder."""
    path = cache_root() / "locks" / f"{name.replace('/', '-')}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another process that makes it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def artifact(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the cache's folder `name`; `make` fills a new one where the key has changed.

    The folder appears by rename and only when it is complete: a killed build leaves nothing that
    a later one could take for finished.
    """
    folder = cache_root() / name
    with locked(name):
        if _stored_key(folder) == key:
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{folder.name}."
        for abandoned in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(abandoned)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
        try:
            staging.chmod(0o755)
            make(staging)
            (staging / _KEY_FILE).write_text(key)
            if folder.exists():
                folder.rename(Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix)) / "old")
            staging.rename(folder)
        finally:
            for abandoned in folder.parent.glob(f"{prefix}*"):
                shutil.rmtree(abandoned)
    return folder


def run(
    argv: Sequence[str | Path],
    *,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command, say that it is still at work every half minute, and return its output.

    Raises HarnessError with the end of the output when the command fails.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=linux.be_killed_with_parent,  # noqa: PLW1509 - the harness has one thread
        ) as child:
            while True:
                try:
                    status = child.wait(_HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    say(f"{what}: at work for {time.monotonic() - started:.0f} s")
        log.seek(0)
        output = log.read().decode(errors="replace")
    if status != 0:
        raise HarnessError(f"{what} failed with status {status}:\n{output[-_TAIL_CHARACTERS:]}")
    return output


def _stored_key(folder: Path) -> str | None:
    try:
        return (folder / _KEY_FILE).read_text()
    except FileNotFoundError:
        return None
