"""Locks between processes, which the kernel drops when their holder dies."""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from dra_driver.model.errors import HardwareBusy, StorageFailed

_POLL_SECONDS = 0.005


class FileLock:
    """An exclusive lock on a file, with a deadline; not re-entrant, so one object per use."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        """Lock `path`, made when missing; wait at most `timeout` seconds."""
        self._path = path
        self._timeout = timeout
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; returns whether we have it. Raises StorageFailed."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailed(f"cannot open the lock {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; harmless when not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self._timeout
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                raise HardwareBusy(
                    f"another instance of this driver has held {self._path} for "
                    f"{self._timeout:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
