"""The simulated node's state, as one typed object over the C library's `sim_…` functions.

Only the C code knows how the state is laid out; this module mirrors the argument structures of
`native/sim.h` (checked by size at run time) and turns its error numbers into exceptions.
"""

import ctypes
import json
from collections.abc import Sequence
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Self

from dra_driver.model.errors import BadNode
from dra_driver.simulator.identities import GpuIdentity
from dra_driver.simulator.models import GpuModel

BUILD_DIR = Path(__file__).parent / "native" / "build"
NVML_LIBRARY = BUILD_DIR / "libnvidia-ml.so"
CUDA_LIBRARY = BUILD_DIR / "libcuda.so"

ALL_GPUS = -1
WHOLE_GPU = -1
ANY_START = -1
FOR_EVER = 0xFFFFFFFF / 1000  # seconds of a hang that never ends

_NAME = 96
_MAX_CI_PROFILES = 9
_MAX_GI_PROFILES = 18


class SimulatorError(BadNode):
    """The simulated node refused an administrative request."""

    reason = "SimulatorRefused"

    def __init__(self, message: str, code: int) -> None:
        """Keep NVML's error number beside the explanation."""
        super().__init__(message)
        self.code = code


class _CiProfile(ctypes.Structure):
    _fields_ = (
        ("index", c_uint32),
        ("id", c_uint32),
        ("slices", c_uint32),
        ("multiprocessors", c_uint32),
        ("starts", c_uint32),
        ("creatable", c_uint32),
        ("name", c_char * _NAME),
    )


