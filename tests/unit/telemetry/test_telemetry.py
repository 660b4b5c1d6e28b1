"""Logs carry the operation, events are said once, metrics match their catalogue."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dra_driver.model import ClaimRef
from dra_driver.telemetry import (
    CATALOGUE,
    Event,
    EventQueue,
    Metrics,
    logger,
    operation,
    set_up_logging,
)


@pytest.fixture(autouse=True)
def quiet_after() -> Iterator[None]:
    root = logging.getLogger("dra_driver")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before


def test_text_lines_carry_operation_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text", "info")
    with operation() as identity:
        logger("dra_driver.x").info("done", err="no way", claim=ClaimRef("ns", "c", "u"))
    line = capsys.readouterr().err
    assert f'done op={identity} claim=ns/c err="no way"' in line


def test_json_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json", "info")
    logger("dra_driver.x").debug("hidden")
    logger("dra_driver.x").warning('a "quoted" thing', count=3, err=ValueError("x\ny"))
    entry = json.loads(capsys.readouterr().err)
    assert entry["msg"] == 'a "quoted" thing'
    assert entry["count"] == 3
    assert list(entry)[-1] == "err"


def test_every_metric_of_the_catalogue_is_exposed() -> None:
    metrics = Metrics()
    with metrics.timed("prepare", "cdi"):
        pass
    with suppress(OSError), metrics.timed("prepare", "cdi"):
        raise OSError
    text = metrics.exposition().decode()
    for metric in CATALOGUE:
        assert f"# HELP {metric.name}" in text
        assert f"# TYPE {metric.name} {metric.kind}" in text
    steps = 'gpu_dra_driver_step_duration_seconds_count{operation="prepare"'
    assert f'{steps},result="ok",step="cdi"}} 1.0' in text
    assert f'{steps},result="error",step="cdi"}} 1.0' in text


def test_a_counter_that_somebody_else_keeps_is_read_when_asked_for() -> None:
    metrics, values = Metrics(), [3.0]
    metrics.follow("gpu_dra_driver_fsyncs_total", lambda: values[-1])
    assert "gpu_dra_driver_fsyncs_total 3.0" in metrics.exposition().decode()
    values.append(5.0)
    text = metrics.exposition().decode()
    assert "gpu_dra_driver_fsyncs_total 5.0" in text
    assert text.count("# HELP gpu_dra_driver_fsyncs_total ") == 1


def test_what_is_dear_to_count_is_counted_when_asked_for() -> None:
    metrics = Metrics()
    metrics.before_exposition(lambda: metrics.set("gpu_dra_driver_records_set_aside", 2))
    assert "gpu_dra_driver_records_set_aside 2.0" in metrics.exposition().decode()


def test_a_queue_that_is_closed_lets_nobody_wait_and_still_gives_what_it_has() -> None:
    queue = EventQueue()
    waiting = threading.Thread(target=queue.take)
    waiting.start()
    queue.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert queue.take() is None
    event = Event("DeviceInUse", "gpu-0 is held", warning=True)
    queue.add(event)
    assert queue.take() == event
