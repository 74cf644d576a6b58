from __future__ import annotations

from dios.lib.jobs.speculation import MapperProgress, slowest
from dios.limits import JOB_COPY_AFTER_MS

LONG = 2 * JOB_COPY_AFTER_MS / 1000
"""Seconds after which every mapper is judged."""


def test_the_slow_mapper_that_ends_last_is_chosen() -> None:
    """Of two that are slower than the others, the one with more time left; a stuck one before both."""
    running = [MapperProgress(1, 0.2, LONG), MapperProgress(2, 0.1, LONG)]
    assert slowest(running, [LONG] * 6) == 2
    assert slowest([*running, MapperProgress(3, 0.0, LONG)], [LONG] * 9) == 3


def test_equal_mappers_are_not_copied() -> None:
    """Nor is a single one, or any of few: there is nothing to compare it with."""
    assert slowest([MapperProgress(number, 0.3, LONG) for number in range(8)], []) is None
    assert slowest([MapperProgress(0, 0.0, LONG)], []) is None
    assert slowest([], []) is None
    assert slowest([MapperProgress(0, 0.0, LONG)], [1.0, 1.0]) is None


def test_a_mapper_that_has_just_begun_is_not_judged() -> None:
    """It may still be loading its code."""
    assert slowest([MapperProgress(0, 0.0, LONG / 3)], [1.0] * 9) is None


def test_a_mapper_that_ends_before_its_copy_is_not_copied() -> None:
    """It is slow, and almost done."""
    assert slowest([MapperProgress(0, 0.9, 5 * LONG)], [LONG] * 9) is None
    assert slowest([MapperProgress(0, 0.2, 5 * LONG)], [LONG] * 9) == 0
