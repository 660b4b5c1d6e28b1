"""Unix sockets by which others on the node reach this process.

A socket is bound under a hidden name, made private, and renamed when it already listens. So its
name never leads to a socket that does not answer or that others may use, and grpcio, which removes
whatever has the name it binds, never sees the name of somebody else's socket.
"""

import re
import secrets
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final
from urllib.parse import quote

import grpc

from dra_driver.host import ensure_folder
from dra_driver.model.errors import StorageFailed
from dra_driver.telemetry import logger

_log = logger(__name__)
_CONNECT_SECONDS: Final = 2.0
_FOLDER_MODE: Final = 0o750
_GRACE_AFTER_RENEWAL: Final = 50.0  # the kubelet gives up on a call after 45 s
_LEFT_BEHIND_SECONDS: Final = 10.0
_HIDDEN: Final = re.compile(r"\.[0-9a-f]{6}")


class SocketServer:
    """A gRPC server on a unix socket that belongs to this process alone."""

    def __init__(self, path: Path, build: Callable[[], grpc.Server], advice: str = "") -> None:
        """Serve `path` by what `build` makes: a server that has its services but no address.

        `advice` says what else to do than to end another process that serves the path.
        """
        self.path = path
        self._build = build
        self._advice = advice
        self._server: grpc.Server | None = None
        self._identity: tuple[int, int, int] | None = None

    def start(self) -> None:
        """Listen and serve. Raises StorageFailed that names the path."""
        ensure_folder(self.path.parent, _FOLDER_MODE)
        remove_dead_socket(self.path, self._advice)
        server = self._build()
        hidden = self.path.with_name(f".{secrets.token_hex(3)}")
        try:
            _try_to_bind(hidden)
            server.add_insecure_port(f"unix:{quote(str(hidden))}")
            hidden.chmod(0o600)
            server.start()
            identity = _identity(hidden)
            hidden.rename(self.path)
        except (RuntimeError, OSError) as error:
            server.stop(None)
            with suppress(OSError):
                hidden.unlink()
            raise StorageFailed(
                f"cannot listen on {self.path}: {_reason(error)}; check mounts, permissions and "
                "free space"
            ) from error
        self._server, self._identity = server, identity

    def present(self) -> bool:
        """Whether the path still leads to our socket."""
        return self._identity is not None and _identity(self.path) == self._identity

    def renew(self) -> None:
        """Offer the socket anew; calls in progress finish on the old one. Raises as `start`."""
        old = self._server
        self.withdraw()
        self.start()
        if old is not None:
            old.stop(_GRACE_AFTER_RENEWAL)

    def withdraw(self) -> None:
        """Take the socket's name away, if it is still ours: nobody new can connect."""
        if self.present():
            with suppress(OSError):
                self.path.unlink()

    def stop(self, grace: float) -> Event:
        """Withdraw, refuse new calls, cancel those in progress after `grace` seconds.

        The event tells when no call is left.
        """
        self.withdraw()
        if self._server is None:
            done = Event()
            done.set()
            return done
        return self._server.stop(grace)


def remove_dead_socket(path: Path, advice: str = "") -> None:
    """Make way for a socket of ours; raises StorageFailed when something else is in the way."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing there, or what is wrong shows when we bind
    if not stat.S_ISSOCK(mode):
        raise StorageFailed(f"{path} is in the way: it is not a socket; remove it")
    if is_served(path):
        raise StorageFailed(f"another process answers on {path}: stop it first{advice}")
    with suppress(FileNotFoundError):
        path.unlink()
    _log.info("removed the socket of a process that is gone", path=path)


def sweep_dead_sockets(folder: Path, names: "re.Pattern[str]") -> None:
    """Remove sockets that killed instances left: all of the name must match, nobody answers.

    Young ones are spared: between bind and listen a socket looks dead.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if not (names.fullmatch(path.name) or _HIDDEN.fullmatch(path.name)):
                continue
            with suppress(OSError):
                status = path.lstat()
                old = time.time() - status.st_mtime > _LEFT_BEHIND_SECONDS
                found = _identity(path)
                if not (stat.S_ISSOCK(status.st_mode) and old and not is_served(path)):
                    continue
                if _identity(path) == found:  # and not an instance that has just come back
                    path.unlink()
                    _log.info("removed the socket of an instance that is gone", path=path)


def is_served(path: Path) -> bool:
    """Whether somebody listens. A refusal proves that nobody does; silence, a full queue do not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def _try_to_bind(path: Path) -> None:
    """Raise the system's own error where grpcio would only say that it failed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.bind(str(path))
    path.unlink()


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Tell one socket file from the next of the same name, which may get the same inode."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "the address was refused"
