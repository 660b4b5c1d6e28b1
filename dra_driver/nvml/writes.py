"""NVML's calls that change a GPU, with types. Each raises CallFailed."""

from ctypes import byref

import pynvml

from dra_driver.model import Placement
from dra_driver.nvml.calls import Handle, ask
from dra_driver.nvml.reads import NO_LIMIT


def set_mig_mode(device: Handle, *, on: bool) -> int:
    """Switch MIG mode; gives the error number of the activation, 0 for success.

    Where the activation failed, the mode is pending. Minor numbers may change.
    """
    return int(ask(pynvml.nvmlDeviceSetMigMode, device, int(on)))


def set_memory_limit(device: Handle, cgroup: str, limit: int | None) -> None:
    """Let all processes of a cgroup together allocate so many bytes on a GPU; None: no limit.

    `cgroup` is the path of its folder as this process sees it (nvml.h, nvmlDeviceSetMemoryLimits).
    """
    hard = NO_LIMIT if limit is None else limit
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), 0, hard)
    ask(pynvml.nvmlDeviceSetMemoryLimits_v1, device, wanted)


def set_compute_mode(device: Handle, mode: int) -> None:
    """Set who may compute on a GPU, or in MIG mode on a partition (NVML_COMPUTEMODE_…)."""
    ask(pynvml.nvmlDeviceSetComputeMode, device, mode)


def create_gpu_instance(device: Handle, profile_id: int, place: Placement) -> Handle:
    """Make a GPU instance of that profile at that place."""
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    function = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    return ask(function, device, profile_id, byref(wanted))


def destroy_gpu_instance(instance: Handle) -> None:
    """Remove a GPU instance that has no compute instance."""
    ask(pynvml.nvmlGpuInstanceDestroy, instance)


def create_compute_instance(instance: Handle, profile_id: int) -> Handle:
    """Make a compute instance of that profile in a GPU instance."""
    return ask(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile_id)


def destroy_compute_instance(compute_instance: Handle) -> None:
    """Remove a compute instance."""
    ask(pynvml.nvmlComputeInstanceDestroy, compute_instance)
