"""What this driver tells about itself: logs with an operation id, metrics, events, probes."""

from dra_driver.telemetry.catalogue import (
    CATALOGUE,
    DEVICE_STATES,
    DEVICE_TYPES,
    GROUPS,
    Metric,
    series,
)
from dra_driver.telemetry.events import Event, EventQueue
from dra_driver.telemetry.logs import Logger, logger, operation, operation_id, set_up_logging
from dra_driver.telemetry.metrics import Metrics

__all__ = [
    "CATALOGUE",
    "DEVICE_STATES",
    "DEVICE_TYPES",
    "GROUPS",
    "Event",
    "EventQueue",
    "Logger",
    "Metric",
    "Metrics",
    "logger",
    "operation",
    "operation_id",
    "series",
    "set_up_logging",
]
