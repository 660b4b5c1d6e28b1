"""Events that NVML tells of: which GPU or partition they are about, and the sets they come by."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

import pynvml

from dra_driver.nvml import reads

_EVERYWHERE: Final = 0xFFFFFFFF  # nvml.h, nvmlEventData_t: not attributable to an instance
_XID: Final = pynvml.nvmlEventTypeXidCriticalError
_ECC: Final = pynvml.nvmlEventTypeDoubleBitEccError
# Kinds that only say that it is time to look: what follows from them is read, not heard.
_WORTH_A_LOOK: Final = (
    pynvml.nvmlEventMigConfigChange
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
_WANTED: Final = _XID | _ECC | _WORTH_A_LOOK


class EventKind(Enum):
    """What sort of event it is; the values are metric labels."""

    XID = "xid"
    ECC = "ecc"  # a memory error that could not be corrected
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """One event; `gi_id` and `ci_id` are None where it is not about one instance."""

    gpu_uuid: str  # empty: NVML did not say which GPU, or it is none of those known
    kind: EventKind
    xid: int = 0
    gi_id: int | None = None
    ci_id: int | None = None


class EventsUnsupported(Exception):
    """A GPU has no XID events. Stays inside this package."""


class EventSet:
    """Events of some GPUs.

    GPUs are added first, each by its own worker; then one thread waits. Never both at once: NVML
    does not say that it may.
    """

    def __init__(self) -> None:
        """Make an empty set; raises CallFailed."""
        self._handle = reads.new_event_set()
        self._gpus: dict[int, str] = {}

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs whose events come."""
        return frozenset(self._gpus.values())

    def add(self, index: int, uuid: str) -> None:
        """Add the GPU at `index` if it is that one. Raises CallFailed or EventsUnsupported."""
        device = reads.device(index)
        if reads.uuid(device) != uuid:
            return  # GPUs came or went; the next look finds out
        kinds = reads.supported_events(device) & _WANTED
        if not kinds & _XID:
            raise EventsUnsupported(uuid)
        reads.add_events(device, kinds, self._handle)
        self._gpus[reads.address(device)] = uuid

    def wait(self, milliseconds: int) -> HardwareEvent | None:
        """Next event, None when none came in time. Raises CallFailed."""
        data = reads.wait_for_event(self._handle, milliseconds)
        if data is None:
            return None
        # The handle is compared, not asked: a sick GPU may not answer any more.
        uuid = self._gpus.get(reads.address(data.device), "")
        if data.eventType != _XID:
            kind = EventKind.ECC if data.eventType == _ECC else EventKind.OTHER
            return HardwareEvent(uuid, kind)
        return HardwareEvent(
            uuid,
            EventKind.XID,
            int(data.eventData),
            _instance(data.gpuInstanceId),
            _instance(data.computeInstanceId),
        )

    def free(self) -> None:
        """End the set; raises CallFailed."""
        reads.free_event_set(self._handle)


def _instance(number: int) -> int | None:
    return None if number == _EVERYWHERE else int(number)
