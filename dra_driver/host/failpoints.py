"""Named places at which a test can kill the process, or halt it while the world changes.

Inert unless `DRA_DRIVER_FAILPOINT` names the place: `NAME` makes the process die there as by
`kill -9`, with no handler run and nothing flushed; `NAME=stop` halts it there once (SIGSTOP) until
the test lets it go on (SIGCONT). Faults themselves enter from outside (simulator, API stand-in,
full folder), never here.
"""

import os
import signal
import threading
from typing import Final

VARIABLE: Final = "DRA_DRIVER_FAILPOINT"
_halted = threading.Event()


def failpoint(name: str) -> None:
    """Die or halt here if the environment asks for it by this name."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    if wanted == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted == f"{name}=stop" and not _halted.is_set():
        _halted.set()
        os.kill(os.getpid(), signal.SIGSTOP)
