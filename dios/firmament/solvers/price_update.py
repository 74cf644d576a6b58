"""The global price update of cost scaling: every excess gets an admissible way to a deficit, at once.

Not for: exact shortest paths; distances count in whole epsilons, and near vertices stand in buckets.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.compiled import compiled
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.half_arcs import Halves
from dios.firmament.solvers.heap import bring, take

FAR: Final = 2**63 - 1
NONE: Final = -1

RANK_MAX: Final = 2**61
"""Ranks end here, which leaves one more step room within 64 bits."""

PRICE_HIGH: Final = 2**61
"""A price above this would leave 64 bits soon; then the problem is handed over."""

DONE, STUCK, OVERFLOWED = 0, 1, 2


class Ranks(NamedTuple):
    """The columns of an update, each (V,): made once for all updates.

    ``rank`` is a vertex' distance to the nearest deficit in epsilons. Those of rank below V stand in the list
    of their bucket (``front``, ``after``, ``before``), the others in a heap. ``order`` are the settled ones.
    """

    rank: Ints
    settled: Ints
    order: Ints
    front: Ints
    after: Ints
    before: Ints
    heap: Ints
    where: Ints


def new_ranks(vertices: int) -> Ranks:
    """Columns for a network of so many vertices."""
    columns = [np.zeros(vertices, np.int64) for _ in range(8)]
    return Ranks(*columns)


@compiled
def _into_bucket(ranks: Ranks, vertex: int) -> None:
    rank = ranks.rank[vertex]
    following = ranks.front[rank]
    ranks.after[vertex] = following
    ranks.before[vertex] = NONE
    if following >= 0:
        ranks.before[following] = vertex
    ranks.front[rank] = vertex


@compiled
def _out_of_bucket(ranks: Ranks, vertex: int) -> None:
    following, preceding = ranks.after[vertex], ranks.before[vertex]
    if preceding >= 0:
        ranks.after[preceding] = following
    else:
        ranks.front[ranks.rank[vertex]] = following
    if following >= 0:
        ranks.before[following] = preceding


@compiled
def _start(ranks: Ranks, excess: Ints) -> int:
    """Every deficit at rank 0; returns how many vertices have excess."""
    wanted = 0
    for vertex in range(len(excess)):
        ranks.rank[vertex] = FAR
        ranks.settled[vertex] = 0
        ranks.front[vertex] = NONE
        ranks.where[vertex] = NONE
    for vertex in range(len(excess)):
        if excess[vertex] < 0:
            ranks.rank[vertex] = 0
            _into_bucket(ranks, vertex)
        elif excess[vertex] > 0:
            wanted += 1
    return wanted


@compiled
def _scan(graph: Halves, price: Ints, ranks: Ranks, size: int, vertex: int, epsilon: int) -> int:
    """Bring the vertices with an arc to a settled one nearer; the heap's new size."""
    own = price[vertex]
    near = ranks.rank[vertex]
    window = len(price)
    for half in range(graph.first[vertex], graph.first[vertex + 1]):
        other = graph.target[half]
        if ranks.rank[other] <= near or graph.room[graph.mate[half]] <= 0:
            continue
        reduced = price[other] - own - graph.cost[half]
        rank = min(near + (reduced // epsilon + 1 if reduced >= 0 else 0), RANK_MAX)
        if rank >= ranks.rank[other]:
            continue
        if ranks.rank[other] < window:
            _out_of_bucket(ranks, other)
        ranks.rank[other] = rank
        if rank < window:
            _into_bucket(ranks, other)
        if rank >= window or ranks.where[other] >= 0:
            # One that left the heap for a bucket stays in both: the heap needs its keys in order.
            size = bring(ranks.heap, ranks.where, size, ranks.rank, other)
    return size


@compiled
def _settle(graph: Halves, price: Ints, excess: Ints, ranks: Ranks, wanted: int, epsilon: int) -> int:
    """Settle vertices until those with excess are; how many were settled, or -1 where that cannot be."""
    bucket, size, settled = 0, 0, 0
    while wanted:
        while bucket < len(price) and ranks.front[bucket] < 0:
            bucket += 1
        if bucket < len(price):
            vertex = ranks.front[bucket]
            _out_of_bucket(ranks, vertex)
        else:
            # What came nearer after it entered the heap was settled out of its bucket.
            if size == 0:
                return -1
            vertex = ranks.heap[0]
            size = take(ranks.heap, ranks.where, size, ranks.rank)
            if ranks.settled[vertex]:
                continue
        ranks.settled[vertex] = 1
        ranks.order[settled] = vertex
        settled += 1
        wanted -= excess[vertex] > 0
        if wanted:
            size = _scan(graph, price, ranks, size, vertex, epsilon)
    return settled


@compiled
def lower_by_rank(graph: Halves, price: Ints, excess: Ints, ranks: Ranks, current: Ints, epsilon: int) -> int:
    """Lower each price by its rank in epsilons, up to a common shift; DONE, STUCK or OVERFLOWED.

    Where it is STUCK ``ranks.settled`` is 0 for vertices that have more to send than can leave them. Prices
    stay right up to ``epsilon``, and ``current`` begins anew.
    """
    wanted = _start(ranks, excess)
    settled = _settle(graph, price, excess, ranks, wanted, epsilon)
    if settled < 0:
        return STUCK
    if settled == 0:
        return DONE
    farthest = ranks.rank[ranks.order[settled - 1]]
    if farthest >= PRICE_HIGH // epsilon:
        return OVERFLOWED
    for place in range(settled):
        vertex = ranks.order[place]
        price[vertex] += (farthest - ranks.rank[vertex]) * epsilon
        if price[vertex] > PRICE_HIGH:
            return OVERFLOWED
    for vertex in range(len(price)):
        current[vertex] = graph.first[vertex]
    return DONE
