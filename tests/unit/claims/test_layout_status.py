"""What is told of layouts, and how often."""

import pytest

from dra_driver.claims import layout_status
from dra_driver.claims.layout_status import LayoutReports, LayoutState, LayoutStatus
from dra_driver.telemetry import Event, EventQueue, Metrics

GPU = "GPU-1"


def status(state: LayoutState, why: str = "", layout: str = "mine") -> LayoutStatus:
    return LayoutStatus(GPU, "gpu-0", layout, state, why)


class Told:
    def __init__(self) -> None:
        self.metrics, self.events = Metrics(), EventQueue()
        self.reports = LayoutReports(self.metrics, self.events)

    def __call__(self, *statuses: LayoutStatus, changed: bool = False) -> list[str]:
        self.reports.tell(statuses, {GPU} if changed else set())
        found: list[Event] = []
        while (event := self.events.take(0)) is not None:
            found.append(event)
        return [f"{event.reason}: {event.message}" for event in found]

    def counted(self) -> dict[str, float]:
        return {
            state.value: self.metrics.registry.get_sample_value(
                "gpu_dra_driver_layouts", {"state": state.value}
            )
            or 0
            for state in LayoutState
        }


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_layout_found_as_it_should_be_is_no_news(told: Told) -> None:
    assert told(status(LayoutState.APPLIED)) == []
    assert told.counted() == {"applied": 1, "waiting": 0, "failed": 0}
    assert told() == []
    assert told.counted()["applied"] == 0


def test_each_state_is_told_once(told: Told) -> None:
    waiting = status(LayoutState.WAITING, "waits for claim a/b")
    assert told(waiting) == ["LayoutWaiting: layout mine of gpu-0 (GPU-1): waits for claim a/b"]
    assert told(waiting) == []
    assert told(status(LayoutState.FAILED, "x")) == [
        "LayoutFailed: layout mine of gpu-0 (GPU-1): x"
    ]
    applied = status(LayoutState.APPLIED)
    assert told(applied, changed=True) == ["LayoutApplied: layout mine of gpu-0 (GPU-1) is applied"]
    assert told(applied) == []


def test_what_changes_every_second_is_told_now_and_then(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(status(LayoutState.WAITING, "waits for a"))
    second = status(LayoutState.WAITING, "waits for b")
    assert told(second) == []
    monkeypatch.setattr(layout_status, "_QUIET_SECONDS", 0.0)
    assert told(second) == ["LayoutWaiting: layout mine of gpu-0 (GPU-1): waits for b"]
    assert told(status(LayoutState.WAITING, "waits for b", layout="other"))


def test_what_is_over_in_seconds_is_counted_and_not_told(told: Told) -> None:
    passing = LayoutStatus(GPU, "gpu-0", "", LayoutState.WAITING, is_passing=True)
    assert told(passing) == []
    assert told.counted()["waiting"] == 1
    assert str(LayoutStatus(GPU, "gpu-0", "", LayoutState.FAILED, "x")) == (
        "removal of a former layout of gpu-0 (GPU-1): x"
    )
