"""The GPU driver's files, remembered as long as nothing below the driver root changes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_driver.cdi.driver_files import DriverFiles, find_driver_files, watched_folders
from dra_driver.host import inside

# A folder stamped this short before a look may have changed again under the same stamp.
_SETTLED_NS: Final = 1_000_000_000
_Stamp = tuple[int, int, int]  # time of the last change in ns, device, inode


class DriverRoot:
    """The driver's files, looked for again whenever a folder that may hold them changed."""

    def __init__(self, host: Path, here: Path) -> None:
        """`host` is the driver root as the runtime sees it, `here` as this process does."""
        self._host = host
        self._here = here
        self._known: tuple[dict[str, _Stamp | None], DriverFiles] | None = None

    def current(self) -> DriverFiles:
        """Files of the driver in use; raises DriverFilesMissing."""
        known = self._known
        if known is not None and known[0] == {path: _stamp(path) for path in known[0]}:
            return known[1]
        moment = time.time_ns()
        found = find_driver_files(self._host, self._here)
        stamps = {path: _stamp(path) for path in map(str, self._watched(found.version))}
        newest = max((stamp[0] for stamp in stamps.values() if stamp), default=0)
        if newest >= moment - _SETTLED_NS:
            self._known = None
            return found
        # Again, after the stamps: a whole root may have taken the place of another meanwhile, as
        # when the driver's container restarts, and all of its folders are older than this look.
        found = find_driver_files(self._host, self._here)
        self._known = (stamps, found)
        return found

    def _watched(self, version: str) -> Iterator[Path]:
        for folder in watched_folders(version):
            yield self._here / folder  # its own place, which may come, go, or be a link
            true = inside(self._here, folder)
            if true is not None:
                yield true


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.lstat(path)  # thirty for each claim: a third of what pathlib takes
    except OSError:
        return None
    return status.st_mtime_ns, status.st_dev, status.st_ino
