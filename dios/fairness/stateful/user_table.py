"""SDRF's books: what is known of every user, as lines over time that are compared without a logarithm.

Not for: what an allocation does to them (``sdrf_kernels``), nor their order (``sdrf_tree_kernels``).

Between two changes of a user's allocation its commitment (SDRF paper, equation 12) is linear in
``g = exp(-(t - t_ref) / tau)``: ``c = over + g slope``, with ``over`` the share beyond 1/n (equation 7).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.compiled import inlined
from dios.fairness.allocation import Floats, Ints

SCAN_MAX: Final = 2048
"""Up to so many users whoever is next is found by looking at all; beyond, by a live tree."""
EARLY: Final = 1 + 1e-12
"""Crossings are expected this much early, so that rounding finds none too late."""
BELOW: Final = 1 - 2.0**-50
"""Just below one: a crossing that is expected now is looked for again at the next instant."""


LEFT, RIGHT, ABOVE, BEFORE, AFTER = range(5)
ROOT, FIRST, SIZE, EVENTS = range(4)


class Tree(NamedTuple):
    """Users (U) by their place in the order; -1 is nobody."""

    link: Ints
    """(U, 5) below on the left and on the right, above, before and after."""
    inside: Ints
    """(U,) 1 for those who are in the tree."""
    meets: Floats
    """(U,) the ``g`` at which a user may meet the one after it."""
    heap: Ints
    """(U,) users who will meet the one after them, the highest ``g`` on top."""
    seat: Ints
    """(U,) where a user stands in the heap, or -1."""
    state: Ints
    """(4,) the root, who is first, how many meetings are in the heap, and how many were handled."""
    since: Floats
    """(1,) the ``g`` at which the order was true last."""


def empty_tree(users: int) -> Tree:
    """A tree with room for so many users, and nobody in it."""
    return Tree(
        link=np.full((users, 5), -1, np.int64),
        inside=np.zeros(users, np.int64),
        meets=np.zeros(users),
        heap=np.zeros(users, np.int64),
        seat=np.full(users, -1, np.int64),
        state=np.array([-1, -1, 0, 0]),
        since=np.ones(1),
    )


class Books(NamedTuple):
    """What is known of every user (U) and resource (m); a user's index is its order of first submission."""

    capacity: Floats
    """(m,) in the raw units of the demands."""
    used: Floats
    """(m,) raw units that run."""
    held: Floats
    """(U, m) raw units that run for a user."""
    running: Ints
    """(U + 1,) tasks that run for a user; at the end, for all."""
    lead: Floats
    """(U,) the part of the priority that stands before the largest: the dominant share, or 0."""
    level: Floats
    """(U, m) what the priority tends to in each resource, beside ``lead``."""
    over: Floats
    """(U, m) the share beyond 1/n."""
    slope: Floats
    """(U, m) the commitment above ``over`` at the reference time."""
    head: Floats
    """(U, m) the demand of the user's first waiting task."""
    active: Ints
    """(U,) first those users who have a task waiting, in any order."""
    place: Ints
    """(U,) where a user stands in ``active``, or -1."""
    tree: Tree
    """The active users in order; one without room where whoever is next is found by a scan."""


def empty_books(capacity: Floats, users: int, scan_max: int = SCAN_MAX) -> Books:
    """Books for so many users, none of whom has done anything; beyond ``scan_max`` with a live tree."""
    shape = (users, capacity.size)
    return Books(
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


@inlined
def standing(books: Books, user: int, g: float) -> tuple[float, float]:
    """A user's priority and, the larger the faster it falls, the slope of what it follows from now on."""
    top, slope = -np.inf, 0.0
    for r in range(books.capacity.size):
        value = books.level[user, r] + g * books.slope[user, r]
        if value > top:
            top, slope = value, books.slope[user, r]
        elif value == top:
            slope = min(slope, books.slope[user, r])
    return books.lead[user] + top, slope


@inlined
def crossing(books: Books, low: int, high: int, g: float) -> float:
    """The highest ``g`` still to come at which ``low`` may no longer be before ``high``, or -1.

    A line of ``low`` is above all of those of ``high`` in an interval of ``g``: its upper end counts.
    """
    found = -1.0
    for r in range(books.capacity.size):
        least, most = 0.0, g
        for q in range(books.capacity.size):
            gap = books.lead[low] + books.level[low, r] - (books.lead[high] + books.level[high, q])
            rate = books.slope[low, r] - books.slope[high, q]
            if rate > 0:
                least = max(least, -gap / rate)
            elif rate < 0:
                most = min(most, -gap / rate)
            elif gap <= 0:
                most = -1.0
        if most > 0 and least <= most * EARLY:
            found = max(found, most)
    return min(found * EARLY, g * BELOW) if found > 0 else -1.0
