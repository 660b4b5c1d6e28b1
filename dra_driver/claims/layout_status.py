"""How far the layouts are: told in the log, as Events on the Node, and by metrics."""

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_driver.telemetry import Event, EventQueue, Metrics, logger

log = logger(__name__)

_QUIET_SECONDS: Final = 10.0  # between two tellings that differ only in who is waited for
_METRIC: Final = "gpu_dra_driver_layouts"


class LayoutState(Enum):
    """How far a layout is on one GPU; the values are metric labels."""

    APPLIED = "applied"
    WAITING = "waiting"  # until nobody uses the GPU, or for the next try
    FAILED = "failed"  # a person must act


@dataclass(frozen=True, slots=True)
class LayoutStatus:
    """One GPU whose partitions are this driver's by a layout, or were."""

    gpu_uuid: str
    device: str  # name of the whole GPU
    layout: str  # empty: what a former layout has left
    state: LayoutState
    why: str = ""  # what it waits for, or what went wrong
    is_passing: bool = False  # over in seconds: counted, not told

    def __str__(self) -> str:
        layout = f"layout {self.layout}" if self.layout else "removal of a former layout"
        what = f"{layout} of {self.device} ({self.gpu_uuid})"
        return f"{what}: {self.why}" if self.why else f"{what} is applied"


class LayoutReports:
    """Tells what has changed since it was asked last."""

    def __init__(self, metrics: Metrics, events: EventQueue) -> None:
        """Nothing is known yet."""
        self._metrics = metrics
        self._events = events
        self._last: dict[str, LayoutStatus] = {}
        self._told_at: dict[str, float] = {}

    def tell(self, statuses: Sequence[LayoutStatus], changed: Container[str]) -> None:
        """Compare with the last time, and tell; `changed` GPUs got their layout just now.

        A layout that was found as it should be when this process began is no news.
        """
        for state in LayoutState:
            count = sum(each.state is state for each in statuses)
            self._metrics.set(_METRIC, count, state=state.value)
        for status in statuses:
            if not status.is_passing:
                self._compare(status, is_changed=status.gpu_uuid in changed)
        gone = self._last.keys() - {each.gpu_uuid for each in statuses}
        for uuid in gone:
            del self._last[uuid]

    def _compare(self, status: LayoutStatus, *, is_changed: bool) -> None:
        before = self._last.get(status.gpu_uuid)
        if before == status and not is_changed:
            return
        now = time.monotonic()
        differs = before is None or (before.state, before.layout) != (status.state, status.layout)
        is_soon = now - self._told_at.get(status.gpu_uuid, float("-inf")) < _QUIET_SECONDS
        if is_soon and not differs and not is_changed:
            return  # told later, if it is still so
        self._last[status.gpu_uuid] = status
        self._told_at[status.gpu_uuid] = now
        log.info("layout", state=status.state.value, what=status)
        if before is not None or is_changed or status.state is not LayoutState.APPLIED:
            self._events.add(_event(status))


def _event(status: LayoutStatus) -> Event:
    if status.state is LayoutState.APPLIED:
        return Event("LayoutApplied", str(status), warning=False)
    if status.state is LayoutState.WAITING:
        return Event("LayoutWaiting", str(status), warning=False)
    return Event("LayoutFailed", str(status), warning=True)
