"""Networks without a solution are found by a largest flow, with the vertices that have too much to send."""

from __future__ import annotations

import numpy as np
import pytest

from dios.firmament.solvers import FlowProblem, network_simplex
from dios.firmament.solvers.feasibility import unsendable
from dios.firmament.solvers.standard import StandardProblem, standard_form
from tests.support.firmament.flow_networks import SHAPES, network


def standard_of(problem: FlowProblem) -> StandardProblem:
    """Return the standard form without costs."""
    return standard_form(problem, np.zeros_like(problem.cost))


def by_pivots(standard: StandardProblem) -> list[int]:
    """Return the same vertices by the last flow of the network simplex."""
    state = network_simplex.start(standard)
    block = network_simplex.block_size(len(state.order))
    network_simplex.pivots(state.arcs, state.tree, block, np.zeros(3, np.int64), network_simplex.NO_LIMIT)
    return [int(vertex) for vertex in network_simplex.result_of(standard, state).stuck]


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_the_vertices_are_those_of_the_simplex(shape: int) -> None:
    """A largest flow leaves the same vertices with too much as the last pivot of the network simplex."""
    infeasible = 0
    for seed in range(shape, 20 * len(SHAPES), len(SHAPES)):
        problem = network(seed)
        if problem.supply.sum():
            continue
        standard = standard_of(problem)
        stuck = by_pivots(standard)
        assert unsendable(standard).tolist() == stuck, f"seed {seed}"
        infeasible += bool(stuck)
    assert infeasible or SHAPES[shape] in {"scheduling", "oversubscribed"}


@pytest.mark.parametrize(("sent", "stuck"), [(6, []), (7, [0, 1, 2, 3])])
def test_flow_goes_around_a_full_arc(sent: int, stuck: list[int]) -> None:
    """A path that was filled first is taken back where another one needs its arcs."""
    rows = np.array([(0, 1, 4), (0, 2, 4), (1, 2, 4), (1, 3, 4), (2, 3, 3), (3, 4, 6)]).T
    arcs = rows.shape[1]
    problem = FlowProblem(
        np.array([sent, 0, 0, 0, -sent]),
        rows[0],
        rows[1],
        np.zeros(arcs, np.int64),
        rows[2],
        np.ones(arcs, np.int64),
    )
    assert unsendable(standard_of(problem)).tolist() == stuck


def test_a_circulation_has_nothing_to_send() -> None:
    """Without supplies every network has a solution."""
    problem = FlowProblem(np.zeros(2, np.int64), *(np.array([number]) for number in (0, 1, 0, 5, 1)))
    assert unsendable(standard_of(problem)).size == 0
