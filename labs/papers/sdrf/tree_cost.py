"""The cost of one SDRF decision: the live tree, a new heap of all waiting users, and compiled code.

This is compared with section VII's claim that the tree makes SDRF practical. ``make bench`` compares
releases.
"""

from __future__ import annotations

import os
import time
from math import inf
from typing import Final

import numpy as np

from labs.papers.figures import Cell, Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.judgements import judged
from labs.papers.sdrf.months import FAMILY, PAPER
from labs.papers.sdrf.tree_replay import TreeReplay, replay
from labs.simulate.fairness.google_like import UNITS
from labs.simulate.fairness.trace import MICRO, FairTrace
from labs.simulate.fairness.trace_report import run_mechanism

DELTA: Final = 1 - 1e-6
CROWDS: Final = (10, 100, 600, 5_000)
QUICK: Final = (10, 50)
DECISIONS: Final = 60_000
QUICK_DECISIONS: Final = 1_500
ROOM: Final = 100
"""About the number of tasks that the pool holds at a time."""


def crowd(users: int, decisions: int, seed: int) -> FairTrace:
    """Return a trace in which all users submit all tasks at once, so that the tree stays large."""
    rng = np.random.default_rng(seed)
    per_user = max(1, decisions // users)
    tasks = per_user * users
    return FairTrace(
        submit_us=np.zeros(tasks, np.int64),
        duration_us=(rng.exponential(300.0, tasks) * MICRO).astype(np.int64) + MICRO,
        user=np.tile(np.arange(users), per_user),
        demands=np.rint(np.exp(rng.normal(-1.0, 0.7, (tasks, 2))) * UNITS / 8) + 1.0,
        horizon_us=MICRO,
        users=users,
    )


def figure_tree(seed: int, progress: ProgressCallback, *, quick: bool) -> Figure:
    """Return the figure of the time for each decision, by the number of waiting users."""
    decisions = QUICK_DECISIONS if quick else DECISIONS
    replays: dict[int, tuple[TreeReplay, float]] = {}
    for users in QUICK if quick else CROWDS:
        progress(f"{users} waiting users")
        trace = crowd(users, decisions, seed)
        pool = trace.demands.mean(axis=0) * ROOM
        run_mechanism(trace.select(np.arange(trace.user.size) < 10), pool, DELTA)
        began = time.process_time()
        result = run_mechanism(trace, pool, DELTA)
        compiled_s = (time.process_time() - began) / result.order.size
        again = replay(trace, pool, result, resort_every=max(1, decisions // 300))
        replays[users] = (again, compiled_s)
    rows: list[tuple[Cell, ...]] = [
        (
            *(users, replayed.decisions, replayed.waiting, replayed.per_thousand),
            *(1e6 * replayed.tree_s / replayed.decisions, 1e6 * replayed.sorted_s, 1e6 * compiled_s),
            replayed.sorted_s * replayed.decisions / replayed.tree_s,
        )
        for users, (replayed, compiled_s) in replays.items()
    ]
    return Figure(
        number="tree",
        title="Cost of a decision: the live tree, a new heap of all waiting users, compiled code",
        seed=seed,
        quick=quick,
        setting=(
            ("work", f"about {decisions:,} tasks, all submitted at once; about {ROOM} run at a time"),
            ("delta", "1 - 1e-6"),
            ("time", f"CPU time of one thread; load of the machine {_load()}"),
        ),
        sheets=(
            FigureTable(
                "Microseconds for one decision",
                (
                    *("users", "decisions", "waiting, mean", "events per 1,000"),
                    *("live tree", "new heap", "compiled", "heap / tree"),
                ),
                rows,
            ),
        ),
        claims=_claims(replays),
        notes=(
            (
                "Tree and heap are plain Python with the same priority function. The tree's time is all of "
                "its work (starts, finishes, changed allocations, events); the heap's is one construction."
            ),
            (
                "Compiled is all of labs.simulate.fairness.simulate, with queues and finishes: a scan of all "
                "users up to 2,048, and the compiled live tree for more."
            ),
        ),
        measured=True,
        family=FAMILY,
        source=PAPER,
    )


def _claims(replays: dict[int, tuple[TreeReplay, float]]) -> tuple[PublishedClaim, ...]:
    most, least = max(replays), min(replays)
    gain = {
        users: replayed.sorted_s * replayed.decisions / replayed.tree_s
        for users, (replayed, _) in replays.items()
    }
    return (
        PublishedClaim(
            "section VII",
            f"the tree costs less than a new heap of all users, {most:,} users",
            "it does",
            f"{gain[most]:.1f} times less",
            judged(gain[most], 1, inf, none=1.0),
        ),
        PublishedClaim(
            "section VII",
            f"the same, {least} users",
            "it does",
            f"{gain[least]:.1f} times less",
            judged(gain[least], 1, inf, none=1.0),
        ),
    )


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
