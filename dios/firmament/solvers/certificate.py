"""The independent check of a solution, in one pass over the arcs.

It shares nothing with the solvers except exact sums (``columns``).
"""

from __future__ import annotations

import numpy as np

from dios.firmament.solvers.columns import Ints, balances, exact_sum
from dios.firmament.solvers.errors import CertificateError
from dios.firmament.solvers.problem import FlowProblem, FlowSolution, cost_of
from dios.limits import FLOW_PRICE_MAX


def certificate(problem: FlowProblem, solution: FlowSolution) -> None:
    """Raise :class:`CertificateError` unless the solution is right; the error names the arc or vertex.

    Optimal: within the bounds, conserved at every vertex, the stated cost, and the reduced costs right on
    every residual arc (thesis §C.1.2). Infeasible: the witness' vertices have more to send than can leave
    them. Unbounded: the flow is feasible, and the witness is a negative cycle of arcs without capacities.
    O(V + E).
    """
    for name, column, count in (
        ("flow", solution.flow, problem.arcs),
        ("prices", solution.prices, problem.vertices),
    ):
        if column.shape != (count,) or column.dtype != np.int64:
            raise CertificateError(
                f"{name} is {column.dtype} of shape {column.shape}; it must be int64 of shape ({count},)"
            )
    if solution.status == "optimal":
        _check_flow(problem, solution)
        _check_prices(problem, solution.flow, solution.prices)
    elif solution.status == "infeasible":
        _check_cut(problem, solution)
    elif solution.status == "unbounded":
        _check_flow(problem, solution)
        _check_cycle(problem, solution.witness)
    else:
        raise CertificateError(f"status '{solution.status}' is none of optimal, infeasible, unbounded")


def _arc(problem: FlowProblem, arc: int) -> str:
    return f"arc {arc} ({problem.tail[arc]} -> {problem.head[arc]})"


def _check_flow(problem: FlowProblem, solution: FlowSolution) -> None:
    flow = solution.flow
    for wrong, bound, relation in (
        (flow < problem.lower, problem.lower, "under its lower bound"),
        (flow > problem.capacity, problem.capacity, "over its capacity"),
    ):
        if wrong.any():
            arc = int(np.argmax(wrong))
            raise CertificateError(
                f"{_arc(problem, arc)} carries {flow[arc]}, {relation} {bound[arc]}", arc=arc
            )
    high, low = balances(problem.vertices, problem.tail, problem.head, flow)
    own_high, own_low = problem.supply >> 31, problem.supply & ((1 << 31) - 1)
    uneven = (high != own_high) | (low != own_low)
    if uneven.any():
        vertex = int(np.argmax(uneven))
        net = (int(high[vertex]) << 31) + int(low[vertex])
        raise CertificateError(
            f"vertex {vertex} sends {net} more than it receives, but its supply is {problem.supply[vertex]}",
            vertex=vertex,
        )
    cost = cost_of(problem, flow)
    if cost != solution.cost:
        raise CertificateError(f"the flow costs {cost}, but the solution says {solution.cost}")


def _check_prices(problem: FlowProblem, flow: Ints, prices: Ints) -> None:
    wild = (prices > FLOW_PRICE_MAX) | (prices < -FLOW_PRICE_MAX)
    if wild.any():
        vertex = int(np.argmax(wild))
        raise CertificateError(
            f"the price {prices[vertex]} of vertex {vertex} is out of range", vertex=vertex
        )
    reduced = problem.cost + prices[problem.tail] - prices[problem.head]
    for wrong, condition in (
        ((reduced < 0) & (flow < problem.capacity), "and still has room"),
        ((reduced > 0) & (flow > problem.lower), "and carries more than it must"),
    ):
        if wrong.any():
            arc = int(np.argmax(wrong))
            raise CertificateError(
                f"{_arc(problem, arc)} has reduced cost {reduced[arc]} {condition}:"
                f" flow {flow[arc]} within [{problem.lower[arc]}, {problem.capacity[arc]}]",
                arc=arc,
            )


def _check_cut(problem: FlowProblem, solution: FlowSolution) -> None:
    if exact_sum(problem.supply):
        return
    inside = np.zeros(problem.vertices, np.bool_)
    for vertex in solution.witness:
        if not 0 <= vertex < problem.vertices:
            raise CertificateError(f"the witness names vertex {vertex}, which is none", vertex=int(vertex))
        inside[vertex] = True
    leaving = inside[problem.tail] & ~inside[problem.head]
    entering = ~inside[problem.tail] & inside[problem.head]
    must = exact_sum(problem.supply[inside]) + exact_sum(problem.lower[entering])
    room = exact_sum(problem.capacity[leaving])
    if must <= room:
        raise CertificateError(
            f"the {len(solution.witness)} vertices of the witness must send {must}, and {room} can leave:"
            " that shows nothing infeasible"
        )


def _check_cycle(problem: FlowProblem, witness: Ints) -> None:
    if not len(witness):
        raise CertificateError("an unbounded solution without the cycle that shows it")
    for arc in witness.tolist():
        if not 0 <= arc < problem.arcs:
            raise CertificateError(f"the witness names arc {arc}, which is none", arc=arc)
    for arc, following in zip(witness.tolist(), np.roll(witness, -1).tolist(), strict=True):
        if problem.head[arc] != problem.tail[following]:
            raise CertificateError(f"{_arc(problem, arc)} does not lead on in the witness' cycle", arc=arc)
        if not problem.unbounded_arcs[arc]:
            raise CertificateError(
                f"{_arc(problem, arc)} of the witness has an end at {problem.capacity[arc]}", arc=arc
            )
    total = exact_sum(problem.cost[witness])
    if total >= 0:
        raise CertificateError(f"the cycle costs {total}, which is not negative", arc=int(witness[0]))
