"""How each step is made to fail or to hang, always from outside of the process."""

import fcntl
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.model import ClaimRef
from dra_driver.simulator.native_library import error_number
from tests.faults.scene import DYNAMIC, MIG, TARGET, Scene

_FLOCK: Final = "hhqqi4x"  # struct flock on 64-bit Linux
_FOR_EVER: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong in one step.

    It is set up before the call; or, where that would hit an earlier step, while the process is
    halted at the failpoint `at`.
    """

    words: str
    begin: Callable[[Scene, ClaimRef, int], None]  # the last: how often the step shall fail
    end: Callable[[Scene, ClaimRef], None]
    at: str = ""
    is_harmless: bool = False  # the call succeeds all the same, and leaves something for the next


@dataclass(frozen=True, slots=True)
class Hang:
    """Something for which one step waits until the test ends it."""

    words: str
    begin: Callable[[Scene, ClaimRef], Callable[[], None]]  # answers what ends it
    others_go_on: bool


def _api_fails(scene: Scene, ref: ClaimRef, times: int) -> None:
    scene.bed.api.faults.fail("get", f"/{ref.name}$", status=503, times=times)


def _api_is_well(scene: Scene, _: ClaimRef) -> None:
    scene.bed.api.faults.clear()


def _nvml_fails(scene: Scene, _: ClaimRef, times: int) -> None:
    number = error_number("UNKNOWN")
    times = 0 if times == _FOR_EVER else times
    scene.node.state.fault(MIG, "nvmlDeviceGetMigMode", number, times=times)
    scene.cut()


def _nvml_is_well(scene: Scene, _: ClaimRef) -> None:
    scene.node.state.clear()


def _disk_is_full(scene: Scene, _: ClaimRef, __: int) -> None:
    scene.fill_disk()


def _disk_has_room(scene: Scene, _: ClaimRef) -> None:
    scene.empty_disk()


def _swapped(
    find: Callable[[Scene, ClaimRef], Path], *, for_folder: bool
) -> tuple[Callable[[Scene, ClaimRef, int], None], Callable[[Scene, ClaimRef], None]]:
    """Put a folder where a file is expected, or a file where a folder is; and put it right."""

    def begin(scene: Scene, ref: ClaimRef, _: int) -> None:
        path = find(scene, ref)
        if path.exists():
            path.replace(path.with_name(f"{path.name}.away"))
        path.mkdir() if for_folder else path.touch()

    def end(scene: Scene, ref: ClaimRef) -> None:
        path = find(scene, ref)
        path.rmdir() if for_folder else path.unlink()
        away = path.with_name(f"{path.name}.away")
        if away.exists():
            away.replace(path)

    return begin, end


_NOTE_IS_FOLDER: Final = _swapped(lambda scene, _: scene.mps_note, for_folder=True)
_LOCK_IS_FOLDER: Final = _swapped(lambda scene, _: scene.node_lock, for_folder=True)
_RECORD_IS_FOLDER: Final = _swapped(lambda scene, ref: scene.record_file(ref), for_folder=True)
_CDI_FILE_IS_FOLDER: Final = _swapped(lambda scene, ref: scene.cdi_file(ref), for_folder=True)
_RECORDS_ARE_A_FILE: Final = _swapped(lambda scene, _: scene.records_folder, for_folder=False)
_CDI_ROOT_IS_A_FILE: Final = _swapped(lambda scene, _: scene.bed.cdi_folder, for_folder=False)
_TAKE_OVER_LOCK_IS_FOLDER: Final = _swapped(
    lambda scene, _: scene.bed.data_folder / "take-over.lock", for_folder=True
)
_COPY_IS_FOLDER: Final = _swapped(
    lambda scene, _: scene.bed.data_folder / "checkpoint.json.taken-over", for_folder=True
)
_CHECKPOINT_IS_FOLDER: Final = _swapped(
    lambda scene, _: scene.bed.data_folder / "checkpoint.json", for_folder=True
)
_FULL: Final = (_disk_is_full, _disk_has_room)


def _fails(
    row: str, call: str, error: str, words: str, *, gpu: int = DYNAMIC, is_harmless: bool = False
) -> Fault:
    """NVML answers one call on a GPU with an error, from the begin of the step on."""

    def begin(scene: Scene, _: ClaimRef, times: int) -> None:
        count = 0 if times == _FOR_EVER else times
        scene.node.state.fault(gpu, call, error_number(error), times=count)

    return Fault(words, begin, _nvml_is_well, f"before-{row}", is_harmless)


def _limits_fail(row: str) -> Fault:
    return _fails(row, "nvmlDeviceSetMemoryLimits_v1", "UNKNOWN", "NVML fails", gpu=TARGET)


def _modes_fail(row: str) -> Fault:
    return _fails(row, "nvmlDeviceSetComputeMode", "UNKNOWN", "NVML fails", gpu=TARGET)


def _daemons_fail(row: str) -> Fault:
    return _fails(row, "mps.start", "UNKNOWN", "the control daemon exits at once", gpu=TARGET)


def _slices_fail(row: str, error: str, words: str) -> Fault:
    return _fails(row, "sim_set_timeslice", error, words, gpu=TARGET)


FAULTS: Final[Mapping[str, Fault]] = {
    "prepare:read": Fault("the API server answers 503", _api_fails, _api_is_well),
    "prepare:resolve": Fault("NVML fails on the claim's GPU", _nvml_fails, _nvml_is_well),
    "prepare:reserve": Fault(
        "the lock file is a folder", *_LOCK_IS_FOLDER, "before-prepare:reserve"
    ),
    "prepare:reserve/write": Fault("the disk is full", *_FULL, "before-prepare:reserve"),
    "prepare:reserve/rename": Fault(
        "a folder is in the record's place", *_RECORD_IS_FOLDER, "prepare:reserve/before-rename"
    ),
    "prepare:mig": _fails(
        "prepare:mig", "nvmlDeviceGetMigMode", "UNKNOWN", "NVML fails on the claim's GPU"
    ),
    "prepare:mig/mig-mode": _fails(
        "prepare:mig", "nvmlDeviceSetMigMode", "IN_USE", "somebody uses the GPU"
    ),
    "prepare:mig/gpu-instance": _fails(
        "prepare:mig",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "INSUFFICIENT_RESOURCES",
        "the hardware has no room",
    ),
    "prepare:mig/compute-instance": _fails(
        "prepare:mig", "nvmlGpuInstanceCreateComputeInstance", "UNKNOWN", "NVML fails"
    ),
    "prepare:sharing": _slices_fail("prepare:sharing", "UNKNOWN", "the GPU driver fails"),
    "prepare:sharing/time-slice": _slices_fail(
        "prepare:sharing", "NO_PERMISSION", "the GPU driver refuses"
    ),
    "unprepare:sharing": _slices_fail("unprepare:sharing", "UNKNOWN", "the GPU driver fails"),
    "prepare:sharing/memory-limit": _limits_fail("prepare:sharing"),
    "unprepare:sharing/clear-memory-limit": _limits_fail("unprepare:sharing"),
    "unprepare:sharing/reset-time-slice": _slices_fail(
        "unprepare:sharing", "NO_PERMISSION", "the GPU driver refuses"
    ),
    "prepare:sharing/compute-mode": _modes_fail("prepare:sharing"),
    "prepare:sharing/mps": _daemons_fail("prepare:sharing"),
    "unprepare:sharing/release-mps": Fault(
        "a folder is in the place of the agent's note", *_NOTE_IS_FOLDER, "before-unprepare:sharing"
    ),
    "unprepare:sharing/reset-compute-mode": _modes_fail("unprepare:sharing"),
    "prepare:cdi": Fault("the CDI folder is a file", *_CDI_ROOT_IS_A_FILE, "before-prepare:cdi"),
    "prepare:cdi/replace": Fault("the disk is full", *_FULL, "before-prepare:cdi"),
    "prepare:cdi/replace#2": Fault(
        "a folder is in the file's place", *_CDI_FILE_IS_FOLDER, "prepare:cdi/before-replace#2"
    ),
    "prepare:commit": Fault(
        "the folder of records is a file", *_RECORDS_ARE_A_FILE, "before-prepare:commit"
    ),
    "prepare:commit/write": Fault("the disk is full", *_FULL, "before-prepare:commit"),
    "prepare:commit/rename": Fault(
        "a folder is in the record's place", *_RECORD_IS_FOLDER, "prepare:commit/before-rename"
    ),
    "unprepare:cdi": Fault("a folder is in the file's place", *_CDI_FILE_IS_FOLDER),
    "unprepare:mig": _fails(
        "unprepare:mig", "nvmlDeviceGetMigMode", "UNKNOWN", "NVML fails on the claim's GPU"
    ),
    "unprepare:mig/remove-compute-instance": _fails(
        "unprepare:mig", "nvmlComputeInstanceDestroy", "UNKNOWN", "NVML fails"
    ),
    "unprepare:mig/remove-gpu-instance": _fails(
        "unprepare:mig", "nvmlGpuInstanceDestroy", "UNKNOWN", "NVML fails"
    ),
    "unprepare:mig/mig-mode": _fails(
        "unprepare:mig",
        "nvmlDeviceSetMigMode",
        "IN_USE",
        "somebody uses the GPU",
        is_harmless=True,
    ),
    "unprepare:forget": Fault(
        "the lock file is a folder", *_LOCK_IS_FOLDER, "before-unprepare:forget"
    ),
    "unprepare:forget/remove": Fault(
        "a folder is in the record's place", *_RECORD_IS_FOLDER, "unprepare:forget/before-remove"
    ),
    "take-over": Fault("the lock file is a folder", *_TAKE_OVER_LOCK_IS_FOLDER),
    "take-over/record": Fault(
        "a folder is in the record's place", *_RECORD_IS_FOLDER, "take-over/before-rename"
    ),
    "take-over/copy#3": Fault("a folder is in the copy's place", *_COPY_IS_FOLDER),
    "take-over/remove-checkpoint": Fault(
        "a folder is in its place", *_CHECKPOINT_IS_FOLDER, "take-over/before-remove"
    ),
}


def _api_hangs(scene: Scene, ref: ClaimRef) -> Callable[[], None]:
    scene.bed.api.faults.hang("get", f"/{ref.name}$", seconds=2.0, times=1)
    return lambda: None


def _nvml_hangs(scene: Scene, _: ClaimRef) -> Callable[[], None]:
    scene.node.state.fault(MIG, "nvmlDeviceGetMigMode", times=0, hang=2.0)
    scene.cut()
    return scene.node.state.clear


def _mig_hangs(scene: Scene, _: ClaimRef) -> Callable[[], None]:
    scene.node.state.fault(DYNAMIC, "nvmlDeviceGetGpuInstances", times=0, hang=2.0)
    return scene.node.state.clear


def _smi_hangs(scene: Scene, _: ClaimRef) -> Callable[[], None]:
    scene.node.state.fault(TARGET, "sim_set_timeslice", times=0, hang=2.0)
    return scene.node.state.clear


def _lock_is_held(scene: Scene, _: ClaimRef) -> Callable[[], None]:
    descriptor = os.open(scene.node_lock, os.O_RDWR | os.O_CLOEXEC)
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
    return lambda: os.close(descriptor)


HANGS: Final[Mapping[str, Hang]] = {
    "prepare:read": Hang("the API server does not answer", _api_hangs, others_go_on=True),
    "prepare:resolve": Hang("NVML hangs on the claim's GPU", _nvml_hangs, others_go_on=True),
    "prepare:mig": Hang("NVML hangs on the claim's GPU", _mig_hangs, others_go_on=True),
    "unprepare:mig": Hang("NVML hangs on the claim's GPU", _mig_hangs, others_go_on=True),
    "prepare:sharing": Hang("nvidia-smi hangs", _smi_hangs, others_go_on=True),
    "unprepare:sharing": Hang("nvidia-smi hangs", _smi_hangs, others_go_on=True),
    "prepare:reserve": Hang("another holds the lock file", _lock_is_held, others_go_on=False),
    "unprepare:forget": Hang("another holds the lock file", _lock_is_held, others_go_on=False),
}
