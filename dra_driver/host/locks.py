"""Locks between threads and processes, which the kernel drops when their holder dies.

All are OFD locks (fcntl(2)): they belong to an open file, so that two threads of one process
exclude each other as two processes do.
"""

import fcntl
import hashlib
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dra_driver.model.errors import HardwareBusy, StorageFailed

_POLL_SECONDS: Final = 0.002
_FLOCK: Final = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid


class _Lock:
    """An exclusive lock on `length` bytes of a file (0: all), with a deadline; not re-entrant."""

    def __init__(self, path: Path, timeout: float, start: int = 0, length: int = 0) -> None:
        self._path = path
        self._timeout = timeout
        self._range = (start, length)
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; returns whether we have it. Raises StorageFailed."""
        descriptor = self._descriptor if self._descriptor is not None else self._open()
        start, length = self._range
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
            self._descriptor = descriptor
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
                self.release()
                raise HardwareBusy(
                    f"another call or instance of this driver has held {self._path.name} for "
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

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailed(f"cannot open the lock {self._path}: {error.strerror}") from error


class FileLock(_Lock):
    """A lock on a whole file."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        """Lock `path`, made when missing; wait at most `timeout` seconds."""
        super().__init__(path, timeout)


class RangeLock(_Lock):
    """A lock on one name among many that share a file."""

    def __init__(self, path: Path, name: str, timeout: float) -> None:
        """Lock `name` in `path`; two names share a lock only if 62 bits of their SHA-256 agree."""
        digest = hashlib.sha256(name.encode()).digest()
        super().__init__(path, timeout, int.from_bytes(digest[:8], "big") >> 2, 1)


class MarkedLock(_Lock):
    """A lock whose file tells who was the last to change what it guards."""

    def __init__(self, path: Path, mark: str, timeout: float) -> None:
        """Lock `path`; `mark` is this holder's own and of constant length."""
        super().__init__(path, timeout)
        self._mark = mark.encode()

    @property
    def marked_by_us(self) -> bool:
        """Whether nobody else has left a mark since ours. Raises StorageFailed."""
        assert self._descriptor is not None  # noqa: S101 - only asked while held
        try:
            return os.pread(self._descriptor, len(self._mark) + 1, 0) == self._mark
        except OSError as error:
            raise StorageFailed(f"cannot read the lock {self._path}: {error.strerror}") from error

    def mark(self) -> None:
        """Leave our mark. Before the first change: a holder killed later must not go unnoticed.

        It is written over the last one, for which a full disk still has room. Raises StorageFailed.
        """
        assert self._descriptor is not None  # noqa: S101 - only called while held
        try:
            os.pwrite(self._descriptor, self._mark, 0)
            os.ftruncate(self._descriptor, len(self._mark))
        except OSError as error:
            raise StorageFailed(
                f"cannot write the lock {self._path}: {error.strerror}; check the folder's space "
                "and permissions"
            ) from error
