"""The file of the node configuration: read at the start, and again whenever it changes."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dra_driver.config import DEFAULT_CONFIG, NodeConfig, load
from dra_driver.model.errors import SettingInvalid
from dra_driver.telemetry import Metrics, logger

_log = logger(__name__)
_LOOK_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 2.0
_LARGEST: Final = 1 << 20  # bytes; a ConfigMap holds no more
_VALID: Final = "gpu_dra_driver_config_valid"


class ConfigFile:
    """The configuration as its file has it now; what is wrong keeps the last that was right.

    The content is compared, not the time of change: a ConfigMap's files are links that are moved
    to another folder. What is new counts when two looks have found the same, so that a file that
    is being written is not taken for a short one; it counts within a second or so.
    """

    def __init__(
        self, path: Path | None, metrics: Metrics, on_change: Callable[[NodeConfig], None]
    ) -> None:
        """Read the file. Raises SettingInvalid when it is missing or wrong. None: the defaults.

        `on_change` is called by a thread of its own, and only for another configuration.
        """
        self._path = path
        self._metrics = metrics
        self._on_change = on_change
        self._content: bytes | str = b""  # or why there is none
        self._seen: bytes | str = b""  # at the last look
        self._problem = ""
        self._config = DEFAULT_CONFIG
        if path is not None:
            self._content = self._seen = _content(path)
            self._config = _parsed(path, self._content)
        metrics.set(_VALID, 1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="config", daemon=True)

    def current(self) -> NodeConfig:
        """Last configuration that was right."""
        return self._config

    def problem(self) -> str:
        """Why the file does not count as it is: one line; empty when it does."""
        return self._problem

    def start(self) -> None:
        """Begin to look for changes. Returns at once."""
        if self._path is not None:
            self._thread.start()

    def stop(self) -> None:
        """Look no more; bounded, and harmless when nothing was started."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while self._path is not None and not self._stopped.wait(_LOOK_SECONDS):
            try:
                self._look(self._path)
            except Exception:  # noqa: BLE001 - the thread must outlive our own mistakes
                _log.exception("a change of the configuration could not be followed")

    def _look(self, path: Path) -> None:
        before, self._seen = self._seen, _content(path)
        if self._seen == before and self._seen != self._content:
            self._content = self._seen
            self._follow(path)

    def _follow(self, path: Path) -> None:
        """Let the file's content count, if it is right."""
        try:
            config = _parsed(path, self._content)
        except SettingInvalid as error:
            self._problem = str(error)
            self._metrics.set(_VALID, 0)
            _log.error("the configuration is not followed; the last good one holds", err=error)
            return
        self._problem = ""
        self._metrics.set(_VALID, 1)
        if config != self._config:
            self._config = config
            _log.info("the configuration has changed", path=path)
            self._on_change(config)


def read_config(path: Path) -> NodeConfig:
    """Read a file once; raises SettingInvalid with path, line, field and what is allowed."""
    return _parsed(path, _content(path))


def _content(path: Path) -> bytes | str:
    """Bytes of the file, or why they can't be had."""
    try:
        if not path.is_file():  # a pipe would keep us waiting
            return "there is no such file"
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return content if len(content) <= _LARGEST else f"is larger than {_LARGEST} bytes"


def _parsed(path: Path, content: bytes | str) -> NodeConfig:
    if isinstance(content, str):
        raise SettingInvalid(f"{path}: {content}")
    try:
        return load(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingInvalid(f"{path}: is not UTF-8: {error.reason}") from error
    except SettingInvalid as error:
        raise SettingInvalid(f"{path}: {error}") from error
