"""The algorithms by name, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dios.firmament.solvers import (
    auction,
    cost_scaling,
    ortools_solver,
    portfolio,
    relaxation,
    successive_shortest,
)
from dios.firmament.solvers.errors import UnknownAlgorithmError
from dios.firmament.solvers.problem import FlowProblem, FlowSolution

ALGORITHMS: Final[dict[str, Callable[[FlowProblem], FlowSolution]]] = {
    "cost_scaling": cost_scaling.run,
    "relaxation": relaxation.run,
    "successive_shortest": successive_shortest.run,
    "race": portfolio.run,
    "auction": auction.run,
    "ortools": ortools_solver.run,
}


def algorithms() -> list[str]:
    """Return the names that :func:`solve` accepts, "auto" first."""
    return ["auto", *ALGORITHMS]


def _auto(problem: FlowProblem) -> FlowSolution:
    return auction.solve_or_none(problem) or cost_scaling.run(problem)


def solve(problem: FlowProblem, algorithm: str = "auto") -> FlowSolution:
    """Return the cheapest flow (thesis §C.1) by the named algorithm; "auto" chooses by the problem's shape.

    Infeasible and unbounded problems are solutions with that status, not errors.

    Raises:
        UnknownAlgorithmError: no algorithm has this name; the message lists the names.
        MissingSolverError: a package is missing; the message names the extra to install.
        OutOfRangeError: the numbers are too large for this algorithm.
    """
    if algorithm == "auto":
        return _auto(problem)
    if algorithm not in ALGORITHMS:
        raise UnknownAlgorithmError(f"no algorithm '{algorithm}'; there are {', '.join(algorithms())}")
    return ALGORITHMS[algorithm](problem)
