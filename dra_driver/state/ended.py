"""Claims of the driver before that have ended before they were taken over: they don't come back.

Their UIDs are noted with the checkpoint that has them, as they mean nothing for another one.
"""

import hashlib
from pathlib import Path
from typing import Final

from dra_driver.host import read_file, remove_file, write_durably
from dra_driver.model.errors import StorageFailed
from dra_driver.telemetry import logger

log = logger(__name__)

_NAME: Final = "take-over.ended"


class EndedClaims:
    """The note of them, `<folder>/take-over.ended`; to be used under the lock of the take-over."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read or written before it is asked for."""
        self._file = folder / _NAME
        self._here: set[tuple[str, str]] = set()  # checkpoint and UID, also without room on disk

    def of(self, checkpoint: bytes) -> set[str]:
        """UIDs noted for a checkpoint with that content. Raises StorageFailed."""
        digest = _digest(checkpoint)
        here = {uid for about, uid in self._here if about == digest}
        lines = (read_file(self._file) or b"").decode(errors="replace").split()
        return here.union(lines[1:]) if lines[:1] == [digest] else here

    def add(self, checkpoint: bytes, uid: str) -> None:
        """Note one more of them. Never fails: a claim must be able to end on a full disk."""
        digest = _digest(checkpoint)
        self._here.add((digest, uid))
        try:
            lines = [digest, *sorted(self.of(checkpoint))]
            write_durably(self._file, "\n".join(lines).encode())
        except StorageFailed as error:
            log.warning("only this process knows that a claim has ended", claimUID=uid, err=error)

    def forget(self) -> None:
        """Remove the note: the checkpoint was dealt with. Raises StorageFailed."""
        remove_file(self._file)


def _digest(checkpoint: bytes) -> str:
    return hashlib.sha256(checkpoint).hexdigest()
