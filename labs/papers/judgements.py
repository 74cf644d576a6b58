"""Judgements of published results: the publication's interval next to ours, and how they compare.

A judgement looks at both ends: a gain of 20 where 2 to 4 was published is ``stronger``, not the same. An
interval that ends at infinity stands for a sentence such as "over 10 %".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf, isnan
from typing import Final, NamedTuple

import numpy as np

NEARLY: Final = 0.1
"""A published number without a range stands for 10 % less to 10 % more."""


class Judgement(StrEnum):
    """The relation of our result to the published one."""

    AGREES = "agrees"
    """Ours is in the published interval."""
    STRONGER = "stronger"
    """Ours is beyond it, on the side of the published effect."""
    WEAKER = "weaker"
    """The effect is there, and smaller than published."""
    CONTRADICTS = "contradicts"
    """The effect is not there, or ours is outside of an interval without a better side."""
    NOT_JUDGED = "not judged"
    """The run is too small, or has no result."""
    OURS = "not published"
    """The publication says nothing about it."""


class Comparison(NamedTuple):
    """The two intervals, and the judgement."""

    low: float
    high: float
    """The publication's interval."""
    least: float
    most: float
    """Ours: over seeds, or the same number twice."""
    judgement: Judgement
    exact: bool = False
    """True if a single small run can judge it."""


OURS: Final = Comparison(-inf, inf, -inf, inf, Judgement.OURS)


def about(number: float) -> tuple[float, float]:
    """Return the interval of a published number without a range."""
    return number * (1 - NEARLY), number * (1 + NEARLY)


def judged(
    ours: float | Sequence[float],
    low: float,
    high: float,
    *,
    none: float | None = None,
    every: bool = False,
    exact: bool = False,
) -> Comparison:
    """Compare our result, or those of all seeds, with the published interval.

    Args:
        ours: a number, or one for each seed; the median decides.
        low: the lower end of the published interval.
        high: its upper end.
        none: the value that means that there is no such effect; it is outside of the interval or at its end,
            and the other side is the stronger one. None if neither side is better.
        every: True if the publication speaks of every case: then the worst of ours decides.
        exact: True if a single small run can judge it.
    """
    values = [float(value) for value in (ours if isinstance(ours, Sequence) else [ours])]
    if not values or any(isnan(value) for value in values):
        return Comparison(low, high, inf, -inf, Judgement.NOT_JUDGED, exact)
    decides = values if every else [float(np.median(values))]
    judgements = [_judge(value, low, high, none) for value in decides]
    order = (Judgement.CONTRADICTS, Judgement.WEAKER, Judgement.AGREES, Judgement.STRONGER)
    return Comparison(low, high, min(values), max(values), min(judgements, key=order.index), exact)


def judged_count(count: int, of: int) -> Comparison:
    """Compare a number of cases with "in all of them"; in none contradicts it, in some is weaker."""
    return judged(count / of, 1, 1, none=0.0) if of else judged([], 1, 1)


def _judge(value: float, low: float, high: float, none: float | None) -> Judgement:
    if none is not None and none <= low:
        if value <= none:
            return Judgement.CONTRADICTS
        stronger, weaker = value > high, value < low
    elif none is not None:
        if value >= none:
            return Judgement.CONTRADICTS
        stronger, weaker = value < low, value > high
    else:
        return Judgement.AGREES if low <= value <= high else Judgement.CONTRADICTS
    if stronger:
        return Judgement.STRONGER
    return Judgement.WEAKER if weaker else Judgement.AGREES


def interval_text(low: float, high: float) -> str:
    """Return an interval as text: one number, ``2 to 4``, ``from 2``, ``up to 4``, or nothing."""
    if low > high or (low == -inf and high == inf):
        return ""
    if low == high:
        return f"{low:.3g}"
    if high == inf:
        return f"from {low:.3g}"
    return f"up to {high:.3g}" if low == -inf else f"{low:.3g} to {high:.3g}"
