"""The metric catalogue, declared once as data.

Names and labels that start with `nvidia_dra_` are the peer driver's where they mean the same. No
label holds a claim, Pod or UUID: label sets are closed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge", "histogram"]
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, kind, meaning and labels."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    zero: tuple[Mapping[str, str], ...] = field(default=())  # series that exist from the start


_LEFT_OUT: Final = (
    "invalid",
    "refused",
    "unhealthy",
    "held",
    "held-back",
    "no-counters",
    "foreign",
    "not-shared",
)
_OPERATIONS: Final = ({"operation": "prepare"}, {"operation": "unprepare"})

CATALOGUE: Final[tuple[Metric, ...]] = (
    Metric(
        "nvidia_dra_requests_total",
        "counter",
        "Claims that the kubelet asked to prepare or unprepare, by result.",
        ("operation", "result"),
        tuple({**op, "result": result} for op in _OPERATIONS for result in ("ok", "error")),
    ),
    Metric(
        "nvidia_dra_request_duration_seconds",
        "histogram",
        "Time from the kubelet's call to the answer.",
        ("operation",),
        _OPERATIONS,
    ),
    Metric(
        "nvidia_dra_requests_inflight",
        "gauge",
        "Calls of the kubelet that are being worked on.",
        ("operation",),
        _OPERATIONS,
    ),
    Metric(
        "nvidia_dra_node_prepare_errors_total",
        "counter",
        "Claims that could not be prepared, by reason word.",
        ("error_type",),
    ),
    Metric(
        "nvidia_dra_node_unprepare_errors_total",
        "counter",
        "Claims that could not be unprepared, by reason word.",
        ("error_type",),
    ),
    Metric(
        "nvidia_dra_prepared_devices",
        "gauge",
        "Devices that claims hold on this node, by type.",
        ("device_type",),
        ({"device_type": "gpu"}, {"device_type": "mig"}),
    ),
    Metric(
        "gpu_dra_driver_step_duration_seconds",
        "histogram",
        "Time that one step of Prepare or Unprepare took.",
        ("operation", "step"),
    ),
    Metric(
        "gpu_dra_driver_devices",
        "gauge",
        "Devices found on this node, by type and health.",
        ("device_type", "health"),
        tuple(
            {"device_type": kind, "health": health}
            for kind in ("gpu", "mig")
            for health in ("healthy", "unhealthy", "unknown")
        ),
    ),
    Metric(
        "gpu_dra_driver_hardware_events_total",
        "counter",
        "Events that NVML told of, by kind, and whether the hardware was to blame.",
        ("kind", "fatal"),
        tuple(
            {"kind": kind, "fatal": fatal}
            for kind in ("xid", "ecc", "other")
            for fatal in ("true", "false")
        ),
    ),
    Metric(
        "gpu_dra_driver_discovery_problems",
        "gauge",
        "Things that the last look at the hardware could not find out.",
    ),
    Metric(
        "gpu_dra_driver_nvml_ready",
        "gauge",
        "1 while NVML answers, 0 while it is looked for.",
    ),
    Metric(
        "gpu_dra_driver_published",
        "gauge",
        "1 while the API server has the slices that this node wants, else 0.",
    ),
    Metric(
        "gpu_dra_driver_publisher",
        "gauge",
        "1 after this instance has published, 0 while a newer one on this node does.",
    ),
    Metric(
        "gpu_dra_driver_publish_writes_total",
        "counter",
        "Writes of ResourceSlices, by verb and result.",
        ("verb", "result"),
    ),
    Metric(
        "gpu_dra_driver_left_out",
        "gauge",
        "Devices and values of devices that are not published, by reason.",
        ("reason",),
        tuple({"reason": reason} for reason in _LEFT_OUT),
    ),
    Metric(
        "gpu_dra_driver_config_valid",
        "gauge",
        "1 while the configuration counts as it stands, 0 while an earlier content or entry does.",
    ),
    Metric(
        "gpu_dra_driver_config_chosen",
        "gauge",
        "1 for that by which the configuration in force was chosen, else 0.",
        ("by",),
        tuple({"by": by} for by in ("file", "label", "default", "named", "single", "empty")),
    ),
    Metric(
        "gpu_dra_driver_other_allocator",
        "gauge",
        "1 while a device plugin on this Node gives out GPUs too, else 0.",
    ),
    Metric(
        "gpu_dra_driver_claim_status_writes_total",
        "counter",
        "Tries to write what was made for a claim into its status, by result.",
        ("result",),
        tuple(
            {"result": result}
            for result in (
                "written",
                "gone",
                "forbidden",
                "unavailable",
                "refused",
                "ignored",
                "dropped",
            )
        ),
    ),
    Metric(
        "gpu_dra_driver_layouts",
        "gauge",
        "GPUs that a layout concerns, by how far it is.",
        ("state",),
        tuple({"state": state} for state in ("applied", "waiting", "failed")),
    ),
    Metric(
        "gpu_dra_driver_mps_sets",
        "gauge",
        "Sets of devices that claims share by MPS, by how their control daemon is.",
        ("state",),
        tuple({"state": state} for state in ("starting", "ready", "silent", "down")),
    ),
    Metric(
        "gpu_dra_driver_mps_interruptions_total",
        "counter",
        "Control daemons of MPS that ended while claims had them.",
    ),
    Metric(
        "gpu_dra_driver_registered",
        "gauge",
        "1 after the kubelet has accepted this plugin, else 0.",
    ),
    Metric(
        "gpu_dra_driver_records_set_aside",
        "gauge",
        "Damaged claim records that were kept aside and need a look.",
    ),
    Metric(
        "gpu_dra_driver_fsyncs_total",
        "counter",
        "Times that this process waited for the disk.",
    ),
    Metric(
        "gpu_dra_driver_programs_total",
        "counter",
        "Programs of the GPU driver that this process ran, such as nvidia-smi.",
    ),
)


class _Followed(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, metric: Metric, read: Callable[[], float]) -> None:
        self._metric = metric
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Give its value now."""
        yield CounterMetricFamily(self._metric.name, self._metric.text, self._read())


