"""NVML's getters with types. Each raises CallFailed, whose name and number say what happened."""

from collections.abc import Callable, Iterator
from ctypes import c_void_p, cast
from typing import Any, Final

import pynvml

from dra_driver.model import Placement
from dra_driver.nvml.calls import Handle, ask, fill
from dra_driver.nvml.errors import CallFailed

_MAX_PROFILES: Final = 64  # far above the 18 and 9 of today; each list ends by INVALID_ARGUMENT
NO_LIMIT: Final = 0xFFFFFFFFFFFFFFFF  # NVML_DEVICE_MEMORY_LIMIT_MAX
_NO_INSTANCE: Final = 0xFFFFFFFF  # nvml.h, nvmlProcessInfo_t: not on a GPU instance


def initialise() -> None:
    """Open the GPU driver and all GPUs it has; calls are counted."""
    ask(pynvml.nvmlInit)


def shut_down() -> None:
    """Undo one `initialise`."""
    ask(pynvml.nvmlShutdown)


def driver_version() -> str:
    """Version of the GPU driver, as `580.95.05`."""
    return str(ask(pynvml.nvmlSystemGetDriverVersion))


def cuda_driver_version() -> tuple[int, int]:
    """Newest CUDA that the GPU driver serves; NVML gives 12040 for 12.4."""
    number = int(ask(pynvml.nvmlSystemGetCudaDriverVersion))
    return number // 1000, number % 1000 // 10


def device_count() -> int:
    """Count the GPUs that NVML knows."""
    return int(ask(pynvml.nvmlDeviceGetCount))


def device(index: int) -> Handle:
    """Handle of the GPU at `index`, in PCI order."""
    return ask(pynvml.nvmlDeviceGetHandleByIndex, index)


def uuid(device: Handle) -> str:
    """UUID of a GPU (`GPU-…`) or partition (`MIG-…`)."""
    return str(ask(pynvml.nvmlDeviceGetUUID, device))


def minor(device: Handle) -> int:
    """N of `/dev/nvidiaN`."""
    return int(ask(pynvml.nvmlDeviceGetMinorNumber, device))


def product_name(device: Handle) -> str:
    """Name of the model, as `NVIDIA H100 80GB HBM3`."""
    return str(ask(pynvml.nvmlDeviceGetName, device))


def brand(device: Handle) -> int:
    """Brand, as nvmlBrandType_t."""
    return int(ask(pynvml.nvmlDeviceGetBrand, device))


def architecture(device: Handle) -> int:
    """Architecture, as NVML_DEVICE_ARCH_…."""
    return int(ask(pynvml.nvmlDeviceGetArchitecture, device))


def compute_capability(device: Handle) -> tuple[int, int]:
    """CUDA compute capability, as (9, 0)."""
    major, minor = ask(pynvml.nvmlDeviceGetCudaComputeCapability, device)
    return int(major), int(minor)


def memory_bytes(device: Handle) -> int:
    """Total memory; 0 where the GPU has none of its own."""
    return int(ask(pynvml.nvmlDeviceGetMemoryInfo, device).total)


def pci(device: Handle) -> tuple[str, int]:
    """PCI address in NVML's spelling, as `00000000:1B:00.0`, and device id, as 0x20B010DE."""
    info = ask(pynvml.nvmlDeviceGetPciInfo, device)
    return str(info.busId), int(info.pciDeviceId)


def addressing_mode(device: Handle) -> int:
    """How the GPU reaches host memory, as NVML_DEVICE_ADDRESSING_MODE_…."""
    return int(ask(pynvml.nvmlDeviceGetAddressingMode, device))


def compute_mode(device: Handle) -> int:
    """Who may compute on a GPU or partition, as NVML_COMPUTEMODE_…."""
    return int(ask(pynvml.nvmlDeviceGetComputeMode, device))


def memory_limit(device: Handle, cgroup: str) -> int | None:
    """Bytes that the processes of a cgroup may allocate on a GPU; None: no limit is set."""
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(cgroup.encode(), 0, 0, 0)
    try:
        ask(pynvml.nvmlDeviceGetMemoryLimits_v1, device, found)
    except CallFailed as failure:
        if failure.nowhere:
            return None
        raise
    hard = int(found.hardLimit)
    return None if hard == NO_LIMIT else hard


def fields(device: Handle, *numbers: int) -> dict[int, int]:
    """Values of these fields (NVML_FI_…), whole numbers all; one that can't be read is left out."""
    values = ask(pynvml.nvmlDeviceGetFieldValues, device, list(numbers))
    return {
        int(value.fieldId): int(value.value.uiVal)
        for value in values
        if value.nvmlReturn == pynvml.NVML_SUCCESS
    }


def mig_mode(device: Handle) -> tuple[bool, bool]:
    """Whether MIG mode is on now, and whether it will be after a reset."""
    current, pending = ask(pynvml.nvmlDeviceGetMigMode, device)
    return bool(current), bool(pending)


