"""Named places at which a test can kill the process.

Inert unless `DRA_DRIVER_FAILPOINT` names the place: then the process dies there as by `kill -9`,
with no handler run and nothing flushed. Faults that are not kills enter from outside (simulator,
API stand-in, full folder), never here.
"""

import os
import signal
from typing import Final

VARIABLE: Final = "DRA_DRIVER_FAILPOINT"


def failpoint(name: str) -> None:
    """Die here if the environment asks for it by this name."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
