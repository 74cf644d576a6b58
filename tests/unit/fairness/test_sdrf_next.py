"""Who is next: the live tree of many users against the scan of few."""

from __future__ import annotations

import numpy as np
import pytest

from dios.fairness.stateful.kernels import (
    DOMINANT,
    PLAIN,
    SUM,
    activate,
    advance_clock,
    deactivate,
    empty_user_table,
    finish_task,
    new_clock,
    next_user,
    start_next,
    update_all_lines,
)
from dios.fairness.stateful.user_table import set_slope


def played(seed: int, users: int, mode: int, tau: float) -> int:
    """Live one random history in both kinds of books; how often a decision followed another's."""
    rng = np.random.default_rng(seed)
    capacity = rng.integers(20, 60, int(rng.integers(1, 4))).astype(np.float64)
    both = [empty_user_table(capacity, users, scan_max) for scan_max in (users, 0)]
    clocks = [new_clock(0.0) for _ in both]
    active, t, fair, changes, last = 0, 0.0, 1 / users, 0, -1
    running: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]]] = []
    for step in range(300):
        t += float(rng.choice([0.0, 0.1, 3.0])) * float(rng.random())
        if step % 100 == 99:
            t += 30 * tau
            fair /= 2
        for table, clock in zip(both, clocks, strict=True):
            advance_clock(table, users, clock, t, tau)
            if step % 100 == 99:
                update_all_lines(table, users, fair, float(clock[1]), mode)
        g = float(clocks[0][1])
        if running and rng.random() < 0.5:
            who, gone = running.pop(int(rng.integers(len(running))))
            for table in both:
                finish_task(table, who, gone, fair, g, mode)
        user, demand = int(rng.integers(users)), rng.integers(0, 7, capacity.size).astype(np.float64)
        idle = bool(both[0].place[user] < 0)
        for table in both:
            if idle:
                activate(table, active, user, demand, g)
            else:
                deactivate(table, active, user, g)
        active += 1 if idle else -1
        chosen = [next_user(table, active, g) for table in both]
        assert chosen[0] == chosen[1], (seed, step, chosen)
        changes, last = changes + (chosen[0] != last), chosen[0]
        started = [start_next(table, active, fair, g, mode) for table in both]
        assert started[0] == started[1], (seed, step, started)
        if started[0] >= 0:
            running.append((started[0], both[0].head[started[0]].copy()))
    return changes


@pytest.mark.long
@pytest.mark.parametrize("mode", [PLAIN, DOMINANT, SUM])
def test_the_live_tree_chooses_as_the_scan_does(mode: int) -> None:
    """Through starts, ends, decay, a moved reference and newcomers both find the same user next."""
    changes = sum(
        played(seed, users, mode, tau) for seed in range(4) for users in (1, 2, 13, 64) for tau in (2.0, 50.0)
    )
    assert changes > 1500


@pytest.mark.parametrize("scan_max", [3, 0])
@pytest.mark.parametrize(
    ("slopes", "first"),
    [
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], 0),
        ([[-0.25, -0.25], [0.25, 0.25], [0.0, 0.0]], 1),
        ([[-0.25, 0.5], [-0.5, -0.5], [-0.125, 0.0]], 2),
    ],
    ids=["index", "falling", "what rises counts"],
)
def test_equal_priorities_go_by_derivative_then_by_index(
    slopes: list[list[float]], first: int, scan_max: int
) -> None:
    """Of users with one priority the one that falls fastest is next, then the one who came first."""
    table = empty_user_table(np.array([8.0, 8.0]), 3, scan_max)
    for user, slope in enumerate(slopes):
        for r, value in enumerate(slope):
            set_slope(table, user, r, value, 0)
        table.level[user] = 0.75 - table.slope[user]
    for count, user in enumerate((2, 0, 1)):
        activate(table, count, user, np.ones(2), 1.0)
    assert next_user(table, 3, 1.0) == first
