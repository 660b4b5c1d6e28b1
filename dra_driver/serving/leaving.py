"""The end of a process that has served, in bounded time."""

import logging
import os
import sys
import threading
import time
from concurrent.futures import thread as pools
from typing import Final

from dra_driver.telemetry import logger

_log = logger(__name__)
_LEAVE_SECONDS: Final = 2.0


def leave() -> None:
    """Go without waiting for threads that hang, as the interpreter would."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while (hanging := _unfinished_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    if hanging:
        _log.warning("calls that do not end are left behind", threads=", ".join(hanging))
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


def _unfinished_threads() -> list[str]:
    """Name the threads that the interpreter would wait for, without limit.

    Those of pools are among them, though gRPC's thread begins them and so makes them daemons.
    """
    of_pools = pools._threads_queues  # noqa: SLF001 - nobody else knows; a test watches that it does
    return [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and (not thread.daemon or thread in of_pools)
    ]
