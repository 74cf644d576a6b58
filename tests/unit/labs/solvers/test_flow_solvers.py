"""Every algorithm finds what OR-Tools finds, proves it, and says why where there is nothing to find."""

from __future__ import annotations

import re
import sys
from functools import cache
from random import Random

import numpy as np
import pytest

from dios.firmament.solvers import (
    FlowProblem,
    FlowSolution,
    MissingSolverError,
    OutOfRangeError,
    UnknownAlgorithmError,
    certificate,
)
from dios.installation import extra_command
from dios.limits import FLOW_UNBOUNDED
from labs.solvers import cost_scaling, relaxation, solve
from tests.support.firmament.flow_networks import (
    SHAPES,
    arcs_of,
    brute_cost,
    hubs,
    network,
    problem_of,
    shape_of,
    tiny,
)

NETWORKS = 1_000
OURS = ("auto", "network_simplex", "cost_scaling", "relaxation")
ALL = (*OURS, "ortools")


@cache
def reference(seed: int) -> FlowSolution:
    """OR-Tools' answer for a seed's network."""
    return solve(network(seed), "ortools")


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", OURS)
def test_every_network_costs_what_the_reference_says(algorithm: str, shape: str) -> None:
    """On random networks of every shape: the reference's status, reason and cost, with a certificate."""
    for seed in range(NETWORKS):
        if shape_of(seed) != shape:
            continue
        problem = network(seed)
        solution = solve(problem, algorithm)
        certificate(problem, solution)
        wanted = reference(seed)
        assert (solution.status, solution.reason) == (wanted.status, wanted.reason), f"seed {seed}"
        assert solution.cost == wanted.cost or solution.status == "unbounded", f"seed {seed}"


@pytest.mark.parametrize("algorithm", OURS)
def test_vertices_of_many_arcs_cost_what_the_reference_says(algorithm: str) -> None:
    """Networks through vertices with hundreds of arcs, most of them alike, cost what they must."""
    for seed in range(5):
        problem = hubs(seed)
        solution = solve(problem, algorithm)
        certificate(problem, solution)
        assert solution.cost == solve(problem, "ortools").cost, f"seed {seed}"


def test_the_reference_can_prove_its_answers() -> None:
    """The prices and witnesses that we add to OR-Tools' flows pass the certificate."""
    for seed in range(0, NETWORKS, 3):
        certificate(network(seed), reference(seed))


