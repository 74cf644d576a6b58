"""Events of the live tree over a month: Figure 7 of the SDRF paper."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from labs.papers.figures import Cell, Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.judgements import about, judged, judged_count
from labs.papers.sdrf.months import BEST, FAMILY, HALF, PAPER, Months, SdrfScope, note_on_months
from labs.papers.sdrf.tree_replay import TreeReplay, replay
from labs.plotting import Lines
from labs.simulate.fairness.simulate_by_tree import simulate_by_tree
from labs.simulate.fairness.trace import FairTrace
from labs.simulate.fairness.trace_report import delta_text, run_mechanism


class EventCounts(NamedTuple):
    """The counts of one month under one discount factor."""

    decisions: int
    events: int
    """Meetings of neighbours in the order of waiting users."""

    @property
    def per_thousand(self) -> float:
        """Events per thousand decisions."""
        return 1000.0 * self.events / max(self.decisions, 1)


Found = dict[tuple[float, float], EventCounts]
"""By level and discount factor."""


def figure_7(months: Months) -> Figure:
    """Return Figure 7: events for one seed at every load, and for all seeds at the heaviest load."""
    scope = months.scope
    trace = months.trace(months.seed)
    counts: Found = {}
    for level in scope.levels:
        months.progress(f"live tree: {level:.0%} of R")
        for delta in scope.deltas:
            counts[level, delta] = _count(trace, level, delta)
    return Figure(
        number="7",
        title="Figure 7: live tree events by discount factor and system resources",
        seed=months.seed,
        quick=scope.quick,
        setting=months.setting(),
        sheets=(
            FigureTable(
                f"Events, seed {months.seed}",
                ("R", "delta", "decisions", "events", "per 1,000 decisions"),
                [
                    (f"{level:.0%}", delta_text(delta), *counted, counted.per_thousand)
                    for (level, delta), counted in counts.items()
                ],
            ),
            _every_seed(months),
            _literal(months, trace),
        ),
        claims=_claims(counts, scope),
        pictures=(
            Lines(
                *("7", "Events of the live tree", "1 - delta", "log10 of events"),
                {
                    f"{level:.0%} of R": (
                        [1 - delta for delta in scope.deltas],
                        [float(np.log10(1 + counts[level, delta].events)) for delta in scope.deltas],
                    )
                    for level in scope.levels
                },
                log_x=True,
            ),
        ),
        notes=(*_NOTES, note_on_months(scope)),
        family=FAMILY,
        source=PAPER,
    )


_NOTES = (
    (
        "The tree holds the users who have a waiting task (Algorithm 1's A). An event is a meeting of two "
        "neighbours' priorities. Equation 14 as printed is counted separately; it also has events where one "
        "resource of a user meets another one of its neighbour, which need not change the order."
    ),
    "When counted by equation 14, each decision was compared with the tree's minimum and agreed with it.",
    (
        "The paper divides 22,718 events by 32 million decisions and writes 7 per 1,000; it is 0.7. "
        "Likewise 5,094,167 events are 0.16 for each decision."
    ),
)


def _count(trace: FairTrace, level: float, delta: float) -> EventCounts:
    _, order, events = simulate_by_tree(
        *(trace.submit_us, trace.duration_us, trace.user, trace.demands, trace.usage() * level),
        users=trace.users,
        delta=delta,
    )
    return EventCounts(int(order.size), events)


def _every_seed(months: Months) -> FigureTable:
    """Return the table of the paper's two numbers for every month."""
    scope = months.scope
    rows: list[tuple[Cell, ...]] = []
    for seed in months.seeds():
        months.progress(f"live tree: seed {seed}")
        trace = months.trace(seed)
        for delta in (scope.deltas[0], BEST):
            counted = _count(trace, HALF, delta)
            rows.append((seed, f"{HALF:.0%}", delta_text(delta), *counted, counted.per_thousand))
    columns = ("seed", "R", "delta", "decisions", "events", "per 1,000 decisions")
    return FigureTable("Every seed at the heaviest load", columns, rows)


def _literal(months: Months, trace: FairTrace) -> FigureTable:
    """Return the table of equation 14 as printed, replayed in plain Python."""
    rows: list[tuple[Cell, ...]] = []
    for level, delta in months.scope.literal:
        pool = trace.usage() * level
        progress = partial(_tell, months.progress, f"equation 14: {level:.0%} of R, {delta_text(delta)}")
        replayed: TreeReplay = replay(trace, pool, run_mechanism(trace, pool, delta), progress=progress)
        rows.append(
            (
                *(f"{level:.0%}", delta_text(delta), replayed.decisions, replayed.events),
                *(replayed.per_thousand, replayed.waiting),
            )
        )
    columns = ("R", "delta", "decisions", "events", "per 1,000 decisions", "waiting users, mean")
    return FigureTable(f"By equation 14 as printed, seed {months.seed}", columns, rows)


def _tell(progress: ProgressCallback, subject: str, done: int) -> None:
    progress(f"{subject}, {done:,} decisions")


def _claims(counts: Found, scope: SdrfScope) -> tuple[PublishedClaim, ...]:
    low, high = scope.levels[0], scope.levels[-1]
    few, many = counts[low, BEST], counts[low, scope.deltas[0]]
    falling = [
        all(
            counts[level, a].events >= counts[level, b].events
            for a, b in zip(scope.deltas, scope.deltas[1:], strict=False)
        )
        for level in scope.levels
    ]
    return (
        PublishedClaim(
            "section VII, Figure 7",
            f"events per 1,000 decisions at {delta_text(BEST)}, {low:.0%} of R",
            "0.7 (22,718 of 32 million)",
            f"{few.per_thousand:.2f}",
            judged(few.per_thousand, *about(22_718 / 32_000), none=inf),
        ),
        PublishedClaim(
            "section VII, Figure 7",
            f"most events for a decision ({delta_text(scope.deltas[0])}, {low:.0%} of R)",
            "0.16, which it writes as 2 per 10",
            f"{many.per_thousand / 1000:.2f}",
            judged(many.per_thousand / 1000, *about(0.16), none=inf),
        ),
        PublishedClaim(
            "section VII, Figure 7",
            "more events with fewer resources",
            "at every delta",
            f"at {sum(counts[low, d].events > counts[high, d].events for d in scope.deltas)} of "
            f"{len(scope.deltas)} deltas",
            judged_count(
                sum(counts[low, d].events > counts[high, d].events for d in scope.deltas), len(scope.deltas)
            ),
        ),
        PublishedClaim(
            "section VII, Figure 7",
            "the closer delta is to 1, the fewer events",
            "at every load",
            f"at {sum(falling)} of {len(falling)} loads without exception",
            judged_count(sum(falling), len(falling)),
        ),
    )