def gi_profiles(device: Handle) -> Iterator[tuple[int, Any]]:
    """Yield enum index and profile info of each GPU-instance profile that the GPU has."""

    def info(index: int, version: int) -> Any:  # noqa: ANN401
        return ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device, index, version)

    yield from _profiles(info)


def gpu_instances(device: Handle, profile_id: int) -> list[Handle]:
    """List the GPU instances of that profile."""
    kind = pynvml.c_nvmlGpuInstance_t
    return fill(pynvml.nvmlDeviceGetGpuInstances, device, profile_id, kind)


def gi_placements(device: Handle, profile_id: int) -> list[Placement]:
    """List where GPU instances of that profile can be made, whatever is made and the MIG mode."""
    kind = pynvml.c_nvmlGpuInstancePlacement_t
    places = fill(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, device, profile_id, kind)
    return [Placement(int(place.start), int(place.size)) for place in places]


def gpu_instance(instance: Handle) -> Any:  # noqa: ANN401
    """Info of a GPU instance: id, profileId, placement."""
    return ask(pynvml.nvmlGpuInstanceGetInfo, instance)


def ci_profiles(instance: Handle) -> Iterator[tuple[int, Any]]:
    """Yield enum index and profile info of each compute-instance profile of a GPU instance."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED

    def info(index: int, version: int) -> Any:  # noqa: ANN401
        return ask(
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, index, shared, version
        )

    yield from _profiles(info)


def compute_instances(instance: Handle, profile_id: int) -> list[Handle]:
    """List the compute instances of that profile in a GPU instance."""
    kind = pynvml.c_nvmlComputeInstance_t
    return fill(pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile_id, kind)


def compute_instance(instance: Handle) -> Any:  # noqa: ANN401
    """Info of a compute instance: id, profileId, placement."""
    return ask(pynvml.nvmlComputeInstanceGetInfo, instance)


def mig_devices(device: Handle) -> Iterator[Handle]:
    """Yield the handles of the MIG devices on a GPU; a compute instance each."""
    for index in range(int(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, device))):
        try:
            yield ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, index)
        except CallFailed as failure:
            if not failure.nowhere:
                raise


def mig_device_ids(mig_device: Handle) -> tuple[int, int]:
    """Ids of the GPU instance and compute instance behind a MIG device."""
    gi_id = ask(pynvml.nvmlDeviceGetGpuInstanceId, mig_device)
    return int(gi_id), int(ask(pynvml.nvmlDeviceGetComputeInstanceId, mig_device))


def running_processes(device: Handle) -> dict[int, frozenset[int]]:
    """PIDs of the processes that compute or draw on a GPU, with the GPU instances they use."""
    found: dict[int, frozenset[int]] = {}
    for function in (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    ):
        try:
            processes = ask(function, device)
        except CallFailed as failure:
            if not failure.absent:
                raise
            continue
        for process in processes:
            pid, gi_id = int(process.pid), int(process.gpuInstanceId)
            found[pid] = found.get(pid, frozenset()) | ({gi_id} - {_NO_INSTANCE})
    return found


def address(device: Handle) -> int:
    """Give a number that tells this device's handle from the others'; 0 for none."""
    return cast(device, c_void_p).value or 0


def new_event_set() -> Handle:
    """Make a set that has no events yet."""
    return ask(pynvml.nvmlEventSetCreate)


def supported_events(device: Handle) -> int:
    """Kinds of events that a GPU has, as bits nvmlEventType…."""
    return int(ask(pynvml.nvmlDeviceGetSupportedEventTypes, device))


def add_events(device: Handle, kinds: int, event_set: Handle) -> None:
    """Let events of these kinds come to the set from now on. Takes whole GPUs only."""
    ask(pynvml.nvmlDeviceRegisterEvents, device, kinds, event_set)


def wait_for_event(event_set: Handle, milliseconds: int) -> Any:  # noqa: ANN401
    """Next event (nvmlEventData_t), or None when none came in time."""
    try:
        return ask(pynvml.nvmlEventSetWait, event_set, milliseconds)
    except CallFailed as failure:
        if failure.timed_out:
            return None
        raise


def free_event_set(event_set: Handle) -> None:
    """End the set."""
    ask(pynvml.nvmlEventSetFree, event_set)


def _profiles(info: Callable[[int, int], Any]) -> Iterator[tuple[int, Any]]:
    """Yield what `info` tells by index until the index is past the end.

    Version 2 has the profile's name; older drivers know version 1 only.
    """
    for index in range(_MAX_PROFILES):
        try:
            yield index, info(index, 2)
        except CallFailed as failure:
            if failure.past_the_end and index:
                return
            if not failure.absent:
                raise
            if failure.code == pynvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            try:
                yield index, info(index, 1)
            except CallFailed as older:
                if older.past_the_end and index:
                    return
                if not older.absent:
                    raise
