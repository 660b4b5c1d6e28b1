"""Child processes that never outlive us and whose last words are kept."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Asks the kernel to end the child when the thread that made it ends (prctl(2) PR_SET_PDEATHSIG,
# SIGTERM; it survives exec), then becomes the program. A `preexec_fn` could do the same, but is not
# safe beside other threads.
_TETHER: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One program run beside us; output and errors go to a file.

    It has a session of its own, so that Ctrl-C reaches only us. Made in the main thread: the
    kernel ends the child with the thread that made it.
    """

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start it; raises OSError."""
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ended(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._process.poll()

    def stop(self, grace: float) -> int:
        """End it by SIGTERM, after `grace` seconds by SIGKILL; return the exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_words(self, lines: int = 10) -> str:
        """Return the end of what it wrote; empty when it wrote nothing."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])
