"""Which sets of devices have a control daemon of MPS: noted before one is started.

Only the MPS agent starts daemons; it begins anew from these notes. Where no agent runs, the plugin
takes a note away that no claim needs: whoever holds the agent's lock may change them.
"""

import re
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from dra_driver.config import Settings
from dra_driver.host import (
    FileLock,
    ensure_folder,
    list_folder,
    read_file,
    remove_durably,
    sweep_unfinished,
    write_durably,
)
from dra_driver.model.errors import ConfigInvalid, RecordDamaged, StorageFailed
from dra_driver.sharing.mps_spec import MpsSpec
from dra_driver.state.sealed import opened, sealed
from dra_driver.telemetry import logger

_log = logger(__name__)

_MODE: Final = 0o711  # programs of all users reach the sockets of their daemon below it
_NOTE: Final = re.compile(r"[0-9a-f]{16}\.json")


class SetNote(BaseModel):
    """What is known of one set."""

    model_config = ConfigDict(frozen=True, extra="allow")  # a newer agent's fields are kept

    schema_number: int = 1
    spec: MpsSpec
    interruptions: int = 0  # how often its daemon ended that should not have
    interrupted_at: int = 0  # Unix seconds of the last time


class MpsFolders:
    """Where agent and plugin have what they share, below the plugin's own folder."""

    def __init__(self, settings: Settings) -> None:
        """Make nothing yet."""
        self.top = settings.data_folder / "mps"
        self.socket = self.top / "agent.sock"
        self.sets = self.top / "sets"

    def lock(self, timeout: float) -> FileLock:
        """Lock of the one agent; also of whoever changes notes while there is none."""
        return FileLock(self.top / "agent.lock", timeout)

    def of_set(self, set_id: str) -> Path:
        """Folder of one set."""
        return self.sets / set_id


class SetNotes:
    """The notes, `<sets>/<id>.json`; read anew each time."""

    def __init__(self, folders: MpsFolders) -> None:
        """Read and make nothing yet."""
        self._folder = folders.sets

    def prepare(self) -> None:
        """Make the folder and clear what killed writers left. Raises StorageFailed."""
        ensure_folder(self._folder.parent, _MODE)
        ensure_folder(self._folder, _MODE)
        sweep_unfinished(self._folder)

    def ids(self) -> list[str]:
        """Ids of the sets that have a note. Raises StorageFailed."""
        found = list_folder(self._folder, ".json")
        return [path.stem for path in found if _NOTE.fullmatch(path.name)]

    def get(self, set_id: str) -> SetNote | None:
        """Note of a set; a damaged one is set aside: claims that need it ask for it again."""
        path = self._path(set_id)
        content = read_file(path)
        if content is None:
            return None
        try:
            return _decoded(content, set_id)
        except RecordDamaged as error:
            aside = path.with_suffix(".damaged")
            _log.error("what an MPS set was is not known any more", moved=aside, err=error)
        try:
            path.replace(aside)
        except OSError as error:
            raise StorageFailed(f"cannot move the damaged {path}: {error.strerror}") from error
        return None

    def write(self, note: SetNote) -> None:
        """Keep a note, in place of an earlier one. Raises StorageFailed."""
        write_durably(self._path(note.spec.id), sealed(note.model_dump_json().encode()))

    def remove(self, set_id: str) -> None:
        """Forget a set. Raises StorageFailed."""
        remove_durably(self._path(set_id))

    def _path(self, set_id: str) -> Path:
        return self._folder / f"{set_id}.json"


def _decoded(content: bytes, set_id: str) -> SetNote:
    what = f"the note on MPS set {set_id}"
    try:
        note = SetNote.model_validate_json(opened(content, what))
        note.spec.check()
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RecordDamaged(f"{what}: {field}: {first['msg']}") from error
    except ConfigInvalid as error:
        raise RecordDamaged(f"{what}: {error}") from error
    if note.spec.id != set_id:
        raise RecordDamaged(f"{what} is about {note.spec}")
    return note
