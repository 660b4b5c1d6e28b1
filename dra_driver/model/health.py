"""How well a device is."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class HealthState(Enum):
    """The three answers that the kubelet's health stream knows."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


_WORST_FIRST: Final = (HealthState.UNHEALTHY, HealthState.UNKNOWN, HealthState.HEALTHY)


@dataclass(frozen=True, slots=True)
class Health:
    """State of one device, with a reason word, the words for a person, and since when.

    A device may have several things wrong with it: the worst speaks, `also` has the others.
    """

    state: HealthState = HealthState.HEALTHY
    reason: str = ""  # stable word such as `xid` or `gpu-lost`
    message: str = ""
    since: float = 0.0  # Unix seconds
    value: str = ""  # what the reason word leaves open: the XID, the recovery action
    also: tuple["Health", ...] = ()

    @property
    def usable(self) -> bool:
        """Whether a new claim may be prepared on the device."""
        return self.state is not HealthState.UNHEALTHY

    @property
    def words(self) -> str:
        """All that is wrong, in one line; empty when nothing is."""
        return "; ".join(each.message or each.reason for each in self.entries() if each.reason)

    def entries(self) -> tuple["Health", ...]:
        """Each thing that is to be said, by itself, the worst first."""
        return (replace(self, also=()), *self.also)


def combined(healths: Iterable[Health]) -> Health:
    """One health out of several: the worst leads; of those with one reason word the first stays."""
    entries = [entry for health in healths for entry in health.entries()]
    told: dict[str, Health] = {}
    for entry in sorted(entries, key=lambda entry: _WORST_FIRST.index(entry.state)):
        if entry.reason or entry.state is not HealthState.HEALTHY:
            told.setdefault(entry.reason, entry)
    if not told:
        return Health(since=max((entry.since for entry in entries), default=0.0))
    worst, *others = told.values()
    return replace(worst, also=tuple(others))


def dated(health: Health, before: Health, now: float) -> Health:
    """Health whose entries have their times: what was so `before` goes on, the rest begins now."""
    begun = {(entry.state, entry.reason): entry.since for entry in before.entries()}
    worst, *others = (
        replace(entry, since=entry.since or begun.get((entry.state, entry.reason), now))
        for entry in health.entries()
    )
    return replace(worst, also=tuple(others))
