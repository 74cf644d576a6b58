"""SDRF's compiled decision: the next user to serve, and the effect of an allocation on commitments.

The scheduler (``scheduler``) and simulations of whole traces decide with these kernels, so that they make the
same decisions.

The next user is found by a scan of those who wait, or is the first of the live tree. The kernels that decide
are inlined into their callers: passing the many arrays of the table would take longer than the work.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dios.fairness.allocation import Floats, Ints
from dios.fairness.stateful.tree_kernels import advance_order, precedes, rebuild, reposition
from dios.fairness.stateful.user_table import (
    AFTER,
    EVENTS,
    FIRST,
    NEAR,
    SCAN_MAX,
    UserTable,
    add_to_slope,
    empty_user_table,
    halve_slopes,
    set_slope,
    top_line,
)
from dios.kernels import inlined_kernel, no_refcount_kernel

__all__ = [
    "DOMINANT",
    "LN2",
    "PLAIN",
    "SUM",
    "UserTable",
    "activate",
    "add_to_slope",
    "advance_clock",
    "deactivate",
    "empty_user_table",
    "finish_task",
    "grown_user_table",
    "new_clock",
    "next_user",
    "set_faded_slope",
    "set_first_task",
    "start_next",
    "start_next_or_ask",
    "try_start",
    "update_all_lines",
    "update_line",
]

LN2: Final = math.log(2.0)

PLAIN: Final = 0
"""DRF: the dominant share only."""
DOMINANT: Final = 1
"""The dominant share plus the dominant commitment (equation 10)."""
SUM: Final = 2
"""The largest sum of a share and its commitment (Algorithm 1, equation 13)."""

UNSURE: Final = 2.0**-30
"""Priorities nearer than this, relative to their sum, may have another order than their floats."""

FAR: Final = 36
"""After this number of halvings, ``g`` has lost eleven digits; then the reference time moves."""


def new_clock(t: float) -> Floats:
    """Return the clock that starts at time ``t``: the start, ``g``, and halvings up to the reference."""
    return np.array([t, 1.0, 0.0])


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
    if mode != PLAIN and table.changed[user] != table.instant[0]:
        table.changed[user] = table.instant[0]
        for r in range(table.capacity.size):
            table.base[user, r] = table.over[user, r]
    for r in range(table.capacity.size):
        share = table.held[user, r] * table.scale[user] / table.capacity[r]
        top = max(top, share)
        if mode != PLAIN:
            over = max(share - fair, 0.0)
            if over != table.over[user, r]:
                # Two terms: changes at one time then cancel exactly, in any number and order.
                add_to_slope(table, user, r, table.over[user, r] / g)
                add_to_slope(table, user, r, -over / g)
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
    """Advance ``clock`` to time ``t``; move the reference too if it is far in the past.

    The reference moves by whole multiples of tau ln 2, so that all slopes are divided by a power of two
    and none is rounded.
    """
    half = tau * LN2
    if half == math.inf:
        return
    past = t - clock[0]
    rest = past % half
    halvings = round((past - rest) / half)
    since = int(halvings - clock[2])
    g = math.ldexp(math.exp(-rest / tau), -since)
    if g != clock[1]:
        table.instant[0] += 1
    if since > FAR:
        halve_slopes(table, seen, since)
        clock[2] = halvings
        g = math.exp(-rest / tau)
        rebuild(table, seen, g)
    clock[1] = g


@no_refcount_kernel
def set_faded_slope(
    table: UserTable, user: int, r: int, amount: float, past: float, tau: float, g: float
) -> None:
    """Set a slope such that ``g`` times the slope is what is left of ``amount`` after the time ``past``."""
    rest = past % (tau * LN2)
    halvings = round((past - rest) / (tau * LN2))
    set_slope(table, user, r, amount * math.exp(-rest / tau) / g, int(halvings))


@inlined_kernel
def next_user(table: UserTable, count: int, g: float) -> int:
    """Return the next active user, or -1 if no user is active."""
    if not table.tree.inside.size:
        return scan_users(table, count, g)
    advance_order(table, g)
    return int(table.tree.state[FIRST])


@inlined_kernel
def scan_users(table: UserTable, count: int, g: float) -> int:
    """Return the active user with the lowest priority, or -1 if none is active.

    Users with equal priorities have the order that follows shortly afterwards; users whose priorities stay
    equal have the order of their first submission.
    """
    best, least = -1, 0.0
    for i in range(count):
        user = table.active[i]
        value, _ = top_line(table, user, g)
        if best >= 0 and abs(value - least) <= NEAR * (abs(value) + abs(least)):
            if precedes(table, user, best, g):
                best, least = user, value
        elif best < 0 or value < least:
            best, least = user, value
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
def is_settled(table: UserTable, user: int) -> bool:
    """Return True if the user never had more than 1/n, so that its priority is its share alone."""
    for r in range(table.capacity.size):
        if table.over[user, r] != 0.0 or table.parts[user, r, 0] != 0.0:
            return False
    return True


@inlined_kernel
def is_rival(table: UserTable, user: int, best: int, g: float) -> bool:
    """Return True if floats do not show the order of two users."""
    first, _ = top_line(table, user, g)
    second, _ = top_line(table, best, g)
    if abs(first - second) > UNSURE * (abs(first) + abs(second)):
        return False
    return first != second or not (is_settled(table, user) and is_settled(table, best))


@no_refcount_kernel
def start_next_or_ask(
    table: UserTable, count: int, fair: float, g: float, mode: int, rivals: Ints
) -> tuple[int, int]:
    """Allocate the first task of the next user; return (user or -1 if it does not fit, 0).

    If floats do not show who is next, allocate nothing: fill ``rivals`` with those who may be, and return
    (-1, their number). ``try_start`` allocates for the one that is chosen.
    """
    best = next_user(table, count, g)
    if best < 0:
        return -1, 0
    many = 1
    rivals[0] = best
    if mode != PLAIN:
        if table.tree.inside.size:
            user = table.tree.link[best, AFTER]
            while user >= 0 and is_rival(table, user, best, g):
                rivals[many] = user
                many += 1
                user = table.tree.link[user, AFTER]
        else:
            for i in range(count):
                user = table.active[i]
                if user != best and is_rival(table, user, best, g):
                    rivals[many] = user
                    many += 1
    if many > 1:
        return -1, many
    return (best if try_start(table, best, fair, g, mode) else -1), 0


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
