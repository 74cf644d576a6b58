"""The algorithms by name, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dios.firmament.solvers import auction, network_simplex, ortools_solver
from dios.firmament.solvers.errors import UnknownAlgorithmError
from dios.firmament.solvers.problem import FlowProblem, FlowSolution


def _auto(problem: FlowProblem) -> FlowSolution:
    """Return the solution by the auction, which gives up early where it does not suit, or by the simplex."""
    return auction.solve_or_none(problem) or network_simplex.run(problem)


ALGORITHMS: Final[dict[str, Callable[[FlowProblem], FlowSolution]]] = {
    "auto": _auto,
    "auction": auction.run,
    "network_simplex": network_simplex.run,
    "ortools": ortools_solver.run,
}


def algorithms() -> list[str]:
    """Return the names that :func:`solve` accepts, "auto" first."""
    return list(ALGORITHMS)


def solve(problem: FlowProblem, algorithm: str = "auto") -> FlowSolution:
    """Return the cheapest flow (thesis §C.1) by the named algorithm; "auto" chooses by the problem's shape.

    Infeasible and unbounded problems are solutions with that status, not errors.

    Raises:
        UnknownAlgorithmError: no algorithm has this name; the message lists the names.
        MissingSolverError: a package is missing; the message names the extra to install.
        OutOfRangeError: the numbers are too large for this algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise UnknownAlgorithmError(f"no algorithm '{algorithm}'; there are {', '.join(algorithms())}")
    return ALGORITHMS[algorithm](problem)
