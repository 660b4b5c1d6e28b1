"""A process that serves is told to end: at once, and never in vain."""

import signal
import subprocess
import sys

_STOP_THAT_HANGS = """
import os, time
from dra_driver.host import signals
told = signals.told_to_stop()
print("ready", flush=True)
os.read(told, 1)
print("stopping", flush=True)
time.sleep(3600)
"""
_SIGNAL_THAT_WAKES_NOBODY = """
import os, signal, threading, time
from dra_driver.host import signals
told = signals.told_to_stop()
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, signals._SIGNALS)
print("ready", flush=True)
os.read(told, 1)
print("stopping", flush=True)
"""


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
