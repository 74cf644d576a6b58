"""SDRF's table of users: shares and commitments as lines over time that are compared without a logarithm.

Between two changes of a user's allocation its commitment (SDRF paper, equation 12) is linear in
``g = exp(-(t - t_ref) / tau)``: ``c = over + g slope``, where ``over`` is the share beyond 1/n (equation 7).

Two lines are compared by their ends, which are their values in the distant future, and by ``g`` times the
difference of their slopes. Where the ends are equal the slopes decide, as exact sums (``exact_slopes``): so
the order stays right after thousands of time constants, when no value of ``g`` is a float.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.fairness.allocation import Floats, Ints
from dios.fairness.stateful.exact_slopes import PARTS, add_part, compare_parts, halve_parts, leading
from dios.kernels import inlined_kernel, no_refcount_kernel

SCAN_MAX: Final = 2048
"""With at most this number of users, a scan of all finds the next user; with more, a live tree does."""
EARLY: Final = 1 + 1e-12
"""Crossings are expected this much early, so that rounding never makes one late."""
BELOW: Final = 1 - 2.0**-50
"""Just below 1: a crossing expected now is checked again at the next time."""


NEAR: Final = 2.0**-44
"""Priorities nearer than this, relative to their sum, are compared by ends and slopes instead."""
MEETING: Final = 2.0**-51
"""Lines meet now if their values differ by at most this part of the amounts that are summed: rounding."""
SAME_END: Final = 2.0**-50
"""Ends that differ by at most this part of their sum are equal: the same fractions, summed in two ways."""

LEFT, RIGHT, ABOVE, BEFORE, AFTER = range(5)
ROOT, FIRST, SIZE, EVENTS = range(4)


class OrderTree(NamedTuple):
    """The order of users (U) as a treap with neighbour links; -1 is no user."""

    link: Ints
    """(U, 5) the left and right child, the parent, the predecessor and the successor."""
    inside: Ints
    """(U,) 1 for users in the tree."""
    meets: Floats
    """(U,) the ``g`` at which a user may meet its successor."""
    heap: Ints
    """(U,) users who will meet their successor, as a heap; the highest ``g`` is on top."""
    slot: Ints
    """(U,) a user's slot in the heap, or -1."""
    state: Ints
    """(4,) the root, the first user, the number of meetings in the heap, and the number handled so far."""
    since: Floats
    """(1,) the ``g`` at which the order was last correct."""


def empty_tree(users: int) -> OrderTree:
    """Return an empty tree with room for ``users``."""
    return OrderTree(
        link=np.full((users, 5), -1, np.int64),
        inside=np.zeros(users, np.int64),
        meets=np.zeros(users),
        heap=np.zeros(users, np.int64),
        slot=np.full(users, -1, np.int64),
        state=np.array([-1, -1, 0, 0]),
        since=np.ones(1),
    )


class UserTable(NamedTuple):
    """State of every user (U) and resource (m); a user's index is its order of first submission."""

    capacity: Floats
    """(m,) the capacity, in the units of the demands."""
    used: Floats
    """(m,) the demand of all running tasks."""
    held: Floats
    """(U, m) the demand of a user's running tasks."""
    running: Ints
    """(U + 1,) the number of a user's running tasks; the last entry is that of all users."""
    lead: Floats
    """(U,) the part of the priority that is common to all resources: the dominant share, or 0."""
    level: Floats
    """(U, m) the limit of the priority in each resource, without ``lead``."""
    over: Floats
    """(U, m) the share beyond 1/n."""
    slope: Floats
    """(U, m) the difference of the commitment and ``over`` at the reference time, rounded."""
    parts: Floats
    """(U, m, PARTS) the same difference as an exact sum; ``slope`` follows from it."""
    powers: Ints
    """(U, m, PARTS) the exponents of ``parts``."""
    base: Floats
    """(U, m) ``over`` before the changes of the present instant, for users changed in it."""
    changed: Ints
    """(U,) the instant of a user's last change."""
    instant: Ints
    """(1,) the number of the present instant."""
    spare: Floats
    """(2, PARTS) room for two slopes."""
    spare_powers: Ints
    """(2, PARTS) their exponents."""
    scale: Floats
    """(U,) the factor by which a user's holdings count: 1 / its weight, relative to the mean."""
    head: Floats
    """(U, m) the demand of the user's first waiting task."""
    active: Ints
    """(U,) the users who have a waiting task, at the front and in any order."""
    place: Ints
    """(U,) a user's position in ``active``, or -1."""
    tree: OrderTree
    """The active users in order; a tree without room if a scan finds the next user."""


def empty_user_table(capacity: Floats, users: int, scan_max: int = SCAN_MAX) -> UserTable:
    """Return a table for new users; with more than ``scan_max`` users it has a live tree."""
    shape = (users, capacity.size)
    return UserTable(
        capacity=capacity,
        used=np.zeros(capacity.size),
        held=np.zeros(shape),
        running=np.zeros(users + 1, np.int64),
        lead=np.zeros(users),
        level=np.zeros(shape),
        over=np.zeros(shape),
        slope=np.zeros(shape),
        parts=np.zeros((*shape, PARTS)),
        powers=np.zeros((*shape, PARTS), np.int64),
        base=np.zeros(shape),
        changed=np.full(users, -1, np.int64),
        instant=np.zeros(1, np.int64),
        spare=np.zeros((2, PARTS)),
        spare_powers=np.zeros((2, PARTS), np.int64),
        scale=np.ones(users),
        head=np.zeros(shape),
        active=np.zeros(users, np.int64),
        place=np.full(users, -1, np.int64),
        tree=empty_tree(0 if users <= scan_max else users),
    )


