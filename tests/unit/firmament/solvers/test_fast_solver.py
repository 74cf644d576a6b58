"""The fast solver for networks of scheduling shape, against OR-Tools and the certificate."""

from __future__ import annotations

import numpy as np
import pytest

from dios.firmament.solvers import FlowProblem, certificate, solve
from dios.firmament.solvers.auction import ALGORITHM, run, solve_or_none
from dios.firmament.solvers.contraction import contract
from labs.benchmarks.networks import quincy
from tests.support.firmament.scheduling_networks import scheduling_network

pytest.importorskip("ortools")


@pytest.mark.parametrize("block", range(10))
def test_small_networks_cost_what_the_reference_says(block: int) -> None:
    """Odd little networks of scheduling shape have the reference's cost, with a certificate."""
    for seed in range(40 * block, 40 * block + 40):
        problem = scheduling_network(seed)
        expected = solve(problem, "ortools")
        solution = run(problem)
        assert solution.status == expected.status, f"seed {seed}"
        certificate(problem, solution)
        assert solution.cost == expected.cost, f"seed {seed}"


def test_most_small_networks_are_of_the_shape() -> None:
    """The fast path itself solves nearly all of these networks, feasible ones; it does not hand them over."""
    handed = []
    for seed in range(60):
        problem = scheduling_network(seed)
        if solve(problem, "ortools").status == "optimal" and solve_or_none(problem) is None:
            handed.append((seed, contract(problem)))
    assert len(handed) < 6, handed


@pytest.mark.parametrize("load", [50, 92, 110, 300])
@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_cluster_costs_what_the_reference_says(load: int, *, aggregate: bool, inner: bool) -> None:
    """Clusters at all loads, with costs on aggregates and inner vertices, are solved by the fast path."""
    problem = quincy(50, 400, load, seed=load, aggregate=aggregate, inner=inner).problem()
    solution = solve_or_none(problem)
    assert solution is not None
    certificate(problem, solution)
    assert solution.cost == solve(problem, "ortools").cost


def test_other_shapes_are_handed_over_with_a_reason() -> None:
    """A ring is no scheduling network: contraction says why, and the answer comes from another algorithm."""
    ring = np.arange(4)
    zeros = np.zeros(4, np.int64)
    problem = FlowProblem(np.array([2, 0, -2, 0]), ring, (ring + 1) % 4, zeros, zeros + 2, zeros + 1)
    solution = run(problem)
    assert "no vertex without arcs out" in str(contract(problem))
    assert (solution.status, solution.cost, solution.algorithm) == ("optimal", 4, ALGORITHM)
    assert "no vertex without arcs out" in solution.reason
