"""The last good entry of a folder of configurations, kept over restarts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.config import DEFAULT_CONFIG, NodeConfig, load
from dra_driver.host import ensure_folder, read_file, sweep_unfinished, write_durably
from dra_driver.model.errors import DriverError, SettingInvalid, StorageFailed
from dra_driver.telemetry import logger

_log = logger(__name__)
_SCHEMA: Final = 1
_NAME: Final = "node-config.json"


@dataclass(frozen=True, slots=True)
class LastGood:
    """An entry that was in force, and its content then."""

    entry: str  # empty: the driver's defaults
    text: str

    def config(self) -> NodeConfig:
        """Read it. Raises SettingInvalid, as when an older version of this driver kept it."""
        return load(self.text) if self.text else DEFAULT_CONFIG


class LastGoodFile:
    """A file in the plugin's folder of data. Without it everything works but for what it is for."""

    def __init__(self, folder: Path) -> None:
        """Keep the file in this folder, which is made when it is missing."""
        self._path = folder / _NAME
        self._kept: LastGood | None = None

    def read(self) -> LastGood | None:
        """Give what was kept; None when nothing was, or nothing that can be read."""
        try:
            content = read_file(self._path)
            if content is None:
                return None
            document = json.loads(content)
            if document["schema"] != _SCHEMA:
                return None
            kept = LastGood(str(document["entry"]), str(document["text"]))
            kept.config()
        except (StorageFailed, SettingInvalid, ValueError, KeyError, TypeError) as error:
            _log.warning("the configuration of the last run is not known", err=error)
            return None
        self._kept = kept
        return kept

    def keep(self, entry: str, text: str) -> None:
        """Keep this from now on. A failure is logged and tried again with the next change."""
        new = LastGood(entry, text)
        if new == self._kept:
            return
        document = {"schema": _SCHEMA, "entry": entry, "text": text}
        try:
            ensure_folder(self._path.parent)
            sweep_unfinished(self._path.parent, _NAME)
            write_durably(self._path, json.dumps(document).encode())
        except DriverError as error:
            _log.warning("the configuration is not kept for the next start", err=error)
            return
        self._kept = new
