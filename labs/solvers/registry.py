"""The algorithms of the product and of the laboratory by name, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from dios.firmament.solvers import auction, network_simplex, registry
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.errors import UnknownAlgorithmError
from dios.firmament.solvers.feasibility import unsendable
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import StandardProblem, StandardResult, solve_by
from labs.solvers import cost_scaling, race, relaxation

SPARSE_VERTICES_MIN: Final = 8_000
SPARSE_DEGREE_MAX: Final = 12
"""An assignment with more vertices, and fewer arcs for each, takes cost scaling less time: 0.6 to 0.8 of the
simplex' time with 20,000 vertices and 2 to 8 arcs for each. Most pivots of an assignment move no flow."""

WORK_STEP: Final = 16
WORK_MAX: Final = 4_000
"""The work between two looks at the progress, and the most work, as multiples of the number of arcs. Networks
that suit the network simplex take 100 to 1,000."""

PATIENT_ARCS_MIN: Final = 30_000
"""With fewer arcs the network simplex is fast enough on every network."""

REPLACED_SHARE: Final = 100
STUCK_FACTOR: Final = 3
"""A network is hard if, after STUCK_FACTOR times the work that replaced all but one of REPLACED_SHARE
artificial arcs, such arcs still carry flow."""


def _is_sparse_assignment(standard: StandardProblem) -> bool:
    """Return True if each vertex sends or receives one unit, and there are many vertices and few arcs."""
    vertices = len(standard.supply)
    if vertices < SPARSE_VERTICES_MIN or len(standard.kept) > SPARSE_DEGREE_MAX * vertices:
        return False
    return bool((np.abs(standard.supply) == 1).all())


def simplex_or_none(standard: StandardProblem, counters: Ints) -> StandardResult | None:
    """Return the result of the network simplex, or None early if the network is hard for it.

    That is so where artificial arcs have left the tree and still carry flow long after: then each pivot moves
    long paths, as on a torus with one source and one sink. ``counters`` (3,) begins as zeros, and then holds
    the work, the number of pivots, and the last position.
    """
    count = len(standard.kept)
    state = network_simplex.start(standard)
    block, replaced_at = network_simplex.block_size(count), network_simplex.NO_LIMIT
    work = 0
    while work <= WORK_MAX * count:
        if network_simplex.pivots(state.arcs, state.tree, block, counters, work + WORK_STEP * count):
            return network_simplex.result_of(standard, state)
        work = int(counters[network_simplex.WORK])
        if count < PATIENT_ARCS_MIN:
            continue
        if replaced_at == network_simplex.NO_LIMIT:
            artificial = np.count_nonzero(state.tree.row[:-1, network_simplex.ARC] >= count)
            if artificial * REPLACED_SHARE < len(standard.supply):
                replaced_at = work
        if work > STUCK_FACTOR * replaced_at and network_simplex.carries_unsent(state):
            break
    return None


def _auto(problem: FlowProblem) -> FlowSolution:
    """Return the solution by the algorithm that suits the network; each gives up early where it does not."""
    began = time.perf_counter()
    auctioned = auction.solve_or_none(problem)
    if auctioned is not None:
        return auctioned
    used = "network_simplex"

    def core(standard: StandardProblem) -> StandardResult:
        nonlocal used
        if not cost_scaling.fits(standard):
            return network_simplex.core(standard)
        stuck = unsendable(standard)
        if stuck.size:
            return StandardResult(np.zeros_like(standard.room), None, stuck)
        sparse = _is_sparse_assignment(standard)
        result = None if sparse else simplex_or_none(standard, np.zeros(3, np.int64))
        if result is None:
            used = "cost_scaling"
            result = cost_scaling.core(standard)
        return result

    solution = solve_by(core, problem, used)
    return replace(solution, algorithm=used, seconds=time.perf_counter() - began)


ALGORITHMS: Final[dict[str, Callable[[FlowProblem], FlowSolution]]] = {
    **registry.ALGORITHMS,
    "auto": _auto,
    "cost_scaling": cost_scaling.run,
    "relaxation": relaxation.run,
    "race": race.run,
}


def algorithms() -> list[str]:
    """Return the names that :func:`solve` accepts, "auto" first."""
    return list(ALGORITHMS)


def solve(problem: FlowProblem, algorithm: str = "auto") -> FlowSolution:
    """Return the cheapest flow by the named algorithm, as ``dios.firmament.solvers.solve`` does."""
    if algorithm not in ALGORITHMS:
        raise UnknownAlgorithmError(f"no algorithm '{algorithm}'; choose from {', '.join(algorithms())}")
    return ALGORITHMS[algorithm](problem)
