"""A kubelet stand-in: finds plugins by their sockets and calls them as the real one does.

It behaves as pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra of Kubernetes 1.34 to 1.37 where a
driver can tell the difference: deadlines, back-off, checks of answers, what a restart forgets.
"""

import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import (
    CallFailed,
    Device,
    PluginConnection,
    RegistrationFailed,
    introduce,
    notify,
    refusal,
)

_POLL_SECONDS: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 122.0
_CALL_SECONDS: Final = 45.0
_WIPE_SECONDS: Final = 30.0

Identity = tuple[int, int]  # of a socket file: another one of the same path is another plugin


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened to a registration socket, for tests to look at."""

    what: str  # `registered`, `deregistered` or `failed`
    path: Path
    detail: str = ""
    seconds: float = 0.0  # that GetInfo took


class Kubelet:
    """Watches the registry folder in a thread of its own; calls plugins in the caller's."""

    def __init__(
        self,
        registry: Path,
        *,
        minor: int = 37,
        wipe_slices: Callable[[], None] | None = None,
        wipe_seconds: float = _WIPE_SECONDS,
    ) -> None:
        """Behave as version 1.`minor`. `wipe_slices` deletes the slices of this node.

        It is called at every start, as the kubelet does, and when no plugin has been connected for
        `wipe_seconds`.
        """
        self.history: list[Happening] = []
        self._registry = registry
        self._minor = minor
        self._wipe_slices = wipe_slices
        self._wipe_seconds = wipe_seconds
        self._changed = threading.Condition()
        self._plugins: dict[Path, tuple[Identity, PluginConnection]] = {}  # oldest first
        self._pauses: dict[Path, tuple[float, float]] = {}  # path: pause, next try
        self._alone_since: float | None = None
        self._wiped = False  # since then
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Wipe the slices, then begin to look for plugins."""
        self._wipe()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Hang up and forget everything, as a kubelet that ends."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        with self._changed:
            connections = [connection for _, connection in self._plugins.values()]
            self._plugins.clear()
            self._pauses.clear()
        for connection in connections:
            connection.close()

    def restart(self) -> None:
        """Stop and start: plugins must be registered again, slices are gone."""
        self.stop()
        self.start()

    def wait_registered(self, driver: str, timeout: float) -> PluginConnection:
        """Give the newest connected plugin of that driver. Raises TimeoutError with the history."""
        with self._changed:
            if self._changed.wait_for(lambda: self._plugin(driver) is not None, timeout):
                plugin = self._plugin(driver)
                assert plugin is not None  # noqa: S101 - for the type checker
                return plugin
        tail = "; ".join(f"{each.what} {each.path} {each.detail}" for each in self.history[-5:])
        raise TimeoutError(f"{driver} is not registered after {timeout} s: {tail or 'no plugin'}")

    def wait_gone(self, driver: str, timeout: float) -> None:
        """Wait until no plugin of that driver is registered. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._plugin(driver) is None, timeout):
                raise TimeoutError(f"{driver} is still registered after {timeout} s")

    def prepare(
        self, driver: str, refs: Sequence[ClaimRef], timeout: float = _CALL_SECONDS
    ) -> dict[str, tuple[Device, ...]]:
        """Prepare the claims of one Pod; devices by claim UID. Raises CallFailed."""
        return self._registered(driver).prepare(refs, timeout)

    def unprepare(
        self, driver: str, refs: Sequence[ClaimRef], timeout: float = _CALL_SECONDS
    ) -> None:
        """Unprepare claims. Raises CallFailed."""
        self._registered(driver).unprepare(refs, timeout)

    def _registered(self, driver: str) -> PluginConnection:
        with self._changed:
            plugin = self._plugin(driver)
        if plugin is None:
            raise CallFailed(f"DRA driver {driver} is not registered")
        return plugin

    def _plugin(self, driver: str) -> PluginConnection | None:
        """Newest connected plugin, else the newest: as dra_plugin_manager.go chooses."""
        found = [
            connection
            for _, connection in self._plugins.values()
            if connection.introduction.driver == driver
        ]
        connected = [connection for connection in found if connection.connected]
        candidates = connected or found
        return candidates[-1] if candidates else None

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            sockets = self._sockets()
            for path in [path for path in self._plugins if path not in sockets]:
                self._deregister(path)
            for path, identity in sockets.items():
                known = self._plugins.get(path)
                if known is not None and known[0] != identity:
                    self._deregister(path)
                    known = None
                if known is None and time.monotonic() >= self._pauses.get(path, (0.0, 0.0))[1]:
                    self._register(path, identity)
            self._wipe_if_alone()

    def _sockets(self) -> dict[Path, Identity]:
        """Sockets in the registry folder, without hidden ones (plugin_watcher.go)."""
        found = {}
        with suppress(OSError):
            for path in sorted(self._registry.iterdir()):
                with suppress(OSError):
                    status = path.lstat()
                    if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
                        found[path] = (status.st_ino, status.st_mtime_ns)
        return found

    def _register(self, path: Path, identity: Identity) -> None:
        try:
            introduction = introduce(path)
        except RegistrationFailed as error:
            self._failed(path, str(error))
            return
        problem = refusal(introduction)
        if problem:
            self._failed(path, problem)
            with suppress(RegistrationFailed):
                notify(path, problem)
            return
        connection = PluginConnection(introduction, self._minor)
        with self._changed:
            self._plugins[path] = (identity, connection)
            self._pauses.pop(path, None)
        try:
            notify(path, "")
        except RegistrationFailed as error:
            self._deregister(path)
            self._failed(path, str(error))
            return
        self._note(Happening("registered", path, introduction.driver, introduction.seconds))

    def _failed(self, path: Path, error: str) -> None:
        pause = min(2 * self._pauses.get(path, (_FIRST_PAUSE / 2, 0.0))[0], _LONGEST_PAUSE)
        self._pauses[path] = (pause, time.monotonic() + pause)
        self._note(Happening("failed", path, error))

    def _deregister(self, path: Path) -> None:
        with self._changed:
            _, connection = self._plugins.pop(path)
        connection.close()
        self._note(Happening("deregistered", path, connection.introduction.driver))

    def _note(self, happening: Happening) -> None:
        with self._changed:
            self.history.append(happening)
            self._changed.notify_all()

    def _wipe(self) -> None:
        if self._wipe_slices is not None:
            self._wipe_slices()

    def _wipe_if_alone(self) -> None:
        """Delete the slices once when no plugin that was known has been connected for long."""
        if any(connection.connected for _, connection in self._plugins.values()):
            self._alone_since, self._wiped = None, False
        elif self._alone_since is None:
            self._alone_since = time.monotonic() if self.history else None
        elif not self._wiped and time.monotonic() - self._alone_since >= self._wipe_seconds:
            self._wipe()
            self._wiped = True
