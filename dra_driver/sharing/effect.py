"""The step `sharing` of Prepare and Unprepare: devices are set as the claim's record wants them.

What several claims share is set for the first and put back after the last: under the GPU's lock the
records tell who else holds the device. Settings of claims that share a device are equal, or the
later claim is refused before it comes here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, TypeAlias

from dra_driver.config import Settings, read_stored
from dra_driver.host import HostRoot, RangeLock, failpoint
from dra_driver.model import TimeSlice
from dra_driver.model.errors import DriverFilesMissing, DriverNotReady, TryAgain
from dra_driver.nvml import GpuAbsent, Gpus
from dra_driver.sharing.failures import Failures
from dra_driver.sharing.memory_limits import MemoryLimits
from dra_driver.sharing.mps import MpsSets, Undisturbed
from dra_driver.sharing.time_slices import TimeSliceNotSupported, TimeSlices
from dra_driver.state import ClaimRecord, DeviceRecord, Holding
from dra_driver.telemetry import logger

_Wish: TypeAlias = tuple[ClaimRecord, DeviceRecord, TimeSlice]

_LOCK_SECONDS: Final = 20.0

_log = logger(__name__)


class SharingEffect:
    """Sets time-slices, memory limits and MPS; a claim that needs none of them costs nothing."""

    name = "sharing"

    def __init__(
        self,
        gpus: Gpus,
        settings: Settings,
        holdings: Callable[[], Iterable[Holding]],
        unknown: Callable[[], AbstractSet[str]],
    ) -> None:
        """Ask `holdings` who else has a device, `unknown` for UIDs of claims that may have any."""
        self._limits = MemoryLimits(gpus, settings, holdings)
        self._mps = MpsSets(gpus, settings, holdings, unknown)
        self._locks: Path = settings.data_folder / "gpus.lock"
        self._slices = TimeSlices(settings)
        self._host = HostRoot(settings.host_root)
        self._holdings = holdings

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        """Set what the claim wants. Raises ConfigInvalid where a GPU can't have it, or as NVML."""
        for device, interval in _sliced(record):
            with RangeLock(self._locks, device.gpu_uuid, _LOCK_SECONDS):
                failpoint("before-time-slice")
                self._set(device, interval)
                failpoint("after-time-slice")
        self._limits.apply(record)
        return self._mps.apply(record)

    def undo(self, record: ClaimRecord) -> None:
        """Put back what no other claim needs; what is gone with GPU or driver needs nothing."""
        self._mps.undo(record)
        self._limits.undo(record)
        for device, interval in _sliced(record):
            if interval is TimeSlice.DEFAULT:
                continue
            with RangeLock(self._locks, device.gpu_uuid, _LOCK_SECONDS):
                if self._is_needed(record, device):
                    continue
                failpoint("before-reset-time-slice")
                self._reset(device)
                failpoint("after-reset-time-slice")

    def assert_again(self, records: Sequence[ClaimRecord], undisturbed: Undisturbed) -> None:
        """Set again what live claims want: it is lost when nobody holds a GPU open for a moment.

        What fails on one GPU keeps no other from it; raises the first failure.
        """
        failures = Failures()
        for record in records:
            with failures.noted(), undisturbed(record) as is_live:
                if is_live:
                    self._limit_again(record)
        for holders in _by_gpu(records).values():
            with failures.noted():
                self._slice_again(holders, undisturbed)
        with failures.noted():
            self._mps.assert_again(records, undisturbed)
        failures.tell()

    def _limit_again(self, record: ClaimRecord) -> None:
        try:
            self._limits.apply(record)
        except TryAgain as error:  # its Pods have just ended, perhaps
            _log.info("memory limits are not set again", claim=record.ref, err=error)

    def _slice_again(self, holders: Iterable[_Wish], undisturbed: Undisturbed) -> None:
        """Set a GPU's time-slice for the first of these that lives: all of them want the same."""
        for record, device, interval in holders:
            with undisturbed(record) as is_live:
                if is_live:
                    with RangeLock(self._locks, device.gpu_uuid, _LOCK_SECONDS):
                        self._set(device, interval)
                    return

    def _set(self, device: DeviceRecord, interval: TimeSlice) -> None:
        """Set it; a GPU without time-slices has the default one (field report dra #41)."""
        try:
            self._slices.set(device.gpu_uuid, interval)
        except TimeSliceNotSupported:
            if interval is not TimeSlice.DEFAULT:
                raise

    def _reset(self, device: DeviceRecord) -> None:
        try:
            self._slices.set(device.gpu_uuid, TimeSlice.DEFAULT)
        except (GpuAbsent, TimeSliceNotSupported) as error:
            _log.warning("a time-slice is gone with its GPU", gpu=device.gpu_uuid, err=error)
        except (DriverNotReady, DriverFilesMissing):
            if self._host.has_gpu_driver():
                raise
            _log.info("a time-slice is gone with the GPU driver", gpu=device.gpu_uuid)

    def _is_needed(self, record: ClaimRecord, device: DeviceRecord) -> bool:
        """Whether another claim has the same GPU with settings of its own."""
        return any(
            held.gpu_uuid == device.gpu_uuid
            and held.span is None
            and held.claim.uid != record.uid
            and held.sharing is not None
            for held in self._holdings()
        )


def _sliced(record: ClaimRecord) -> Iterator[tuple[DeviceRecord, TimeSlice]]:
    """Yield whole GPUs for which the claim names a time-slice."""
    for device in record.devices:
        settings = None if device.admin_access else read_stored(device.sharing)
        if settings is not None and settings.interval is not None and device.span is None:
            yield device, settings.interval


def _by_gpu(records: Iterable[ClaimRecord]) -> Mapping[str, Sequence[_Wish]]:
    """Tell which claims want a GPU's time-slice to be another than it is without them."""
    found: dict[str, list[_Wish]] = defaultdict(list)
    for record in records:
        for device, interval in _sliced(record):
            if interval is not TimeSlice.DEFAULT:
                found[device.gpu_uuid].append((record, device, interval))
    return found
