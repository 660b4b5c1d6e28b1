"""Processes that nobody is the parent of any more, found by what they were started with."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_driver.host.roots import HostProcess

_PROC: Final = Path("/proc")  # ours: the numbers must mean what they mean to kill(2)
_PAUSE: Final = 0.01


def strays(name: str, variable: str, folder: Path) -> Iterator[HostProcess]:
    """Yield the processes of that kernel name whose `variable` is `folder` or lies below it."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _is_stray(entry, name, variable, folder):
            yield HostProcess(int(entry.name), name)


def end_strays(name: str, variable: str, folder: Path, seconds: float) -> list[HostProcess]:
    """End them, with no more to say; gives those that were there, waits until they are gone."""
    found = list(strays(name, variable, folder))
    deadline = time.monotonic() + seconds
    for process in found:
        while _is_stray(_PROC / str(process.pid), name, variable, folder):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
    return found


def _is_stray(process: Path, name: str, variable: str, folder: Path) -> bool:
    with suppress(OSError):  # ended meanwhile, or not for us to see
        if (process / "comm").read_text(encoding="utf-8", errors="replace").strip() != name:
            return False
        wanted = f"{variable}=".encode()
        for entry in (process / "environ").read_bytes().split(b"\0"):
            if entry.startswith(wanted):
                found = Path(os.fsdecode(entry.removeprefix(wanted)))
                return found == folder or folder in found.parents
    return False
