"""The catalogue follows the conventions, and its closed labels have the values that are used."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dra_driver
from dra_driver.admission.metrics import CATALOGUE as OF_WEBHOOK
from dra_driver.claims.steps import STEPS
from dra_driver.model import HealthState
from dra_driver.slices import Why
from dra_driver.telemetry import CATALOGUE, Metric, Metrics

ALL = (*CATALOGUE, *OF_WEBHOOK)
TROUBLES = Path(dra_driver.__file__).parent.parent / "docs/troubleshooting.md"
PERSONAL = re.compile("claim|pod|uuid|pool|device_name|profile")


def metric(name: str) -> Metric:
    return next(each for each in CATALOGUE if each.name == name)


def values(name: str, label: str) -> set[str]:
    return {labels[label] for labels in metric(name).zero}


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_names_and_labels_follow_the_conventions(each: Metric) -> None:
    assert each.name.startswith(("nvidia_dra_", "gpu_dra_driver_"))
    assert each.name.endswith("_total") == (each.kind == "counter")
    assert each.name.endswith("_seconds") or each.kind != "histogram"
    assert each.text.endswith(".")
    if not each.comes_and_goes:
        assert not any(PERSONAL.search(label) for label in each.labels)
        closed = set(each.labels) - {"driver", "node"}
        assert all(set(labels) == closed for labels in each.zero)
        assert bool(each.zero) == bool(closed), "all series exist from the start"
    else:
        assert each.kind == "gauge"


def test_values_of_closed_labels_are_those_of_the_code() -> None:
    steps = metric("gpu_dra_driver_step_duration_seconds").zero
    assert {(labels["operation"], labels["step"]) for labels in steps} == {
        (operation, step) for operation, names in STEPS.items() for step in names
    }
    assert values("gpu_dra_driver_left_out", "reason") == {why.value for why in Why}
    assert values("gpu_dra_driver_devices", "health") == {state.value for state in HealthState}


def test_reason_words_are_explained_in_the_docs() -> None:
    told = set(re.findall(r"^\| `([^`]+)` \|", TROUBLES.read_text(encoding="utf-8"), re.MULTILINE))
    words = {
        labels["reason"] for each in CATALOGUE if "reason" in each.labels for labels in each.zero
    }
    assert {"DeviceInUse", "HardwareBusy", "Bug", "held"} <= words
    assert words <= told


def test_labels_of_the_process_stand_wherever_they_belong() -> None:
    metrics = Metrics(driver="gpu.example.com", node="n-1")
    metrics.count("nvidia_dra_requests_total", operation="prepare")
    metrics.set("nvidia_dra_prepared_devices", 3, device_type="mig")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }
    driver, node = ("driver", "gpu.example.com"), ("node", "n-1")
    prepared = "nvidia_dra_prepared_devices"
    assert found["nvidia_dra_requests_total", driver, ("operation", "prepare")] == 1
    assert found[prepared, ("device_type", "mig"), driver, node] == 3


def test_series_that_come_and_go_leave_nothing_behind() -> None:
    metrics, name = Metrics(), "gpu_dra_driver_config_chosen"
    metrics.set_all(name, {("label", "a"): 1, ("label", "b"): 1})
    metrics.set_all(name, {("label", 'with "quotes"'): 1})
    lines = [line for line in metrics.exposition().decode().splitlines() if line.startswith(name)]
    assert lines == [name + '{by="label",entry="with \\"quotes\\""} 1.0']
