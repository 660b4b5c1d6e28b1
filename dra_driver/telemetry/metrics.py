"""The metrics of one process, as its catalogue declares them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dra_driver.telemetry.catalogue import CATALOGUE, Metric

_Made: TypeAlias = Counter | Gauge | Histogram


class _Followed(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, metric: Metric, read: Callable[[], float]) -> None:
        self._metric = metric
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Give its value now."""
        yield CounterMetricFamily(self._metric.name, self._metric.text, self._read())


class _Together(Collector):
    """A gauge whose series are set all at once: no reader sees some of them."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self.series: Mapping[tuple[str, ...], float] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give the series that were set last."""
        metric = self._metric
        family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
        for values, value in self.series.items():
            family.add_metric(values, value)
        yield family


class Metrics:
    """A catalogue's metrics in a registry of their own."""

    def __init__(
        self, catalogue: Sequence[Metric] = CATALOGUE, *, driver: str = "", node: str = ""
    ) -> None:
        """Declare them; the node plugin's unless told otherwise.

        Labels `driver` and `node` have these values wherever a metric has such a label.
        """
        # Else each has a series more, which is in no catalogue.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._catalogue = catalogue
        self._same = {"driver": driver, "node": node}
        self._labels = {metric.name: metric.labels for metric in catalogue}
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._together: dict[str, _Together] = {}
        self._updates: list[Callable[[], None]] = []
        for metric in catalogue:
            self._declare(metric)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        labels = self._all_labels(name, labels)
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        labels = self._all_labels(name, labels)
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def set_all(self, name: str, series: Mapping[tuple[str, ...], float]) -> None:
        """Set all series of a gauge that come and go, by their labels' values in order."""
        self._together[name].series = dict(series)

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Raise or lower a gauge."""
        labels = self._all_labels(name, labels)
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).inc(amount)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Record a duration."""
        labels = self._all_labels(name, labels)
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
        """Record how long one step of Prepare or Unprepare takes, and whether it succeeds."""
        begin = time.perf_counter()
        result = "error"
        try:
            yield
            result = "ok"
        finally:
            self.observe(
                "gpu_dra_driver_step_duration_seconds",
                time.perf_counter() - begin,
                operation=operation,
                step=step,
                result=result,
            )

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        for update in self._updates:
            update()
        return generate_latest(self.registry)

    def _all_labels(self, name: str, labels: dict[str, str]) -> dict[str, str]:
        """Labels with those that are the same in all series of this process."""
        same = {label: self._same[label] for label in self._labels[name] if label in self._same}
        return same | labels if same else labels

    def _declare(self, metric: Metric) -> None:
        if metric.comes_and_goes:
            self._together[metric.name] = _Together(metric)
            self.registry.register(self._together[metric.name])
            return
        made = self._made(metric)
        for labels in metric.zero:
            made.labels(**self._all_labels(metric.name, dict(labels)))

    def _made(self, metric: Metric) -> _Made:
        """Make a metric and keep it under its kind."""
        name, text, labels = metric.name, metric.text, metric.labels
        if metric.kind == "counter":
            counter = Counter(name.removesuffix("_total"), text, labels, registry=self.registry)
            self._counters[name] = counter
            return counter
        if metric.kind == "gauge":
            gauge = Gauge(name, text, labels, registry=self.registry)
            self._gauges[name] = gauge
            return gauge
        histogram = Histogram(name, text, labels, registry=self.registry, buckets=metric.buckets)
        self._histograms[name] = histogram
        return histogram
