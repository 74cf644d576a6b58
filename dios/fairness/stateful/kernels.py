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
from dios.fairness.stateful.tree_kernels import advance, replay, replay_all
from dios.fairness.stateful.user_table import EVENTS, FIRST, SCAN_MAX, Books, empty_books, standing
from dios.kernels import inlined_kernel, no_refcount_kernel

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
"""DRF: the dominant share only."""
DOMINANT: Final = 1
"""The dominant share plus the dominant commitment (equation 10)."""
SUM: Final = 2
"""The largest sum of a share and its commitment (Algorithm 1, equation 13)."""

FAR: Final = 25.0
"""After this number of tau, ``g`` has lost eleven digits; then the reference time moves."""


def grown_books(books: Books, users: int, g: float) -> Books:
    """Return a copy of the table with room for more users, at the current ``g``."""
    grown = empty_books(books.capacity, users, 0 if books.tree.inside.size else SCAN_MAX)
    grown.running[-1] = books.running[-1]
    before = books.lead.size
    for new, old in zip(grown[2:-1], books[2:-1], strict=True):
        new[:before] = old[:before]
    grown = grown._replace(used=books.used)
    grown.tree.state[EVENTS] = books.tree.state[EVENTS]
    replay_all(grown, before, g)
    return grown


@inlined_kernel
def settle(books: Books, user: int, fair: float, g: float, mode: int) -> None:
    """Update a user's line after its allocation or ``fair`` (1/n) changed; the commitment does not jump."""
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


@no_refcount_kernel
def settle_everybody(books: Books, seen: int, fair: float, g: float, mode: int) -> None:
    """Update the lines of all users with running tasks, because 1/n changed."""
    if mode != PLAIN:
        for user in range(seen):
            if books.running[user]:
                settle(books, user, fair, g, mode)


@no_refcount_kernel
def decay(books: Books, seen: int, clock: Floats, t: float, tau: float) -> None:
    """Advance ``clock`` (t_ref, g) to time ``t``; move the reference too if it is far in the past."""
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


@inlined_kernel
def pick(books: Books, count: int, g: float) -> int:
    """Return the next active user, or -1 if no user is active."""
    if not books.tree.inside.size:
        return scan(books, count, g)
    advance(books, g)
    return int(books.tree.state[FIRST])


@inlined_kernel
def scan(books: Books, count: int, g: float) -> int:
    """Return the active user with the lowest (priority, its derivative, index), or -1 if none is active.

    The derivative is that from now on: among several largest resources, of the one that falls least.
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


@inlined_kernel
def start(books: Books, user: int, fair: float, g: float, mode: int) -> bool:
    """Allocate a user's first task; return False without a change if it does not fit."""
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


@inlined_kernel
def start_next(books: Books, count: int, fair: float, g: float, mode: int) -> int:
    """Allocate the first task of the next user (one step of Algorithm 1); -1 if no task can start."""
    user = pick(books, count, g)
    return user if user >= 0 and start(books, user, fair, g, mode) else -1


@inlined_kernel
def give_back(books: Books, user: int, demand: Floats, fair: float, g: float, mode: int) -> None:
    """End a task; amounts without any running task are set to exactly 0, to drop rounding errors."""
    books.running[user] -= 1
    books.running[-1] -= 1
    for r in range(books.capacity.size):
        books.used[r] = books.used[r] - demand[r] if books.running[-1] else 0.0
        books.held[user, r] = books.held[user, r] - demand[r] if books.running[user] else 0.0
    settle(books, user, fair, g, mode)


@inlined_kernel
def bring_forward(books: Books, user: int, demand: Floats) -> None:
    """Set the demand of a user's first waiting task."""
    for r in range(demand.size):
        books.head[user, r] = demand[r]


@inlined_kernel
def join(books: Books, count: int, user: int, demand: Floats, g: float) -> int:
    """Make a user active with its first task; return the new number of active users."""
    bring_forward(books, user, demand)
    books.active[count] = user
    books.place[user] = count
    replay(books, user, g)
    return count + 1


@inlined_kernel
def leave(books: Books, count: int, user: int, g: float) -> int:
    """Make a user inactive; return the new number of active users."""
    last = books.active[count - 1]
    books.active[books.place[user]] = last
    books.place[last] = books.place[user]
    books.place[user] = -1
    replay(books, user, g)
    return count - 1
