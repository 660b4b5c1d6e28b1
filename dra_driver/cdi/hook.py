"""The program that makes driver libraries loadable in a container, and how runtimes call it."""

import os
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.config import Settings
from dra_driver.host import (
    ensure_folder,
    inside,
    read_file,
    sweep_unfinished,
    write_atomically,
)
from dra_driver.model.errors import Bug, StorageFailed

_NAME: Final = "gpu-dra-cdi-hook"
_BUILT: Final = Path(__file__).parent / "native" / "build" / _NAME
_MODE: Final = 0o755
# Names by which programs look for a library that carries the driver's version.
_LINKED: Final = ("libcuda.so", "libnvidia-ml.so", "libnvidia-opticalflow.so")
_TOOLKIT: Final = "nvidia-cdi-hook"
_TOOLKIT_FOLDERS: Final = ("usr/bin", "usr/local/nvidia/toolkit", "usr/local/bin")


class Hook:
    """Our hook on the host, or NVIDIA's own where the node has it."""

    def __init__(self, settings: Settings) -> None:
        """Keep where it is to be installed, and where NVIDIA's may be."""
        self._path = settings.hook_folder / _NAME
        self._host = settings.driver_root
        self._here = settings.container_driver_root

    def install(self) -> None:
        """Put the hook into its folder on the host; writes nothing when it is there.

        Raises StorageFailed where it can't be written or the runtime could not start it.
        """
        try:
            content = _BUILT.read_bytes()
        except OSError as error:
            raise Bug(
                f"this installation lacks its CDI hook {_BUILT}: {error.strerror}; build it with "
                "`make native`"
            ) from error
        ensure_folder(self._path.parent)
        sweep_unfinished(self._path.parent, _NAME)
        if read_file(self._path) != content or not self._is_ready():
            write_atomically(self._path, content, _MODE)
        self._check_executable()

    def ensure(self) -> None:
        """Install the hook again if it went missing: a container with a lost hook can't start."""
        if not self._is_ready():
            self.install()

    def toolkit(self) -> Path | None:
        """Find NVIDIA's hook on the host itself: one of a driver container may not run outside."""
        if self._host != Path("/"):
            return None
        for folder in _TOOLKIT_FOLDERS:
            true = inside(self._here, f"{folder}/{_TOOLKIT}")
            if true is not None and true.is_file() and os.access(true, os.X_OK):
                return Path("/", folder, _TOOLKIT)
        return None

    def calls(self, files: DriverFiles, toolkit: Path | None) -> list[dict[str, Any]]:
        """CDI `hooks` for containers that get these driver files, NVIDIA's where there is one."""
        links = [f"{name}.1::{folder}/{name}" for folder, name in _links(files)]
        if toolkit is None:
            names = _flags("--library", files.unversioned)
            known = ["--driver-version", files.version, *_flags("--folder", files.folders), *names]
            return [self._call(self._path, *known, *_flags("--link", links), "--mask-params")]
        return [
            self._call(toolkit, "create-symlinks", *_flags("--link", links)),
            self._call(toolkit, "update-ldcache", *_flags("--folder", files.folders)),
            self._call(self._path, "--mask-params"),  # older toolkits have no command for it
        ]

    def mps_call(self, pipe_folder: str) -> dict[str, Any]:
        """CDI hook that lets no container start which has another MPS daemon's sockets."""
        return self._call(self._path, "--mps", pipe_folder)

    def _call(self, program: Path, *arguments: str) -> dict[str, Any]:
        return {
            "hookName": "createContainer",
            "path": str(program),
            "args": [program.name, *arguments],
        }

    def _is_ready(self) -> bool:
        return self._path.is_file() and os.access(self._path, os.X_OK)

    def _check_executable(self) -> None:
        if os.statvfs(self._path).f_flag & os.ST_NOEXEC:
            raise StorageFailed(
                f"{self._path} lies on a file system mounted noexec, where the container runtime "
                "can't start it; set --hook-folder to a folder on another one"
            )


def _links(files: DriverFiles) -> list[tuple[str, str]]:
    """Folder and name of the links without a version number."""
    found = []
    for file in files.libraries:
        path = Path(file.container_path)
        name = path.name.removesuffix(f".{files.version}")
        if name in _LINKED:
            found.append((str(path.parent), name))
    return found


def _flags(flag: str, values: list[str] | tuple[str, ...]) -> list[str]:
    return [part for value in values for part in (flag, value)]
