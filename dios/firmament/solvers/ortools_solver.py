"""OR-Tools' solver as one of the algorithms, and the reference of the tests (the extra ``ortools``).

It has no lower bounds, prices or reasons; these are added here. Clusters do not use it, because it is large.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import numpy as np

from dios.firmament.solvers import network_simplex
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.errors import MissingSolverError, OutOfRangeError
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import NO_VERTICES, StandardProblem, StandardResult, solve_by
from dios.installation import extra_command


class _Status(Protocol):
    name: str


class _Solver(Protocol):
    """The methods of OR-Tools' SimpleMinCostFlow that are used here."""

    def add_arcs_with_capacity_and_unit_cost(
        self, tail: Ints, head: Ints, room: Ints, cost: Ints
    ) -> Ints: ...
    def set_nodes_supplies(self, vertices: Ints, supplies: Ints) -> None: ...
    def solve(self) -> _Status: ...
    def flows(self, arcs: Ints) -> Ints: ...


def _new_solver() -> _Solver:
    try:
        module = importlib.import_module("ortools.graph.python.min_cost_flow")
    except ImportError:
        raise MissingSolverError(
            f"algorithm 'ortools' needs OR-Tools. Choose another algorithm, or install it: "
            f"{extra_command('ortools')}"
        ) from None
    return cast("_Solver", module.SimpleMinCostFlow())


def _core(standard: StandardProblem) -> StandardResult:
    solver = _new_solver()
    vertices = np.arange(len(standard.supply), dtype=np.int64)
    arcs = solver.add_arcs_with_capacity_and_unit_cost(
        standard.tail, standard.head, standard.room, standard.cost
    )
    solver.set_nodes_supplies(vertices, standard.supply)
    status = solver.solve().name
    if status == "OPTIMAL":
        return StandardResult(solver.flows(arcs).astype(np.int64), None, NO_VERTICES)
    if status == "INFEASIBLE":
        return network_simplex.shortage(standard)
    raise OutOfRangeError(f"OR-Tools says {status}: its numbers are narrower; choose 'network_simplex'")


def run(problem: FlowProblem) -> FlowSolution:
    """Return the solution by OR-Tools' SimpleMinCostFlow."""
    return solve_by(_core, problem, "ortools")
