"""The verdict on a soak: which series are flat at the quiet points, and which grow."""

from __future__ import annotations

import enum
import itertools
import statistics
from typing import Annotated, Final

import msgspec

WARM_UP_SHARE: Final = 0.5
WARM_UP_S: Final = 150.0
"""The slope ignores the quiet points in this share of the run, and in its first ``WARM_UP_S`` seconds:
caches fill and each higher peak of the load leaves memory in allocators. A leak grows in the second half,
too.
"""

POINTS_MIN: Final = 4
"""The minimum number of quiet points for a slope."""

GROWTH_SHARE: Final = 0.03
"""The allowed growth of a series over all judged quiet points, relative to its size."""

RATE_SHARE: Final = 0.10
"""The allowed growth of a rate (bytes per record) over them."""


class SeriesRule(enum.StrEnum):
    """The rule by which a series is judged."""

    EXACT = "the same at every quiet point"
    FLAT = "no slope"
    RATE = "in proportion"
    SHOWN = "not judged"


class Series(msgspec.Struct, frozen=True):
    """A series of measurements; ``slack`` is the growth that is always allowed, in its unit."""

    name: str
    unit: str
    rule: SeriesRule
    slack: float = 0.0
    per: str = ""
    """For a rate: the series by which it is divided; both as growth from one quiet point to the next."""
    scale: float = 1.0


class Point(msgspec.Struct):
    """One sample: seconds since the start, True for a quiet point, and the values by name."""

    at_s: float
    quiet: bool
    values: dict[str, float]


class SeriesFinding(msgspec.Struct):
    """The verdict on one series; ``grows`` is None if it could not be judged."""

    series: Series
    first: float
    last: float
    slope_per_minute: float
    allowed_per_minute: float
    grows: bool | None
    text: str


SERIES: Final = (
    Series("daemon own memory", "MB", SeriesRule.FLAT, 2.0),
    Series("daemon shared memory", "MB", SeriesRule.FLAT, 16.0),
    Series("daemon PSS", "MB", SeriesRule.FLAT, 8.0),
    Series("zygote own memory", "MB", SeriesRule.FLAT, 0.5),
    Series("zygote PSS", "MB", SeriesRule.FLAT, 0.5),
    Series("daemon descriptors", "", SeriesRule.FLAT, 8),
    Series("zygote descriptors", "", SeriesRule.FLAT, 1),
    Series("memfds", "", SeriesRule.FLAT, 8),
    Series("sockets", "", SeriesRule.EXACT),
    Series("daemon threads", "", SeriesRule.FLAT, 2),
    Series("daemon mappings", "", SeriesRule.FLAT, 24),
    Series("processes", "", SeriesRule.EXACT),
    Series("cgroup folders", "", SeriesRule.EXACT),
    Series("node: tasks", "", SeriesRule.EXACT),
    Series("node: sessions", "", SeriesRule.EXACT),
    Series("node: buffers", "", SeriesRule.EXACT),
    Series("node: waiting", "", SeriesRule.EXACT),
    Series("node: objects", "", SeriesRule.FLAT, 4),
    Series("node: names", "", SeriesRule.FLAT, 4),
    Series("node: references", "", SeriesRule.FLAT, 4),
    Series("rows", "", SeriesRule.EXACT),
    Series("extents of rows", "", SeriesRule.EXACT),
    Series("extent files", "", SeriesRule.EXACT),
    Series("extent bytes", "MB", SeriesRule.EXACT),
    Series("database pages", "", SeriesRule.FLAT, 64),
    Series("database bytes", "MB", SeriesRule.FLAT, 0.5),
    Series("audit bytes", "MB", SeriesRule.SHOWN),
    Series("audit records", "", SeriesRule.SHOWN),
    Series("audit bytes a record", "B", SeriesRule.RATE, 4, "audit bytes/audit records", 1e6),
    Series("audit records an operation", "", SeriesRule.SHOWN, per="audit records/operations"),
    Series("log bytes", "MB", SeriesRule.SHOWN),
    Series("log bytes an operation", "B", SeriesRule.RATE, 1.0, "log bytes/operations", 1e6),
    Series("shared memory files", "MB", SeriesRule.FLAT, 1.0),
    Series("temporary files", "", SeriesRule.EXACT),
    Series("operations", "", SeriesRule.SHOWN),
)


def judge(points: list[Point]) -> list[SeriesFinding]:
    """Return a finding for each series with values at quiet points."""
    quiet = [point for point in points if point.quiet]
    cold = sum(point.at_s < WARM_UP_S for point in quiet)
    skipped = max(int(len(quiet) * WARM_UP_SHARE), cold)
    findings = []
    for series in SERIES:
        values = _values(series, quiet)
        if values:
            findings.append(_judge(series, values, values[min(skipped, len(values) - 1) :]))
    return findings


def _values(series: Series, quiet: list[Point]) -> list[tuple[float, float]]:
    """Return minutes and values at the quiet points; for a rate, over the time before each point."""
    if not series.per:
        return [(p.at_s / 60, p.values[series.name]) for p in quiet if series.name in p.values]
    above, _, below = series.per.partition("/")
    slopes = []
    for before, after in itertools.pairwise(quiet):
        more = after.values.get(below, 0.0) - before.values.get(below, 0.0)
        if more > 0:
            rise = after.values[above] - before.values[above]
            slopes.append((after.at_s / 60, rise / more * series.scale))
    return slopes


def _judge(
    series: Series, every: list[tuple[float, float]], judged: list[tuple[float, float]]
) -> SeriesFinding:
    first, last = judged[0][1], judged[-1][1]
    if series.rule is SeriesRule.EXACT:
        seen = {round(value, 6) for _, value in every}
        same = len(seen) == 1
        text = "the same at every quiet point" if same else f"between {min(seen):g} and {max(seen):g}"
        return SeriesFinding(series, first, last, slope(every), 0.0, not same, text)
    per_minute = slope(judged)
    if series.rule is SeriesRule.SHOWN:
        text = "depends on the load" if series.per else "grows with the load"
        return SeriesFinding(series, first, last, per_minute, 0.0, False, text)
    minutes = judged[-1][0] - judged[0][0]
    if len(judged) < POINTS_MIN or minutes <= 0:
        return SeriesFinding(series, first, last, per_minute, 0.0, None, "too few quiet points")
    share = RATE_SHARE if series.rule is SeriesRule.RATE else GROWTH_SHARE
    level = statistics.median(value for _, value in judged)
    allowed = max(series.slack, share * level) / minutes
    grows = per_minute > allowed
    text = f"grows by {per_minute:.3g} {series.unit} per minute".replace("  ", " ") if grows else "flat"
    return SeriesFinding(series, first, last, per_minute, allowed, grows, text)


def slope(values: list[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs (Theil-Sen), which is robust against outliers."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(values, 2) if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


class Soak(msgspec.Struct):
    """One run: its options, its findings, and its samples."""

    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    load: dict[str, float]
    seconds: float
    complete: bool
    operations: dict[str, int]
    disturbances: dict[str, int]
    endings: dict[str, int]
    log: dict[str, int]
    findings: list[SeriesFinding]
    troubles: list[str]
    points: list[Point]
    format: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1

    @property
    def good(self) -> bool:
        """Return True if nothing grew, nothing was wrong and nothing was left behind."""
        return not self.troubles and not any(finding.grows for finding in self.findings)
