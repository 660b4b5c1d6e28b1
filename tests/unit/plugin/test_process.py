"""The end of the process: in bounded time, whatever hangs."""

import signal
import subprocess
import sys

_HANGING_CALL = """
import threading, time
from dra_driver.plugin import process
from dra_driver.telemetry import set_up_logging
set_up_logging("text", "info")
threading.Thread(target=time.sleep, args=(3600,), name="prepare_0").start()
process._leave()
"""
_STOP_THAT_HANGS = """
import os, time
from dra_driver.plugin import process
told = process._on_signal()
print("ready", flush=True)
os.read(told, 1)
print("stopping", flush=True)
time.sleep(3600)
"""
_SIGNAL_THAT_WAKES_NOBODY = """
import os, signal, threading, time
from dra_driver.plugin import process
told = process._on_signal()
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, process._SIGNALS)
print("ready", flush=True)
os.read(told, 1)
print("stopping", flush=True)
"""


def test_a_call_that_hangs_is_left_behind_by_name() -> None:
    argv = [sys.executable, "-c", _HANGING_CALL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "calls that do not end are left behind threads=prepare_0" in done.stderr


def test_the_first_signal_stops_and_the_second_kills() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STOP_THAT_HANGS], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_a_signal_that_comes_just_before_the_wait_is_not_missed() -> None:
    """As when another thread takes it: nothing interrupts the read that begins a moment later."""
    with subprocess.Popen(
        [sys.executable, "-c", _SIGNAL_THAT_WAKES_NOBODY], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert process.stdout.readline() == "stopping\n"
        finally:
            process.kill()
