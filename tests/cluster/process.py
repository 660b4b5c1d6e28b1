"""Programs that run on the node as host processes, each with its log."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.cache import HarnessError

_TAIL_LINES = 40


class HostProcess:
    """One program: start, stop, kill, start again. The log is appended to and holds all its lives.

    It runs in the sandbox, so it can't outlive a run however the run ends.
    """

    def __init__(
        self, name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Build it; `env` is laid over the environment. Nothing runs before `start`."""
        self.name = name
        self.log = log
        self._argv = [os.fspath(part) for part in argv]
        self._env = dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id, as seen in the sandbox; fails if it doesn't run."""
        if self._child is None or self._child.poll() is not None:
            raise HarnessError(f"{self.name} does not run")
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; fails if it runs already."""
        if self.running:
            raise HarnessError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, timeout: float = 30.0) -> int:
        """Ask it to end (SIGTERM), kill it after `timeout` seconds, and return its exit status."""
        child = self._started()
        child.terminate()
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise HarnessError(
                f"{self.name} did not end within {timeout:.0f} s of SIGTERM"
            ) from None

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it is gone."""
        child = self._started()
        child.send_signal(signal.SIGKILL)
        child.wait()

    def wait(self, timeout: float) -> int:
        """Wait for it to end by itself and return its exit status."""
        return self._started().wait(timeout)

    def restart(self) -> None:
        """Stop it if it runs, and start it again."""
        if self.running:
            self.stop()
        self.start()

    def wait_for_socket(self, path: Path, timeout: float = 60.0) -> None:
        """Wait until a file is there that it makes; fails at once if it ends meanwhile."""
        deadline = time.monotonic() + timeout
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise HarnessError(f"{self.name} made no {path} in {timeout:.0f} s\n{self.tail()}")
            time.sleep(0.05)

    def check(self) -> None:
        """Fail with the end of the log if it has ended."""
        if not self.running:
            status = self._started().returncode
            raise HarnessError(f"{self.name} ended with status {status}\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"--- end of {self.log.name} ---", *lines[-_TAIL_LINES:]])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise HarnessError(f"{self.name} was never started")
        return self._child
