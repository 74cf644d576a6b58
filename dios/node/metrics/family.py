"""A metric: its type, its labels, its meaning, and the function that reads its values from a source.

Names follow Prometheus' conventions: base units, and ``_total`` for numbers that only grow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

S = TypeVar("S")
NANO: Final = 1e-9

Value: TypeAlias = tuple[tuple[str, ...], float | str]
"""The labels' values and the metric's value; a histogram's is the words of its sum and its buckets."""


class Kind(enum.Enum):
    """The types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricForm:
    """A metric as it is shown. Values are multiplied by ``scale``."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = field(default=(), kw_only=True)
    scale: float = field(default=1.0, kw_only=True)


@dataclass(frozen=True)
class Family(MetricForm, Generic[S]):
    """A metric that ``read`` reads from a source of type ``S``."""

    read: Callable[[S], Iterable[Value]]


class Reading(NamedTuple):
    """One value of a metric, or the values of one histogram.

    ``buckets`` are pairs of an upper bound and the number of values up to it; ``value`` is then their sum.
    """

    metric: str
    labels: Mapping[str, str]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


def single(read: Callable[[S], float | None]) -> Callable[[S], Iterator[Value]]:
    """Return the reader of a metric without labels; None means that it has no value now."""

    def read_values(source: S) -> Iterator[Value]:
        number = read(source)
        if number is not None:
            yield (), number

    return read_values


def labelled(read: Callable[[S], Iterable[tuple[str, float]]]) -> Callable[[S], Iterator[Value]]:
    """Return the reader of a metric with one label, from pairs of its value and the number."""

    def read_values(source: S) -> Iterator[Value]:
        for label, number in read(source):
            yield (label,), number

    return read_values


def readings(families: Mapping[str, Family[S]], source: S) -> Iterator[Reading]:
    """Return the values of all metrics of one source; none of them is a histogram."""
    for metric, family in families.items():
        for labels, value in family.read(source):
            yield Reading(metric, dict(zip(family.labels, labels, strict=True)), float(value))
