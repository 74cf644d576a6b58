"""Cost scaling with push and relabel (thesis §C.1.2, Algorithm C.1), after Goldberg's work of 1997.

It serves networks of every shape, and its time depends little on how contended they are. It is the choice
where the network simplex takes long. Problems whose scaled costs do not fit 64 bits are handed over to the
network simplex, and the solution's ``reason`` says so.

Costs are multiplied by V + 1, and prices are kept so that no residual arc's reduced cost is below -epsilon.
Each refinement divides epsilon by ALPHA, and at 1 the flow is optimal. There are three additions to the
outline in the thesis: look-ahead (a vertex is relabelled before it receives flow that it could not send
on), global price updates (``lower_by_rank``), and an early end where prices that prove the flow are near
(``refine_prices``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dios.errors import DiosError
from dios.firmament.solvers import network_simplex
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import NO_VERTICES, StandardProblem, StandardResult, solve_by
from dios.kernels import force_inlined_kernel, no_refcount_kernel
from labs.solvers.half_arcs import Halves, halves, saturate

NO_STOP: Final[Ints] = np.zeros(1, np.int64)
"""The value of ``stop`` for a solution that is never stopped. It is never written."""


class StoppedError(DiosError):
    """The solution is no longer wanted, because another algorithm was faster."""


LOWERED_MAX: Final = 6
"""The number of times that prices may be lowered, as a multiple of the vertices; 2 or 3 usually suffice."""

REFINE_PRICE_LOW: Final = -(2**62)
"""A price below this follows a negative cycle, and would soon leave 64 bits."""


@no_refcount_kernel
def refine_prices(graph: Halves, price: Ints, queue: Ints, queued: Ints, factor: int) -> bool:
    """Make ``price`` (V,) right for every residual arc, in multiples of ``factor``; False if that is far.

    Costs are multiples of ``factor`` too. ``queue`` (V,) lists the vertices, and ``queued`` (V,) is ones.
    After False, ``price`` is not usable.
    """
    vertices = len(price)
    for vertex in range(vertices):
        price[vertex] = price[vertex] // factor * factor
    begin, waiting, left = 0, vertices, LOWERED_MAX * vertices
    while waiting:
        vertex = queue[begin]
        begin = begin + 1 if begin + 1 < vertices else 0
        waiting -= 1
        queued[vertex] = 0
        own = price[vertex]
        for half in range(graph.first[vertex], graph.first[vertex + 1]):
            other = graph.target[half]
            if graph.room[half] <= 0 or own + graph.cost[half] >= price[other]:
                continue
            price[other] = own + graph.cost[half]
            left -= 1
            if not queued[other]:
                queued[other] = 1
                end = begin + waiting
                queue[end if end < vertices else end - vertices] = other
                waiting += 1
        if left < 0 or own < REFINE_PRICE_LOW:
            return False
    return True


@no_refcount_kernel
def _push_or_raise(heap: Ints, position: Ints, size: int, distance: Ints, vertex: int) -> int:
    """Insert ``vertex``, or move it up after its distance fell; return the new size.

    ``position`` (V,) is the place of each vertex in the heap, or -1.
    """
    place = position[vertex]
    if place < 0:
        place = size
        size += 1
    key = distance[vertex]
    while place > 0:
        above = (place - 1) >> 1
        other = heap[above]
        if distance[other] <= key:
            break
        heap[place] = other
        position[other] = place
        place = above
    heap[place] = vertex
    position[vertex] = place
    return size


@no_refcount_kernel
def _pop(heap: Ints, position: Ints, size: int, distance: Ints) -> int:
    """Remove ``heap[0]``, the nearest vertex, which the caller has read; return the new size."""
    position[heap[0]] = -1
    size -= 1
    if size == 0:
        return size
    vertex = heap[size]
    key = distance[vertex]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and distance[heap[below + 1]] < distance[heap[below]]:
            below += 1
        other = heap[below]
        if key <= distance[other]:
            break
        heap[place] = other
        position[other] = place
        place = below
    heap[place] = vertex
    position[vertex] = place
    return size


FAR: Final = 2**63 - 1
NONE: Final = -1

RANK_MAX: Final = 2**61
"""The largest rank, which leaves room for one more step within 64 bits."""

PRICE_HIGH: Final = 2**61
"""A price above this would soon leave 64 bits; the problem is then handed over."""

DONE, STUCK, OVERFLOWED = 0, 1, 2


class Ranks(NamedTuple):
    """The columns of a price update, each (V,), made once for all updates.

    ``rank`` is a vertex' distance to the nearest deficit in epsilons. Vertices of rank below V are in the
    list of their bucket (``front``, ``after``, ``before``), the others in a heap. ``order`` lists the
    settled ones.
    """

    rank: Ints
    settled: Ints
    order: Ints
    front: Ints
    after: Ints
    before: Ints
    heap: Ints
    position: Ints


def new_ranks(vertices: int) -> Ranks:
    """Return columns for a network with this number of vertices."""
    columns = [np.zeros(vertices, np.int64) for _ in range(8)]
    return Ranks(*columns)


@force_inlined_kernel
def _into_bucket(ranks: Ranks, vertex: int) -> None:
    rank = ranks.rank[vertex]
    following = ranks.front[rank]
    ranks.after[vertex] = following
    ranks.before[vertex] = NONE
    if following >= 0:
        ranks.before[following] = vertex
    ranks.front[rank] = vertex


@force_inlined_kernel
def _out_of_bucket(ranks: Ranks, vertex: int) -> None:
    following, preceding = ranks.after[vertex], ranks.before[vertex]
    if preceding >= 0:
        ranks.after[preceding] = following
    else:
        ranks.front[ranks.rank[vertex]] = following
    if following >= 0:
        ranks.before[following] = preceding


@force_inlined_kernel
def _start(ranks: Ranks, excess: Ints) -> int:
    """Put every deficit at rank 0; return the number of vertices with excess."""
    wanted = 0
    for vertex in range(len(excess)):
        ranks.rank[vertex] = FAR
        ranks.settled[vertex] = 0
        ranks.front[vertex] = NONE
        ranks.position[vertex] = NONE
    for vertex in range(len(excess)):
        if excess[vertex] < 0:
            ranks.rank[vertex] = 0
            _into_bucket(ranks, vertex)
        elif excess[vertex] > 0:
            wanted += 1
    return wanted


@force_inlined_kernel
def _scan(graph: Halves, price: Ints, ranks: Ranks, size: int, vertex: int, epsilon: int) -> int:
    """Shorten the ranks of the vertices with an arc to a settled one; return the heap's new size."""
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
        if rank >= window or ranks.position[other] >= 0:
            # One that left the heap for a bucket stays in both: the heap needs its keys in order.
            size = _push_or_raise(ranks.heap, ranks.position, size, ranks.rank, other)
    return size


