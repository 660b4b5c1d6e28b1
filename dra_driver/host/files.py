"""Files that survive a crash: what is here is either the old content or the new one."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from dra_driver.host.failpoints import failpoint
from dra_driver.host.tally import Tally
from dra_driver.model.errors import StorageFailed

_UNFINISHED: Final = ".tmp-"

_flushes: Final = Tally()


def fsyncs() -> int:
    """How often this process has waited for the disk so far."""
    return _flushes.total


def write_durably(
    path: Path, content: bytes, mode: int = 0o600, *, flush_folder: bool = True
) -> None:
    """Replace `path` by `content`; a crash leaves the old or the new file.

    Two fsyncs: one for the file, one for the folder that names it. Without the second a power cut
    within seconds may bring the old file back. Raises StorageFailed with the path; the old file
    and no temporary one is left then.
    """
    failpoint("before-write")
    _replace(path, content, mode, flush=True, flush_folder=flush_folder)
    failpoint("after-rename")


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content` for readers, without waiting for the disk.

    For what is made again after a crash anyhow: a power cut may leave the old file, the new one
    or an empty one. Raises StorageFailed as `write_durably` does.
    """
    _replace(path, content, mode, flush=False, flush_folder=False)
    failpoint("after-replace")


def _replace(path: Path, content: bytes, mode: int, *, flush: bool, flush_folder: bool) -> None:
    temporary = _temporary(path)
    try:
        guard = _create_guarded(temporary, mode)
        try:
            _fill(temporary, content, mode, flush=flush)
            failpoint("before-rename" if flush else "before-replace")
            temporary.replace(path)
        finally:
            os.close(guard)
        if flush_folder:
            _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageFailed(
            f"cannot write {path}: {error.strerror}; check the folder's space and permissions"
        ) from error


def link_atomically(path: Path, target: Path) -> None:
    """Let `path` be a symbolic link to `target`, for readers at every moment the old or the new.

    Many may do so at once. Raises StorageFailed with the path.
    """
    temporary = _temporary(path)
    try:
        temporary.symlink_to(target)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageFailed(
            f"cannot make the link {path}: {error.strerror}; check the folder's permissions"
        ) from error


def remove_durably(path: Path) -> bool:
    """Remove a file and flush its folder; returns whether it was there. Raises StorageFailed."""
    failpoint("before-remove")
    was_there = _remove(path, durably=True)
    failpoint("after-remove")
    return was_there


def remove_file(path: Path) -> bool:
    """Remove a file without waiting for the disk; returns whether it was there.

    Raises StorageFailed. After a power cut the file may be back. Where the folder is none, there is
    no file.
    """
    return _remove(path, durably=False)


def _remove(path: Path, *, durably: bool) -> bool:
    gone = FileNotFoundError if durably else (FileNotFoundError, NotADirectoryError)
    try:
        path.unlink()
        if durably:
            _flush_folder(path.parent)
    except gone:
        return False
    except OSError as error:
        raise StorageFailed(
            f"cannot remove {path}: {error.strerror}; check the folder's permissions"
        ) from error
    return True


def read_file(path: Path) -> bytes | None:
    """Content of a file, None when there is none. Raises StorageFailed with the path."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(
            f"cannot read {path}: {error.strerror}; check its permissions"
        ) from error


def list_folder(folder: Path, suffix: str) -> list[Path]:
    """Files of that suffix, sorted by name, without unfinished ones. Raises StorageFailed."""
    try:
        found = [entry for entry in folder.iterdir() if entry.suffix == suffix]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageFailed(
            f"cannot list {folder}: {error.strerror}; check its permissions"
        ) from error
    return sorted(path for path in found if not path.name.startswith(_UNFINISHED))


def ensure_folder(folder: Path, mode: int = 0o755) -> None:
    """Make the folder and those above it where missing. Raises StorageFailed with the path.

    A folder that is there keeps its mode; a new one has `mode`, whatever the umask says.
    """
    try:
        if not folder.is_dir():
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
            folder.chmod(mode)
    except OSError as error:
        raise StorageFailed(
            f"cannot make the folder {folder}: {error.strerror}; check mounts and permissions"
        ) from error


def sweep_unfinished(folder: Path, prefix: str = "") -> None:
    """Remove what killed writers left of files whose final name starts with `prefix`."""
    with suppress(OSError):
        for entry in folder.iterdir():
            if not entry.name.startswith(_UNFINISHED):
                continue
            name = entry.name.removeprefix(_UNFINISHED).partition("-")[2]
            if name.startswith(prefix):
                with suppress(OSError):
                    _remove_abandoned(entry)


def _remove_abandoned(path: Path) -> None:
    """Remove a file unless its writer lives: asked by lock, since pids mean little in containers.

    Raises OSError when it lives. Held until the file is gone: a writer may be about to lock it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    # Unique among threads and containers that share the folder. The tail keeps programs that read
    # a folder by suffix, as container runtimes read CDI files, from taking it for a finished file.
    return path.with_name(f"{_UNFINISHED}{os.getpid()}.{token_hex(4)}-{path.name}~")


def _create_guarded(path: Path, mode: int) -> int:
    """Make a file and lock it, which tells sweepers that its writer lives; returns the guard.

    Made again when a sweeper came in between. Open for reading only: a program that somebody has
    open for writing can't be started, and the guard stays until the file has its final name.
    """
    while True:
        guard = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if os.fstat(guard).st_nlink:
                return guard
        except OSError:
            os.close(guard)
            raise
        os.close(guard)


def _fill(path: Path, content: bytes, mode: int, *, flush: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)  # whatever the umask says
        _write_all(descriptor, content)
        if flush:
            _flush(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    _flushes.add()
    os.fsync(descriptor)
