"""The warm start: every answer after a change is the one from scratch."""

from __future__ import annotations

import numpy as np
import pytest

from dios.firmament.solvers import InvalidProblemError, OutOfRangeError, certificate, solve
from dios.firmament.solvers import repair as repair_module
from dios.firmament.solvers.auction import UNLIMITED, new_auction, release_all, run_bids
from dios.firmament.solvers.contraction import topological
from dios.firmament.solvers.repair import new_search
from dios.firmament.solvers.warm_solver import WarmSolver
from tests.support.firmament.warm_histories import WarmHistory

pytest.importorskip("ortools")


@pytest.mark.parametrize("block", range(8))
def test_histories_cost_what_the_reference_says(block: int) -> None:
    """After each of 30 random changes the cost is the reference's, with a certificate."""
    for seed in range(5 * block, 5 * block + 5):
        history = WarmHistory(seed)
        for step in range(30):
            for _ in range(history.rng.choice([1, 1, 3])):
                history.change()
            problem = history.problem()
            expected = solve(problem, "ortools")
            answer = history.warm.solve()
            assert answer.status == expected.status, f"seed {seed}, step {step}: {answer.reason}"
            if answer.status == "optimal":
                certificate(problem, history.solution(answer))
                assert answer.cost == expected.cost, f"seed {seed}, step {step}"


def test_options_of_a_few_vertices_first_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that begin with the options of the vertices reached are exact."""
    monkeypatch.setattr(repair_module, "FEW_SHARE", 1)
    for seed in range(200, 206):
        history = WarmHistory(seed)
        for step in range(20):
            history.change()
            expected = solve(history.problem(), "ortools")
            answer = history.warm.solve()
            assert answer.status == expected.status, f"seed {seed}, step {step}: {answer.reason}"
            if answer.status == "optimal":
                certificate(history.problem(), history.solution(answer))
                assert answer.cost == expected.cost, f"seed {seed}, step {step}"


def test_giving_up_for_a_start_anew_is_exact() -> None:
    """A repair that may do no work gives up, and the solution from scratch has the reference's cost."""
    gave_up = 0
    for seed in range(100, 106):
        history = WarmHistory(seed, work_per_task=0)
        for step in range(15):
            history.change()
            expected = solve(history.problem(), "ortools")
            answer = history.warm.solve()
            gave_up += history.warm._scratch_rounds
            assert answer.status == expected.status, f"seed {seed}, step {step}: {answer.reason}"
            if answer.status == "optimal":
                certificate(history.problem(), history.solution(answer))
                assert answer.cost == expected.cost, f"seed {seed}, step {step}"
    assert gave_up


def _small() -> WarmSolver:
    warm = WarmSolver()
    warm.add_vertices(2)
    warm.add_arcs([1, 2], 0, [1, 5], 0)
    warm.add_tasks([0, 2, 4], [1, 2, 1, 2], [0, 5, 0, 9])
    return warm


def test_the_cheaper_pair_is_found_and_kept() -> None:
    """Two tasks want one slot: the one who would pay more elsewhere gets it, also after a change."""
    warm = _small()
    answer = warm.solve()
    assert (answer.cost, answer.choice.tolist(), answer.target.tolist()) == (5, [1, 0], [2, 1])
    warm.change_costs([0], [1], [20])
    answer = warm.solve()
    assert (answer.cost, answer.choice.tolist()) == (9, [0, 1])


def test_holes_between_rows_are_closed() -> None:
    """Rows that come and go for long do not make the columns grow without end."""
    warm = _small()
    for _ in range(300):
        warm.replace_tasks([0, 1], [0, 2, 4], [1, 2, 1, 2], [0, 5, 0, 9])
    assert len(warm._net.target) < 200
    assert warm.solve().cost == 5


def test_a_network_without_a_way_is_told_and_may_be_mended() -> None:
    """A task without a possible place makes the network infeasible until there is room again."""
    warm = _small()
    warm.change_arcs([0, 1], capacity=[1, 0])
    answer = warm.solve()
    assert answer.status == "infeasible"
    assert "finds no way" in answer.reason
    (lost,) = warm.add_tasks([0, 0], [], [])
    assert "no option" in warm.solve().reason
    warm.remove_tasks([lost])
    warm.change_arcs([1], capacity=[5])
    assert warm.solve().cost == 5


@pytest.mark.parametrize("solved_before", [False, True])
def test_a_vertex_that_gets_a_way_later_is_priced_then(*, solved_before: bool) -> None:
    """A vertex without room costs as much as its cheapest way when it has one, also to tasks of before."""
    warm = WarmSolver()
    warm.add_vertices(3)
    cheap, *_ = warm.add_arcs([1, 2, 3], [0, 1, 0], [0, 0, 9], [1, 2, 50])
    if solved_before:
        warm.add_tasks([0, 2, 4], [2, 3, 2, 3], [0, 0, 0, 0])
    else:
        warm.add_tasks([0, 1, 2], [3, 3], [0, 0])
    assert warm.solve().cost == 100
    warm.change_arcs([cheap, cheap + 1], capacity=[1, 9])
    warm.add_tasks([0, 2], [2, 3], [0, 0])
    answer = warm.solve()
    assert (answer.status, answer.cost) == ("optimal", 103)
    assert int((answer.target == 2).sum()) == 1


