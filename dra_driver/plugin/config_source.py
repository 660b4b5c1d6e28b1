"""Where the node configuration stands: in a file, or in a folder of named entries."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from dra_driver.config import (
    CONFIG_LABEL,
    DEFAULT_CONFIG,
    Choice,
    NodeConfig,
    Settings,
    choose,
    load,
    shown,
)
from dra_driver.model.errors import SettingInvalid

_LARGEST: Final = 1 << 20  # bytes; a ConfigMap holds no more
_SUFFIX: Final = ".yaml"  # that the name of an entry may have or not
_BY_FILE: Final = Choice("", "file", "")


@dataclass(frozen=True, slots=True)
class Found:
    """What one look has found; two that are equal found the same."""

    path: Path  # of the file that counts
    content: bytes | str  # or why there is none
    choice: Choice | None  # None: what was named does not exist

    @property
    def text(self) -> str:
        """Content that was right; empty for the driver's defaults."""
        return self.content.decode("utf-8-sig") if isinstance(self.content, bytes) else ""

    def config(self) -> NodeConfig:
        """Read it. Raises SettingInvalid with path, line, field and what is allowed."""
        if self.choice is not None and self.choice.by == "empty":
            return DEFAULT_CONFIG
        if isinstance(self.content, str):
            raise SettingInvalid(f"{self.path}: {self.content}")
        try:
            return load(self.content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise SettingInvalid(f"{self.path}: is not UTF-8: {error.reason}") from error
        except SettingInvalid as error:
            raise SettingInvalid(f"{self.path}: {error}") from error


class Source(Protocol):
    """A place to look at."""

    def look(self, wanted: str) -> Found:
        """Look at what the label's value `wanted` names; never fails."""


class OneFile:
    """A file, for all Nodes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self, wanted: str) -> Found:  # noqa: ARG002 - a file has no entries
        """Read the file."""
        return Found(self._path, _content(self._path), _BY_FILE)


class Folder:
    """A folder of entries as a ConfigMap is mounted: each is a link into `..data`.

    `..data` is moved at once to another folder, so that a look may meet both; the next one sees
    that. Names come from labels, so they are looked up among what is there and never make a path.
    """

    def __init__(self, path: Path, default: str, strategies: Sequence[str]) -> None:
        """See `choose` for `default` and `strategies`."""
        self._path = path
        self._default = _plain(default)
        self._strategies = tuple(strategies)

    def names(self) -> tuple[str, ...]:
        """Names of all entries. Raises SettingInvalid when the folder can't be listed."""
        return tuple(sorted(self._entries()))

    def look(self, wanted: str) -> Found:
        """Read the entry of that name; without one, that for Nodes without label."""
        try:
            entries = self._entries()
            choice = choose(_plain(wanted), entries, self._default, self._strategies)
        except SettingInvalid as error:
            return Found(self._path, str(error), None)
        paths = entries.get(choice.name, ())
        if len(paths) > 1:
            both = ", ".join(path.name for path in paths)
            return Found(self._path, f"entry {choice.name!r} is there twice: {both}", choice)
        content: bytes | str = _content(paths[0]) if paths else "there is no such entry"
        return Found(paths[0] if paths else self._path, content, choice)

    def entry(self, name: str) -> Found:
        """Read the entry of that name, whatever Nodes it is for."""
        found = self._entries()
        if _plain(name) not in found:
            raise SettingInvalid(f"{self._path}: there is no entry {name!r}; {shown(found)}")
        return self.look(name)

    def _entries(self) -> Mapping[str, Sequence[Path]]:
        found: dict[str, list[Path]] = {}
        try:
            for name in sorted(os.listdir(self._path)):  # noqa: PTH208 - names, not paths
                if not name.startswith(".") and not os.path.isdir(self._path / name):  # noqa: PTH112 - never raises
                    found.setdefault(_plain(name), []).append(self._path / name)
        except OSError as error:
            raise SettingInvalid(f"the folder cannot be listed: {error.strerror}") from error
        return found


def folder_of(settings: Settings) -> Folder | None:
    """Folder that the settings name; None when it is a file, or there is nothing."""
    path = settings.config_file
    if path is None or not os.path.isdir(path):  # noqa: PTH112 - never raises
        return None
    return Folder(path, settings.default_config, settings.fallback_strategies)


def read_config(settings: Settings, labels: Mapping[str, str]) -> NodeConfig:
    """Read the file, or the entry for a Node with these labels; None: the defaults.

    Raises SettingInvalid with path, line, field and what is allowed.
    """
    folder = folder_of(settings)
    if folder is not None:
        return folder.look(label_of(labels)).config()
    path = settings.config_file
    return DEFAULT_CONFIG if path is None else OneFile(path).look("").config()


def label_of(labels: Mapping[str, str]) -> str:
    """Name of the entry that these labels of a Node want; empty: none."""
    return labels.get(CONFIG_LABEL, "")


def _plain(name: str) -> str:
    return name.removesuffix(_SUFFIX)


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
