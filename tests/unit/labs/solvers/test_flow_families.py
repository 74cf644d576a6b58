"""On every family of networks: the right cost, and little work beyond that of the best algorithm."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dios.firmament.solvers import certificate
from dios.firmament.solvers.network_simplex import NO_LIMIT, WORK, block_size, pivots, start
from dios.firmament.solvers.standard import StandardProblem, standard_form
from labs.benchmarks.flow_families import FAMILIES, drawn
from labs.solvers import cost_scaling, solve
from labs.solvers.registry import simplex_or_none

SMALL = 300
LARGE = 6_000
EXACT = ("auto", "network_simplex", "cost_scaling")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_costs_what_the_reference_says(family: str) -> None:
    """The general algorithms and the choice among all find OR-Tools' cost, with a certificate."""
    for seed in range(3):
        problem = drawn(family, SMALL, seed)
        wanted = solve(problem, "ortools")
        assert wanted.status == "optimal", wanted.reason
        for algorithm in EXACT:
            solution = solve(problem, algorithm)
            certificate(problem, solution)
            assert solution.cost == wanted.cost, f"{algorithm}, seed {seed}"


@pytest.mark.parametrize("family", FAMILIES)
def test_costs_of_a_million_million_are_exact(family: str) -> None:
    """With costs of 10**12, whose sums along paths leave 53 bits, every algorithm is exact."""
    problem = drawn(family, 100, 1)
    large = replace(problem, cost=problem.cost * 10**8 + np.arange(problem.arcs) % 7)
    costs = {solve(large, name).cost for name in EXACT}
    assert len(costs) == 1
    certificate(large, solve(large, "network_simplex"))


def work_of(standard: StandardProblem) -> int:
    """Return the work in which the network simplex solves a problem."""
    counters, state = np.zeros(3, np.int64), start(standard)
    assert pivots(state.arcs, state.tree, block_size(len(state.order)), counters, NO_LIMIT)
    return int(counters[WORK])


@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.startswith("assignment, dense")])
def test_the_choice_wastes_little_work(family: str) -> None:
    """The network simplex solves a family, or passes it on after less than a third of the work it needs."""
    problem = drawn(family, LARGE, 1)
    standard = standard_form(problem, problem.cost)
    counters = np.zeros(3, np.int64)
    solved = simplex_or_none(standard, counters) is not None
    assert solved or 3 * counters[WORK] < work_of(standard)
    assert solved == (family != "torus")


def test_each_family_has_its_algorithm() -> None:
    """The choice takes the auction for schedules, else the network simplex, else cost scaling."""
    names = {family: solve(drawn(family, LARGE, 1)).algorithm for family in ("scheduling", "netgen", "torus")}
    assert names == {"scheduling": "auction", "netgen": "network_simplex", "torus": "cost_scaling"}
    assignments = [solve(drawn("assignment", size, 1)).algorithm for size in (LARGE, 10_000)]
    assert assignments == ["network_simplex", "cost_scaling"]


def test_an_assignment_ends_the_auction_early() -> None:
    """Where most vertices have a demand of their own, the auction passes on before the first bid."""
    solution = solve(drawn("assignment", 1_000, 1))
    assert solution.algorithm == "network_simplex"


def test_work_grows_with_the_network_as_expected() -> None:
    """Twice the vertices need less than four times the work, so that no step of a pivot reads everything."""
    work: list[int] = []
    for size in (1_000, 2_000, 4_000):
        problem = drawn("netgen", size, 1)
        work.append(work_of(standard_form(problem, problem.cost)))
    assert all(4 * less > more for less, more in pairwise(work))


def test_ties_end() -> None:
    """Networks in which every cost and capacity is equal end, though almost all pivots move nothing."""
    for family in ("assignment", "netgen", "torus", "transport"):
        problem = drawn(family, SMALL, 2)
        equal = replace(problem, cost=np.ones(problem.arcs, np.int64))
        certificate(equal, solve(equal, "network_simplex"))
        assert solve(equal, "network_simplex").cost == cost_scaling.run(equal).cost