class _GiProfile(ctypes.Structure):
    _fields_ = (
        ("index", c_uint32),
        ("id", c_uint32),
        ("slices", c_uint32),
        ("max_instances", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpegs", c_uint32),
        ("ofas", c_uint32),
        ("memory_mib", c_uint32),
        ("capabilities", c_uint32),
        ("size", c_uint32),
        ("starts", c_uint32),
        ("ci_count", c_uint32),
        ("name", c_char * _NAME),
        ("ci", _CiProfile * _MAX_CI_PROFILES),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("key", c_char * _NAME),
        ("name", c_char * _NAME),
        ("vbios", c_char * 32),
        ("memory_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("brand", c_uint32),
        ("architecture", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("pci_device_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("abilities", c_uint32),
        ("addressing_mode", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpegs", c_uint32),
        ("ofas", c_uint32),
        ("compute_slices", c_uint32),
        ("gi_count", c_uint32),
        ("gi", _GiProfile * _MAX_GI_PROFILES),
    )


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("model", c_char * _NAME),
        ("uuid", c_char * _NAME),
        ("serial", c_char * 32),
        ("minor", c_int32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("module_id", c_uint32),
        ("numa_node", c_int32),
    )


def _bits(positions: Sequence[int]) -> int:
    return sum(1 << position for position in positions)


def _model_struct(model: GpuModel) -> _Model:
    struct = _Model()
    for field in (name for name, *_ in _Model._fields_ if name not in {"gi", "gi_count"}):
        value = getattr(model, field)
        setattr(struct, field, value.encode() if isinstance(value, str) else value)
    struct.gi_count = len(model.gi)
    for gi_struct, gi in zip(struct.gi, model.gi, strict=False):
        for field in (name for name, *_ in _GiProfile._fields_[:-4]):
            setattr(gi_struct, field, getattr(gi, field))
        gi_struct.starts = _bits(gi.starts)
        gi_struct.name = gi.name.encode()
        gi_struct.ci_count = len(gi.ci)
        for ci_struct, ci in zip(gi_struct.ci, gi.ci, strict=False):
            ci_struct.index, ci_struct.id, ci_struct.slices = ci.index, ci.id, ci.slices
            ci_struct.multiprocessors, ci_struct.creatable = ci.multiprocessors, ci.creatable
            ci_struct.starts, ci_struct.name = _bits(ci.starts), ci.name.encode()
    return struct


def _gpu_struct(gpu: GpuIdentity) -> _Gpu:
    return _Gpu(
        gpu.model.encode(),
        gpu.uuid.encode(),
        gpu.serial.encode(),
        gpu.minor,
        gpu.pci_domain,
        gpu.pci_bus,
        gpu.pci_device,
        gpu.module_id,
        gpu.numa_node,
    )


_STATE = c_void_p
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "sim_create": (c_char_p, c_char_p, c_int, POINTER(c_void_p)),
    "sim_open": (c_char_p, POINTER(c_void_p)),
    "sim_error_number": (c_char_p, POINTER(c_int)),
    "sim_add_model": (_STATE, POINTER(_Model), c_size_t),
    "sim_add_gpu": (_STATE, POINTER(_Gpu), c_size_t),
    "sim_remove_gpu": (_STATE, c_int),
    "sim_find_gpu": (_STATE, c_char_p, POINTER(c_int)),
    "sim_show_json": (_STATE, POINTER(c_void_p)),
    "sim_calls_json": (_STATE, POINTER(c_void_p)),
    "sim_call_count": (_STATE, POINTER(c_uint64)),
    "sim_get_driver_version": (_STATE, c_char_p, c_size_t),
    "sim_get_boot_id": (_STATE, c_char_p, c_size_t),
    "sim_set_mig_mode": (_STATE, c_int, c_int),
    "sim_partition": (_STATE, c_int, c_char_p, c_int, c_int, POINTER(c_uint32)),
    "sim_unpartition": (_STATE, c_int, c_uint32),
    "sim_fault": (_STATE, c_int, c_char_p, c_int, c_uint32, c_uint32),
    "sim_clear": (_STATE,),
    "sim_xid": (_STATE, c_int, c_uint64, c_int, c_int),
    "sim_ecc": (_STATE, c_int),
    "sim_lose": (_STATE, c_int),
    "sim_restore": (_STATE, c_int),
    "sim_process": (_STATE, c_int, c_int, c_int, c_uint32, c_uint64, c_uint32),
    "sim_set_recovery_action": (_STATE, c_int, c_uint32),
    "sim_set_minor": (_STATE, c_int, c_uint32),
    "sim_set_persistence": (_STATE, c_int, c_int),
    "sim_reset": (_STATE, c_int),
    "sim_reboot": (_STATE,),
    "sim_driver_reload": (_STATE,),
    "sim_driver_version": (_STATE, c_char_p, c_int),
}


class _Library:
    """The C library with typed functions that raise instead of answering numbers."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise SimulatorError(f"{path} is not built: run `make native`", 12)
        self._dll = ctypes.CDLL(str(path))
        for name, arguments in _PROTOTYPES.items():
            getattr(self._dll, name).argtypes = arguments
        self._dll.sim_error_text.restype = c_char_p
        self._dll.sim_close.argtypes = (_STATE,)
        self._dll.sim_close.restype = None
        self._dll.sim_free.argtypes = (c_void_p,)
        self._dll.sim_free.restype = None

    def call(self, name: str, *arguments: object) -> None:
        """Call one function.

        Raises:
            SimulatorError: it did not answer NVML_SUCCESS.

        """
        code = getattr(self._dll, name)(*arguments)
        if code:
            text = (self._dll.sim_error_text() or b"").decode()
            raise SimulatorError(text or f"{name} failed with NVML error {code}", code)

    def text(self, name: str, state: c_void_p) -> str:
        """Call a function that hands out a text, and free the text."""
        pointer = c_void_p()
        self.call(name, state, byref(pointer))
        try:
            return ctypes.string_at(pointer.value or 0).decode()
        finally:
            self._dll.sim_free(pointer)

    def close(self, state: c_void_p) -> None:
        self._dll.sim_close(state)


_libraries: dict[Path, _Library] = {}


def _library(path: Path = NVML_LIBRARY) -> _Library:
    if path not in _libraries:
        _libraries[path] = _Library(path)
    return _libraries[path]


def error_number(name: str) -> int:
    """Give NVML's number of an error by its name, with or without `NVML_ERROR_`.

    Raises:
        SimulatorError: there is no error of that name.

    """
    number = c_int()
    _library().call("sim_error_number", name.encode(), byref(number))
    return number.value


class SimState:
    """The state of one simulated node: what `dra-driver simulate` reads and changes.

    `gpu` is always the position among all GPUs in PCI order, as in `show()`; -1 means all where a
    method says so. Every method raises SimulatorError where the state refuses.
    """

    def __init__(self, root: Path) -> None:
        """Open the state below `root`, read-only where it may not be written."""
        self._library = _library()
        self._state = c_void_p()
        self._library.call("sim_open", str(root).encode(), byref(self._state))

    @classmethod
    def create(
        cls,
        root: Path,
        driver_version: str,
        cuda_version: int,
        models: Sequence[GpuModel] = (),
        gpus: Sequence[GpuIdentity] = (),
    ) -> Self:
        """Make a state below `root`, whose library folder exists and holds no state yet.

        `cuda_version` is NVML's number, 13000 for CUDA 13.0.
        """
        library, handle = _library(), c_void_p()
        library.call(
            "sim_create", str(root).encode(), driver_version.encode(), cuda_version, byref(handle)
        )
        library.close(handle)
        state = cls(root)
        for model in models:
            state.add_model(model)
        for gpu in gpus:
            state.add_gpu(gpu)
        return state

    def close(self) -> None:
        """Let go of the state; its file stays."""
        if self._state.value is not None:
            self._library.close(self._state)
            self._state = c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *arguments: object) -> None:
        self._library.call(name, self._state, *arguments)

    def add_model(self, model: GpuModel) -> None:
        """Tell the state what GPUs of this model can do; repeating it is fine."""
        struct = _model_struct(model)
        self._call("sim_add_model", byref(struct), ctypes.sizeof(struct))

    def add_gpu(self, gpu: GpuIdentity) -> None:
        """Plug a GPU of a known model in."""
        struct = _gpu_struct(gpu)
        self._call("sim_add_gpu", byref(struct), ctypes.sizeof(struct))

    def remove_gpu(self, gpu: int) -> None:
        """Take a GPU out; what ran on it is gone."""
        self._call("sim_remove_gpu", gpu)

    def find_gpu(self, text: str) -> int:
        """Give the position of the GPU with this number, UUID or PCI bus id."""
        position = c_int()
        self._call("sim_find_gpu", text.encode(), byref(position))
        return position.value

    def show(self) -> dict[str, Any]:
        """Give the whole state; the fields are listed in `native/show.c`."""
        shown: dict[str, Any] = json.loads(self._library.text("sim_show_json", self._state))
        return shown

    def calls(self) -> list[dict[str, Any]]:
        """Give the latest state-changing NVML and nvidia-smi calls, oldest first."""
        calls: list[dict[str, Any]] = json.loads(self._library.text("sim_calls_json", self._state))
        return calls

    def call_count(self) -> int:
        """Give the number of all NVML calls by processes that can write the state."""
        count = c_uint64()
        self._call("sim_call_count", byref(count))
        return count.value

    def driver_version(self) -> str:
        """Give the GPU driver's version."""
        buffer = ctypes.create_string_buffer(_NAME)
        self._call("sim_get_driver_version", buffer, len(buffer))
        return buffer.value.decode()

    def boot_id(self) -> str:
        """Give the node's boot id, as /proc/sys/kernel/random/boot_id shows it."""
        buffer = ctypes.create_string_buffer(_NAME)
        self._call("sim_get_boot_id", buffer, len(buffer))
        return buffer.value.decode()

    def set_mig_mode(self, gpu: int, *, on: bool) -> None:
        """Switch MIG mode whoever holds the GPU; on Ampere it is pending until a reset."""
        self._call("sim_set_mig_mode", gpu, int(on))

    def partition(
        self, gpu: int, profile: str, start: int = ANY_START, *, compute_instance: bool = True
    ) -> int:
        """Make a GPU instance by profile name or id; gives its id.

        With `compute_instance` one that takes the whole GPU instance is made too.
        """
        gi_id = c_uint32()
        self._call(
            "sim_partition", gpu, profile.encode(), start, int(compute_instance), byref(gi_id)
        )
        return gi_id.value

    def unpartition(self, gpu: int, gi_id: int) -> None:
        """Remove a GPU instance with its compute instances, unless a process runs there."""
        self._call("sim_unpartition", gpu, gi_id)

    def fault(
        self, gpu: int, function: str, error: int = 0, *, times: int = 0, hang: float = 0
    ) -> None:
        """Make calls of `function` sleep `hang` seconds and then answer `error`.

        `error` 0 lets the call go on after the sleep; `times` 0 means for ever. A name without
        `_vN` stands for all versions, a final `*` for any rest. `gpu` -1 means all devices and
        the calls that have none.
        """
        self._call("sim_fault", gpu, function.encode(), error, times, round(hang * 1000))

    def clear(self) -> None:
        """Forget all faults."""
        self._call("sim_clear")

    def xid(self, gpu: int, xid: int, gi_id: int = WHOLE_GPU, ci_id: int = WHOLE_GPU) -> None:
        """Raise an XID error event on a GPU or one of its partitions."""
        self._call("sim_xid", gpu, xid, gi_id, ci_id)

    def ecc(self, gpu: int) -> None:
        """Raise a double-bit ECC error: event, counter, and a row to remap."""
        self._call("sim_ecc", gpu)

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off the bus."""
        self._call("sim_lose", gpu)

    def restore(self, gpu: int) -> None:
        """Bring a lost GPU back, as after a reset."""
        self._call("sim_restore", gpu)

    def process(
        self,
        gpu: int,
        pid: int,
        memory_bytes: int,
        sm_percent: int = 0,
        gi_id: int = WHOLE_GPU,
        ci_id: int = WHOLE_GPU,
    ) -> None:
        """Put a process on a GPU or partition; 0 bytes end it."""
        self._call("sim_process", gpu, gi_id, ci_id, pid, memory_bytes, sm_percent)

    def set_recovery_action(self, gpu: int, action: int) -> None:
        """Set what NVML says must be done about the GPU (NVML_GPU_RECOVERY_ACTION_…)."""
        self._call("sim_set_recovery_action", gpu, action)

    def set_minor(self, gpu: int, minor: int) -> None:
        """Give a GPU another device minor; one that has it gets the old one in exchange."""
        self._call("sim_set_minor", gpu, minor)

    def set_persistence(self, gpu: int, *, on: bool) -> None:
        """Switch persistence mode."""
        self._call("sim_set_persistence", gpu, int(on))

    def reset(self, gpu: int) -> None:
        """Reset a GPU: a pending MIG mode becomes current, instances and processes go."""
        self._call("sim_reset", gpu)

    def reboot(self) -> None:
        """Reboot the node: a new boot id, and all goes that does not survive a reboot."""
        self._call("sim_reboot")

    def driver_reload(self) -> None:
        """Unload and load the GPU driver: as a reboot, but the boot id stays."""
        self._call("sim_driver_reload")

    def set_driver_version(self, version: str, cuda_version: int) -> None:
        """Upgrade the GPU driver: a reload, and the state file takes the new version's name."""
        self._call("sim_driver_version", version.encode(), cuda_version)