@inlined_kernel
def add_to_slope(table: UserTable, user: int, r: int, amount: float) -> None:
    """Add a float to a slope."""
    add_part(table.parts[user, r], table.powers[user, r], amount)
    table.slope[user, r] = leading(table.parts[user, r], table.powers[user, r])


@no_refcount_kernel
def set_slope(table: UserTable, user: int, r: int, amount: float, halvings: int) -> None:
    """Set a slope to ``amount / 2^halvings``."""
    for at in range(PARTS):
        table.parts[user, r, at], table.powers[user, r, at] = 0.0, 0
    add_part(table.parts[user, r], table.powers[user, r], amount)
    halve_parts(table.parts[user, r], table.powers[user, r], halvings)
    table.slope[user, r] = leading(table.parts[user, r], table.powers[user, r])


@no_refcount_kernel
def halve_slopes(table: UserTable, seen: int, halvings: int) -> None:
    """Divide the slopes of the users seen so far by 2^halvings, exactly: the reference time moves."""
    for user in range(seen):
        for r in range(table.capacity.size):
            if table.parts[user, r, 0] != 0.0:
                halve_parts(table.parts[user, r], table.powers[user, r], halvings)
                table.slope[user, r] = leading(table.parts[user, r], table.powers[user, r])


@inlined_kernel
def gap_of(table: UserTable, a: int, r: int, b: int, q: int) -> float:
    """Return the difference of the ends of two lines; 0 if they differ by rounding only."""
    first, second = table.lead[a] + table.level[a, r], table.lead[b] + table.level[b, q]
    gap = first - second
    return 0.0 if abs(gap) <= SAME_END * (abs(first) + abs(second)) else gap


@no_refcount_kernel
def compare_lines(table: UserTable, a: int, r: int, b: int, q: int, g: float) -> int:
    """Return -1, 0 or 1: from now on a line is lower than another one, equal for ever or higher.

    Lines that meet now are compared as they will be: the end decides.
    """
    gap = gap_of(table, a, r, b, q)
    if gap == 0.0:
        return compare_parts(table.parts[a, r], table.powers[a, r], table.parts[b, q], table.powers[b, q])
    first, second = g * table.slope[a, r], g * table.slope[b, q]
    ahead = gap + (first - second)
    rounding = MEETING * (abs(first) + abs(second) + abs(table.lead[a] + table.level[a, r]))
    if abs(ahead) > rounding:
        return 1 if ahead > 0.0 else -1
    # A change of the users' resources at this instant changes the ends, and leaves the commitments.
    gap_before = gap + end_before(table, a, r, g, 0) - end_before(table, b, q, g, 1)
    if abs(gap_before) <= rounding:
        order = compare_parts(table.spare[0], table.spare_powers[0], table.spare[1], table.spare_powers[1])
        if order != 0:
            return order
    return 1 if gap > 0.0 else -1


@no_refcount_kernel
def end_before(table: UserTable, user: int, r: int, g: float, spare: int) -> float:
    """Return by how much the end of a line was higher before this instant's changes of the commitment.

    The slope of that line, exactly, is stored in ``spare``.
    """
    for at in range(PARTS):
        table.spare[spare, at] = table.parts[user, r, at]
        table.spare_powers[spare, at] = table.powers[user, r, at]
    if table.changed[user] != table.instant[0]:
        return 0.0
    over, base = table.over[user, r], table.base[user, r]
    add_part(table.spare[spare], table.spare_powers[spare], over / g)
    add_part(table.spare[spare], table.spare_powers[spare], -base / g)
    return float(base - over)


@inlined_kernel
def top_line(table: UserTable, user: int, g: float) -> tuple[float, int]:
    """Return a user's priority, and the resource whose line is the highest from now on."""
    top, best = table.level[user, 0] + g * table.slope[user, 0], 0
    for r in range(1, table.capacity.size):
        value = table.level[user, r] + g * table.slope[user, r]
        apart = value - top
        if abs(apart) <= NEAR * (abs(value) + abs(top) + table.lead[user]):
            apart = compare_lines(table, user, r, user, best, g)
        if apart > 0.0:
            top, best = value, r
    return table.lead[user] + top, best


@inlined_kernel
def crossing(table: UserTable, low: int, high: int, g: float) -> float:
    """Return the highest future ``g`` at which ``low`` may stop preceding ``high``, or -1.

    This is the upper end of an interval of ``g`` in which a line of ``low`` is above all lines of ``high``.
    """
    highest = -1.0
    for r in range(table.capacity.size):
        least, most = 0.0, g
        for q in range(table.capacity.size):
            gap = gap_of(table, low, r, high, q)
            rate = table.slope[low, r] - table.slope[high, q]
            if gap == 0.0:
                # Such lines do not meet. Equal ones count as above, if the index says so.
                above = compare_parts(
                    table.parts[low, r], table.powers[low, r], table.parts[high, q], table.powers[high, q]
                )
                if above < 0 or (above == 0 and low < high):
                    most = -1.0
            elif rate > 0:
                least = max(least, -gap / rate)
            elif rate < 0:
                most = min(most, -gap / rate)
            elif gap < 0:
                most = -1.0
        if most > 0 and least <= most * EARLY:
            highest = max(highest, most)
    return min(highest * EARLY, g * BELOW) if highest > 0 else -1.0
