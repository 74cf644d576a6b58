"""The network simplex continued from a former flow: exact from any start, and less work than from nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dios.firmament.solvers import FlowProblem, certificate
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.network_simplex import NO_LIMIT, WORK, block_size, pivots, start
from dios.firmament.solvers.standard import standard_form
from labs.benchmarks.flow_families import FAMILIES, drawn
from labs.solvers import solve
from labs.solvers.simplex_restart import FormerSolution, solve_from, solved_from
from tests.support.firmament.flow_networks import network

CHANGES = 200


def work_after(problem: FlowProblem, flow: Ints, prices: Ints) -> tuple[int, int]:
    """Return the work of a restart from a flow, and that of the network simplex from nothing."""
    standard = standard_form(problem, problem.cost)
    again, fresh = np.zeros(3, np.int64), np.zeros(3, np.int64)
    assert solved_from(standard, flow[standard.kept], prices, again, NO_LIMIT) is not None
    state = start(standard)
    assert pivots(state.arcs, state.tree, block_size(len(state.order)), fresh, NO_LIMIT)
    return int(again[WORK]), int(fresh[WORK])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restart_takes_less_work_than_a_start(family: str) -> None:
    """After 200 costs changed, a restart takes less work on each family; after small changes, a third."""
    problem, rng = drawn(family, 3_000 if "dense" not in family else 400, 1), np.random.default_rng(1)
    optimum = solve(problem)
    arcs = rng.choice(problem.arcs, CHANGES, replace=False)
    for drift, part in ((10_000, 1), (50, 3)):
        cost = problem.cost.copy()
        cost[arcs] += rng.integers(0, drift, CHANGES)
        changed = replace(problem, cost=cost)
        again, fresh = work_after(changed, optimum.flow, optimum.prices)
        assert part * again < fresh, drift
        solution = solve_from(changed, FormerSolution(optimum.flow, optimum.prices))
        assert solution is not None
        certificate(changed, solution)


def test_a_restart_is_exact_from_any_flow_and_prices() -> None:
    """Flows of other networks, beyond bounds, in cycles and out of balance, all lead to the cheapest flow."""
    statuses: set[str] = set()
    for seed in range(150):
        problem, rng = network(seed), np.random.default_rng(seed)
        flow = rng.integers(-5, 40, problem.arcs)
        prices = rng.integers(-100, 100, problem.vertices) * rng.choice([0, 1, 1_000])
        solution = solve_from(problem, FormerSolution(flow, prices))
        if solution is None:
            continue
        expected = solve(problem, "ortools")
        assert (solution.status, solution.cost) == (expected.status, expected.cost), seed
        certificate(problem, solution)
        statuses.add(solution.status)
    assert statuses >= {"optimal", "infeasible"}
