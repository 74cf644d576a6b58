"""Waiting times and completed tasks of users: Figures 5 and 6 of the SDRF paper."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from dios.fairness.allocation import Floats
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim, median
from labs.papers.judgements import about, judged, judged_count
from labs.papers.sdrf.months import BEST, FAMILY, HALF, NOTES, PAPER, Months, note_on_months
from labs.plotting import Boxes, Dots
from labs.simulate.fairness.trace_report import Comparison, compare, delta_text

COLUMNS = ("mean of users", "within the month", "mean of each", "median of each", "low half", "tasks")


def figure_5(months: Months) -> Figure:
    """Return Figure 5: the reduction of users' waiting compared with DRF."""
    scope = months.scope
    rows: list[tuple[Cell, ...]] = []
    for level in scope.levels:
        for delta in scope.deltas:
            reductions = [_reductions(months.cells(seed, level)[delta].compared) for seed in months.seeds()]
            rows.append((f"{level:.0%}", delta_text(delta), *map(median, zip(*reductions, strict=True))))
    by_seed: list[tuple[Cell, ...]] = [
        (seed, f"{level:.0%}", *_reductions(months.cells(seed, level)[BEST].compared))
        for seed in months.seeds()
        for level in scope.levels
    ]
    ends = (max(scope.levels), min(scope.levels))
    return Figure(
        number="5",
        title="Figure 5: mean wait time reduction for every user relative to DRF",
        seed=months.seed,
        quick=scope.quick,
        setting=months.setting(),
        sheets=(
            FigureTable("Reductions in percent, the median over the seeds", ("R", "delta", *COLUMNS), rows),
            FigureTable(f"Every seed, {delta_text(BEST)}", ("seed", "R", *COLUMNS), by_seed),
            _by_sum(months),
        ),
        claims=_claims_5(months),
        pictures=tuple(_boxes(months, level) for level in ends),
        notes=(
            note_on_months(scope),
            *NOTES,
            (
                "Columns: the reduction of the users' mean waiting; the same without waiting after the "
                "month's end; mean and median of every user's own reduction; the low-demand half; the mean "
                "over tasks. Positive numbers mean less waiting. Plots end at -100 %."
            ),
        ),
        family=FAMILY,
        source=PAPER,
    )


def _reductions(comparison: Comparison) -> tuple[float, ...]:
    """Return the cells under ``COLUMNS``, in percent; less waiting is positive."""
    changes = (comparison.wait_users, comparison.wait_until_end, comparison.each_mean, comparison.each_median)
    return tuple(-100.0 * change for change in (*changes, comparison.wait_low, comparison.wait_tasks))


def _by_sum(months: Months) -> FigureTable:
    """Return the table for Algorithm 1's priority; it differs if share and commitment peak apart."""
    levels = (months.scope.levels[0], months.scope.levels[-1])
    rows: list[tuple[Cell, ...]] = []
    for seed in months.seeds():
        for level in levels:
            months.progress(f"seed {seed}, {level:.0%} of R: priority by the largest sum")
            _, plain, other = months.pair(seed, level, BEST, "sum")
            rows.append((seed, f"{level:.0%}", *_reductions(compare(months.trace(seed), plain, other))))
    title = f"Every seed by the largest sum of share and commitment (Algorithm 1), {delta_text(BEST)}"
    return FigureTable(title, ("seed", "R", *COLUMNS), rows)


def _users(comparison: Comparison) -> float:
    return -comparison.wait_users


def _each_mean(comparison: Comparison) -> float:
    return -comparison.each_mean


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0%} to {max(values):.0%}"


def _claims_5(months: Months) -> tuple[PublishedClaim, ...]:
    scope = months.scope
    claims = []
    for quantity, of in (("users' mean waiting", _users), ("mean of every user's own", _each_mean)):
        medians = {
            (level, delta): median(months.over_seeds(level, delta, of))
            for level in scope.levels
            for delta in scope.deltas
        }
        at_best = [medians[level, BEST] for level in scope.levels]
        winners = {
            level: max((medians[level, delta], delta) for delta in scope.deltas)[1] for level in scope.levels
        }
        winners_text = ", ".join(f"{level:.0%}: {delta_text(delta)}" for level, delta in winners.items())
        every = [value for level in scope.levels for value in months.over_seeds(level, BEST, of)]
        enough = sum(value > 0.1 for value in every)
        claims += [
            PublishedClaim(
                "section VII, Figure 5",
                f"{quantity}: more than 10 % less for 1 - 1e-6 at every load",
                "over 10 % everywhere",
                f"{_range(at_best)} in the median seed; {enough} of {len(every)} months over 10 %",
                judged(at_best, 0.1, inf, none=0.0, every=True),
            ),
            PublishedClaim(
                "section VII, Figure 5",
                f"{quantity}: 1 - 1e-6 is best at every load",
                "1 - 1e-6 everywhere",
                winners_text,
                judged_count(sum(delta == BEST for delta in winners.values()), len(winners)),
            ),
            PublishedClaim(
                "section VII, Figure 5",
                f"{quantity}: the gain is more evident when the system is overloaded",
                "more at 50 % of R",
                f"{at_best[0]:.0%} at {scope.levels[0]:.0%}, {at_best[-1]:.0%} at {scope.levels[-1]:.0%}",
                judged(at_best[0] - at_best[-1], 0, inf, none=0.0),
            ),
            PublishedClaim(
                "section VII, Figure 5",
                f"{quantity}: as DRF for a small delta, and for one very close to 1",
                "the ends approach DRF",
                f"{_range([medians[level, scope.deltas[0]] for level in scope.levels])} at "
                f"{delta_text(scope.deltas[0])}, "
                f"{_range([medians[level, scope.deltas[-1]] for level in scope.levels])} at "
                f"{delta_text(scope.deltas[-1])}",
                judged(
                    [
                        medians[level, delta] / medians[level, winners[level]]
                        for level in scope.levels
                        for delta in (scope.deltas[0], scope.deltas[-1])
                    ],
                    -inf,
                    0.5,
                    none=1.0,
                    every=True,
                ),
            ),
        ]
    return tuple(claims)


