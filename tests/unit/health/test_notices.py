"""What people are told, and what they are spared."""

import logging

import pytest

from dra_driver.health import notices as module
from dra_driver.health.notices import EventLog, notices
from dra_driver.model import Health, HealthState, Inventory
from dra_driver.nvml import EventKind, HardwareEvent
from dra_driver.telemetry import Metrics
from tests.support.inventories import gpu, inventory, partitioned

SICK = Health(HealthState.UNHEALTHY, "xid", "XID 79", 1.0, "79")
LOST = Health(HealthState.UNHEALTHY, "gpu-lost", "GPU_IS_LOST", 2.0)
SILENT = Health(HealthState.UNKNOWN, "not-answering", "gpu 0 does not answer")
DEAF = Health(HealthState.HEALTHY, "no-events", "no XID events")


def told(before: Inventory | None, now: Inventory) -> list[tuple[str, bool]]:
    return [(event.reason, event.warning) for event in notices(before, now)]


def test_a_device_that_gets_ill_and_well() -> None:
    well, ill = inventory(gpu(0), gpu(1)), inventory(gpu(0, health=SICK), gpu(1))
    (event,) = notices(well, ill)
    assert event.message == (
        f"gpu-0 of GPU {gpu(0).uuid}: XID 79; new claims do not get it until it is well again"
    )
    assert told(ill, well) == [("DeviceHealthy", False)]
    assert told(ill, ill) == told(well, well) == []


def test_the_partitions_of_a_gpu_are_told_together() -> None:
    ill = inventory(partitioned(0, 0, 1, 2, health=SICK), partitioned(1, 0, health=SICK))
    events = list(notices(inventory(partitioned(0, 0, 1, 2), partitioned(1, 0)), ill))
    assert [event.message.count("gpu-0-mig-") for event in events] == [3, 0]


def test_the_first_snapshot_tells_only_of_ill_devices() -> None:
    assert told(None, inventory(gpu(0), gpu(1, health=LOST))) == [("DeviceUnhealthy", True)]


def test_a_further_reason_is_told_a_note_is_not() -> None:
    ill = inventory(gpu(0, health=SICK))
    assert told(ill, inventory(gpu(0, health=LOST))) == [("DeviceUnhealthy", True)]
    assert told(inventory(gpu(0)), inventory(gpu(0, health=DEAF))) == []


def test_a_silent_device_is_told_once() -> None:
    silent = inventory(gpu(0, health=SILENT))
    assert told(inventory(gpu(0)), silent) == [("DeviceNotAnswering", True)]
    assert told(silent, inventory(gpu(0))) == [("DeviceHealthy", False)]


def test_a_repeated_event_is_counted_each_time_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    log = EventLog(metrics)
    event = HardwareEvent("GPU-0", EventKind.XID, 13)
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            log.add(event, fatal=False)
        log.add(HardwareEvent("GPU-0", EventKind.XID, 79), fatal=True)
        assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
        monkeypatch.setattr(module, "_QUIET_SECONDS", 0.0)
        log.add(event, fatal=False)
        assert len(caplog.records) == 3
    name, labels = "gpu_dra_driver_hardware_events_total", {"kind": "xid", "fatal": "false"}
    assert metrics.registry.get_sample_value(name, labels) == 101
