"""Time-slices of whole GPUs, by the GPU driver's own program: NVML has no call for them.

They last as long as somebody holds the GPU open, which this driver does as long as it runs.
"""

from pathlib import Path
from typing import Final

from dra_driver.config import Settings
from dra_driver.host import Finished, inside, run_program
from dra_driver.model import TimeSlice
from dra_driver.model.errors import (
    ConfigInvalid,
    DriverFilesMissing,
    DriverNotReady,
    HardwareFailed,
    PermissionMissing,
)
from dra_driver.nvml import GpuAbsent, find_library

_FOLDERS: Final = ("usr/bin", "bin", "usr/sbin", "sbin", "opt/bin")
_PROGRAM: Final = "nvidia-smi"
_SECONDS: Final = 15.0
# nvidia-smi ends with NVML's error numbers (its manual, "Return value").
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _NOT_LOADED, _LOST = 3, 4, 6, 9, 15


class TimeSliceNotSupported(ConfigInvalid):
    """The GPU has no time-slices that can be set."""


class TimeSlices:
    """Sets the time-slice of one GPU at a time."""

    def __init__(self, settings: Settings) -> None:
        """Find `nvidia-smi` below the driver root of `settings` when it is needed."""
        self._root, self._shown = settings.container_driver_root, settings.driver_root_shown

    def set(self, gpu_uuid: str, interval: TimeSlice) -> None:
        """Set how long each program on a GPU has its turn.

        Raises TimeSliceNotSupported, GpuAbsent when there is no such GPU any more, HardwareBusy,
        HardwareFailed, PermissionMissing, DriverNotReady or DriverFilesMissing.
        """
        program = self._program()
        arguments = [str(program), "compute-policy", "-i", gpu_uuid]
        arguments.append(f"--set-timeslice={interval.value}")
        done = run_program(arguments, self._environment(), _SECONDS)
        if done.status:
            raise _failure(done, gpu_uuid, interval)

    def _program(self) -> Path:
        for folder in _FOLDERS:
            found = inside(self._root, Path(folder, _PROGRAM))
            if found is not None and found.is_file():
                return found
        raise DriverFilesMissing(
            f"no {_PROGRAM} below {self._shown} (looked in {', '.join(_FOLDERS)}): it sets "
            "time-slices; install the GPU driver's utilities"
        )

    def _environment(self) -> dict[str, str]:
        """Let a program of the host find the library of its own GPU driver."""
        if self._root == Path("/"):
            return {}
        return {"LD_PRELOAD": str(find_library(self._root, self._shown).path)}


def _failure(done: Finished, gpu_uuid: str, interval: TimeSlice) -> Exception:
    told = f"time-slice {interval.word} of GPU {gpu_uuid} can't be set: {done.words}"
    if done.status == _NOT_SUPPORTED:
        return TimeSliceNotSupported(f"{told}; remove sharing.timeSlicingConfig.interval")
    if done.status == _NO_PERMISSION:
        return PermissionMissing(f"{told}; run the plugin as root and privileged")
    if done.status in (_NOT_FOUND, _LOST):
        return GpuAbsent(told)
    if done.status == _NOT_LOADED:
        return DriverNotReady(f"{told}; check that the GPU driver is loaded")
    return HardwareFailed(told)
