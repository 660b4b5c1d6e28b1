"""Named places at which a test can kill the process, or halt it while the world changes.

Inert unless `DRA_DRIVER_FAILPOINT` is set: `NAME` makes the process die there as by `kill -9`, with
no handler run and nothing flushed; `NAME=stop` halts it there (SIGSTOP) until the test lets it go
on (SIGCONT); `NAME#2` means the second time that it comes by. `@FILE` reads one of these from a
file whenever a place is passed, so that a running process can be armed. Each fires once; the file
is removed as it does. Faults themselves enter from outside (simulator, API stand-in, full folder),
never here.
"""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

VARIABLE: Final = "DRA_DRIVER_FAILPOINT"
_ORDER: Final = re.compile(r"(?P<name>[^#=]+)(#(?P<time>\d+))?(?P<stop>=stop)?")
_SCOPE: ContextVar[str] = ContextVar("failpoint scope", default="")
_passed: dict[str, int] = {}  # by order: how often its place was passed


@contextmanager
def failpoints_of(scope: str) -> Iterator[None]:
    """Let the places passed inside be known as `<scope>/<name>`."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def failpoint(name: str) -> None:
    """Die or halt here if the environment asks for it by this name."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    scope = _SCOPE.get()
    _obey(wanted, f"{scope}/{name}" if scope else name)


def _obey(wanted: str, name: str) -> None:
    file = Path(wanted[1:]) if wanted.startswith("@") else None
    order = _read(file) if file is not None else wanted
    parts = _ORDER.fullmatch(order)
    if parts is None or parts["name"] != name:
        return
    _passed[order] = _passed.get(order, 0) + 1
    if _passed[order] != int(parts["time"] or 1):
        return
    if file is not None:
        _passed.clear()
        file.unlink()
    _signal(signal.SIGSTOP if parts["stop"] else signal.SIGKILL)


def _signal(number: signal.Signals) -> None:
    # To this thread, which then gets no further; sent to the process it might pass by.
    signal.pthread_kill(threading.get_ident(), number)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
