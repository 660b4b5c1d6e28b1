"""The step `mig` of Prepare and Unprepare: GPUs get the shape that a claim's record names."""

from collections.abc import Callable, Iterable
from functools import partial

from dra_driver.config import Settings
from dra_driver.host import HostRoot
from dra_driver.mig import partition
from dra_driver.model import DriverError
from dra_driver.model.errors import DriverNotReady
from dra_driver.nvml import GpuAbsent, GpuLost, MigGpu
from dra_driver.nvml.jobs import GpuJobs, Gpus
from dra_driver.state import ClaimRecord, DeviceRecord, Holding
from dra_driver.telemetry import logger

_log = logger(__name__)


class MigEffect:
    """Makes partitions for claims, and whole GPUs of GPUs in MIG mode; takes partitions back.

    Devices whose record does not say `made` cost no NVML call. The record, written before, is what
    makes a partition this claim's: one that stands at exactly that GPU, profile and placement is
    taken over at `apply` and removed at `undo`, nothing else ever is. What claims share is made for
    the first of them and removed after the last. All calls for a device are one job on that GPU's
    own thread, under a lock that other instances of this driver respect, and which is held until
    the job is over, however long ago its caller gave up.
    """

    name = "mig"

    def __init__(
        self, gpus: Gpus, settings: Settings, holdings: Callable[[], Iterable[Holding]]
    ) -> None:
        """Reach the hardware through `gpus`; ask `holdings` who else has a device."""
        self._jobs = GpuJobs(gpus, settings)
        self._host = HostRoot(settings.host_root)
        self._holdings = holdings

    def check(self, record: ClaimRecord) -> None:
        """Raise HardwareBusy when something stands where the claim's devices are to be made.

        To be called before the record is written, since what stands there afterwards is the claim's
        own and is removed with it. A partition of which another claim has a share is in nobody's
        way; whether the claim may have one too is for the records to say.
        """
        for device in filter(_is_made, record.devices):

            def check(gpu: MigGpu, device: DeviceRecord = device) -> None:
                # Asked here, under the GPU's lock: whose partition stands by now has a record.
                if not self._is_shared(record, device):
                    partition.check(gpu, device)

            self._jobs.run(device.gpu_uuid, check)

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        """Make what is missing; gives the record with the numbers and UUIDs that came of it.

        A device that fails is taken back at once, as far as this call made it. Raises HardwareBusy
        that names who is in the way, DeviceNotFound, BadNode and its kinds, or DriverNotReady.
        """
        devices = tuple(
            self._jobs.run(device.gpu_uuid, partial(partition.make, device=device))
            if _is_made(device)
            else device
            for device in record.devices
        )
        return record.model_copy(update={"devices": devices})

    def undo(self, record: ClaimRecord) -> None:
        """Remove what no other claim has a share of; raises when one may still be there.

        What is gone with its GPU or GPU driver is gone: success. While the GPU does not answer or
        NVML can't be opened on a driver that runs, nobody knows: HardwareBusy or DriverNotReady.
        Each device is tried, whatever became of the others.
        """
        failures: list[DriverError] = []
        for device in filter(_is_made, record.devices):
            if device.span is not None:
                try:
                    self._remove(record, device)
                except DriverError as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    def _remove(self, record: ClaimRecord, device: DeviceRecord) -> None:
        def remove(gpu: MigGpu) -> None:
            # Asked here, under the GPU's lock: who has a record and comes later makes it anew.
            if not self._is_shared(record, device):
                partition.remove(gpu, device)

        try:
            self._jobs.run(device.gpu_uuid, remove)
        except (GpuAbsent, GpuLost) as error:
            _log.warning("a partition is gone with its GPU", device=device.device, err=error)
        except DriverNotReady:
            if self._host.has_gpu_driver():
                raise
            _log.info("a partition is gone with the GPU driver", device=device.device)

    def _is_shared(self, record: ClaimRecord, device: DeviceRecord) -> bool:
        """Whether another claim has a share of the same device."""
        return device.share_id is not None and any(
            held.share_id is not None
            and held.place == device.place
            and held.claim.uid != record.uid
            and not held.admin_access
            for held in self._holdings()
        )


def _is_made(device: DeviceRecord) -> bool:
    """Whether the hardware gets its shape for this device; admin access changes nothing."""
    return device.made and not device.admin_access
