"""The end of the process: in bounded time, whatever hangs."""

import subprocess
import sys

import pytest

_HANGING_CALL = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from dra_driver.serving import leave
from dra_driver.telemetry import set_up_logging
set_up_logging("text", "info")
"""
_THREAD = """
threading.Thread(target=time.sleep, args=(3600,), name="prepare_0").start()
leave()
"""
# As gRPC does: the first call of a pool's comes from a thread that the interpreter forgets.
_THREAD_OF_A_POOL = """
pool = ThreadPoolExecutor(2, "prepare")
serve = threading.Thread(target=pool.submit, args=(time.sleep, 3600), daemon=True)
serve.start()
serve.join()
pool.shutdown(wait=False)
leave()
"""


@pytest.mark.parametrize("hanging", [_THREAD, _THREAD_OF_A_POOL])
def test_a_call_that_hangs_is_left_behind_by_name(hanging: str) -> None:
    argv = [sys.executable, "-c", _HANGING_CALL + hanging]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "calls that do not end are left behind threads=prepare_0" in done.stderr
