"""The end of the process: in bounded time, whatever hangs."""

import subprocess
import sys

_HANGING_CALL = """
import threading, time
from dra_driver.serving import leave
from dra_driver.telemetry import set_up_logging
set_up_logging("text", "info")
threading.Thread(target=time.sleep, args=(3600,), name="prepare_0").start()
leave()
"""


def test_a_call_that_hangs_is_left_behind_by_name() -> None:
    argv = [sys.executable, "-c", _HANGING_CALL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "calls that do not end are left behind threads=prepare_0" in done.stderr
