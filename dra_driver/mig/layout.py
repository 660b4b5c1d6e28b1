"""What is done to a GPU for a layout: looks, and changes one by one, each a job of its own.

So nobody waits long for the GPU, and each change can be noted ahead. Whoever calls has made sure
that nobody uses what is removed.
"""

from dataclasses import dataclass
from functools import partial

from dra_driver.config import Settings
from dra_driver.host import HostProcess
from dra_driver.mig import partition
from dra_driver.model import Placement
from dra_driver.nvml import MigGpu
from dra_driver.nvml.jobs import GpuJobs, Gpus
from dra_driver.state import DeviceRecord


@dataclass(frozen=True, slots=True)
class StandingPartition:
    """A GPU instance, whoever made it."""

    name: str  # of the profile
    gi_profile_id: int
    placement: Placement
    gi_id: int
    is_complete: bool  # a compute instance takes all of it

    @property
    def key(self) -> tuple[int, Placement]:
        """What tells it from others on its GPU, whatever its numbers are now."""
        return self.gi_profile_id, self.placement

    def __str__(self) -> str:
        end = self.placement.start + self.placement.size - 1
        slices = f"memory slices {self.placement.start} to {end}"
        return f"{self.name} at {slices} (GPU instance {self.gi_id})"


@dataclass(frozen=True, slots=True)
class Standing:
    """One GPU at one moment."""

    mig_enabled: bool
    partitions: tuple[StandingPartition, ...]
    processes: tuple[HostProcess, ...]  # that compute or draw on it


class LayoutEffect:
    """Looks at GPUs and changes them. Errors are those of `MigEffect`."""

    def __init__(self, gpus: Gpus, settings: Settings) -> None:
        """Reach the hardware through `gpus`."""
        self._jobs = GpuJobs(gpus, settings)

    def look(self, gpu_uuid: str) -> Standing:
        """See what stands on a GPU and who uses it."""
        return self._jobs.run(gpu_uuid, _look)

    def switch(self, device: DeviceRecord, *, on: bool) -> None:
        """Switch MIG mode of the device's GPU if it is the other."""
        self._jobs.run(device.gpu_uuid, partial(_switch, device=device, on=on))

    def make(self, device: DeviceRecord) -> None:
        """Make the partition, or what is missing of it; MIG mode too."""
        self._jobs.run(device.gpu_uuid, partial(partition.make, device=device))

    def remove(self, device: DeviceRecord) -> None:
        """Remove the partition if it is there; MIG mode stays."""
        self._jobs.run(device.gpu_uuid, partial(partition.remove_instance, device=device))

    def leave_mig_mode(self, device: DeviceRecord) -> None:
        """Switch MIG mode of the device's GPU off if nothing is left and that is allowed."""
        self._jobs.run(device.gpu_uuid, partial(partition.leave_mig_mode, device=device))


def _look(gpu: MigGpu) -> Standing:
    found = tuple(
        StandingPartition(
            name=gpu.profile_name(each.profile_id),
            gi_profile_id=each.profile_id,
            placement=each.placement,
            gi_id=each.id,
            is_complete=any(compute.spans for compute in gpu.compute_instances(each)),
        )
        for each in gpu.instances()
    )
    return Standing(gpu.mig_mode()[0], found, gpu.processes())


def _switch(gpu: MigGpu, device: DeviceRecord, *, on: bool) -> None:
    if gpu.mig_mode()[0] is not on:
        partition.switch(gpu, device, on=on)
