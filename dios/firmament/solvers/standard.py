"""What every general algorithm does before and after its own work: a problem without lower bounds, and back.

Loops are settled, lower bounds moved into the supplies, capacities cut to what an optimal flow can use, and
supplies that do not add up or cycles without end found. Afterwards: the flow of all arcs, exact prices.

Not for: finding a flow (the algorithms), or judging one (``certificate.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dios.errors import InvariantError
from dios.firmament.solvers.columns import Ints, balances, exact_sum
from dios.firmament.solvers.errors import OutOfRangeError
from dios.firmament.solvers.potentials import potentials
from dios.firmament.solvers.problem import FlowProblem, FlowSolution, cost_of
from dios.limits import FLOW_PRICE_MAX, FLOW_UNBOUNDED

WITNESSES_NAMED = 5
"""So many vertices of a witness are named in a reason; the rest are counted."""

EXCESS_MAX = 2**61
"""No vertex may see more flow than this while an algorithm works, so that sums of it fit 64 bits."""

NEVER: Ints = np.zeros(1, np.int64)
"""What ``stop`` is where nobody will ask for it. Nobody writes to it."""


@dataclass(frozen=True, eq=False)
class Standard:
    """A problem without lower bounds, loops or endless capacities; vertices are those of the problem.

    ``supply`` is (V,) and adds up to 0. ``tail``, ``head``, ``room`` (capacity) and ``cost`` are (K,), and
    ``kept`` (K,) says which of the problem's arcs they are. ``stop`` (1,) is not 0 once nobody wants the
    answer any more: who works long looks at it now and then, and raises :class:`StoppedError`.
    """

    supply: Ints
    kept: Ints
    tail: Ints
    head: Ints
    room: Ints
    cost: Ints
    stop: Ints = field(default_factory=lambda: NEVER)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an algorithm found for a :class:`Standard`.

    ``flow`` (K,) and ``prices`` (V,) where it is optimal; prices None where the algorithm has none.
    ``stuck`` are vertices that have more to send than can leave them, where it is infeasible; else none.
    """

    flow: Ints
    prices: Ints | None
    stuck: Ints
    note: str = ""


Core = Callable[[Standard], Outcome]
NO_VERTICES: Ints = np.zeros(0, np.int64)


def _endless_cycle(problem: FlowProblem) -> Ints:
    """The arcs of a negative cycle without end, in order, if there is one."""
    endless = np.flatnonzero(problem.unbounded_arcs)
    if not endless.size or problem.cost[endless].min() >= 0:
        return NO_VERTICES
    length = problem.cost[endless]
    start = np.zeros(problem.vertices, np.int64)
    cycle = potentials(problem.vertices, problem.tail[endless], problem.head[endless], length, start)
    return endless[cycle]


def _standard(problem: FlowProblem, cost: Ints) -> Standard:
    """The same problem without lower bounds, loops and endless capacities; ``cost`` is (E,)."""
    high, low = balances(problem.vertices, problem.tail, problem.head, problem.lower)
    supply = problem.supply - (high << 31) - low
    kept = np.flatnonzero(problem.tail != problem.head)
    tail, head, cost = problem.tail[kept], problem.head[kept], cost[kept]
    room = problem.capacity[kept] - problem.lower[kept]
    # An optimal flow is paths from supplies, and negative cycles, each of which fills an arc that has an end.
    # An arc is cut to one unit above that, so that it has room left wherever it has room in the problem.
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
    return Standard(supply, kept, tail, head, room, cost)


def _flow(problem: FlowProblem, standard: Standard, found: Ints) -> Ints:
    """The flow of all arcs: bounds added, and loops filled where that saves cost."""
    flow = problem.lower.copy()
    flow[standard.kept] += found
    filled = (problem.tail == problem.head) & (problem.cost < 0) & ~problem.unbounded_arcs
    flow[filled] = problem.capacity[filled]
    return flow


def _settle_prices(problem: FlowProblem, flow: Ints, prices: Ints | None) -> Ints:
    """Exact prices for an optimal flow, from those given where they are nearly right."""
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
    """The answer that no flow is possible: ``stuck`` are vertices with more to send than can leave them."""
    total = exact_sum(problem.supply)
    if total:
        what, more, less = ("supplies", total, "demand") if total > 0 else ("demands", -total, "supply")
        reason = f"the {what} are {more} larger than the {less}: supplies must add up to 0"
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


def solve_by(core: Core, problem: FlowProblem, algorithm: str, stop: Ints = NEVER) -> FlowSolution:
    """The problem's solution by an algorithm for standard problems; ``algorithm`` is its name.

    ``stop`` (1,) is as in :class:`Standard`.
    """
    began = time.perf_counter()
    if exact_sum(problem.supply):
        return infeasible(problem, NO_VERTICES, algorithm=algorithm, seconds=time.perf_counter() - began)
    cycle = _endless_cycle(problem)
    # Without end or not is only a question where a flow exists at all: costs of 0 show whether one does.
    standard = _standard(problem, np.zeros_like(problem.cost) if cycle.size else problem.cost)
    outcome = core(replace(standard, stop=stop))
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
