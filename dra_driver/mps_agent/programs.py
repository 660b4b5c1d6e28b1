"""The GPU driver's program for MPS, and the environment in which it runs beside us.

It is started directly, without a shell, whether the driver root has one or not (field report dra
#469). It gets the driver's libraries and no others of the root: with the host's C library beside
our own dynamic loader nothing would start.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.driver_root import DriverRoot
from dra_driver.host import ensure_folder, inside, link_atomically
from dra_driver.model.errors import DriverFilesMissing, StorageFailed

_FOLDERS: Final = ("usr/bin", "bin", "usr/sbin", "sbin", "opt/bin")
_PROGRAM: Final = "nvidia-cuda-mps-control"
# The kernel's name of control daemons and servers alike: 15 letters of theirs (TASK_COMM_LEN).
KERNEL_NAME: Final = _PROGRAM[:15]
_FIRST_VERSION: Final = "1"
# CUDA contexts that one server can have on a device, and the first GPU driver with more: CUDA 13.1
# (NVIDIA, Multi-Process Service, "Client-Server Connection Limits").
_CLIENTS, _CLIENTS_BEFORE, _BRANCH_OF_MORE = 60, 48, 590


@dataclass(frozen=True, slots=True)
class Program:
    """What to run, and the part of its environment that all daemons have in common."""

    path: Path
    environment: dict[str, str]


class Programs:
    """Finds the program of the GPU driver that is installed now."""

    def __init__(self, root: Path, folder: Path, known_as: str = "") -> None:
        """Look below the driver root; links to its libraries are made in `folder`.

        `known_as` is what people call the root, where they see it elsewhere than this process.
        """
        self._root = root
        self._shown = known_as or str(root)
        self._files = DriverRoot(root, root)
        self._folder = folder

    def find(self) -> Program:
        """Program to run. Raises DriverFilesMissing with what was looked for, or StorageFailed."""
        for folder in _FOLDERS:
            path = inside(self._root, Path(folder, _PROGRAM))
            if path is not None and path.is_file():
                return Program(path, self._environment(path))
        raise DriverFilesMissing(
            f"no {_PROGRAM} below {self._shown} (looked in {', '.join(_FOLDERS)}): it runs MPS; "
            "install the GPU driver's compute utilities"
        )

    def client_limit(self) -> int:
        """Count of clients that one daemon can serve on each device."""
        try:
            branch = int(self._files.current().version.partition(".")[0])
        except DriverFilesMissing:
            return _CLIENTS_BEFORE
        return _CLIENTS if branch >= _BRANCH_OF_MORE else _CLIENTS_BEFORE

    def sweep(self) -> None:
        """Remove the links to libraries of other times."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _environment(self, program: Path) -> dict[str, str]:
        found = {"PATH": str(program.parent)}  # the server lies beside it
        if self._root != Path("/"):
            found["LD_LIBRARY_PATH"] = str(self._libraries())
        return found

    def _libraries(self) -> Path:
        """Folder with the driver's libraries, each by all names it has in the driver root."""
        files = self._files.current()
        folder = self._folder / files.version
        try:
            ensure_folder(folder)
            for library in files.libraries:
                true = Path(library.host_path)
                for name in {true.name, *self._names_of(true, Path(library.container_path).parent)}:
                    _link(folder / name, true)
        except OSError as error:
            raise StorageFailed(
                f"cannot link the GPU driver's libraries in {folder}: {error.strerror}"
            ) from error
        return folder

    def _names_of(self, library: Path, folder: Path) -> Iterator[str]:
        stem = f"{library.name.partition('.so.')[0]}.so."
        yield stem + _FIRST_VERSION
        here = inside(self._root, folder)
        for name in os.listdir(here) if here else ():  # noqa: PTH208 - names are all that is needed
            if name.startswith(stem) and inside(self._root, folder / name) == library:
                yield name


def _link(path: Path, target: Path) -> None:
    """Make a link unless it is there: all sets' daemons, which start at once, have it."""
    try:
        if path.readlink() == target:
            return
    except FileNotFoundError:
        pass
    link_atomically(path, target)
