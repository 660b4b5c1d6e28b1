"""The files of the GPU driver on a simulated node: libraries, programs, firmware.

Libraries lie under their versioned names with the links that ldconfig would make, so that whoever
collects driver files for a container finds what a real node has.
"""

import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.model.errors import DriverFilesMissing
from dra_driver.simulator.native_library import BUILD_DIR

LIBRARY_FOLDER: Final = f"usr/lib/{platform.machine()}-linux-gnu"
_FIRMWARE_FOLDER: Final = "lib/firmware/nvidia"
_FIRMWARE: Final = ("gsp_ga10x.bin", "gsp_tu10x.bin")
_PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "sim-mps-client",
)


@dataclass(frozen=True, slots=True)
class _Library:
    name: str  # libX.so
    soname_version: str
    development_link: bool = False  # libX.so too


_LIBRARIES: Final = (
    _Library("libnvidia-ml.so", "1"),
    _Library("libcuda.so", "1", development_link=True),
    _Library("libcudadebugger.so", "1"),
    _Library("libnvidia-allocator.so", "1"),
    _Library("libnvidia-cfg.so", "1"),
    _Library("libnvidia-nvvm.so", "4", development_link=True),
    _Library("libnvidia-opencl.so", "1"),
    _Library("libnvidia-ptxjitcompiler.so", "1"),
)


def install(root: Path, version: str) -> None:
    """Put the files of this driver version into ROOT; links lead to it afterwards.

    Libraries are copied (never linked): a process that has the old one loaded could not load the
    new one from the same inode. Doing it twice is fine.
    """
    folder = root / LIBRARY_FOLDER
    for library in _LIBRARIES:
        _copy(library.name, folder / f"{library.name}.{version}", 0o644)
    for program in _PROGRAMS:
        _copy(program, root / "usr/bin" / program, 0o755)
    for firmware in _FIRMWARE:
        path = root / _FIRMWARE_FOLDER / version / firmware
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"simulated firmware {version}\n".encode())


def link(root: Path, version: str) -> None:
    """Let the links lead to this driver version."""
    folder = root / LIBRARY_FOLDER
    for library in _LIBRARIES:
        soname = f"{library.name}.{library.soname_version}"
        _replace_link(folder / soname, f"{library.name}.{version}")
        if library.development_link:
            _replace_link(folder / library.name, soname)


def remove_others(root: Path, version: str) -> None:
    """Remove the files of every driver version but this one."""
    folder = root / LIBRARY_FOLDER
    for library in _LIBRARIES:
        versioned = re.compile(re.escape(library.name) + r"\.\d+\..+")
        for path in folder.glob(f"{library.name}.*"):
            if versioned.fullmatch(path.name) and path.name != f"{library.name}.{version}":
                path.unlink()
    for firmware in (root / _FIRMWARE_FOLDER).iterdir():
        if firmware.name != version:
            shutil.rmtree(firmware)


def _copy(built: str, target: Path, mode: int) -> None:
    source = BUILD_DIR / built
    if not source.exists():
        raise DriverFilesMissing(f"{source} is not built: run `make native`")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}")
    shutil.copyfile(source, temporary)
    temporary.chmod(mode)
    temporary.replace(target)


def _replace_link(path: Path, target: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
