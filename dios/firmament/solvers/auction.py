"""The fast solver from scratch, for networks of scheduling shape: contraction, auction, exact repair.

Not for: other shapes, which it refuses or, as the first try of "auto", leaves to the general algorithms; and
not for networks that change (``warm.py``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np

from dios.firmament.solvers import successive_shortest
from dios.firmament.solvers.problem import FlowProblem, FlowSolution, cost_of
from dios.firmament.solvers.repair import repair
from dios.firmament.solvers.repair_net import count_excess, new_search, seat_best
from dios.firmament.solvers.shape import Contracted, contract, expand

ALGORITHM: Final = "auction"


def solve_contracted(small: Contracted) -> bool:
    """Solve the small form in place; False where it is infeasible."""
    net = small.net
    if seat_best(net, np.arange(len(net.seat))):
        return False
    count_excess(net, small.supply)
    return repair(net, new_search(len(net.price)), np.zeros(4, np.int64), askers=False)


def run(problem: FlowProblem) -> FlowSolution:
    """The solution; a problem of another shape goes on to a general algorithm, and ``reason`` says why."""
    began = time.perf_counter()
    found = _solved(problem)
    if not isinstance(found, str):
        return found
    general = successive_shortest.run(problem)
    reason = general.reason or f"solved by {general.algorithm}: {found}"
    seconds = time.perf_counter() - began
    return replace(general, algorithm=ALGORITHM, seconds=seconds, reason=reason)


def fast(problem: FlowProblem) -> FlowSolution | None:
    """The solution where the problem is of scheduling shape and feasible, else None."""
    found = _solved(problem)
    return None if isinstance(found, str) else found


def _solved(problem: FlowProblem) -> FlowSolution | str:
    began = time.perf_counter()
    small = contract(problem)
    if isinstance(small, str):
        return small
    if not solve_contracted(small):
        return "it is infeasible"
    flow, prices = expand(problem, small)
    seconds = time.perf_counter() - began
    return FlowSolution(flow, cost_of(problem, flow), prices, "optimal", ALGORITHM, seconds)
