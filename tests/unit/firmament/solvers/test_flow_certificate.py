"""The certificate refuses every solution that is wrong in one place, and names the place."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dios.firmament.solvers import CertificateError, FlowProblem, FlowSolution, certificate, solve
from dios.firmament.solvers.columns import Ints
from dios.limits import FLOW_PRICE_MAX, FLOW_UNBOUNDED
from tests.support.firmament.flow_networks import SHAPES, network, problem_of

PROBLEM = problem_of([2, 0, 0, -2], [(0, 1, 0, 2, 1), (1, 3, 0, 1, 1), (0, 2, 0, 2, 2), (2, 3, 1, 2, 2)])
"""One unit over vertex 1 and one over vertex 2."""

STARVED = problem_of([3, 0, 0, -3], [(0, 1, 0, 1, 0), (1, 3, 0, 9, 0), (0, 2, 0, 1, 0), (2, 3, 1, 9, 0)])
"""Vertex 0 can send two of its three units on."""

ENDLESS = problem_of(
    [0, 0, 0], [(0, 1, 0, FLOW_UNBOUNDED, 1), (1, 0, 0, FLOW_UNBOUNDED, -2), (1, 2, 0, 5, -9)]
)
"""The first two arcs are a cycle without end."""


def solved(problem: FlowProblem) -> FlowSolution:
    """A solution that the certificate accepts."""
    solution = solve(problem, "network_simplex")
    certificate(problem, solution)
    return solution


def with_entry(column: Ints, place: int, value: int) -> Ints:
    """The column with one entry changed."""
    changed = column.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 3, r"arc 0 \(0 -> 1\) carries 3, over its capacity 2"),
        (3, 0, r"arc 3 \(2 -> 3\) carries 0, under its lower bound 1"),
        (2, 2, "vertex 0 sends 3 more than it receives, but its supply is 2"),
        (1, 0, "vertex 1 sends -1 more than it receives, but its supply is 0"),
    ],
)
def test_a_changed_flow_is_named(place: int, value: int, said: str) -> None:
    """One arc with another flow is refused, with that arc, or with its tail where the bounds allow it."""
    solution = solved(PROBLEM)
    with pytest.raises(CertificateError, match=said):
        certificate(PROBLEM, replace(solution, flow=with_entry(solution.flow, place, value)))


def test_a_dearer_flow_is_named() -> None:
    """A flow that is feasible and not cheapest is refused with an arc that shows it, whatever the prices."""
    dear = np.array([0, 0, 2, 2])
    for seed in range(50):
        prices = np.random.default_rng(seed).integers(-5, 5, 4)
        with pytest.raises(CertificateError, match="has reduced cost") as refused:
            certificate(PROBLEM, FlowSolution(dear, 8, prices, "optimal", "none", 0.0))
        assert refused.value.arc is not None, f"seed {seed}"


@pytest.mark.parametrize(("price", "arc"), [(1, 1), (2, 0)])
def test_one_unit_of_cost_too_much_is_seen(price: int, arc: int) -> None:
    """A flow that costs one more than it must is refused, at the arc left empty or at the one used."""
    problem = problem_of([1, -1], [(0, 1, 0, 1, 1), (0, 1, 0, 1, 2)])
    dear = FlowSolution(np.array([0, 1]), 2, np.array([0, price]), "optimal", "none", 0.0)
    with pytest.raises(CertificateError, match="has reduced cost") as refused:
        certificate(problem, dear)
    assert refused.value.arc == arc


def test_a_changed_price_is_named() -> None:
    """A price that proves nothing is refused with an arc at that vertex."""
    solution = solved(PROBLEM)
    for vertex in range(4):
        for shift in (-9, 9):
            wrong = replace(
                solution, prices=with_entry(solution.prices, vertex, int(solution.prices[vertex]) + shift)
            )
            with pytest.raises(CertificateError, match="has reduced cost") as refused:
                certificate(PROBLEM, wrong)
            arc = refused.value.arc
            assert arc is not None
            assert vertex in {PROBLEM.tail[arc], PROBLEM.head[arc]}


def test_prices_that_would_overflow_are_refused() -> None:
    """A price so large that a reduced cost would leave 64 bits is refused with its vertex."""
    solution = solved(PROBLEM)
    for price in (FLOW_PRICE_MAX + 1, -(2**63), 2**63 - 1):
        with pytest.raises(CertificateError, match="of vertex 2 is out of range") as refused:
            certificate(PROBLEM, replace(solution, prices=with_entry(solution.prices, 2, price)))
        assert refused.value.vertex == 2


def test_sums_that_would_overflow_are_seen() -> None:
    """Flows that cancel only because 64 bits end are not conserved."""
    arcs = [(0, 1, 0, FLOW_UNBOUNDED, 0)] * 4
    full = np.full(4, 2**62)
    with pytest.raises(CertificateError, match="vertex 0 sends 18446744073709551616 more"):
        certificate(
            problem_of([0, 0], arcs), FlowSolution(full, 0, np.zeros(2, np.int64), "optimal", "none", 0.0)
        )


def test_a_false_cost_is_refused() -> None:
    """The stated cost must be that of the flow."""
    solution = solved(PROBLEM)
    with pytest.raises(CertificateError, match=f"the flow costs {solution.cost}, but the solution says 1"):
        certificate(PROBLEM, replace(solution, cost=1))


@pytest.mark.parametrize("flow", [np.zeros(3, np.int64), np.zeros(4, np.int32), np.zeros((2, 2), np.int64)])
def test_columns_of_another_shape_are_refused(flow: Ints) -> None:
    """Flow and prices are int64 columns of the problem's size."""
    solution = solved(PROBLEM)
    with pytest.raises(CertificateError, match=r"flow is .* it must be int64 of shape \(4,\)"):
        certificate(PROBLEM, replace(solution, flow=flow))
    with pytest.raises(CertificateError, match=r"prices is .* it must be int64 of shape \(4,\)"):
        certificate(PROBLEM, replace(solution, prices=flow))


