"""The SDRF paper's example (Figures 1 and 4): a spike next to a user who takes all resources for days."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.fairness.allocation import Floats, Ints
from labs.papers.figures import Cell, Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.judgements import judged
from labs.plotting import Lines
from labs.simulate.fairness.simulate import simulate

MICRO: Final = 1_000_000
HOUR_US: Final = 3600 * MICRO
TASK_US: Final = 600 * MICRO
CAPACITY: Final = np.array([200.0, 200.0])
DEMANDS: Final = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0]])
"""CPU and memory of a task of A, B and C: B's equal A's, as in the paper; C's dominant resource is memory."""
NAMES: Final = ("A", "B", "C")
DELTA: Final = 1 - 1e-6


class SpikePlan(NamedTuple):
    """Times in hours."""

    spike: int
    """The arrival of B."""
    end: int
    """The end of A's submissions."""
    small: int
    """The arrival of C, which submits little."""


FULL: Final = SpikePlan(240, 300, 120)
QUICK: Final = SpikePlan(24, 48, 12)


def figure_4(seed: int, progress: ProgressCallback, *, quick: bool) -> Figure:
    """Return Figure 4: shares over time and the end of the spike, under DRF and under SDRF."""
    plan = QUICK if quick else FULL
    submit, user, spike = _tasks(plan)
    duration, demands = np.full(submit.size, TASK_US, np.int64), DEMANDS[user]
    hours = np.arange(plan.spike - 6, plan.end, 0.25)
    rows: list[tuple[Cell, ...]] = []
    series: dict[str, tuple[Floats, Floats]] = {}
    outcomes: dict[str, tuple[float, float, int]] = {}
    for name, delta in (("DRF", None), ("SDRF", DELTA)):
        progress(f"a spike next to an active user: {name}")
        start, _ = simulate(submit, duration, user, demands, CAPACITY, users=3, delta=delta)
        shares = [_share(start, duration, user == who, hours) for who in range(3)]
        finish = start + duration
        took = (int(finish[spike].max()) - plan.spike * HOUR_US) / HOUR_US
        while_there = (hours >= plan.spike + 0.5) & (hours < plan.spike + took - 0.5)
        early = while_there & (hours < plan.spike + 3)
        done = int((finish[user == 0] <= plan.end * HOUR_US).sum())
        outcomes[name] = (float(shares[1][early].mean()), took, done)
        rows.append((name, *(float(shares[who][early].mean()) for who in (0, 1)), took, done))
        for who in (0, 1):
            series[f"{NAMES[who]}, {name}"] = (hours, shares[who])
    return Figure(
        number="4",
        title="Figures 1 and 4: a spike next to a user who is always active",
        seed=seed,
        quick=quick,
        setting=(
            ("pool", "200 CPUs, 200 units of memory; tasks of 10 minutes with (2, 1), (2, 1) and (1, 2)"),
            ("A", f"takes all that is free from hour 0 to hour {plan.end}"),
            ("B", f"{spike.sum():,} tasks at hour {plan.spike}"),
            ("C", f"200 tasks at hour {plan.small}"),
            ("delta", "1 - 1e-6 for SDRF"),
        ),
        sheets=(
            FigureTable(
                "After the spike",
                ("mechanism", "share of A, 3 h", "share of B, 3 h", "B finishes after, h", "A's tasks"),
                rows,
            ),
        ),
        claims=_claims(outcomes),
        pictures=(Lines("4", "Dominant shares around the spike", "hours", "share", series),),
        notes=("The paper gives no amounts and times of submissions; these are ours.",),
        family="sdrf",
        source="the paper",
    )


def _claims(outcomes: dict[str, tuple[float, float, int]]) -> tuple[PublishedClaim, ...]:
    drf, sdrf = outcomes["DRF"], outcomes["SDRF"]
    return (
        PublishedClaim(
            "section IV-C, Figure 1",
            "B gets the same share as A under DRF, although it did not use its own before",
            "1/2",
            f"{drf[0]:.2f}",
            judged(drf[0], 0.48, 0.52, exact=True),
        ),
        PublishedClaim(
            "section VII, Figure 4",
            "B gets more under SDRF",
            "more than A",
            f"{sdrf[0]:.2f}",
            judged(sdrf[0] - max(drf[0], 0.5), 0, inf, none=0.0, exact=True),
        ),
        PublishedClaim(
            "section VII, Figure 4",
            "B completes its work faster",
            "faster",
            f"{sdrf[1]:.1f} h instead of {drf[1]:.1f} h",
            judged(drf[1] - sdrf[1], 0, inf, none=0.0, exact=True),
        ),
        PublishedClaim(
            "section VII, Figure 4",
            "A still completes about as much",
            "low impact",
            f"{1 - sdrf[2] / drf[2]:.2%} fewer tasks",
            judged(1 - sdrf[2] / drf[2], -0.02, 0.02, exact=True),
        ),
    )


def _tasks(plan: SpikePlan) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return when each task is submitted, its user, and a mask of the spike's tasks."""
    steady = np.repeat(np.arange(0, plan.end * HOUR_US, TASK_US), 100)
    some = np.full(200, plan.small * HOUR_US)
    # With half of the pool these tasks keep B busy for half of the remaining time.
    amount = 50 * ((plan.end - plan.spike) * 3 // 2)
    spike = np.full(amount, plan.spike * HOUR_US)
    submit = np.concatenate([steady, spike, some]).astype(np.int64)
    user = np.repeat(np.arange(3), [steady.size, spike.size, some.size])
    return submit, user, user == 1


def _share(start: Ints, duration: Ints, mine: npt.NDArray[np.bool_], hours: Floats) -> Floats:
    """Return a user's dominant share at the given times."""
    begins, ends = np.sort(start[mine]), np.sort((start + duration)[mine])
    at = hours * HOUR_US
    running = np.searchsorted(begins, at, "right") - np.searchsorted(ends, at, "right")
    shares: Floats = running * 2.0 / CAPACITY[0]
    return shares
