"""Whose the label is that tells how far a layout is: ours, another instance's, or a stranger's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.claims import LayoutLabel, LayoutReports, Layouts
from dra_driver.claims.layout_label import CONFIG, STATE
from dra_driver.claims.layout_status import LayoutState, LayoutStatus
from dra_driver.config import DEFAULT_CONFIG, Settings
from dra_driver.host.succession import Succession
from dra_driver.model import Inventory
from dra_driver.model.errors import ApiUnavailable
from dra_driver.telemetry import EventQueue, Metrics

WISH = "all-balanced"


class Labels:
    """Labels of a Node, as all instances on it read and write them."""

    are_known = True

    def __init__(self) -> None:
        self.now = {CONFIG: WISH}
        self.loses_answers = False

    def current(self) -> Mapping[str, str]:
        return self.now

    def write(self, key: str, value: str) -> None:
        self.now = {**self.now, key: value}
        if self.loses_answers:
            raise ApiUnavailable("the connection broke")


@pytest.fixture
def labels() -> Labels:
    return Labels()


def label_of(labels: Any) -> LayoutLabel:
    return LayoutLabel(labels, EventQueue(), enabled=True)


def test_a_stranger_who_changes_the_state_gets_the_label(labels: Labels) -> None:
    label = label_of(labels)
    label.report(Inventory(), ())
    assert (labels.now[STATE], label.stands_back()) == ("success", "")
    labels.write(STATE, "rebooting")
    assert "somebody else has set label" in label.stands_back()


def test_a_state_whose_answer_was_lost_is_no_stranger_s(labels: Labels) -> None:
    label = label_of(labels)
    label.report(Inventory(), [LayoutStatus("GPU-1", "gpu-0", WISH, LayoutState.WAITING)])
    assert labels.now[STATE] == "pending"
    labels.loses_answers = True
    label.report(Inventory(), ())
    assert (labels.now[STATE], label.stands_back()) == ("success", "")


def test_a_state_of_a_newer_instance_is_no_stranger_s(labels: Labels, tmp_path: Path) -> None:
    """So that the older goes on with the label when the newer is rolled back."""
    label, settings = label_of(labels), Settings(node_name="node-a", plugins_folder=tmp_path)
    hardware: Any = type("Hardware", (), {"current": lambda _: Inventory()})()
    records: Any = type("Records", (), {"holdings": lambda _: (), "damaged": ()})()
    reports = LayoutReports(Metrics(), EventQueue())
    older = Layouts(
        settings, lambda: DEFAULT_CONFIG, label, hardware, records, lambda: None, reports
    )
    older._look_after(is_poked=True)
    assert labels.now[STATE] == "success"
    newer = Succession(settings.data_folder / "layouts.lock")
    newer.join()
    older._look_after(is_poked=True)
    labels.write(STATE, "failed")
    assert label.stands_back() == ""
    newer.leave()
    older._look_after(is_poked=True)
    assert labels.now[STATE] == "success"
