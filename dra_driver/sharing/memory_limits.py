"""Limits of GPU memory, set on the cgroups of the Pods that use a share.

A cgroup's limit on a GPU holds for all its processes together, however they use the GPU, and ends
with the cgroup. A Pod may have several shares of one GPU: its limit is their sum.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dra_driver.config import Settings
from dra_driver.host import HostRoot, failpoint
from dra_driver.model.errors import DriverNotReady, HardwareBusy, HardwareFailed
from dra_driver.nvml import GpuAbsent, GpuJobs, GpuLost, Gpus, MigGpu
from dra_driver.state import ClaimRecord, DeviceRecord, Holding
from dra_driver.telemetry import logger

_log = logger(__name__)


class MemoryLimits:
    """Sets and clears them, one GPU at a time."""

    def __init__(
        self, gpus: Gpus, settings: Settings, holdings: Callable[[], Iterable[Holding]]
    ) -> None:
        """Ask `holdings` what other claims the same Pods have."""
        self._jobs = GpuJobs(gpus, settings)
        self._host = HostRoot(settings.host_root)
        self._holdings = holdings

    def apply(self, record: ClaimRecord) -> None:
        """Limit each Pod of the claim; one that has ended needs no limit.

        Raises HardwareBusy when none of them has a cgroup, or as NVML does.
        """
        devices = list(_limited(record))
        if not devices:
            return
        cgroups = self._cgroups(record)
        if not cgroups:
            raise HardwareBusy(
                f"no cgroup of the Pods of claim {record.ref} is below "
                f"{self._host.path / 'sys/fs/cgroup'}, on which to limit GPU memory; is it mounted?"
            )
        for device in devices:

            def limit(gpu: MigGpu, device: DeviceRecord = device) -> None:
                for pod, cgroup in cgroups.items():
                    failpoint("before-memory-limit")
                    _limit(gpu, cgroup, self._total(record, device, pod, with_own=True))
                    failpoint("after-memory-limit")

            self._jobs.run(device.gpu_uuid, limit)

    def undo(self, record: ClaimRecord) -> None:
        """Take the claim's part off the limits of its Pods; what is gone has none."""
        devices = list(_limited(record))
        cgroups = self._cgroups(record) if devices else {}
        for device in devices if cgroups else ():

            def give_back(gpu: MigGpu, device: DeviceRecord = device) -> None:
                for pod, cgroup in cgroups.items():
                    failpoint("before-clear-memory-limit")
                    _limit(gpu, cgroup, self._total(record, device, pod, with_own=False))
                    failpoint("after-clear-memory-limit")

            try:
                self._jobs.run(device.gpu_uuid, give_back)
            except (GpuAbsent, GpuLost) as error:
                _log.warning("a GPU has gone with its memory limits", err=error)
            except DriverNotReady:
                if self._host.has_gpu_driver():
                    raise
                _log.info("memory limits are gone with the GPU driver", gpu=device.gpu_uuid)

    def _cgroups(self, record: ClaimRecord) -> dict[str, Path]:
        found = {pod: self._host.pod_cgroup(pod) for pod in record.pods}
        return {pod: cgroup for pod, cgroup in found.items() if cgroup is not None}

    def _total(
        self, record: ClaimRecord, device: DeviceRecord, pod: str, *, with_own: bool
    ) -> int | None:
        """Bytes that a Pod may have of a GPU through all its claims; None: no limit."""
        others = [
            held.memory_limit
            for held in self._holdings()
            if held.gpu_uuid == device.gpu_uuid
            and held.memory_limit is not None
            and held.claim.uid != record.uid
            and pod in held.pods
        ]
        own = [
            each.memory_limit
            for each in _limited(record)
            if with_own and each.gpu_uuid == device.gpu_uuid
        ]
        return sum(filter(None, (*others, *own))) or None


def _limited(record: ClaimRecord) -> Iterator[DeviceRecord]:
    """Yield shares whose memory is limited; NVML limits it on whole GPUs only."""
    for device in record.devices:
        if device.memory_limit is not None and device.span is None and not device.admin_access:
            yield device


def _limit(gpu: MigGpu, cgroup: Path, limit: int | None) -> None:
    """Set a limit and see that it holds; a cgroup that has just gone takes its limit along."""
    try:
        gpu.limit_memory(str(cgroup), limit)
        found = gpu.memory_limit(str(cgroup))
    except HardwareFailed:
        if cgroup.exists():
            raise
        return
    if found != limit:
        raise HardwareFailed(
            f"GPU {gpu.uuid}: the memory limit of {cgroup} is {found} bytes after it was set to "
            f"{limit}"
        )
