"""SDRF's books and its decision, compiled: who goes next, and what an allocation does to commitments.

Not for: queues and tags (``dios.fairness.stateful.scheduler``), nor events (``dios.fairness.simulate``).
Both of them decide here, so that they decide alike.

Whoever is next is found by a scan of those who wait, or stands first in the live tree. What decides is put
into its callers' bodies: the books are many arrays, and handing them on would take longer than the work.
"""

from __future__ import annotations

import math
from typing import Final

from dios.compiled import borrowing, inlined
from dios.fairness.allocation import Floats
from dios.fairness.stateful.tree_kernels import advance, replay, replay_all
from dios.fairness.stateful.user_table import EVENTS, FIRST, SCAN_MAX, Books, empty_books, standing

__all__ = [
    "DOMINANT",
    "PLAIN",
    "SUM",
    "Books",
    "bring_forward",
    "decay",
    "empty_books",
    "give_back",
    "grown_books",
    "join",
    "leave",
    "pick",
    "settle",
    "settle_everybody",
    "start",
    "start_next",
]

PLAIN: Final = 0
"""DRF: the dominant share alone."""
DOMINANT: Final = 1
"""Dominant share plus dominant commitment (equation 10)."""
SUM: Final = 2
"""The largest sum of share and commitment (Algorithm 1, equation 13)."""

FAR: Final = 25.0
"""So many tau after its reference ``g`` has lost eleven digits; then the reference moves."""


def grown_books(books: Books, users: int, g: float) -> Books:
    """The same books with room for more users, at this ``g``."""
    grown = empty_books(books.capacity, users, 0 if books.tree.inside.size else SCAN_MAX)
    grown.running[-1] = books.running[-1]
    before = books.lead.size
    for new, old in zip(grown[2:-1], books[2:-1], strict=True):
        new[:before] = old[:before]
    grown = grown._replace(used=books.used)
    grown.tree.state[EVENTS] = books.tree.state[EVENTS]
    replay_all(grown, before, g)
    return grown


@inlined
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


@inlined
def pick(books: Books, count: int, g: float) -> int:
    """The active user who is next; -1 where nobody is active."""
    if not books.tree.inside.size:
        return scan(books, count, g)
    advance(books, g)
    return int(books.tree.state[FIRST])


@inlined
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


@inlined
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


@inlined
def start_next(books: Books, count: int, fair: float, g: float, mode: int) -> int:
    """One turn of Algorithm 1: allocate the head task of whoever is next; -1 where the system is full."""
    user = pick(books, count, g)
    return user if user >= 0 and start(books, user, fair, g, mode) else -1


@inlined
def give_back(books: Books, user: int, demand: Floats, fair: float, g: float, mode: int) -> None:
    """End a task; without any left a user, and the system, hold exactly nothing, whatever rounding left."""
    books.running[user] -= 1
    books.running[-1] -= 1
    for r in range(books.capacity.size):
        books.used[r] = books.used[r] - demand[r] if books.running[-1] else 0.0
        books.held[user, r] = books.held[user, r] - demand[r] if books.running[user] else 0.0
    settle(books, user, fair, g, mode)


@inlined
def bring_forward(books: Books, user: int, demand: Floats) -> None:
    """Note the demand of a user's first waiting task."""
    for r in range(demand.size):
        books.head[user, r] = demand[r]


@inlined
def join(books: Books, count: int, user: int, demand: Floats, g: float) -> int:
    """Make a user active with this head task; returns the new count of active users."""
    bring_forward(books, user, demand)
    books.active[count] = user
    books.place[user] = count
    replay(books, user, g)
    return count + 1


@inlined
def leave(books: Books, count: int, user: int, g: float) -> int:
    """Make a user inactive; returns the new count."""
    last = books.active[count - 1]
    books.active[books.place[user]] = last
    books.place[last] = books.place[user]
    books.place[user] = -1
    replay(books, user, g)
    return count - 1