def test_wrong_arguments_are_named() -> None:
    """Ids that are none, doubled or removed, and costs too large, are errors that name the value."""
    warm = _small()
    with pytest.raises(InvalidProblemError, match="vertex 7"):
        warm.add_arcs(7, 0, 1, 0)
    with pytest.raises(InvalidProblemError, match="task 4"):
        warm.remove_tasks([4])
    with pytest.raises(InvalidProblemError, match="twice"):
        warm.remove_tasks([0, 0])
    with pytest.raises(InvalidProblemError, match="arc 0 has bounds 3 to 2"):
        warm.change_arcs([0], lower=3, capacity=2)
    with pytest.raises(InvalidProblemError, match="task 1 has no such option"):
        warm.change_costs([1], [2], [1])
    with pytest.raises(InvalidProblemError, match="cost holds float64 values"):
        warm.change_costs([1], [1], [1.5])
    with pytest.raises(InvalidProblemError, match="start must begin with 0"):
        warm.add_tasks([1, 2], [1], [1])
    with pytest.raises(InvalidProblemError, match=r"start\[2\] is 0, less than"):
        warm.add_tasks([0, 1, 0], [], [])
    warm.remove_tasks([1])
    with pytest.raises(InvalidProblemError, match="task 1 was removed"):
        warm.remove_tasks(np.array([1]))
    for cost in (2**60, -(2**63)):
        with pytest.raises(OutOfRangeError, match=rf"cost\[0\] is {cost}, .* larger unit"):
            warm.change_costs([0], [0], [cost])
    warm.change_costs([0], [0], [2**56])
    with pytest.raises(OutOfRangeError, match="larger unit"):
        warm.solve()


def test_a_refused_row_changes_nothing() -> None:
    """If the columns of new rows are refused, the tasks keep their old rows."""
    warm = _small()
    for target, cost, said in (
        ([1, 2, 9], [0, 5, 0], "vertex 9"),
        ([1, 2], [0, 5], "target has 2 entries; 3 are needed"),
        ([1, 2, 1], [0, 5], "cost has 2 entries; 3 are needed"),
        ([1, 2, 1], [0, 5, 2**60], r"cost\[2\]"),
    ):
        with pytest.raises((InvalidProblemError, OutOfRangeError), match=said):
            warm.replace_tasks([0, 1], [0, 2, 3], target, cost)
        assert warm.solve().cost == 5, said


def test_zones_with_more_edges_than_can_be_noted_are_exact() -> None:
    """With room to note two edges of a zone only, the rest is read again, and the cost is the reference's."""
    for seed in range(200, 204):
        history = WarmHistory(seed)
        for step in range(12):
            history.change()
            expected = solve(history.problem(), "ortools")
            history.warm._search = new_search(4 * len(history.warm._net.price) + 64)._replace(
                inner_from=np.empty(2, np.int64),
                inner_to=np.empty(2, np.int64),
                inner_length=np.empty(2, np.int64),
            )
            history.warm._counters[:] = 0
            answer = history.warm.solve()
            assert answer.status == expected.status, f"seed {seed}, step {step}: {answer.reason}"
            assert answer.status != "optimal" or answer.cost == expected.cost, f"seed {seed}, step {step}"


def test_tasks_that_left_ask_for_nothing_in_a_start_anew() -> None:
    """An aggregate with room for all its tasks is no place to bid for, however many tasks have left it."""
    warm = _small()
    for _ in range(5):
        warm.remove_tasks([0, 1])
        warm.add_tasks([0, 2, 4], [1, 2, 1, 2], [0, 5, 0, 9])
    assert warm.solve().cost == 5
    net = warm._net
    auction_state = new_auction(net, topological(net.head, net.out_start, net.out_arcs))
    assert auction_state is not None
    assert auction_state.option_count[1:].tolist() == [2, 2]
    assert auction_state.kind[2] == UNLIMITED


def test_a_task_at_a_vertex_without_slots_has_none_to_give_back() -> None:
    """Tasks that chose a vertex without slots, having no other option, are released like those with one."""
    warm = WarmSolver()
    warm.add_vertices(3)
    warm.add_arcs([1, 2, 3, 3], [0, 0, 1, 2], [0, 3, 9, 9], 0)
    warm.add_tasks([0, 1, 2, 3], [1, 3, 2], [-1, 0, 0])
    assert warm.solve().status == "infeasible"
    net = warm._net
    auction_state = new_auction(net, topological(net.head, net.out_start, net.out_arcs))
    assert auction_state is not None
    run_bids(net, auction_state, len(net.choice), 100)
    assert (auction_state.chosen[:3] >= 0).all()
    assert auction_state.size[1:3].tolist() == [0, 2]
    release_all(net, auction_state, np.arange(3))
    assert auction_state.size[1:3].tolist() == [0, 0]
    assert (auction_state.chosen[:3] < 0).all()