@force_inlined_kernel
def _settle(graph: Halves, price: Ints, excess: Ints, ranks: Ranks, wanted: int, epsilon: int) -> int:
    """Settle vertices until all with excess are settled; return their number, or -1 if that is impossible."""
    bucket, size, settled = 0, 0, 0
    while wanted:
        while bucket < len(price) and ranks.front[bucket] < 0:
            bucket += 1
        if bucket < len(price):
            vertex = ranks.front[bucket]
            _out_of_bucket(ranks, vertex)
        else:
            # A vertex whose rank fell after it entered the heap was settled from its bucket.
            if size == 0:
                return -1
            vertex = ranks.heap[0]
            size = _pop(ranks.heap, ranks.position, size, ranks.rank)
            if ranks.settled[vertex]:
                continue
        ranks.settled[vertex] = 1
        ranks.order[settled] = vertex
        settled += 1
        wanted -= excess[vertex] > 0
        if wanted:
            size = _scan(graph, price, ranks, size, vertex, epsilon)
    return settled


@no_refcount_kernel
def lower_by_rank(graph: Halves, price: Ints, excess: Ints, ranks: Ranks, current: Ints, epsilon: int) -> int:
    """Lower each price by its rank in epsilons, up to a common shift; return DONE, STUCK or OVERFLOWED.

    After STUCK, ``ranks.settled`` is 0 for vertices that have more to send than can leave them. Prices stay
    right up to ``epsilon``, and ``current`` is reset. Distances are whole epsilons; near vertices are in
    buckets.
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


ALPHA: Final = 5
"""The divisor of epsilon; between 4 and 12 it makes little difference."""

UPDATE_SHARE: Final = 1.0
"""Prices are updated after relabelling this share of the vertices; measured on Quincy-like networks."""

PRICE_LOW: Final = -(2**61)
"""A price below this would soon leave 64 bits; the problem is then handed over."""

SCALED_MAX: Final = 2**58
"""The limit of scaled costs; beyond it prices have no room."""

STOPPED = 3
BEGIN, WAITING, RELABELS, OVERFLOWS = 0, 1, 2, 3


@force_inlined_kernel
def _enqueue(queue: Ints, queued: Ints, counts: Ints, vertex: int) -> None:
    """Append a vertex to the queue, unless it is in the queue."""
    if queued[vertex]:
        return
    queued[vertex] = 1
    end = counts[BEGIN] + counts[WAITING]
    queue[end if end < len(queue) else end - len(queue)] = vertex
    counts[WAITING] += 1


@force_inlined_kernel
def _relabel(graph: Halves, price: Ints, current: Ints, counts: Ints, vertex: int, epsilon: int) -> bool:
    """Lower the price until the best residual arc is admissible; return False if there is none."""
    best, at = 0, -1
    for half in range(graph.first[vertex], graph.first[vertex + 1]):
        if graph.room[half] > 0:
            sells = price[graph.target[half]] - graph.cost[half]
            if at < 0 or sells > best:
                best, at = sells, half
    if at < 0:
        return False
    price[vertex] = best - epsilon
    counts[OVERFLOWS] += best < PRICE_LOW
    current[vertex] = at
    counts[RELABELS] += 1
    return True


@force_inlined_kernel
def _admissible(graph: Halves, price: Ints, current: Ints, vertex: int) -> int:
    """Return the next admissible half arc of a vertex, which becomes its current one; or -1."""
    own = price[vertex]
    for half in range(current[vertex], graph.first[vertex + 1]):
        if graph.room[half] > 0 and graph.cost[half] + own - price[graph.target[half]] < 0:
            current[vertex] = half
            return int(half)
    current[vertex] = graph.first[vertex + 1]
    return -1


@force_inlined_kernel
def _discharge(
    graph: Halves,
    price: Ints,
    excess: Ints,
    current: Ints,
    queue: Ints,
    queued: Ints,
    counts: Ints,
    vertex: int,
    epsilon: int,
) -> bool:
    """Push and relabel until the vertex has no excess; return False if a price update is needed first."""
    while excess[vertex] > 0:
        # The check is also needed here: two vertices whose excess has no way out relabel each other for ever.
        if counts[RELABELS] > len(price) * UPDATE_SHARE or counts[OVERFLOWS]:
            return False
        half = _admissible(graph, price, current, vertex)
        if half < 0:
            if not _relabel(graph, price, current, counts, vertex, epsilon):
                return False
            continue
        other = graph.target[half]
        if excess[other] >= 0 and _admissible(graph, price, current, other) < 0:
            # Looking ahead: what it received now would only come back.
            _relabel(graph, price, current, counts, other, epsilon)
            if graph.cost[half] + price[vertex] - price[other] >= 0:
                continue
        pushed = min(excess[vertex], graph.room[half])
        graph.room[half] -= pushed
        graph.room[graph.mate[half]] += pushed
        excess[vertex] -= pushed
        excess[other] += pushed
        if excess[other] > 0:
            _enqueue(queue, queued, counts, other)
    return True


@no_refcount_kernel
def _refine(
    graph: Halves,
    price: Ints,
    excess: Ints,
    ranks: Ranks,
    current: Ints,
    queue: Ints,
    queued: Ints,
    counts: Ints,
    epsilon: int,
    stop: Ints,
) -> int:
    """Make the flow and prices right up to ``epsilon``; return how it ended.

    ``queue`` and ``queued`` (V,) and ``counts`` (4,) are scratch space; the last two are zeros.
    """
    vertices = len(price)
    saturate(graph, price, excess)
    for vertex in range(vertices):
        current[vertex] = graph.first[vertex]
        if excess[vertex] > 0:
            _enqueue(queue, queued, counts, vertex)
    ended = lower_by_rank(graph, price, excess, ranks, current, epsilon)
    while counts[WAITING] and ended == DONE:
        if stop[0]:
            return STOPPED
        vertex = queue[counts[BEGIN]]
        counts[BEGIN] = counts[BEGIN] + 1 if counts[BEGIN] + 1 < vertices else 0
        counts[WAITING] -= 1
        queued[vertex] = 0
        on = _discharge(graph, price, excess, current, queue, queued, counts, vertex, epsilon)
        if counts[OVERFLOWS]:
            return OVERFLOWED
        if not on:
            _enqueue(queue, queued, counts, vertex)
            counts[RELABELS] = 0
            ended = lower_by_rank(graph, price, excess, ranks, current, epsilon)
    return ended


def _rounded(scaled: Ints, factor: int) -> Ints:
    """Return exact prices from scaled ones that are right up to 1, if there are more residues than vertices.

    Rounding down violates an arc's condition only where the scaled price is -1 modulo the factor. So all
    prices are first shifted by the same amount, after which no price is.
    """
    taken = np.zeros(factor, np.bool_)
    taken[scaled % factor] = True
    free = int(np.argmin(taken))
    shifted: Ints = (scaled + (factor - 1 - free)) // factor
    return shifted


def _proof(graph: Halves, price: Ints, factor: int, epsilon: int) -> Ints | None:
    """Return exact prices that prove the flow optimal, or None if it is not or the proof is not near."""
    if epsilon == 1:
        return _rounded(price, factor)
    # From half a unit of cost on, a flow is often optimal, and more refinements would only move it.
    near = price.copy()
    if 2 * epsilon > factor:
        return None
    queue, queued = np.arange(len(price)), np.ones_like(price)
    if not refine_prices(graph, near, queue, queued, factor):
        return None
    return near // factor


def _handed_over(standard: StandardProblem) -> StandardResult:
    why = "costs too large to be scaled: handed over to network_simplex"
    return replace(network_simplex.core(standard), note=why)


def fits(standard: StandardProblem) -> bool:
    """Return True if the scaled costs fit 64 bits."""
    return int(np.abs(standard.cost).max(initial=0)) * (len(standard.supply) + 1) < SCALED_MAX


def core(standard: StandardProblem, stop: Ints = NO_STOP) -> StandardResult:
    """Run the algorithm on a standard problem; raise :class:`StoppedError` soon after ``stop`` is not 0."""
    if not fits(standard):
        return _handed_over(standard)
    vertices = len(standard.supply)
    factor = vertices + 1
    dearest = int(np.abs(standard.cost).max(initial=0))
    graph, place = halves(replace(standard, cost=standard.cost * factor))
    price, excess = np.zeros(vertices, np.int64), standard.supply.copy()
    ranks, current = new_ranks(vertices), np.zeros(vertices, np.int64)
    epsilon = max(dearest * factor, 1)
    while True:
        epsilon = max(epsilon // ALPHA, 1)
        queue, queued, counts = np.empty_like(price), np.zeros_like(price), np.zeros(4, np.int64)
        ended = _refine(graph, price, excess, ranks, current, queue, queued, counts, epsilon, stop)
        if ended == STOPPED:
            raise StoppedError("cost scaling was stopped")
        if ended == STUCK:
            return network_simplex.shortage(standard)
        if ended == OVERFLOWED:
            return _handed_over(standard)
        proof = _proof(graph, price, factor, epsilon)
        if proof is not None:
            return StandardResult(standard.room - graph.room[place], proof, NO_VERTICES)


def run(problem: FlowProblem, stop: Ints = NO_STOP) -> FlowSolution:
    """Return the solution by cost scaling; ``stop`` (1,) ends it early."""
    return solve_by(lambda standard: core(standard, stop), problem, "cost_scaling")
