"""SDRF's books and its decision, compiled: who goes next, and what an allocation does to commitments.

Not for: queues and tags (``dios.fairness.sdrf_scheduler``), nor events (``dios.fairness.simulate``).
Both of them decide here, so that they decide alike.

Between two changes of a user's allocation its commitment (SDRF paper, equation 12) is linear in
``g = exp(-(t - t_ref) / tau)``: ``c = over + g slope``, with ``over`` the share beyond 1/n (equation 7).
So users are compared without any logarithm.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dios.compiled import borrowing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PLAIN: Final = 0
"""DRF: the dominant share alone."""
DOMINANT: Final = 1
"""Dominant share plus dominant commitment (equation 10)."""
SUM: Final = 2
"""The largest sum of share and commitment (Algorithm 1, equation 13)."""

FAR: Final = 25.0
"""So many tau after its reference ``g`` has lost eleven digits; then the reference moves."""


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


def empty_books(capacity: Floats, users: int) -> Books:
    """Books for so many users, none of whom has done anything."""
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
    )


def grown_books(books: Books, users: int) -> Books:
    """The same books with room for more users."""
    grown = empty_books(books.capacity, users)
    grown.running[-1] = books.running[-1]
    before = books.lead.size
    for new, old in zip(grown[2:], books[2:], strict=True):
        new[:before] = old[:before]
    return grown._replace(used=books.used)


@borrowing
def settle(books: Books, user: int, fair: float, g: float, mode: int) -> None:
    """Bring a user's line in order after its allocation or ``fair`` (1/n) changed; c itself does not jump."""
    top = 0.0
    for r in range(books.capacity.size):
        share = books.held[user, r] / books.capacity[r]
        top = max(top, share)
        if mode != PLAIN:
            over = max(share - fair, 0.0)
            if over != books.over[user, r]:
                books.slope[user, r] += (books.over[user, r] - over) / g
                books.over[user, r] = over
            books.level[user, r] = over if mode == DOMINANT else share + over
    books.lead[user] = 0.0 if mode == SUM else top


@borrowing
def settle_everybody(books: Books, seen: int, fair: float, g: float, mode: int) -> None:
    """Settle whoever has a task running: 1/n has changed."""
    if mode != PLAIN:
        for user in range(seen):
            if books.running[user]:
                settle(books, user, fair, g, mode)


@borrowing
def decay(books: Books, seen: int, clock: Floats, t: float, tau: float) -> None:
    """Move ``clock`` (t_ref, g) to time ``t``, and the reference with it where it lies far back."""
    past = (t - clock[0]) / tau
    if past > FAR:
        shrunk = math.exp(-past)
        for user in range(seen):
            for r in range(books.capacity.size):
                books.slope[user, r] *= shrunk
        clock[0] = t
        past = 0.0
    clock[1] = math.exp(-past)


@borrowing
def pick(books: Books, count: int, g: float) -> int:
    """The active user with the lowest (priority, its derivative, index); -1 where nobody is active.

    The derivative is that of what follows: of several largest resources the one that falls least.
    """
    best, least, fall = -1, 0.0, 0.0
    for i in range(count):
        user = books.active[i]
        top, slope = -np.inf, 0.0
        for r in range(books.capacity.size):
            value = books.level[user, r] + g * books.slope[user, r]
            if value > top:
                top, slope = value, books.slope[user, r]
            elif value == top:
                slope = min(slope, books.slope[user, r])
        value = books.lead[user] + top
        if (
            best < 0
            or value < least
            or (value == least and (slope > fall or (slope == fall and user < best)))
        ):
            best, least, fall = user, value, slope
    return best


@borrowing
def start_next(books: Books, count: int, fair: float, g: float, mode: int) -> int:
    """One turn of Algorithm 1: allocate the head task of whoever is next; -1 where the system is full."""
    user = pick(books, count, g)
    if user < 0:
        return -1
    for r in range(books.capacity.size):
        if books.used[r] + books.head[user, r] > books.capacity[r]:
            return -1
    for r in range(books.capacity.size):
        books.used[r] += books.head[user, r]
        books.held[user, r] += books.head[user, r]
    books.running[user] += 1
    books.running[-1] += 1
    settle(books, user, fair, g, mode)
    return user


@borrowing
def give_back(books: Books, user: int, demand: Floats, fair: float, g: float, mode: int) -> None:
    """End a task; without any left a user, and the system, hold exactly nothing, whatever rounding left."""
    books.running[user] -= 1
    books.running[-1] -= 1
    for r in range(books.capacity.size):
        books.used[r] = books.used[r] - demand[r] if books.running[-1] else 0.0
        books.held[user, r] = books.held[user, r] - demand[r] if books.running[user] else 0.0
    settle(books, user, fair, g, mode)


@borrowing
def bring_forward(books: Books, user: int, demand: Floats) -> None:
    """Note the demand of a user's first waiting task."""
    for r in range(demand.size):
        books.head[user, r] = demand[r]


@borrowing
def join(books: Books, count: int, user: int, demand: Floats) -> int:
    """Make a user active with this head task; returns the new count of active users."""
    bring_forward(books, user, demand)
    books.active[count] = user
    books.place[user] = count
    return count + 1


@borrowing
def leave(books: Books, count: int, user: int) -> int:
    """Make a user inactive; returns the new count."""
    last = books.active[count - 1]
    books.active[books.place[user]] = last
    books.place[last] = books.place[user]
    books.place[user] = -1
    return count - 1
