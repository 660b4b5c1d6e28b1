"""Which partitions a layout has, by GPU: noted before they are made, so that a crash loses none.

Only what a note says that this driver made is ever removed by it.
"""

import re
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from dra_driver.host import (
    ensure_folder,
    list_folder,
    read_file,
    remove_durably,
    sweep_unfinished,
    write_durably,
)
from dra_driver.model import Placement
from dra_driver.model.errors import Bug, RecordDamaged, StorageFailed
from dra_driver.state.sealed import opened, sealed
from dra_driver.telemetry import logger

log = logger(__name__)

_FORM: Final = ConfigDict(frozen=True, extra="allow")  # a newer driver's fields are kept
_MODE: Final = 0o700
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,50}")


class NotedSlot(BaseModel):
    """The place of one partition of a layout."""

    model_config = _FORM

    profile: str  # name, for people
    gi_profile_id: int
    placement: tuple[int, int]  # start and size
    made: bool  # by this driver; else it stood there as the layout wants it

    @property
    def span(self) -> Placement:
        """Memory slices that the partition covers."""
        return Placement(*self.placement)

    @property
    def key(self) -> tuple[int, Placement]:
        """What tells a partition from others on its GPU, whatever its numbers are now."""
        return self.gi_profile_id, self.span


class LayoutNote(BaseModel):
    """What is known of the layout of one GPU."""

    model_config = _FORM

    schema_number: int = 1
    gpu_uuid: str
    layout: str  # name, for people
    finished: bool  # False: each slot may be empty, as a change was begun
    slots: tuple[NotedSlot, ...]

    @property
    def made(self) -> frozenset[tuple[int, Placement]]:
        """Keys of the partitions that this driver made, or was about to make."""
        return frozenset(slot.key for slot in self.slots if slot.made)


class LayoutNotes:
    """The notes of all GPUs, `<folder>/layouts/<GPU UUID>.json`; read anew each time."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read or made before it is asked for."""
        self._folder = folder / "layouts"

    def load(self) -> None:
        """Make the folder and clear what killed writers left. Raises StorageFailed."""
        ensure_folder(self._folder, _MODE)
        sweep_unfinished(self._folder)

    def all(self) -> dict[str, LayoutNote]:
        """All notes by GPU UUID; a damaged one is set aside and told. Raises StorageFailed."""
        uuids = [path.stem for path in list_folder(self._folder, ".json")]
        found = ((uuid, self.get(uuid)) for uuid in uuids if _UUID.fullmatch(uuid))
        return {uuid: note for uuid, note in found if note is not None}

    def get(self, gpu_uuid: str) -> LayoutNote | None:
        """Note of one GPU. Without it every partition that stands there is somebody else's."""
        path = self._path(gpu_uuid)
        content = read_file(path)
        if content is None:
            return None
        try:
            return _decoded(content, gpu_uuid)
        except RecordDamaged as error:
            why = str(error)
        self._set_aside(path, why)
        return None

    def write(self, note: LayoutNote) -> None:
        """Keep a note, in place of an earlier one. Raises StorageFailed."""
        ensure_folder(self._folder, _MODE)
        body = note.model_dump_json().encode()
        write_durably(self._path(note.gpu_uuid), sealed(body))

    def keep(self, gpu_uuid: str, layout: str, slots: tuple[NotedSlot, ...]) -> None:
        """Note a layout that stands, or forget one without partitions; nothing is written twice.

        Raises StorageFailed.
        """
        before = self.get(gpu_uuid)
        if not slots:
            if before is not None:
                self.remove(gpu_uuid)
        elif before is None or (before.finished, before.slots) != (True, slots):
            self.write(LayoutNote(gpu_uuid=gpu_uuid, layout=layout, finished=True, slots=slots))

    def remove(self, gpu_uuid: str) -> None:
        """Forget what was noted of a GPU. Raises StorageFailed."""
        remove_durably(self._path(gpu_uuid))

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_suffix(".damaged")
        log.error("which partitions a layout has is not known any more", moved=aside, err=why)
        try:
            path.replace(aside)
        except FileNotFoundError:
            return  # another instance was faster
        except OSError as error:
            raise StorageFailed(f"cannot move the damaged {path}: {error.strerror}") from error

    def _path(self, gpu_uuid: str) -> Path:
        if not _UUID.fullmatch(gpu_uuid):
            raise Bug(f"{gpu_uuid!r} is not a GPU's UUID")
        return self._folder / f"{gpu_uuid}.json"


def _decoded(content: bytes, gpu_uuid: str) -> LayoutNote:
    what = f"the note on the layout of GPU {gpu_uuid}"
    try:
        note = LayoutNote.model_validate_json(opened(content, what))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RecordDamaged(f"{what}: {field}: {first['msg']}") from error
    if note.gpu_uuid != gpu_uuid:
        raise RecordDamaged(f"{what} is about GPU {note.gpu_uuid}")
    return note
