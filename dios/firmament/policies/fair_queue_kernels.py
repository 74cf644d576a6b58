"""SDRF's decision (paper, Algorithm 1) over queues of waiting tasks, compiled.

``policies.fair_queue`` makes the queues and applies the decision; ``dios.fairness`` computes the priority
itself.
"""

from __future__ import annotations

from typing import NamedTuple

from dios.fairness.stateful.kernels import UserTable, activate, deactivate, next_user, update_line
from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.kernels import no_refcount_kernel


class Queues(NamedTuple):
    """The waiting entries by principal (P), each principal's in its order; W entries, R resources."""

    first: Ints
    """(P + 1,) the first entry of each principal."""
    demand: Floats
    """(W, R) the demand of an entry: a task, or the part of a gang that has to start together."""
    exempt: Flags
    """(W,) entries admitted without reserved room; they come first in each principal's queue."""
    taken: Flags
    """(W,) the answer: the admitted entries."""
    limited: Flags
    """(P,) the answer: principals stopped by a quota, or by too many exempt entries."""


@no_refcount_kernel
def settle_all(books: UserTable, held: Floats, scale: Floats, fair: float, g: float, mode: int) -> None:
    """Update the line of every principal: its holdings (P, R), counted ``scale`` times (P,), or 1/n."""
    for user in range(len(scale)):
        for r in range(books.capacity.size):
            books.held[user, r] = held[user, r] * scale[user]
        update_line(books, user, fair, g, mode)


@no_refcount_kernel
def _within(queues: Queues, at: int, user: int, held: Floats, quota: Floats) -> bool:
    """Return True if a principal may hold an entry in addition."""
    within = True
    for r in range(quota.shape[1]):
        within &= held[user, r] + queues.demand[at, r] <= quota[user, r]
    return within


@no_refcount_kernel
def _let_by(queues: Queues, user: int, held: Floats, quota: Floats, most: int) -> int:
    """Admit up to ``most`` exempt entries of a principal; return the begin of the rest of its queue."""
    at = queues.first[user]
    end = queues.first[user + 1]
    while at < end and queues.exempt[at]:
        if at - queues.first[user] == most or not _within(queues, at, user, held, quota):
            queues.limited[user] = True
            return int(end)
        for r in range(quota.shape[1]):
            held[user, r] += queues.demand[at, r]
        queues.taken[at] = True
        at += 1
    return int(at)


@no_refcount_kernel
def take_turns(
    books: UserTable,
    queues: Queues,
    cursor: Ints,
    held: Floats,
    quota: Floats,
    free: Floats,
    scale: Floats,
    fair: float,
    g: float,
    mode: int,
    exempt_max: int,
) -> int:
    """Admit the next entry repeatedly; return the entry that did not fit ``free`` (R,) and ended it, or -1.

    ``books``, ``held`` (P, R), ``cursor`` (P,) and ``free`` are changed: pass copies.
    """
    count = 0
    for user in range(len(scale)):
        cursor[user] = _let_by(queues, user, held, quota, exempt_max)
        if cursor[user] < queues.first[user + 1]:
            count = activate(books, count, user, queues.demand[cursor[user]], g)
    while count:
        user = next_user(books, count, g)
        at = cursor[user]
        if not _within(queues, at, user, held, quota):
            queues.limited[user] = True
            count = deactivate(books, count, user, g)
            continue
        for r in range(free.size):
            if queues.demand[at, r] > free[r]:
                return int(at)
        for r in range(free.size):
            free[r] -= queues.demand[at, r]
            held[user, r] += queues.demand[at, r]
            books.held[user, r] += queues.demand[at, r] * scale[user]
        update_line(books, user, fair, g, mode)
        queues.taken[at] = True
        cursor[user] += 1
        if cursor[user] == queues.first[user + 1]:
            count = deactivate(books, count, user, g)
    return -1
