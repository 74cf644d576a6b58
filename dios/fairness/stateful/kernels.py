"""SDRF's compiled decision: the next user to serve, and the effect of an allocation on commitments.

The scheduler (``scheduler``) and the simulation (``dios.fairness.simulate``) both decide with these kernels,
so that they make the same decisions.

The next user is found by a scan of those who wait, or is the first of the live tree. The kernels that decide
are inlined into their callers: passing the many arrays of the table would take longer than the work.
"""

from __future__ import annotations

import math
from typing import Final

from dios.fairness.allocation import Floats
from dios.fairness.stateful.tree_kernels import advance_order, rebuild, reposition
from dios.fairness.stateful.user_table import (
    EVENTS,
    FIRST,
    SCAN_MAX,
    UserTable,
    empty_user_table,
    priority_and_slope,
)
from dios.kernels import inlined_kernel, no_refcount_kernel

__all__ = [
    "DOMINANT",
    "PLAIN",
    "SUM",
    "UserTable",
    "activate",
    "advance_clock",
    "deactivate",
    "empty_user_table",
    "finish_task",
    "grown_user_table",
    "next_user",
    "set_first_task",
    "start_next",
    "try_start",
    "update_all_lines",
    "update_line",
]

PLAIN: Final = 0
"""DRF: the dominant share only."""
DOMINANT: Final = 1
"""The dominant share plus the dominant commitment (equation 10)."""
SUM: Final = 2
"""The largest sum of a share and its commitment (Algorithm 1, equation 13)."""

FAR: Final = 25.0
"""After this number of tau, ``g`` has lost eleven digits; then the reference time moves."""


def grown_user_table(table: UserTable, users: int, g: float) -> UserTable:
    """Return a copy of the table with room for more users, at the current ``g``."""
    grown = empty_user_table(table.capacity, users, 0 if table.tree.inside.size else SCAN_MAX)
    grown.running[-1] = table.running[-1]
    before = table.lead.size
    for new, old in zip(grown[2:-1], table[2:-1], strict=True):
        new[:before] = old[:before]
    grown = grown._replace(used=table.used)
    grown.tree.state[EVENTS] = table.tree.state[EVENTS]
    rebuild(grown, before, g)
    return grown


@inlined_kernel
def update_line(table: UserTable, user: int, fair: float, g: float, mode: int) -> None:
    """Update a user's line after its allocation or ``fair`` (1/n) changed; the commitment does not jump."""
    top = 0.0
    for r in range(table.capacity.size):
        share = table.held[user, r] / table.capacity[r]
        top = max(top, share)
        if mode != PLAIN:
            over = max(share - fair, 0.0)
            if over != table.over[user, r]:
                table.slope[user, r] += (table.over[user, r] - over) / g
                table.over[user, r] = over
            table.level[user, r] = over if mode == DOMINANT else share + over
    table.lead[user] = 0.0 if mode == SUM else top
    if table.place[user] >= 0:
        reposition(table, user, g)


@no_refcount_kernel
def update_all_lines(table: UserTable, seen: int, fair: float, g: float, mode: int) -> None:
    """Update the lines of all users with running tasks, because 1/n changed."""
    if mode != PLAIN:
        for user in range(seen):
            if table.running[user]:
                update_line(table, user, fair, g, mode)


@no_refcount_kernel
def advance_clock(table: UserTable, seen: int, clock: Floats, t: float, tau: float) -> None:
    """Advance ``clock`` (t_ref, g) to time ``t``; move the reference too if it is far in the past."""
    past = (t - clock[0]) / tau
    if past > FAR:
        shrunk = math.exp(-past)
        for user in range(seen):
            for r in range(table.capacity.size):
                table.slope[user, r] *= shrunk
        clock[0] = t
        past = 0.0
        rebuild(table, seen, 1.0)
    clock[1] = math.exp(-past)


@inlined_kernel
def next_user(table: UserTable, count: int, g: float) -> int:
    """Return the next active user, or -1 if no user is active."""
    if not table.tree.inside.size:
        return scan_users(table, count, g)
    advance_order(table, g)
    return int(table.tree.state[FIRST])


@inlined_kernel
def scan_users(table: UserTable, count: int, g: float) -> int:
    """Return the active user with the lowest (priority, its derivative, index), or -1 if none is active.

    The derivative is that from now on: among several largest resources, of the one that falls least.
    """
    best, least, fall = -1, 0.0, 0.0
    for i in range(count):
        user = table.active[i]
        value, slope = priority_and_slope(table, user, g)
        if (
            best < 0
            or value < least
            or (value == least and (slope > fall or (slope == fall and user < best)))
        ):
            best, least, fall = user, value, slope
    return best


@inlined_kernel
def try_start(table: UserTable, user: int, fair: float, g: float, mode: int) -> bool:
    """Allocate a user's first task; return False without a change if it does not fit."""
    for r in range(table.capacity.size):
        if table.used[r] + table.head[user, r] > table.capacity[r]:
            return False
    for r in range(table.capacity.size):
        table.used[r] += table.head[user, r]
        table.held[user, r] += table.head[user, r]
    table.running[user] += 1
    table.running[-1] += 1
    update_line(table, user, fair, g, mode)
    return True


@inlined_kernel
def start_next(table: UserTable, count: int, fair: float, g: float, mode: int) -> int:
    """Allocate the first task of the next user (one step of Algorithm 1); -1 if no task can start."""
    user = next_user(table, count, g)
    return user if user >= 0 and try_start(table, user, fair, g, mode) else -1


@inlined_kernel
def finish_task(table: UserTable, user: int, demand: Floats, fair: float, g: float, mode: int) -> None:
    """End a task; amounts without any running task are set to exactly 0, to drop rounding errors."""
    table.running[user] -= 1
    table.running[-1] -= 1
    for r in range(table.capacity.size):
        table.used[r] = table.used[r] - demand[r] if table.running[-1] else 0.0
        table.held[user, r] = table.held[user, r] - demand[r] if table.running[user] else 0.0
    update_line(table, user, fair, g, mode)


@inlined_kernel
def set_first_task(table: UserTable, user: int, demand: Floats) -> None:
    """Set the demand of a user's first waiting task."""
    for r in range(demand.size):
        table.head[user, r] = demand[r]


@inlined_kernel
def activate(table: UserTable, count: int, user: int, demand: Floats, g: float) -> int:
    """Make a user active with its first task; return the new number of active users."""
    set_first_task(table, user, demand)
    table.active[count] = user
    table.place[user] = count
    reposition(table, user, g)
    return count + 1


@inlined_kernel
def deactivate(table: UserTable, count: int, user: int, g: float) -> int:
    """Make a user inactive; return the new number of active users."""
    last = table.active[count - 1]
    table.active[table.place[user]] = last
    table.place[last] = table.place[user]
    table.place[user] = -1
    reposition(table, user, g)
    return count - 1