def test_the_networks_of_the_tests_have_every_answer() -> None:
    """Among the random networks each answer is given many times: the tests above compare something."""
    statuses = [reference(seed).status for seed in range(NETWORKS)]
    assert (
        min(statuses.count("optimal") // 100, statuses.count("infeasible") // 20, statuses.count("unbounded"))
        >= 5
    )


@pytest.mark.parametrize("algorithm", ALL)
def test_tiny_networks_cost_what_trying_every_flow_says(algorithm: str) -> None:
    """On tiny networks every algorithm agrees with a search through all flows, also where there is none."""
    for seed in range(200):
        problem = tiny(Random(seed))  # noqa: S311 - a test repeats itself
        solution, best = solve(problem, algorithm), brute_cost(problem)
        wanted = ("infeasible", 0) if best is None else ("optimal", best)
        assert (solution.status, solution.cost) == wanted, f"seed {seed}"


@pytest.mark.parametrize("algorithm", ALL)
def test_unbounded_is_what_gets_cheaper_with_every_more_room(algorithm: str) -> None:
    """A network is unbounded exactly if doubling a large room of its endless arcs lowers the cost."""
    for seed in range(0, 20 * len(SHAPES), len(SHAPES)):
        problem = network(seed + SHAPES.index("endless"))
        costs: list[int] = []
        for room in (10**6, 2 * 10**6):
            arcs = [(v, w, low, min(most, room), cost) for v, w, low, most, cost in arcs_of(problem)]
            costs.append(solve(problem_of(problem.supply.tolist(), arcs), "ortools").cost)
        solution = solve(problem, algorithm)
        assert (solution.status == "unbounded") == (costs[0] != costs[1]), f"seed {seed}"
        if solution.status == "optimal":
            assert solution.cost == costs[0], f"seed {seed}"


EMPTY = problem_of([], [])
LOOPS = problem_of([0, 0], [(0, 0, 1, 5, -3), (1, 1, 2, 5, 4)])
CYCLE = problem_of([0, 0], [(0, 1, 0, 7, -5), (1, 0, 0, 4, 2)])
HALF_ENDLESS = problem_of([0, 0], [(0, 1, 0, FLOW_UNBOUNDED, -5), (1, 0, 0, 7, 2)])
FORCED = problem_of([0, 0, 0], [(0, 1, 3, 3, 2), (1, 2, 0, 9, 2), (2, 0, 0, 9, 2)])
HUGE = problem_of([3, 0, -3], [(0, 1, 0, 2, 1 << 56), (0, 1, 0, 2, -(1 << 56)), (1, 2, 0, 9, 1 << 56)])


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize(
    ("problem", "cost", "flow"),
    [
        (EMPTY, 0, []),
        (problem_of([0, 0, 0], []), 0, []),
        (LOOPS, -7, [5, 2]),
        (CYCLE, -12, [4, 4]),
        (HALF_ENDLESS, -21, [7, 7]),
        (FORCED, 18, [3, 3, 3]),
        (HUGE, 2 << 56, [1, 2, 3]),
    ],
    ids=["empty", "no arcs", "loops", "negative cycle", "cycle with one end", "lower bound", "huge costs"],
)
def test_corner_cases(algorithm: str, problem: FlowProblem, cost: int, flow: list[int]) -> None:
    """Empty networks, loops, negative cycles, forced flow and costs near the end of 64 bits are solved."""
    solution = solve(problem, algorithm)
    certificate(problem, solution)
    assert (solution.status, solution.cost, solution.flow.tolist()) == ("optimal", cost, flow)


def test_costs_that_cannot_be_scaled_are_handed_over() -> None:
    """Cost scaling leaves costs that it has no room for to another algorithm, and says so."""
    assert solve(HUGE, "cost_scaling").reason == (
        "costs too large to be scaled: handed over to network_simplex"
    )
    assert not solve(CYCLE, "cost_scaling").reason


def test_costs_are_scaled_as_far_as_they_fit() -> None:
    """Up to the largest costs that a network can have the cheapest flow is found, scaled or handed over."""
    for bits in range(40, 56):
        for seed in range(SHAPES.index("large costs"), 4 * len(SHAPES), len(SHAPES)):
            small = network(seed)
            arcs = [(v, w, low, most, cost << (bits - 40)) for v, w, low, most, cost in arcs_of(small)]
            problem = problem_of(small.supply.tolist(), arcs)
            solution = solve(problem, "cost_scaling")
            certificate(problem, solution)
            assert solution.cost == reference(seed).cost << (bits - 40), f"seed {seed}, {bits} bits"


def test_scaled_prices_are_rounded_exactly() -> None:
    """Whatever arc scaled prices allow up to one unit below 0, whole prices made of them allow exactly."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        vertices = int(rng.integers(1, 12))
        factor = vertices + 1
        scaled = rng.integers(-1_000, 1_000, vertices)
        whole = cost_scaling._rounded(scaled, factor)
        # The cheapest arc from each vertex to each other that the scaled prices allow.
        cost = -((1 + scaled[:, None] - scaled[None, :]) // factor)
        assert (cost + whole[:, None] - whole[None, :] >= 0).all(), f"seed {seed}"


def test_a_contended_network_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relaxation ends after a bound of work, with the answer of cost scaling, and says so."""
    monkeypatch.setattr(relaxation, "WORK_LEAST", 0)
    monkeypatch.setattr(relaxation, "WORK_MAX", 0)
    seeds = range(SHAPES.index("oversubscribed"), 20 * len(SHAPES), len(SHAPES))
    for seed in seeds:
        solution = solve(network(seed), "relaxation")
        certificate(network(seed), solution)
        assert solution.cost == reference(seed).cost, f"seed {seed}"
        assert solution.reason == "a contended network: handed over to cost_scaling", f"seed {seed}"


@pytest.mark.parametrize("algorithm", ALL)
def test_an_infeasible_network_says_where(algorithm: str) -> None:
    """The reason names vertices that cannot send on what they must, and how much is missing."""
    problem = problem_of(
        [5, 2, 0, -7], [(0, 2, 0, 9, 1), (1, 2, 0, 9, 1), (2, 3, 0, 4, 1), (3, 0, 1, 1, 1), (0, 3, 0, 1, 1)]
    )
    solution = solve(problem, algorithm)
    certificate(problem, solution)
    assert solution.reason == (
        "the vertices 0, 1, 2 together must send 8 on,"
        " but their 2 arcs to others carry at most 5: 3 too little"
    )
    assert solution.witness.tolist() == [0, 1, 2]
    assert not solution.flow.any()


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize(
    ("supply", "reason"),
    [
        ([3, -1], "the supplies are 2 larger than the demand: supplies must add up to 0"),
        ([1, -4], "the demands are 3 larger than the supply: supplies must add up to 0"),
    ],
)
def test_supplies_that_do_not_add_up_are_infeasible(algorithm: str, supply: list[int], reason: str) -> None:
    """Supplies that add up to something are infeasible, with how much is left."""
    problem = problem_of(supply, [(0, 1, 0, 9, 1)])
    solution = solve(problem, algorithm)
    certificate(problem, solution)
    assert (solution.status, solution.reason) == ("infeasible", reason)


@pytest.mark.parametrize("algorithm", ALL)
def test_infeasible_comes_before_unbounded(algorithm: str) -> None:
    """A cycle without end in a network without a feasible flow makes nothing unbounded."""
    cycle = [(0, 1, 0, FLOW_UNBOUNDED, -1), (1, 0, 0, FLOW_UNBOUNDED, 0), (2, 2, 0, FLOW_UNBOUNDED, -1)]
    assert solve(problem_of([1, 0, -1], cycle), algorithm).status == "infeasible"
    solution = solve(problem_of([1, -1, 0], cycle[:2]), algorithm)
    assert solution.status == "unbounded"
    assert "a cycle without end of cost -1" in solution.reason


@pytest.mark.parametrize("algorithm", OURS)
def test_the_same_problem_has_the_same_answer_twice(algorithm: str) -> None:
    """No algorithm draws lots: the flow and the prices of a second run are those of the first."""
    for seed in range(len(SHAPES)):
        first, second = (solve(network(seed), algorithm) for _ in range(2))
        assert np.array_equal(first.flow, second.flow), f"seed {seed}"
        assert np.array_equal(first.prices, second.prices), f"seed {seed}"


def test_an_unknown_algorithm_is_answered_with_those_there_are() -> None:
    """The error lists every name that would do."""
    with pytest.raises(
        UnknownAlgorithmError, match=r"no algorithm 'magic'; choose from auto, .*cost_scaling"
    ):
        solve(EMPTY, "magic")


def test_a_missing_package_is_answered_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OR-Tools its algorithm says which extra brings it; the others do not need it."""
    monkeypatch.setitem(sys.modules, "ortools.graph.python.min_cost_flow", None)
    with pytest.raises(MissingSolverError, match=re.escape(extra_command("ortools"))):
        solve(CYCLE, "ortools")
    assert solve(CYCLE).cost == -12


def test_capacities_that_would_overflow_are_refused() -> None:
    """Capacities of negative arcs that add up past 64 bits are refused with the vertex where they meet."""
    arcs = [(0, 1, 0, FLOW_UNBOUNDED // 2, -1)] * 4
    with pytest.raises(OutOfRangeError, match="the capacities at vertex 0 add up to more than"):
        solve(problem_of([0, 0], arcs))