def test_an_unknown_status_is_refused() -> None:
    """There are three answers and no other."""
    with pytest.raises(CertificateError, match="status 'fine' is none of"):
        certificate(PROBLEM, replace(solved(PROBLEM), status="fine"))


def test_what_is_called_infeasible_must_be() -> None:
    """A witness whose vertices can send what they must shows nothing."""
    solution = solved(STARVED)
    assert solution.status == "infeasible"
    assert "must send 3 on" in solution.reason
    for witness in ([], [1], [0, 1, 2, 3], [3]):
        with pytest.raises(CertificateError, match="that shows nothing infeasible"):
            certificate(STARVED, replace(solution, witness=np.array(witness, np.int64)))
    with pytest.raises(CertificateError, match="the witness names vertex 4, which is none"):
        certificate(STARVED, replace(solution, witness=np.array([4])))
    with pytest.raises(CertificateError, match="that shows nothing infeasible"):
        certificate(PROBLEM, replace(solution, witness=np.array([0])))


@pytest.mark.parametrize(
    ("witness", "said"),
    [
        ([], "without the cycle that shows it"),
        ([0], r"arc 0 \(0 -> 1\) does not lead on"),
        ([0, 0], r"arc 0 \(0 -> 1\) does not lead on"),
        ([0, 3], "arc 3, which is none"),
        ([1, 0, 2], "does not lead on"),
    ],
)
def test_what_is_called_unbounded_must_be(witness: list[int], said: str) -> None:
    """A witness that is no cycle shows nothing."""
    solution = solved(ENDLESS)
    assert solution.status == "unbounded"
    with pytest.raises(CertificateError, match=said):
        certificate(ENDLESS, replace(solution, witness=np.array(witness, np.int64)))


@pytest.mark.parametrize(
    ("capacity", "cost", "said"),
    [(FLOW_UNBOUNDED - 1, -2, "has an end at"), (FLOW_UNBOUNDED, -1, "costs 0, which is not negative")],
)
def test_a_cycle_with_an_end_or_without_gain_is_refused(capacity: int, cost: int, said: str) -> None:
    """Only a negative cycle of arcs without end makes a problem unbounded."""
    other = problem_of([0, 0, 0], [(0, 1, 0, FLOW_UNBOUNDED, 1), (1, 0, 0, capacity, cost), (1, 2, 0, 5, -9)])
    flow = np.zeros(3, np.int64)
    with pytest.raises(CertificateError, match=said):
        certificate(other, replace(solved(ENDLESS), flow=flow, cost=0, witness=np.array([0, 1])))


@pytest.mark.parametrize("seed", range(10 * len(SHAPES)))
def test_one_wrong_flow_in_any_network_is_refused(seed: int) -> None:
    """In networks of every shape, an arc with one unit more or less is refused."""
    problem = network(seed)
    solution = solved(problem)
    ends = np.flatnonzero(problem.tail != problem.head)
    if solution.status != "optimal" or not ends.size:
        return
    rng = Random(seed)  # noqa: S311 - a test repeats itself
    arc = int(rng.choice(ends.tolist()))
    flow = with_entry(solution.flow, arc, int(solution.flow[arc]) + rng.choice((-1, 1)))
    with pytest.raises(CertificateError) as refused:
        certificate(problem, replace(solution, flow=flow))
    place = {refused.value.arc, refused.value.vertex}
    assert place & {arc, int(problem.tail[arc]), int(problem.head[arc])}, f"seed {seed}"
