"""A whole trace through SDRF by the paper's live tree, for the number of its events.

Not for: results alone. ``dios.fairness.simulate`` decides alike and is quicker (docs/fairness.md).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from numpy.typing import ArrayLike

from dios.compiled import borrowing
from dios.fairness.allocation import Floats, Ints
from dios.fairness.sdrf_kernels import Books, decay, give_back, start
from dios.fairness.sdrf_tree_kernels import EVENTS, FIRST, Tree, advance, empty_tree, replay, replay_all
from dios.fairness.simulate import (
    ACTIVE,
    ARRIVED,
    MICRO,
    RUNNING,
    SEEN,
    Flight,
    Trace,
    arrive,
    launch,
    next_instant,
    pop,
    prepared,
    started,
)


@borrowing
def fly_by_tree(
    trace: Trace,
    flight: Flight,
    books: Books,
    clock: Floats,
    population: int,
    tau: float,
    mode: int,
    tree: Tree,
) -> None:
    """As ``fly``; whoever is next stands first in the tree, which follows every change of the books."""
    count = flight.tally
    while count[ARRIVED] < trace.arrival.size or count[RUNNING]:
        t = next_instant(trace, flight)
        reference = clock[0]
        decay(books, count[SEEN], clock, t / MICRO, tau)
        if clock[0] != reference:
            replay_all(tree, books, count[ACTIVE], clock[1])
        fair = 1.0 / max(population or count[SEEN], 1)
        while count[RUNNING] and flight.finish[flight.heap[0]] <= t:
            row = pop(flight)
            give_back(books, trace.user[row], trace.demand[row], fair, clock[1], mode)
            replay(tree, books, trace.user[row], clock[1])
        while count[ARRIVED] < trace.arrival.size and trace.submit[trace.arrival[count[ARRIVED]]] <= t:
            row, before = trace.arrival[count[ARRIVED]], count[SEEN]
            arrive(trace, flight, books, row, population, clock[1], mode)
            count[ARRIVED] += 1
            if population == 0 and count[SEEN] != before:
                replay_all(tree, books, count[ACTIVE], clock[1])
            elif not tree.inside[trace.user[row]]:
                replay(tree, books, trace.user[row], clock[1])
        fair = 1.0 / max(population or count[SEEN], 1)
        advance(tree, books, clock[1])
        while count[ACTIVE] and start(books, tree.state[FIRST], fair, clock[1], mode):
            user = tree.state[FIRST]
            launch(trace, flight, books, t, user, clock[1])
            replay(tree, books, user, clock[1])


def simulate_by_tree(
    submit_us: ArrayLike,
    duration_us: ArrayLike,
    user: ArrayLike,
    demands: ArrayLike,
    capacity: ArrayLike,
    *,
    users: int | Collection[Hashable] | None = None,
    delta: float = 1 - 1e-6,
    priority: str = "dominant",
) -> tuple[Ints, Ints, int]:
    """What ``simulate`` returns for the same arguments, and how many events the live tree handled.

    SDRF paper, section VI-C. An event is a meeting of two neighbours in the order of those who wait, a false
    one where they only came near. Raises as ``simulate`` does.
    """
    play = prepared(submit_us, duration_us, user, demands, capacity, users, delta, priority)
    tree = empty_tree(play.flight.first.size)
    fly_by_tree(*play._replace(books=play.books._replace(winner=play.books.winner[:0])), tree)
    return (*started(play.flight), int(tree.state[EVENTS]))
