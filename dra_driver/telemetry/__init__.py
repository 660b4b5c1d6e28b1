"""What this driver tells about itself: logs with an operation id, metrics, events, probes."""

from dra_driver.telemetry.events import Event, EventQueue
from dra_driver.telemetry.logs import Logger, logger, operation, operation_id, set_up_logging
from dra_driver.telemetry.metrics import CATALOGUE, Metric, Metrics

__all__ = [
    "CATALOGUE",
    "Event",
    "EventQueue",
    "Logger",
    "Metric",
    "Metrics",
    "logger",
    "operation",
    "operation_id",
    "set_up_logging",
]
