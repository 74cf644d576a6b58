"""Cost scaling with push and relabel (thesis §C.1.2, Algorithm C.1), after Goldberg's work of 1997.

For every shape of network; it does not care how contended a network is, which makes it the general choice.

Not for: costs so large that they fit 64 bits only unscaled. Those are handed over to successive shortest
paths, and the solution's ``reason`` says so.

Costs are multiplied by V + 1, and prices kept so that no residual arc's reduced cost is below -epsilon. Each
refinement divides epsilon by ALPHA, and at 1 the flow is optimal. Beyond the outline in the thesis:
look-ahead (a vertex is relabelled before it receives what it could not send on), global price updates
(``price_update.py``), and an early end where prices are near that prove the flow (``price_refine.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from dios.compiled import compiled
from dios.firmament.solvers import successive_shortest
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.errors import StoppedError
from dios.firmament.solvers.half_arcs import Halves, halves, saturate
from dios.firmament.solvers.price_refine import whole_prices
from dios.firmament.solvers.price_update import DONE, OVERFLOWED, STUCK, Ranks, lower_by_rank, new_ranks
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import NEVER, NO_VERTICES, Outcome, Standard, solve_by

ALPHA: Final = 5
"""Epsilon is divided by this; between 4 and 12 little changes."""

UPDATE_SHARE: Final = 1.0
"""Prices are updated after relabelling this share of the vertices; measured on Quincy-like networks."""

PRICE_LOW: Final = -(2**61)
"""A price below this would leave 64 bits soon; then the problem is handed over."""

SCALED_MAX: Final = 2**58
"""Scaled costs from here on leave prices no room."""

STOPPED = 3
BEGIN, WAITING, RELABELS, OVERFLOWS = 0, 1, 2, 3


@compiled
def _wait(queue: Ints, queued: Ints, counts: Ints, vertex: int) -> None:
    """Put a vertex at the end of the queue, unless it waits there."""
    if queued[vertex]:
        return
    queued[vertex] = 1
    end = counts[BEGIN] + counts[WAITING]
    queue[end if end < len(queue) else end - len(queue)] = vertex
    counts[WAITING] += 1


@compiled
def _relabel(graph: Halves, price: Ints, current: Ints, counts: Ints, vertex: int, epsilon: int) -> bool:
    """Lower the price until the best residual arc is admissible; False where there is no such arc."""
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


@compiled
def _admissible(graph: Halves, price: Ints, current: Ints, vertex: int) -> int:
    """The next admissible half arc of a vertex, which stays its current one; or -1."""
    own = price[vertex]
    for half in range(current[vertex], graph.first[vertex + 1]):
        if graph.room[half] > 0 and graph.cost[half] + own - price[graph.target[half]] < 0:
            current[vertex] = half
            return int(half)
    current[vertex] = graph.first[vertex + 1]
    return -1


@compiled
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
    """Push and relabel until the vertex has no excess; False where that wants a price update first."""
    while excess[vertex] > 0:
        # Also in here: two vertices whose excess has no way out relabel each other for ever.
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
            _wait(queue, queued, counts, other)
    return True


@compiled
def _refine(
    graph: Halves, price: Ints, excess: Ints, ranks: Ranks, current: Ints, epsilon: int, stop: Ints
) -> int:
    """Turn the flow and prices into ones that are right up to ``epsilon``, or say why not."""
    vertices = len(price)
    saturate(graph, price, excess)
    queue, queued, counts = np.empty(vertices, np.int64), np.zeros(vertices, np.int64), np.zeros(4, np.int64)
    for vertex in range(vertices):
        current[vertex] = graph.first[vertex]
        if excess[vertex] > 0:
            _wait(queue, queued, counts, vertex)
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
            _wait(queue, queued, counts, vertex)
            counts[RELABELS] = 0
            ended = lower_by_rank(graph, price, excess, ranks, current, epsilon)
    return ended


def _rounded(scaled: Ints, factor: int) -> Ints:
    """Exact prices from scaled ones that are right up to 1, where there are more residues than vertices.

    Rounding down breaks an arc's rule only where the scaled price before it is -1 modulo the factor. So all
    prices are shifted by the same amount, after which no price is.
    """
    taken = np.zeros(factor, np.bool_)
    taken[scaled % factor] = True
    free = int(np.argmin(taken))
    shifted: Ints = (scaled + (factor - 1 - free)) // factor
    return shifted


def _proof(graph: Halves, price: Ints, factor: int, epsilon: int) -> Ints | None:
    """Exact prices that prove the flow optimal; None where it is not, or where that is not plain to see."""
    if epsilon == 1:
        return _rounded(price, factor)
    # From half a unit of cost on a flow is often optimal, and more refinements would move it in vain.
    near = price.copy()
    if 2 * epsilon > factor or not whole_prices(graph, near, factor):
        return None
    return near // factor


def _handed_over(standard: Standard) -> Outcome:
    why = "costs too large to be scaled: handed over to successive_shortest"
    return replace(successive_shortest.core(standard), note=why)


def core(standard: Standard) -> Outcome:
    """The algorithm for a standard problem."""
    vertices = len(standard.supply)
    factor = vertices + 1
    dearest = int(np.abs(standard.cost).max(initial=0))
    if dearest * factor >= SCALED_MAX:
        return _handed_over(standard)
    graph, place = halves(replace(standard, cost=standard.cost * factor))
    price, excess = np.zeros(vertices, np.int64), standard.supply.copy()
    ranks, current = new_ranks(vertices), np.zeros(vertices, np.int64)
    epsilon = max(dearest * factor, 1)
    while True:
        epsilon = max(epsilon // ALPHA, 1)
        ended = _refine(graph, price, excess, ranks, current, epsilon, standard.stop)
        if ended == STOPPED:
            raise StoppedError("cost scaling was stopped")
        if ended == STUCK:
            return successive_shortest.shortage(standard)
        if ended == OVERFLOWED:
            return _handed_over(standard)
        proof = _proof(graph, price, factor, epsilon)
        if proof is not None:
            return Outcome(standard.room - graph.room[place], proof, NO_VERTICES)


def run(problem: FlowProblem, stop: Ints = NEVER) -> FlowSolution:
    """The solution by cost scaling; ``stop`` (1,) ends it early."""
    return solve_by(core, problem, "cost_scaling", stop)
