"""Mounts that the whole node sees, and SELinux labels of folders."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_driver.model.errors import BadNode, PermissionMissing, StorageFailed

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8  # mount(2)
_MNT_DETACH: Final = 2  # umount2(2): also while somebody uses it
_SELINUX: Final = "security.selinux"


def mount_tmpfs(path: Path, size: int, host: Path) -> None:
    """Mount a tmpfs of `size` bytes for everybody's use at a folder, unless one is there.

    `host` is where the host's `/proc` is seen: others on the node must see the mount. Raises
    PermissionMissing, BadNode or StorageFailed.
    """
    if is_mounted(path):
        return
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    options = f"mode=1777,size={size}"
    failure = _mount(b"tmpfs", path, flags, options.encode())
    if failure in (errno.EPERM, errno.EACCES):
        raise PermissionMissing(
            f"no tmpfs can be mounted at {path}: {os.strerror(failure)}; run this as root and "
            "privileged"
        )
    if failure:
        raise StorageFailed(f"no tmpfs can be mounted at {path}: {os.strerror(failure)}")
    seen = set(_file_systems(host / "proc/1/mountinfo"))
    if seen and path.stat().st_dev not in seen:
        unmount(path)
        raise BadNode(
            f"the tmpfs at {path} is not seen by the host: mount its folder into this container "
            "under the same path, with mountPropagation: Bidirectional"
        )


def unmount(path: Path) -> None:
    """Take away all that is mounted at a folder; nothing there is fine. Raises StorageFailed."""
    while is_mounted(path):
        library = ctypes.CDLL(None, use_errno=True)
        if library.umount2(os.fsencode(path), _MNT_DETACH):
            failure = ctypes.get_errno()
            if failure != errno.EINVAL:  # else somebody was faster
                raise StorageFailed(f"{path} can't be unmounted: {os.strerror(failure)}")


def is_mounted(path: Path) -> bool:
    """Whether a file system is mounted at a folder, by whatever path, as this process sees it.

    Asked of the folder itself: a list of mounts may lack some while others come and go (Linux
    before 5.8), and has none by a path with links.
    """
    return os.path.ismount(path)


def set_label(path: Path, label: str, host: Path) -> None:
    """Give a folder an SELinux label where the host has SELinux. Raises StorageFailed."""
    if not (host / "sys/fs/selinux/enforce").exists():
        return
    try:
        os.setxattr(path, _SELINUX, label.encode() + b"\0")
    except OSError as error:
        raise StorageFailed(
            f"{path} can't have the SELinux label {label}: {error.strerror}"
        ) from error


def _file_systems(file: Path) -> Iterator[int]:
    """Yield what is mounted as a mountinfo tells it: device numbers, whatever the paths."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            major, minor = line.split(" ")[2].split(":")
            yield os.makedev(int(major), int(minor))


def _mount(kind: bytes, path: Path, flags: int, options: bytes) -> int:
    """Call mount(2); gives the error number, 0 for success."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]
    return ctypes.get_errno() if library.mount(kind, os.fsencode(path), kind, flags, options) else 0
