"""How well a device is."""

from dataclasses import dataclass
from enum import Enum


class HealthState(Enum):
    """The three answers that the kubelet's health stream knows."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """State of one device, with a reason word, the words for a person, and since when."""

    state: HealthState = HealthState.HEALTHY
    reason: str = ""  # stable word such as `xid` or `gpu-lost`; empty when healthy
    message: str = ""
    since: float = 0.0  # Unix seconds

    @property
    def usable(self) -> bool:
        """Whether a new claim may be prepared on the device."""
        return self.state is not HealthState.UNHEALTHY
