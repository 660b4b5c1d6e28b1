"""The folders of one control daemon, among them the `/dev/shm` that its clients share."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_driver.host import (
    ensure_folder,
    failpoint,
    is_mounted,
    mount_tmpfs,
    set_label,
    unmount,
)
from dra_driver.model.errors import StorageFailed
from dra_driver.sharing.mps_spec import MpsSpec

_PRIVATE: Final = 0o700
_OPEN: Final = 0o755  # programs of all users reach the daemon's sockets, whose modes it sets itself
_SHARED: Final = 0o1777  # as /dev/shm has everywhere


class SetFolders:
    """The folders of one set.

    Containers have them by their inodes: they stay the same from the first claim to the last, over
    the ends of daemons and agents.
    """

    def __init__(self, folder: Path, host: Path, *, tmpfs: bool) -> None:
        """Make nothing yet; `host` is where the host's `/proc` and `/sys` are seen."""
        self._folder = folder
        self._host = host
        self._tmpfs = tmpfs
        self.pipe = folder / "pipe"
        self.log = folder / "log"
        self.shm = folder / "shm"

    @property
    def own_shm(self) -> Path | None:
        """What the daemon is to have as /dev/shm, None: the one that is there."""
        return self.shm if self._tmpfs else None

    def make(self, spec: MpsSpec) -> None:
        """Make what is missing. Raises StorageFailed, PermissionMissing or BadNode."""
        ensure_folder(self._folder, _OPEN)
        ensure_folder(self.pipe, _OPEN)
        ensure_folder(self.log, _PRIVATE)
        ensure_folder(self.shm, _SHARED)
        if self._tmpfs:
            failpoint("before-mount")
            mount_tmpfs(self.shm, spec.shm_bytes, self._host)
            failpoint("after-mount")
        if spec.selinux_label:
            for folder in (self.pipe, self.shm):
                set_label(folder, spec.selinux_label, self._host)

    def clear_pipe(self) -> None:
        """Remove what a daemon before has left: a new one would take it for a living one's."""
        try:
            for entry in self.pipe.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
        except OSError as error:
            raise StorageFailed(f"cannot clear {self.pipe}: {error.strerror}") from error

    def remove(self) -> None:
        """Take all away. Raises StorageFailed with the path."""
        unmount(self.shm)
        failpoint("after-unmount")
        try:
            if self._folder.is_dir():
                shutil.rmtree(self._folder)
        except OSError as error:
            raise StorageFailed(
                f"cannot remove {error.filename or self._folder}: {error.strerror}"
            ) from error

    @property
    def stands(self) -> bool:
        """Whether claims can have the folders: the node has not been rebooted since, say."""
        return self.pipe.is_dir() and (not self._tmpfs or is_mounted(self.shm))

    def keep_logs_short(self, most: int) -> None:
        """Empty the logs that have become longer than `most` bytes."""
        for path in self._logs():
            if path.stat().st_size > most:
                os.truncate(path, 0)

    def _logs(self) -> Iterator[Path]:
        if self.log.is_dir():
            yield from self.log.iterdir()
