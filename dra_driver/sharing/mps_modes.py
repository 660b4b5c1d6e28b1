"""Compute modes of devices that an MPS server has: set by the agent, reset by it or the plugin."""

from functools import partial

from dra_driver.host import failpoint
from dra_driver.nvml import GpuAbsent, GpuJobs, GpuLost, MigGpu
from dra_driver.sharing.mps_spec import MpsDevice, MpsSpec
from dra_driver.telemetry import logger

log = logger(__name__)


class ComputeModes:
    """Lets one process at a time compute on a device: its MPS server.

    So a program that goes past MPS, and with it past its limits, is refused. The mode lasts while
    somebody holds the GPU open, as this agent and the plugin do.
    """

    def __init__(self, jobs: GpuJobs) -> None:
        self._jobs = jobs

    def hold(self, spec: MpsSpec) -> None:
        """Set it where it is not. Raises as NVML does."""
        for device in spec.devices:
            failpoint("before-compute-mode")
            if self._set(device, on=True):
                log.info("compute mode is EXCLUSIVE_PROCESS", device=device.uuid)
            failpoint("after-compute-mode")

    def let_go(self, spec: MpsSpec) -> None:
        """Put it back; what is gone has none. Raises as NVML does."""
        for device in spec.devices:
            failpoint("before-reset-compute-mode")
            try:
                self._set(device, on=False)
            except (GpuAbsent, GpuLost) as error:
                log.warning("a compute mode is gone with its device", err=error)
            failpoint("after-reset-compute-mode")

    def _set(self, device: MpsDevice, *, on: bool) -> bool:
        return self._jobs.run(device.gpu_uuid, partial(_set_exclusive, uuid=device.uuid, on=on))


def _set_exclusive(gpu: MigGpu, uuid: str, *, on: bool) -> bool:
    return gpu.set_exclusive(uuid, on=on)
