"""SDRF's table of users: shares and commitments as lines over time that are compared without a logarithm.

Between two changes of a user's allocation its commitment (SDRF paper, equation 12) is linear in
``g = exp(-(t - t_ref) / tau)``: ``c = over + g slope``, where ``over`` is the share beyond 1/n (equation 7).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.fairness.allocation import Floats, Ints
from dios.kernels import inlined_kernel

SCAN_MAX: Final = 2048
"""With at most this number of users, a scan of all finds the next user; with more, a live tree does."""
EARLY: Final = 1 + 1e-12
"""Crossings are expected this much early, so that rounding never makes one late."""
BELOW: Final = 1 - 2.0**-50
"""Just below 1: a crossing expected now is checked again at the next time."""


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
    """(U, m) the difference of the commitment and ``over`` at the reference time."""
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
        head=np.zeros(shape),
        active=np.zeros(users, np.int64),
        place=np.full(users, -1, np.int64),
        tree=empty_tree(0 if users <= scan_max else users),
    )


@inlined_kernel
def priority_and_slope(table: UserTable, user: int, g: float) -> tuple[float, float]:
    """Return a user's priority, and the slope of its largest line from now on (larger: falls faster)."""
    top, slope = -np.inf, 0.0
    for r in range(table.capacity.size):
        value = table.level[user, r] + g * table.slope[user, r]
        if value > top:
            top, slope = value, table.slope[user, r]
        elif value == top:
            slope = min(slope, table.slope[user, r])
    return table.lead[user] + top, slope


@inlined_kernel
def crossing(table: UserTable, low: int, high: int, g: float) -> float:
    """Return the highest future ``g`` at which ``low`` may stop preceding ``high``, or -1.

    This is the upper end of an interval of ``g`` in which a line of ``low`` is above all lines of ``high``.
    """
    found = -1.0
    for r in range(table.capacity.size):
        least, most = 0.0, g
        for q in range(table.capacity.size):
            gap = table.lead[low] + table.level[low, r] - (table.lead[high] + table.level[high, q])
            rate = table.slope[low, r] - table.slope[high, q]
            if rate > 0:
                least = max(least, -gap / rate)
            elif rate < 0:
                most = min(most, -gap / rate)
            elif gap <= 0:
                most = -1.0
        if most > 0 and least <= most * EARLY:
            found = max(found, most)
    return min(found * EARLY, g * BELOW) if found > 0 else -1.0
