"""Compute modes of devices that an MPS server has, while claims have them."""

from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

from dra_driver.config import Settings
from dra_driver.host import HostRoot, failpoint
from dra_driver.model.errors import DriverNotReady
from dra_driver.nvml import GpuAbsent, GpuJobs, GpuLost, Gpus, MigGpu
from dra_driver.telemetry import logger

_log = logger(__name__)

Device: TypeAlias = tuple[str, str]  # UUID of the GPU, and of what a claim has of it


class ComputeModes:
    """Lets one process at a time compute on a device: its MPS server.

    So a program that goes past MPS, and with it past its limits, is refused. The mode lasts while
    somebody holds the GPU open. That is the plugin: a process of its own that did, beside it, would
    keep MIG mode from being switched (nvml.h, nvmlDeviceSetMigMode).
    """

    def __init__(self, gpus: Gpus, settings: Settings) -> None:
        """Reach the hardware through `gpus`."""
        self._jobs = GpuJobs(gpus, settings)
        self._host = HostRoot(settings.host_root)

    def hold(self, devices: Iterable[Device]) -> None:
        """Set it where it is not. Raises as NVML does."""
        for gpu_uuid, uuid in devices:
            failpoint("before-compute-mode")
            if self._jobs.run(gpu_uuid, partial(_set_exclusive, uuid=uuid, on=True)):
                _log.info("compute mode is EXCLUSIVE_PROCESS", device=uuid)
            failpoint("after-compute-mode")

    def let_go(self, devices: Iterable[Device]) -> None:
        """Put it back; what is gone has none. Raises when a device may still have it."""
        for gpu_uuid, uuid in devices:
            failpoint("before-reset-compute-mode")
            try:
                self._jobs.run(gpu_uuid, partial(_set_exclusive, uuid=uuid, on=False))
            except (GpuAbsent, GpuLost) as error:
                _log.warning("a compute mode is gone with its device", err=error)
            except DriverNotReady:
                if self._host.has_gpu_driver():
                    raise
                _log.info("a compute mode is gone with the GPU driver", device=uuid)
            failpoint("after-reset-compute-mode")


def _set_exclusive(gpu: MigGpu, uuid: str, *, on: bool) -> bool:
    return gpu.set_exclusive(uuid, on=on)
