"""The algorithms by name, and the choice among them.

Not for: the algorithms themselves, or for problems that change (``incremental.py``).
"""

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
    """The names that :func:`solve` takes, "auto" first."""
    return ["auto", *ALGORITHMS]


def _auto(problem: FlowProblem) -> FlowSolution:
    return auction.fast(problem) or cost_scaling.run(problem)


def solve(problem: FlowProblem, algorithm: str = "auto") -> FlowSolution:
    """The cheapest flow (thesis §C.1), by the algorithm of that name; "auto" chooses by the problem's shape.

    Infeasible and unbounded problems are answers with that status, not errors.
    :class:`UnknownAlgorithmError` lists the names; :class:`MissingSolverError` says which extra is missing;
    :class:`OutOfRangeError` means that the numbers are too large for this algorithm.
    """
    if algorithm == "auto":
        return _auto(problem)
    if algorithm not in ALGORITHMS:
        raise UnknownAlgorithmError(f"no algorithm '{algorithm}'; there are {', '.join(algorithms())}")
    return ALGORITHMS[algorithm](problem)