def _boxes(months: Months, level: float) -> Boxes:
    cells = months.cells(months.seed, level)
    return Boxes(
        f"5-{level * 100:.0f}",
        f"Waiting compared with DRF, {level:.0%} of R, seed {months.seed}",
        "reduction of each user",
        {
            delta_text(delta): {"users": np.maximum(cells[delta].per_user, -1.0)}
            for delta in months.scope.deltas
        },
    )


def figure_6(months: Months) -> Figure:
    """Return Figure 6: users who complete fewer or more tasks before the month ends."""
    scope = months.scope
    rows: list[tuple[Cell, ...]] = []
    comparisons: list[Comparison] = []
    points: dict[str, tuple[Floats, Floats, Floats]] = {}
    for seed in months.seeds():
        months.progress(f"completed tasks: seed {seed}")
        trace, plain, other = months.pair(seed, HALF, BEST)
        comparison = compare(trace, plain, other)
        comparisons.append(comparison)
        rows.append(
            (
                *(seed, comparison.fewer, comparison.more, trace.users - comparison.fewer - comparison.more),
                *(100 * comparison.lost_most, int(plain.completed.sum()), int(other.completed.sum())),
            )
        )
        if seed == months.seed:
            submitted = np.maximum(np.bincount(trace.user, minlength=trace.users), 1)
            points["users"] = (
                plain.completed / submitted,
                other.completed / submitted,
                1.0 + np.log10(submitted),
            )
    return Figure(
        number="6",
        title="Figure 6: task completion ratio using DRF and SDRF, 1 - 1e-6, 50 % of R",
        seed=months.seed,
        quick=scope.quick,
        setting=months.setting(),
        sheets=(
            FigureTable(
                "Users compared with DRF",
                ("seed", "fewer", "more", "equal", "largest loss, %", "completed, DRF", "completed, SDRF"),
                rows,
            ),
        ),
        claims=_claims_6(comparisons, scope.parameters.users),
        pictures=(
            Dots("6", f"Completed fraction of submitted tasks, seed {months.seed}", "DRF", "SDRF", points),
        ),
        notes=(
            note_on_months(months.scope),
            *NOTES,
            "A task is completed when it finishes before the month ends.",
        ),
        family=FAMILY,
        source=PAPER,
    )


def _claims_6(comparisons: list[Comparison], users: int) -> tuple[PublishedClaim, ...]:
    fewer, gained = (
        [comparison.fewer / users for comparison in comparisons],
        [comparison.more for comparison in comparisons],
    )
    lost = max(comparison.lost_most for comparison in comparisons)
    ahead = sum(comparison.more > comparison.fewer for comparison in comparisons)
    return (
        PublishedClaim(
            "section VII, Figure 6",
            "users that complete fewer tasks",
            "9 of 627 (1.4 %)",
            f"{median(fewer):.1%} in the median seed, at most {max(fewer):.1%}",
            judged(fewer, *about(9 / 627), none=1.0),
        ),
        PublishedClaim(
            "section VII, Figure 6",
            "most users complete more",
            "most users",
            f"{min(gained)} to {max(gained)} of {users} users",
            judged([gainers / users for gainers in gained], 0.5, 1, none=0.0, every=True),
        ),
        PublishedClaim(
            "section VII, Figure 6",
            "more users gain tasks than lose some",
            "yes",
            f"in {ahead} of {len(comparisons)} months",
            judged_count(ahead, len(comparisons)),
        ),
        PublishedClaim(
            "section VII, Figure 6",
            "users that complete fewer lose little",
            "low impact",
            f"at most {lost:.1%} of a user's completions under DRF",
            judged(lost, 0, 0.1, none=1.0),
        ),
    )
