"""Which of several living processes came last: asked of the kernel, which forgets whoever dies."""

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import Final

from dra_driver.host.files import ensure_folder
from dra_driver.model.errors import StorageFailed

_FLOCK: Final = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid


class Succession:
    """An order of processes by arrival; the last one alive does what only one may do.

    Each locks one byte of a file, beyond all that others have locked. The file stays empty, so a
    crash leaves nothing wrong, and nobody ever waits: a process that hangs is passed over.
    """

    def __init__(self, path: Path) -> None:
        """Use that file, made when missing; nothing is opened before `join`."""
        self._path = path
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self._place = 0
        self._left = False

    def join(self) -> None:
        """Come after all who are here now; once in, or after `leave`, nothing changes.

        Raises StorageFailed.
        """
        with self._guard:
            if self._descriptor is not None or self._left:
                return
            descriptor = self._open()
            try:
                self._place = _take_place(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise StorageFailed(f"cannot lock {self._path}: {error.strerror}") from error
            self._descriptor = descriptor

    def is_last(self) -> bool:
        """Whether we are in, and nobody who came later is alive. Raises StorageFailed."""
        with self._guard:
            if self._descriptor is None:
                return False
            try:
                return _held_from(self._descriptor, self._place + 1) is None
            except OSError as error:
                raise StorageFailed(f"cannot ask {self._path}: {error.strerror}") from error

    def leave(self) -> None:
        """Be out for good; harmless when not in."""
        with self._guard:
            self._left = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self) -> int:
        ensure_folder(self._path.parent)
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailed(f"cannot open the lock {self._path}: {error.strerror}") from error


def _take_place(descriptor: int) -> int:
    """Lock the first byte beyond all that are locked; again, when another was faster."""
    place = 0
    while True:
        while (held := _held_from(descriptor, place)) is not None:
            place = held + 1
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
            continue
        return place


def _held_from(descriptor: int, start: int) -> int | None:
    """Find a byte from `start` on that another holds; None when there is none."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, 0, 0)
    kind, _, held, _, _ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(held)
