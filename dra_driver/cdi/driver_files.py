"""The GPU driver's files that containers need, as they lie below the driver root now.

Each file has two names: its true path on the host, from which the runtime mounts it, and its name
within the driver root, under which programs in the container look for it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.host import inside
from dra_driver.model.errors import DriverFilesMissing
from dra_driver.nvml.library import library_folders

_VERSIONED: Final = re.compile(r"lib[A-Za-z0-9_+-]+\.so\.(\d+(?:\.\d+){1,3})")
# Their links say which driver is in use; without them a container could do nothing with a GPU.
_REQUIRED: Final = ("libcuda.so", "libnvidia-ml.so")
_UNVERSIONED: Final = ("libnvidia-nvvm70.so.4",)  # the driver's all the same
_LIBRARY_FOLDERS: Final = (
    *library_folders(),
    "usr/lib/x86_64-linux-gnu/nvidia/current",  # Debian's own packages
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64/vdpau",
    "usr/lib/x86_64-linux-gnu/vdpau",
    "usr/lib/aarch64-linux-gnu/vdpau",
)
_PROGRAM_FOLDERS: Final = ("usr/bin", "bin", "usr/sbin", "sbin", "opt/bin")
_PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_FIRMWARE_FOLDERS: Final = ("lib/firmware/nvidia", "usr/lib/firmware/nvidia")
_SOCKETS: Final = (
    ("run/nvidia-persistenced", "var/run/nvidia-persistenced"),
    ("run/nvidia-fabricmanager", "var/run/nvidia-fabricmanager"),
)


@dataclass(frozen=True, slots=True)
class HostFile:
    """One file or socket that goes into containers."""

    host_path: str
    container_path: str


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """All of one driver version's files that were found."""

    version: str
    libraries: tuple[HostFile, ...]
    others: tuple[HostFile, ...]  # programs and firmware
    sockets: tuple[HostFile, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders that hold libraries in the container, in the order of the search."""
        parents = (str(Path(file.container_path).parent) for file in self.libraries)
        return tuple(dict.fromkeys(parents))

    @property
    def unversioned(self) -> tuple[str, ...]:
        """Names of libraries that do not carry the driver's version."""
        names = (Path(file.container_path).name for file in self.libraries)
        return tuple(name for name in names if name in _UNVERSIONED)


def find_driver_files(host: Path, here: Path) -> DriverFiles:
    """Find the files of the driver in use.

    `host` is the driver root as the runtime sees it, `here` as this process does. Raises
    DriverFilesMissing with what was looked for and where.
    """
    return _Search(host, here).run()


def watched_folders(version: str) -> Iterator[str]:
    """Folders, relative to the driver root, whose change may change what is found."""
    yield from _LIBRARY_FOLDERS
    yield from _PROGRAM_FOLDERS
    yield "etc/alternatives"  # links by which Debian chooses between drivers
    for places in _SOCKETS:
        yield from places
    for folder in _FIRMWARE_FOLDERS:
        yield f"{folder}/{version}"


class _Search:
    """One look below a driver root."""

    def __init__(self, host: Path, here: Path) -> None:
        self._host = host
        self._here = here
        # By their true paths, so that a folder with two names is not searched twice.
        self._folders: dict[Path, str] = {}
        for folder in _LIBRARY_FOLDERS:
            path = inside(here, folder)
            if path is not None and path.is_dir():
                self._folders.setdefault(path, folder)

    def run(self) -> DriverFiles:
        version = self._linked_version() or self._highest_version()
        return DriverFiles(
            version=version,
            libraries=self._libraries(version),
            others=(*self._programs(), *self._firmware(version)),
            sockets=tuple(self._sockets()),
        )

    def _linked_version(self) -> str | None:
        """Version to which the links of the likeliest folder lead."""
        for folder in self._folders.values():
            for name in _REQUIRED:
                true = inside(self._here, Path(folder, f"{name}.1"))
                match = _VERSIONED.fullmatch(true.name) if true else None
                if match:
                    return match.group(1)
        return None

    def _highest_version(self) -> str:
        """Highest version there is, for a driver root in which ldconfig never ran."""
        names = [name for path in self._folders for name in _names(path)]
        matches = [_VERSIONED.fullmatch(n) for n in names if n.startswith(_REQUIRED)]
        versions = [match.group(1) for match in matches if match]
        if not versions:
            raise DriverFilesMissing(
                f"no libcuda.so.1 or libnvidia-ml.so.1 below {self._host} (looked in "
                f"{_searched()}); install the GPU driver or set --nvidia-driver-root and "
                "--container-driver-root to the folder that holds it"
            )
        return max(versions, key=lambda version: [int(part) for part in version.split(".")])

    def _libraries(self, version: str) -> tuple[HostFile, ...]:
        """Libraries of that version; of two of one name, the one in the likelier folder."""
        found: dict[str, HostFile] = {}
        for path, folder in self._folders.items():
            for name in _names(path):
                match = _VERSIONED.fullmatch(name)
                wanted = match.group(1) == version if match else name in _UNVERSIONED
                file = self._file(f"{folder}/{name}") if wanted and name not in found else None
                if file is not None:
                    found[name] = file
        missing = [f"{name}.{version}" for name in _REQUIRED if f"{name}.{version}" not in found]
        if missing:
            raise DriverFilesMissing(
                f"GPU driver {version} below {self._host} is incomplete: no "
                f"{' and no '.join(missing)} (looked in {_searched()}); install the driver's "
                "compute libraries, or wait until its installation is finished"
            )
        return tuple(found.values())

    def _programs(self) -> Iterator[HostFile]:
        for program in _PROGRAMS:
            places = (self._file(f"{folder}/{program}") for folder in _PROGRAM_FOLDERS)
            file = next((file for file in places if file is not None), None)
            if file is not None:
                yield file

    def _firmware(self, version: str) -> list[HostFile]:
        for folder in _FIRMWARE_FOLDERS:
            path = inside(self._here, f"{folder}/{version}")
            names = _names(path) if path else []
            files = [self._file(f"{folder}/{version}/{n}") for n in names if n.startswith("gsp")]
            if files:
                return [file for file in files if file is not None]
        return []

    def _sockets(self) -> Iterator[HostFile]:
        for places in _SOCKETS:
            for folder in places:
                true = inside(self._here, f"{folder}/socket")
                if true is not None and true.is_socket():
                    yield HostFile(self._on_host(true), f"/{folder}/socket")
                    break

    def _file(self, name: str) -> HostFile | None:
        """Give a regular file by its name within the root, None where there is none."""
        true = inside(self._here, name)
        if true is None or not true.is_file():
            return None
        return HostFile(self._on_host(true), str(Path("/", name)))

    def _on_host(self, true: Path) -> str:
        return str(self._host / true.relative_to(self._here))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []


def _searched() -> str:
    return ", ".join(f"/{folder}" for folder in _LIBRARY_FOLDERS)