class Metrics:
    """A catalogue's metrics in a registry of their own."""

    def __init__(self, catalogue: Sequence[Metric] = CATALOGUE) -> None:
        """Declare them; the node plugin's unless told otherwise."""
        self._catalogue = catalogue
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._updates: list[Callable[[], None]] = []
        for metric in catalogue:
            self._declare(metric)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Raise or lower a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).inc(amount)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Record a duration."""
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(seconds)

    def follow(self, name: str, read: Callable[[], float]) -> None:
        """Let a counter without labels show what `read` gives, instead of counting by itself."""
        metric = next(metric for metric in self._catalogue if metric.name == name)
        self.registry.unregister(self._counters.pop(name))
        self.registry.register(_Followed(metric, read))

    def before_exposition(self, update: Callable[[], None]) -> None:
        """Call `update` before metrics are read, to set what would be wasteful to keep up."""
        self._updates.append(update)

    @contextmanager
    def timed(self, operation: str, step: str) -> Iterator[None]:
        """Record how long one step of Prepare or Unprepare takes, whether it succeeds or not."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            name = "gpu_dra_driver_step_duration_seconds"
            self.observe(name, seconds, operation=operation, step=step)

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        for update in self._updates:
            update()
        return generate_latest(self.registry)

    def _declare(self, metric: Metric) -> None:
        if metric.kind == "counter":
            name = metric.name.removesuffix("_total")
            counter = Counter(name, metric.text, metric.labels, registry=self.registry)
            self._counters[metric.name] = counter
            made: Counter | Gauge | Histogram = counter
        elif metric.kind == "gauge":
            made = Gauge(metric.name, metric.text, metric.labels, registry=self.registry)
            self._gauges[metric.name] = made
        else:
            made = Histogram(
                metric.name, metric.text, metric.labels, registry=self.registry, buckets=_SECONDS
            )
            self._histograms[metric.name] = made
        for labels in metric.zero:
            made.labels(**labels)
