"""Turns readings into the text format of Prometheus, with its client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dios.node.metrics.family import Kind, MetricForm, Reading
from dios.node.metrics.registry import FAMILIES


class ReadingsCollector(Collector):
    """The readings of one moment, as the client library wants them. Skips metrics of unknown names."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings: Final = tuple(readings)

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all its values."""
        by_metric: dict[str, list[Reading]] = {}
        for reading in self._readings:
            by_metric.setdefault(reading.metric, []).append(reading)
        for metric, family in FAMILIES.items():
            if metric in by_metric:
                yield _family(metric, family, by_metric[metric])


def _family(metric: str, family: MetricForm, readings: Iterable[Reading]) -> Metric:
    scale = family.scale
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric, family.help, labels=family.labels)
        for reading in readings:
            buckets = [
                ("+Inf" if bound == float("inf") else f"{bound * scale:g}", count)
                for bound, count in reading.buckets
            ]
            histogram.add_metric(_values(family, reading), buckets, reading.value * scale)
        return histogram
    metric_class = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    collected = metric_class(metric, family.help, labels=family.labels)
    for reading in readings:
        collected.add_metric(_values(family, reading), reading.value * scale)
    return collected


def _values(family: MetricForm, reading: Reading) -> list[str]:
    return [reading.labels.get(label, "") for label in family.labels]


def text_of(readings: Iterable[Reading]) -> str:
    """Return the readings in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingsCollector(readings))
    return generate_latest(registry).decode()
