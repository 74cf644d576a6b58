"""The 99th percentile of round trips: Figure 3.8 of the thesis."""

from __future__ import annotations

from math import inf
from typing import Final

from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.judgements import about, judged
from labs.papers.sprayer.runs import (
    BOTH,
    FAMILY,
    LOAD,
    NOTES,
    RSS,
    SPRAY,
    SprayerRuns,
    mean,
    middle_and_ends,
    ratios,
    times,
)
from labs.plotting import Lines

_LARGEST_US: Final = 15.0
"""Section 3.1: a window of 150 microseconds is ten times the largest delay."""
_HOW: Final = (
    "As in the thesis, a frame passes the function once and returns to the clock that measures: the sender "
    "reads the clock before it sends, and the kernel's arrival time on the right is from the same clock. "
    "Frames are sent one by one, at intervals that the kernel's timers allow, so some are sent close "
    "together. With spraying, workers on both processors precede the sender, which then sends less than "
    "70 %; RSS then gets the rate that spraying had. The table shows it."
)


def figure_8(runs: SprayerRuns) -> Figure:
    """Return Figure 3.8: delays of one flow at 70 % of the lower rate, by cycles."""
    scope = runs.scope
    delays_by_cycles = {
        cycles: [runs.delays(cycles, seed) for seed in runs.seeds()] for cycles in scope.cycles
    }
    delays_by_key = {
        (steer, cycles): [by_steer[steer] for by_steer in delays_by_cycles[cycles]]
        for cycles in scope.cycles
        for steer in BOTH
    }
    late = {key: [delay.p99 for delay in delays] for key, delays in delays_by_key.items()}
    rows: list[tuple[Cell, ...]] = []
    order: list[tuple[Cell, ...]] = []
    for (steer, cycles), delays in delays_by_key.items():
        rates = [delay.frames_s for delay in delays]
        lost = 100 * max(delay.lost for delay in delays)
        middle = mean([delay.median for delay in delays])
        rows.append((cycles, steer, mean(rates) / 1e3, middle, *middle_and_ends(late[steer, cycles]), lost))
        parts = ([delay.late for delay in delays], [delay.late_by_three for delay in delays])
        order.append((cycles, steer, *(100 * mean(part) for part in parts)))
    columns = ("cycles", "steering", "thousand/s", "median", "99 %: mean", "least", "most", "lost %")
    shown = {steer: (scope.cycles, [mean(late[steer, amount]) for amount in scope.cycles]) for steer in BOTH}
    return Figure(
        number="3.8",
        title=f"Figure 3.8: 99th percentile round trip of one flow at up to {LOAD:.0%} load",
        seed=runs.seed,
        quick=scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable("Microseconds from sending to arrival, frames of 64 bytes", columns, rows),
            FigureTable(
                "The same frames: out of order, %, relative to the order of sending",
                ("cycles", "steering", "after a later frame", "after three or more"),
                order,
            ),
        ),
        claims=_claims(late, max(scope.cycles)),
        pictures=(
            Lines(
                *("3.8", f"One flow at up to {LOAD:.0%} of the lower rate", "cycles per frame"),
                *("99th percentile, microseconds", shown),
            ),
        ),
        notes=(*NOTES, _HOW),
        measured=True,
        family=FAMILY,
        options=runs.options,
    )


def _claims(late: dict[tuple[str, int], list[float]], most: int) -> tuple[PublishedClaim, ...]:
    gain = ratios(late[SPRAY, most], late[RSS, most])
    largest = max(max(delays) for delays in late.values())
    return (
        PublishedClaim(
            "section 3.4, Figure 3.8",
            f"{most:,} cycles: the 99th percentile of spraying compared with RSS",
            "less (no number)",
            times(gain),
            judged(gain, 0, 1, none=1.0),
        ),
        PublishedClaim(
            "section 3.1",
            "the largest 99th percentile, microseconds",
            f"{_LARGEST_US:g}",
            f"{largest:,.0f}",
            judged(largest, *about(_LARGEST_US), none=inf),
        ),
    )
