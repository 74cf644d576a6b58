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

from dios.compiled import borrowing
from dios.fairness.allocation import Floats, Ints

PLAIN: Final = 0
"""DRF: the dominant share alone."""
DOMINANT: Final = 1
"""Dominant share plus dominant commitment (equation 10)."""
SUM: Final = 2
"""The largest sum of share and commitment (Algorithm 1, equation 13)."""

SCAN_MAX: Final = 2048
"""Up to so many users whoever is next is found by looking at all; beyond, by a tournament."""
EARLY: Final = 1 + 1e-12
"""Crossings are expected this much early, so that rounding finds none too late."""
BELOW: Final = 1 - 2.0**-50
"""Just below one: a crossing that is expected now is looked for again at the next instant."""
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
    winner: Ints
    """(2 S,) a kinetic tournament of S >= U users: who is next below a node, or -1; empty for a scan."""
    due: Floats
    """(2 S,) the highest ``g`` still to come at which something below the node may change, or -1."""


def empty_books(capacity: Floats, users: int, scan_max: int = SCAN_MAX) -> Books:
    """Books for so many users, none of whom has done anything; a tournament beyond ``scan_max`` of them."""
    nodes = 0 if users <= scan_max else 2 << (users - 1).bit_length()
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
        winner=np.full(nodes, -1, np.int64),
        due=np.full(nodes, -1.0),
    )


def grown_books(books: Books, users: int, g: float) -> Books:
    """The same books with room for more users, at this ``g``."""
    grown = empty_books(books.capacity, users)
    grown.running[-1] = books.running[-1]
    before = books.lead.size
    for new, old in zip(grown[2:-2], books[2:-2], strict=True):
        new[:before] = old[:before]
    grown = grown._replace(used=books.used)
    replay_all(grown, before, g)
    return grown


@borrowing
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


@borrowing
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


@borrowing
def meet(books: Books, node: int, g: float) -> None:
    """Decide a node of the tournament by its two, and until when that holds."""
    if 2 * node >= books.winner.size:
        return
    a, b = books.winner[2 * node], books.winner[2 * node + 1]
    due = max(books.due[2 * node], books.due[2 * node + 1])
    if a >= 0 and b >= 0:
        first, falls = standing(books, a, g)
        second, falling = standing(books, b, g)
        # Of equal ones the left has the lower index.
        if second < first or (second == first and falling > falls):
            a, b = b, a
        due = max(due, crossing(books, a, b, g))
    books.winner[node] = a if a >= 0 else b
    books.due[node] = due


@borrowing
def replay(books: Books, user: int, g: float) -> None:
    """Play a user's matches anew after its line changed, or it became active or inactive."""
    if books.winner.size:
        node = books.winner.size // 2 + user
        books.winner[node] = user if books.place[user] >= 0 else -1
        node >>= 1
        while node > 0:
            meet(books, node, g)
            node >>= 1


@borrowing
def replay_all(books: Books, seen: int, g: float) -> None:
    """Play the whole tournament anew: every line has changed."""
    half = books.winner.size // 2
    if half:
        for user in range(seen):
            books.winner[half + user] = user if books.place[user] >= 0 else -1
        for node in range(half - 1, 0, -1):
            meet(books, node, g)


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
    if books.place[user] >= 0:
        replay(books, user, g)


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
        replay_all(books, seen, 1.0)
    clock[1] = math.exp(-past)


@borrowing
def pick(books: Books, count: int, g: float) -> int:
    """The active user who is next; -1 where nobody is active."""
    if not books.winner.size:
        return scan(books, count, g)
    while books.due[1] >= g:
        node = 1
        while 2 * node < books.winner.size:
            if books.due[2 * node] >= g:
                node = 2 * node
            elif books.due[2 * node + 1] >= g:
                node = 2 * node + 1
            else:
                break
        while node > 0:
            meet(books, node, g)
            node >>= 1
    return int(books.winner[1])


@borrowing
def scan(books: Books, count: int, g: float) -> int:
    """The active user with the lowest (priority, its derivative, index); -1 where nobody is active.

    The derivative is that of what follows: of several largest resources the one that falls least.
    """
    best, least, fall = -1, 0.0, 0.0
    for i in range(count):
        user = books.active[i]
        value, slope = standing(books, user, g)
        if (
            best < 0
            or value < least
            or (value == least and (slope > fall or (slope == fall and user < best)))
        ):
            best, least, fall = user, value, slope
    return best


@borrowing
def start(books: Books, user: int, fair: float, g: float, mode: int) -> bool:
    """Allocate a user's head task; False, and nothing has changed, where it does not fit."""
    for r in range(books.capacity.size):
        if books.used[r] + books.head[user, r] > books.capacity[r]:
            return False
    for r in range(books.capacity.size):
        books.used[r] += books.head[user, r]
        books.held[user, r] += books.head[user, r]
    books.running[user] += 1
    books.running[-1] += 1
    settle(books, user, fair, g, mode)
    return True


@borrowing
def start_next(books: Books, count: int, fair: float, g: float, mode: int) -> int:
    """One turn of Algorithm 1: allocate the head task of whoever is next; -1 where the system is full."""
    user = pick(books, count, g)
    return user if user >= 0 and start(books, user, fair, g, mode) else -1


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
def join(books: Books, count: int, user: int, demand: Floats, g: float) -> int:
    """Make a user active with this head task; returns the new count of active users."""
    bring_forward(books, user, demand)
    books.active[count] = user
    books.place[user] = count
    replay(books, user, g)
    return count + 1


@borrowing
def leave(books: Books, count: int, user: int, g: float) -> int:
    """Make a user inactive; returns the new count."""
    last = books.active[count - 1]
    books.active[books.place[user]] = last
    books.place[last] = books.place[user]
    books.place[user] = -1
    replay(books, user, g)
    return count - 1
