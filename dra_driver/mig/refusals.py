"""What people read when a partition can't be made or removed: what is in the way, and whose."""

from collections.abc import Sequence

from dra_driver.host import HostProcess
from dra_driver.model import BadNode
from dra_driver.model.errors import HardwareBusy
from dra_driver.nvml import GpuInstance, MigGpu
from dra_driver.state import DeviceRecord


def taken(gpu: MigGpu, device: DeviceRecord, by: Sequence[GpuInstance]) -> HardwareBusy:
    """Say that other partitions are where the device is to be made."""
    return HardwareBusy(
        f"{device.device} can't be made on GPU {gpu.uuid}: {_listed(gpu, by)} there, which this "
        "claim does not hold, so it is left alone; it has to be removed first"
    )


def no_room(
    gpu: MigGpu, device: DeviceRecord, by: Sequence[GpuInstance], error: HardwareBusy
) -> HardwareBusy:
    """Say what stands in the way where NVML found no room; its own words where nothing does."""
    if by:
        return taken(gpu, device, by)
    others = gpu.instances()
    beside = f" beside {_listed(gpu, others)}" if others else ""
    return HardwareBusy(f"{device.device} can't be made{beside}: {error}")


def cut_up(gpu: MigGpu, device: DeviceRecord, instance: GpuInstance) -> HardwareBusy:
    """Say that somebody has put smaller compute instances into the partition."""
    return HardwareBusy(
        f"{device.device}: GPU instance {instance.id} of GPU {gpu.uuid} is cut into smaller "
        "compute instances, which this driver does not make; remove them: nvidia-smi mig -dci"
    )


def needs_reset(gpu: MigGpu, *, on: bool) -> BadNode:
    """Say that MIG mode is not switched, since that would reset the GPU."""
    now, flag = ("off", 1) if on else ("on", 0)
    return BadNode(
        f"MIG mode of GPU {gpu.uuid} is {now}, and a switch resets the GPU, which the node "
        "configuration does not allow (partitioning.allowReset); or do it by hand: nvidia-smi -i "
        f"{gpu.uuid} -mig {flag}, then reset the GPU or reboot the node"
    )


def held(error: HardwareBusy, users: Sequence[HostProcess]) -> HardwareBusy:
    """Add who uses the GPU to what NVML says."""
    if users:
        return HardwareBusy(f"{error}; in use by {', '.join(map(str, users))}")
    return HardwareBusy(
        f"{error}; NVML lists no process on it: a monitor such as DCGM, nvidia-smi or the Fabric "
        "Manager may hold it"
    )


def _listed(gpu: MigGpu, instances: Sequence[GpuInstance]) -> str:
    names = [
        f"{gpu.profile_name(each.profile_id)} at memory slices {each.placement.start} to "
        f"{each.placement.start + each.placement.size - 1} (GPU instance {each.id})"
        for each in instances
    ]
    return f"{', '.join(names)} {'stand' if len(names) > 1 else 'stands'}"
