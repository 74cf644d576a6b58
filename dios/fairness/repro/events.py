"""Events of the live tree over a month: Figure 7 of the SDRF paper.

For: ``dios repro sdrf``. Not for: what a decision costs (``tree_cost``).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dios.fairness.repro.months import BEST, FAMILY, NOTES, PAPER, Months, Scope
from dios.fairness.trace import FairTrace
from dios.fairness.trace_events import Replay, replay
from dios.fairness.trace_report import delta_text, play
from dios.figures import Claim, Figure, Sheet, Told
from dios.pictures import Lines


def figure_7(months: Months) -> Figure:
    """Events of the live tree, of one seed."""
    scope = months.scope
    trace = months.trace(months.seed)
    found = _replays(months, trace)
    low, high = scope.event_levels[0], scope.event_levels[-1]
    near = BEST if BEST in scope.deltas else scope.deltas[-1]
    return Figure(
        number="7",
        title="Figure 7: live tree events by discount factor and system resources",
        seed=months.seed,
        quick=scope.quick,
        setting=(*months.setting()[:1], ("seed", str(months.seed)), *months.setting()[2:]),
        sheets=(
            Sheet(
                "Events",
                ("R", "delta", "decisions", "events", "for 1,000 decisions", "users who wait, mean"),
                [
                    (
                        *(f"{level:.0%}", delta_text(delta), each.decisions, each.events),
                        *(each.per_thousand, each.waiting),
                    )
                    for (level, delta), each in found.items()
                ],
            ),
        ),
        claims=_claims(found, scope, (low, high, near)),
        pictures=(
            Lines(
                *("7", "Events of the live tree", "1 - delta", "log10 of events"),
                {
                    f"{level:.0%} of R": (
                        [1 - delta for delta in scope.deltas],
                        [float(np.log10(1 + found[level, delta].events)) for delta in scope.deltas],
                    )
                    for level in scope.event_levels
                },
                log_x=True,
            ),
        ),
        notes=(
            (
                "Played decision by decision through the live tree; every decision was for the "
                "tree's minimum. In the tree are the users who have a task waiting (Algorithm 1's A)."
            ),
            (
                "The paper divides 22,718 events by 32 million decisions and writes 7 for every 1,000; it "
                "is 0.7. Likewise 5,094,167 is 0.16 for each."
            ),
            *NOTES[:1],
        ),
        family=FAMILY,
        source=PAPER,
    )


def _replays(months: Months, trace: FairTrace) -> dict[tuple[float, float], Replay]:
    """By level and discount factor."""
    scope = months.scope
    found: dict[tuple[float, float], Replay] = {}
    for level in scope.event_levels:
        pool = trace.usage() * level
        for delta in scope.deltas:
            what = f"live tree: {level:.0%} of R, {delta_text(delta)}"
            months.told(what)
            found[level, delta] = replay(
                trace, pool, play(trace, pool, delta), told=partial(_tell, months.told, what)
            )
    return found


def _tell(told: Told, what: str, done: int) -> None:
    told(f"{what}, {done:,} decisions")


def _claims(
    found: dict[tuple[float, float], Replay], scope: Scope, ends: tuple[float, float, float]
) -> tuple[Claim, ...]:
    low, high, near = ends
    few, many = found[low, near], found[low, scope.deltas[0]]
    falling = [
        all(
            found[level, a].events >= found[level, b].events
            for a, b in zip(scope.deltas, scope.deltas[1:], strict=False)
        )
        for level in scope.event_levels
    ]
    return (
        Claim(
            "section VII, Figure 7",
            f"events for 1,000 decisions at {delta_text(near)}, {low:.0%} of R",
            "0.7 (22,718 of 32 million)",
            f"{few.per_thousand:.2f}",
            few.per_thousand < 7,
        ),
        Claim(
            "section VII, Figure 7",
            f"the most events for a decision ({delta_text(scope.deltas[0])}, {low:.0%} of R)",
            "0.16, which it calls 2 for every 10",
            f"{many.per_thousand / 1000:.2f}",
            many.per_thousand < 200,
        ),
        Claim(
            "section VII, Figure 7",
            "more events with less resources",
            "at every delta",
            f"at {sum(found[low, d].events > found[high, d].events for d in scope.deltas)} of "
            f"{len(scope.deltas)} deltas",
            all(found[low, delta].events > found[high, delta].events for delta in scope.deltas),
        ),
        Claim(
            "section VII, Figure 7",
            "the closer delta is to 1, the fewer events",
            "at every load",
            f"at {sum(falling)} of {len(falling)} loads without exception",
            all(falling),
        ),
    )
