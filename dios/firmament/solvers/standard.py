"""The common part of all general algorithms: problems are reduced to a standard form, and results expanded.

Loops are settled, lower bounds are moved into the supplies, capacities are cut to the largest useful flow,
and unbalanced supplies and unbounded cycles are found. Afterwards the flow of all arcs and exact prices are
computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dios.errors import InvariantError
from dios.firmament.solvers.columns import Ints, balances, exact_sum
from dios.firmament.solvers.errors import OutOfRangeError
from dios.firmament.solvers.potentials import potentials
from dios.firmament.solvers.problem import FlowProblem, FlowSolution, cost_of
from dios.limits import FLOW_PRICE_MAX, FLOW_UNBOUNDED

WITNESSES_NAMED = 5
"""The number of vertices of a witness that a reason names; the others are counted."""

EXCESS_MAX = 2**61
"""The largest flow at a vertex while an algorithm works, so that sums of it fit 64 bits."""


@dataclass(frozen=True, eq=False)
class StandardProblem:
    """A problem without lower bounds, loops or unlimited capacities; vertices are those of the problem.

    ``supply`` is (V,) and adds up to 0. ``tail``, ``head``, ``room`` (capacity) and ``cost`` are (K,), and
    ``kept`` (K,) are the numbers of these arcs in the problem.
    """

    supply: Ints
    kept: Ints
    tail: Ints
    head: Ints
    room: Ints
    cost: Ints


@dataclass(frozen=True, eq=False)
class StandardResult:
    """The result of an algorithm for a :class:`StandardProblem` problem.

    ``flow`` (K,) and ``prices`` (V,) if it is optimal; prices are None if the algorithm has none. ``stuck``
    are vertices that have more to send than can leave them, if it is infeasible; else none.
    """

    flow: Ints
    prices: Ints | None
    stuck: Ints
    note: str = ""


Core = Callable[[StandardProblem], StandardResult]
NO_VERTICES: Ints = np.zeros(0, np.int64)


def _endless_cycle(problem: FlowProblem) -> Ints:
    """Return the arcs of a negative cycle without capacities, in order, or none."""
    endless = np.flatnonzero(problem.unbounded_arcs)
    if not endless.size or problem.cost[endless].min() >= 0:
        return NO_VERTICES
    length = problem.cost[endless]
    start = np.zeros(problem.vertices, np.int64)
    cycle = potentials(problem.vertices, problem.tail[endless], problem.head[endless], length, start)
    return endless[cycle]


def standard_form(problem: FlowProblem, cost: Ints) -> StandardProblem:
    """Return the problem without lower bounds, loops and unlimited capacities; ``cost`` is (E,)."""
    high, low = balances(problem.vertices, problem.tail, problem.head, problem.lower)
    supply = problem.supply - (high << 31) - low
    kept = np.flatnonzero(problem.tail != problem.head)
    tail, head, cost = problem.tail[kept], problem.head[kept], cost[kept]
    room = np.minimum(problem.capacity[kept], FLOW_UNBOUNDED) - problem.lower[kept]
    # An optimal flow consists of paths from supplies, and of negative cycles, each of which fills an arc
    # with a capacity. An arc is cut to one unit more, so that it has room left wherever it has room in the
    # problem.
    endless = problem.unbounded_arcs[kept]
    filled = room[~endless] if (cost[endless] < 0).any() else room[(cost < 0) & ~endless]
    most = exact_sum(np.maximum(supply, 0)) + exact_sum(filled)
    room = np.minimum(room, min(most + 1, FLOW_UNBOUNDED))
    seen = np.bincount(head, weights=room, minlength=problem.vertices) + np.abs(supply)
    seen += np.bincount(tail, weights=room, minlength=problem.vertices)
    if seen.size and seen.max() >= EXCESS_MAX:
        raise OutOfRangeError(
            f"the capacities at vertex {int(seen.argmax())} add up to more than {EXCESS_MAX};"
            f" use a larger unit of flow, or FLOW_UNBOUNDED ({FLOW_UNBOUNDED}) where there is no end"
        )
    return StandardProblem(supply, kept, tail, head, room, cost)


def _flow(problem: FlowProblem, standard: StandardProblem, kept_flow: Ints) -> Ints:
    """Return the flow of all arcs: with lower bounds, and with loops filled where that lowers the cost."""
    flow = problem.lower.copy()
    flow[standard.kept] += kept_flow
    filled = (problem.tail == problem.head) & (problem.cost < 0) & ~problem.unbounded_arcs
    flow[filled] = problem.capacity[filled]
    return flow


def _settle_prices(problem: FlowProblem, flow: Ints, prices: Ints | None) -> Ints:
    """Return exact prices for an optimal flow; ``prices`` are kept where they are right."""
    start = np.zeros(problem.vertices, np.int64) if prices is None else prices - prices.min(initial=0)
    if start.max(initial=0) > FLOW_PRICE_MAX:
        start = np.zeros(problem.vertices, np.int64)
    forth, back = flow < problem.capacity, flow > problem.lower
    reduced = problem.cost + start[problem.tail] - start[problem.head]
    if not (forth & (reduced < 0)).any() and not (back & (reduced > 0)).any():
        return start
    tail = np.concatenate([problem.tail[forth], problem.head[back]])
    head = np.concatenate([problem.head[forth], problem.tail[back]])
    length = np.concatenate([problem.cost[forth], -problem.cost[back]])
    if potentials(problem.vertices, tail, head, length, start).size:
        raise InvariantError("a solver ended with a flow that is not optimal: a defect, please report it")
    return start


def infeasible(problem: FlowProblem, stuck: Ints, *, algorithm: str, seconds: float) -> FlowSolution:
    """Return an infeasible solution; ``stuck`` are vertices with more to send than can leave them."""
    total = exact_sum(problem.supply)
    if total:
        side, more, less = ("supplies", total, "demand") if total > 0 else ("demands", -total, "supply")
        reason = f"the {side} are {more} larger than the {less}: supplies must add up to 0"
        stuck = NO_VERTICES
    else:
        inside = np.zeros(problem.vertices, np.bool_)
        inside[stuck] = True
        leaving = inside[problem.tail] & ~inside[problem.head]
        entering = ~inside[problem.tail] & inside[problem.head]
        must = exact_sum(problem.supply[inside]) + exact_sum(problem.lower[entering])
        room = exact_sum(problem.capacity[leaving])
        named = ", ".join(str(vertex) for vertex in stuck[:WITNESSES_NAMED])
        rest = f" and {len(stuck) - WITNESSES_NAMED} more" if len(stuck) > WITNESSES_NAMED else ""
        reason = (
            f"the vertices {named}{rest} together must send {must} on, but their {int(leaving.sum())} arcs"
            f" to others carry at most {room}: {must - room} too little"
        )
    zeros = np.zeros(problem.arcs, np.int64), np.zeros(problem.vertices, np.int64)
    return FlowSolution(zeros[0], 0, zeros[1], "infeasible", algorithm, seconds, reason, stuck)


def solve_by(core: Core, problem: FlowProblem, algorithm: str) -> FlowSolution:
    """Return the problem's solution by an algorithm for standard problems; ``algorithm`` is its name."""
    began = time.perf_counter()
    if exact_sum(problem.supply):
        return infeasible(problem, NO_VERTICES, algorithm=algorithm, seconds=time.perf_counter() - began)
    cycle = _endless_cycle(problem)
    # A problem is unbounded only if a flow exists at all: costs of 0 show whether one does.
    standard = standard_form(problem, np.zeros_like(problem.cost) if cycle.size else problem.cost)
    outcome = core(standard)
    if outcome.stuck.size:
        return infeasible(problem, outcome.stuck, algorithm=algorithm, seconds=time.perf_counter() - began)
    flow = _flow(problem, standard, outcome.flow)
    status, reason, prices = "optimal", outcome.note, np.zeros(problem.vertices, np.int64)
    if cycle.size:
        status = "unbounded"
        named = ", ".join(str(arc) for arc in cycle[:WITNESSES_NAMED])
        rest = f" and {len(cycle) - WITNESSES_NAMED} more" if len(cycle) > WITNESSES_NAMED else ""
        reason = f"the arcs {named}{rest} are a cycle without end of cost {exact_sum(problem.cost[cycle])}"
    else:
        prices = _settle_prices(problem, flow, outcome.prices)
    seconds = time.perf_counter() - began
    return FlowSolution(flow, cost_of(problem, flow), prices, status, algorithm, seconds, reason, cycle)
