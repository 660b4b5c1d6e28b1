"""Child processes that never outlive us and whose last words are kept."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

# Asks the kernel to end the child when the thread that made it ends (prctl(2) PR_SET_PDEATHSIG,
# SIGTERM; it survives exec), then becomes the program. A `preexec_fn` could do the same, but is not
# safe beside other threads. With a folder for /dev/shm the child gets mounts of its own, which
# follow ours (unshare(2) CLONE_NEWNS, mount(2) MS_REC | MS_SLAVE), and the folder there (MS_BIND).
_TETHER: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has gone")
def do(call, *arguments):
    if call(*arguments):
        sys.exit("/dev/shm can't be bound: " + os.strerror(ctypes.get_errno()))
if sys.argv[2]:
    libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    do(libc.unshare, 0x20000)
    do(libc.mount, None, b"/", None, 0x84000, None)
    do(libc.mount, os.fsencode(sys.argv[2]), b"/dev/shm", None, 0x1000, None)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Child:
    """One program run beside us; output and errors go to a file.

    It has a session of its own, so that Ctrl-C reaches only us. Made in a thread that lives as long
    as the child shall: the kernel ends the child with it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        shm: Path | None = None,
    ) -> None:
        """Start it, with the folder `shm` as its /dev/shm if one is given; raises OSError.

        What is wrong with the program or the folder is among the child's words, and it has ended.
        """
        self.log = log
        tether = [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), str(shm or "")]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*tether, *arguments],
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

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, None when it still runs after so long."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell` from a thread of its own when the child has ended."""

        def wait() -> None:
            with suppress(ChildProcessError):  # it was waited for meanwhile
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            tell()

        threading.Thread(target=wait, name=f"end of {self.pid}", daemon=True).start()

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
