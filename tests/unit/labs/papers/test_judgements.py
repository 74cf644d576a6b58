"""Judgements of published results: both ends of an interval count."""

from __future__ import annotations

from math import inf, nan

import pytest

from labs.papers.judgements import Judgement, about, interval_text, judged, judged_count


@pytest.mark.parametrize(
    ("ours", "low", "high", "none", "expected"),
    [
        (20.3, 2, 4, 1.0, "stronger"),
        (3.0, 2, 4, 1.0, "agrees"),
        (1.5, 2, 4, 1.0, "weaker"),
        (1.0, 2, 4, 1.0, "contradicts"),
        (28.8, 12, 17.9, 0.0, "stronger"),
        (476e-6, *about(15.4), inf, "stronger"),
        (15.0, *about(15.4), inf, "agrees"),
        (60.0, *about(15.4), inf, "weaker"),
        (0.5, 0, 1, 1.0, "agrees"),
        (1.2, 0, 1, 1.0, "contradicts"),
        (0.2, 0, inf, 0.0, "agrees"),
        (0.0, 0, inf, 0.0, "contradicts"),
        (1, 0, 0, None, "contradicts"),
        (0, 0, 0, None, "agrees"),
        (0.53, 0.48, 0.52, None, "contradicts"),
        (nan, 0, 1, None, "not judged"),
    ],
)
def test_a_number_has_its_place(
    ours: float, low: float, high: float, none: float | None, expected: str
) -> None:
    """In the interval it agrees; beyond it, on the effect's side, it is stronger; without effect no."""
    verdict = judged(ours, low, high, none=none)
    assert verdict.judgement == expected
    assert verdict[:2] == (low, high)


def test_the_median_of_seeds_decides_and_where_every_case_is_meant_the_worst() -> None:
    """One weak seed of three changes nothing, unless the publication speaks of every case."""
    seeds = [0.25, 0.3, 0.31]
    assert judged(seeds, 0.29, 0.32, none=0.0).judgement is Judgement.AGREES
    assert judged(seeds, 0.29, 0.32, none=0.0, every=True).judgement is Judgement.WEAKER
    assert judged([-0.1, *seeds], 0.29, 0.32, none=0.0, every=True).judgement is Judgement.CONTRADICTS
    assert judged([0.4, 0.5], 0.29, 0.32, none=0.0, every=True).judgement is Judgement.STRONGER
    assert judged(seeds, 0.29, 0.32)[2:4] == (0.25, 0.31)


def test_counts_of_cases() -> None:
    """In all cases it agrees, in some it is weaker, in none it contradicts; without cases nothing is said."""
    judgements = [judged_count(count, 3).judgement for count in (3, 2, 0)]
    assert judgements == [Judgement.AGREES, Judgement.WEAKER, Judgement.CONTRADICTS]
    assert judged_count(0, 0).judgement is Judgement.NOT_JUDGED


def test_intervals_are_shown() -> None:
    """With both ends, one, or none."""
    ends = [(2, 4), (0.1, inf), (-inf, 0.5), (5, 5), (-inf, inf), (inf, -inf)]
    assert [interval_text(*pair) for pair in ends] == ["2 to 4", "from 0.1", "up to 0.5", "5", "", ""]
