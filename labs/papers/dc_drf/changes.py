"""DC-DRF while demands and deadlines change: Figure 11 of the DC-DRF paper."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

import numpy as np

from dios.fairness.dc_drf.allocator import DcDrf
from labs.papers.dc_drf.clouds import FAMILY, MAIN, PAPER, Clouds, clock_for, exact_s
from labs.papers.dc_drf.deadlines import NOTES
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import judged, judged_count
from labs.plotting import Lines
from labs.simulate.fairness.generate_demands import Csr

INTERVALS: Final = 90
JUMP, LONGER, BACK = 30, 50, 70
"""Intervals of these changes: half of the tenants by up to half, the deadline up by a quarter, and back."""
PART: Final = 0.8
"""The deadline as a fraction of the time for new demands and all rounds with epsilon 0."""
FEW, A_LITTLE, HALF = 0.05, 0.05, 0.5


class IntervalResult(NamedTuple):
    """One control interval."""

    deadline_s: float
    seconds: float
    epsilon: float
    completed: bool
    rounds: int


def figure_11(clouds: Clouds) -> Figure:
    """Return Figure 11: epsilon and time, interval by interval."""
    steps, whole = _run_intervals(clouds)
    phases = ((0, JUMP), (JUMP, LONGER), (LONGER, BACK), (BACK, len(steps)))
    rows: list[tuple[Cell, ...]] = []
    for (first, last), change in zip(
        phases, ("start", "half changed by up to half", "deadline + 25 %", "deadline as before"), strict=True
    ):
        part = steps[first:last]
        steady_state = part[len(part) // 2 :]
        rows.append(
            (
                *(f"{first + 1} to {last}: {change}", part[0].deadline_s * 1000),
                *(float(np.median([step.epsilon for step in steady_state])), part[0].epsilon),
                *(max(step.epsilon for step in steady_state), sum(not step.completed for step in part)),
                *(
                    float(np.median([step.seconds for step in steady_state])) * 1000,
                    float(np.median([step.rounds for step in steady_state])),
                ),
            )
        )
    return Figure(
        number="11",
        title="Figure 11: adapting to variable demand or deadline",
        seed=clouds.seed,
        quick=clouds.size.quick,
        setting=(
            *clouds.setting(),
            ("exact shares", f"{whole * 1000:.0f} ms of CPU time for new demands and all rounds, one thread"),
            ("demands", "5 % of the tenants change by up to 5 % in each interval"),
        ),
        sheets=(
            FigureTable(
                "By phase; medians and maxima of its second half",
                (
                    *("intervals", "deadline, ms", "epsilon", "first epsilon", "largest epsilon"),
                    *("late", "interval, ms", "rounds"),
                ),
                rows,
            ),
        ),
        claims=_claims(rows, steps),
        pictures=_pictures(steps),
        notes=(
            *NOTES[:1],
            (
                "Reading new demands is part of the interval here and counts towards the deadline. After a "
                "change of the deadline the search starts with the last epsilon."
            ),
        ),
        measured=True,
        family=FAMILY,
        options=clouds.size.options,
        source=PAPER,
    )


def _pictures(steps: list[IntervalResult]) -> tuple[Lines, ...]:
    return (
        Lines(
            *("11a", "Epsilon by control interval", "interval", "epsilon"),
            {"epsilon": (range(1, len(steps) + 1), [step.epsilon for step in steps])},
        ),
        Lines(
            *("11b", "Time and deadline by control interval", "interval", "ms"),
            {
                name: (range(1, len(steps) + 1), values)
                for name, values in (
                    ("interval", [1000 * step.seconds for step in steps]),
                    ("deadline", [1000 * step.deadline_s for step in steps]),
                )
            },
        ),
    )


def _run_intervals(clouds: Clouds) -> tuple[list[IntervalResult], float]:
    """Return every interval, and the time that exact shares of new demands take."""
    rng = np.random.default_rng(clouds.seed)
    demands = clouds.cloud(MAIN).demands
    clock = clock_for(1)
    whole = exact_s(demands, 1, lambda: _changed(demands, FEW, A_LITTLE, rng))
    deadline = PART * whole
    sharing = DcDrf(demands, deadline_s=deadline, threads=1, clock=clock)
    steps = []
    count = INTERVALS if not clouds.size.quick else BACK + 4
    for number in range(count):
        clouds.progress(f"control interval {number + 1} of {count}")
        demands = _changed(demands, FEW, A_LITTLE, rng)
        if number == JUMP:
            demands = _changed(demands, HALF, HALF, rng)
        if number in {LONGER, BACK}:
            deadline *= 1.25 if number == LONGER else 0.8
            sharing = DcDrf(demands, deadline_s=deadline, threads=1, epsilon=sharing.epsilon, clock=clock)
        began = clock()
        allocation = sharing.interval(demands)
        steps.append(
            IntervalResult(
                deadline, clock() - began, allocation.epsilon, allocation.completed, allocation.rounds
            )
        )
    return steps, whole


def _changed(demands: Csr, share: float, most: float, rng: np.random.Generator) -> Csr:
    """Return demands in which some tenants demand up to ``most`` more or less of each of their resources."""
    offsets, resources, values, size = demands
    chosen = rng.random(offsets.size - 1) < share
    factors = rng.uniform(1.0 - most, 1.0 + most, values.size).astype(np.float32)
    factors[~np.repeat(chosen, np.diff(offsets))] = 1.0
    return offsets, resources, values * factors, size


def _claims(rows: list[tuple[Cell, ...]], steps: list[IntervalResult]) -> tuple[PublishedClaim, ...]:
    before, after, longer, back = (float(row[2]) for row in rows)
    late = sum(not step.completed for step in steps)
    return (
        PublishedClaim(
            "section 5.6, Figure 11",
            "the first interval has epsilon 0 and ends at the deadline",
            "yes",
            f"epsilon {steps[0].epsilon:g}, {'completed' if steps[0].completed else 'timed out'}",
            judged_count(steps[0].epsilon == 0 and not steps[0].completed, 1),
        ),
        PublishedClaim(
            "section 5.6, Figure 11",
            "an abrupt change of half of the demands is absorbed by a minor adjustment",
            "minor",
            f"epsilon {before:.2g} before, {after:.2g} after",
            judged(after, 0, max(10 * before, 1e-3)),
        ),
        PublishedClaim(
            "section 5.6, Figure 11",
            "a longer deadline lowers epsilon, and its return raises it again",
            "yes",
            f"{after:.2g} -> {longer:.2g} -> {back:.2g}",
            judged(min(after, back) - longer, 0, inf),
        ),
        PublishedClaim(
            "section 5.6, Figure 11",
            "most intervals complete just within the deadline",
            "most",
            f"{len(steps) - late} of {len(steps)}",
            judged(1 - late / len(steps), 0.5, 1, none=0.0),
        ),
    )
