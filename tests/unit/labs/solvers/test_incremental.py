from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from dios.firmament.solvers import (
    FlowProblem,
    FlowSolution,
    InvalidProblemError,
    OutOfRangeError,
    certificate,
    repair,
)
from dios.limits import FLOW_PRICE_MAX, FLOW_UNBOUNDED, FLOW_VOLUME_MAX
from labs.benchmarks.networks import quincy
from labs.solvers import IncrementalSolver, incremental, simplex_restart, solve
from labs.solvers.incremental import PRICE_MAX
from tests.support.firmament.flow_histories import History
from tests.support.firmament.flow_networks import network, problem_of

HISTORIES: Final = 200
HISTORIES_EACH: Final = 20
CHANGES: Final = 50


def answer(live: IncrementalSolver, place: str = "") -> FlowSolution:
    """The solver's answer, held against OR-Tools' from scratch, and certified."""
    solution, problem = live.solve(), live.problem()
    expected = solve(problem, "ortools")
    assert solution.status == expected.status, (
        f"{place}: {solution.status}, but OR-Tools says {expected.status}"
    )
    if solution.status == "optimal":
        assert solution.cost == expected.cost, (
            f"{place}: cost {solution.cost}, but OR-Tools' is {expected.cost}"
        )
    if solution.status == "infeasible":
        assert solution.reason, place
    try:
        certificate(problem, solution)
    except Exception as error:
        error.add_note(place)
        raise
    return solution


def two_ways() -> IncrementalSolver:
    """Three units from vertex 0 to vertex 3, by 1 (cheap, room for 2) or by 2 (dear, room for 3)."""
    arcs = [(0, 1, 0, 2, 1), (1, 3, 0, 2, 1), (0, 2, 0, 3, 5), (2, 3, 0, 3, 5)]
    return IncrementalSolver(problem_of([3, 0, 0, -3], arcs))


@pytest.mark.extended
@pytest.mark.parametrize("first", range(0, HISTORIES, HISTORIES_EACH))
def test_each_step_of_a_history_is_answered_as_from_scratch(first: int) -> None:
    """After each of 50 random changes of 200 histories cost and status are OR-Tools', and the proof holds."""
    statuses: set[str] = set()
    warm = 0
    for seed in range(first, first + HISTORIES_EACH):
        live = IncrementalSolver(network(seed), scratch=None if seed % 2 else "auto")
        history = History(live, seed)
        answer(live, f"seed {seed}, at the start")
        for step in range(CHANGES):
            kind = history.step()
            solution = answer(live, f"seed {seed}, step {step} ({kind})")
            statuses.add(solution.status)
            warm += solution.status == "optimal" and solution.algorithm == "incremental"
    assert statuses >= {"optimal", "infeasible"}, f"seeds from {first} answered only {statuses}"
    assert warm > HISTORIES_EACH * CHANGES // 4, f"seeds from {first}: only {warm} answers by repair"


@pytest.mark.long
def test_repairs_and_answers_from_scratch_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little patience repairs give way in the middle of histories; what each answers is built on."""
    for name, value in (("COLD_ARCS_MAX", 0), ("EXCESSES_MIN", 2), ("WORK_SHARE", 1)):
        monkeypatch.setattr(incremental, name, value)
    monkeypatch.setattr(simplex_restart, "WORK_SHARE", 1)
    optimal: set[str] = set()
    for seed in range(1_000, 1_012):
        scratch = ("auto", "relaxation", "cost_scaling", "race")[seed % 4]
        live = IncrementalSolver(network(seed), scratch=scratch)
        history = History(live, seed)
        for step in range(CHANGES):
            solution = answer(live, f"seed {seed}, step {step} ({history.step()})")
            if solution.status == "optimal":
                optimal.add(solution.algorithm)
    assert optimal >= {"incremental", "relaxation", "cost_scaling"}, optimal


def test_restarts_answer_every_kind_of_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no repair is tried, the network simplex continues from each last flow, and each answer is exact."""
    monkeypatch.setattr(IncrementalSolver, "_is_promising", lambda _, __: False)
    statuses: list[str] = []
    for seed in range(2_000, 2_012):
        live = IncrementalSolver(network(seed))
        history = History(live, seed)
        for step in range(CHANGES):
            solution = answer(live, f"seed {seed}, step {step} ({history.step()})")
            statuses.append(solution.status if solution.algorithm == "incremental" else solution.algorithm)
    assert statuses.count("optimal") > 100, statuses
    assert "infeasible" in statuses


def test_excess_finds_its_way() -> None:
    """More supply is sent by the next cheapest way, and what was sent stays."""
    live = two_ways()
    assert answer(live).flow.tolist() == [2, 2, 1, 1]
    live.set_supplies([0, 3], [4, -4])
    assert answer(live).flow.tolist() == [2, 2, 2, 2]


def test_added_capacity_is_used() -> None:
    """Room on a cheap way takes flow off a dear one (thesis §6.4.3, the second kind of change)."""
    live = two_ways()
    answer(live)
    live.change_arcs([0, 1], capacity=3)
    assert answer(live).flow.tolist() == [3, 3, 0, 0]


def test_a_changed_cost_moves_flow() -> None:
    """A way that becomes dear loses what another has room for (thesis §6.4.3, the third kind of change)."""
    live = two_ways()
    answer(live)
    live.change_arc(0, cost=100)
    assert answer(live).flow.tolist() == [0, 0, 3, 3]


def test_a_cost_that_falls_into_a_negative_cycle_is_used() -> None:
    """A cycle whose cost falls below zero is filled, and emptied when the cost rises again."""
    live = two_ways()
    back = live.add_arc(3, 0, 0, 2, 0)
    answer(live)
    live.change_arc(back, cost=-20)
    assert answer(live).flow[back] == 2
    live.change_arc(back, cost=0)
    assert answer(live).flow[back] == 0


def test_a_capacity_cut_below_the_flow_sends_it_elsewhere() -> None:
    """Flow that no longer fits an arc is sent another way."""
    live = two_ways()
    answer(live)
    live.change_arc(1, capacity=1)
    assert answer(live).flow.tolist() == [1, 1, 2, 2]


def test_a_lower_bound_holds_against_the_cost() -> None:
    """An arc carries what it must, however dear it is."""
    live = two_ways()
    answer(live)
    live.change_arc(2, lower=3)
    assert answer(live).flow.tolist() == [0, 0, 3, 3]


def test_a_removed_vertex_gives_its_flow_back() -> None:
    """The flow through a removed vertex goes around it; its arcs and itself answer with 0."""
    live = two_ways()
    answer(live)
    live.remove_node(1)
    solution = answer(live)
    assert solution.flow.tolist() == [0, 0, 3, 3]
    assert solution.prices[1] == 0


def test_removed_ids_are_not_given_again() -> None:
    """New vertices and arcs get new ids after removals, so that an old id never means something else."""
    live = two_ways()
    live.remove_arc(3)
    live.remove_node(1)
    assert live.add_node() == 4
    assert live.add_arc(2, 3, 0, 3, 1) == 4
    assert answer(live).flow.tolist() == [0, 0, 3, 0, 3]


def test_what_became_infeasible_becomes_feasible_again() -> None:
    """An infeasible network says which vertices cannot send what, and goes on from there once it can."""
    live = two_ways()
    answer(live)
    live.change_arcs([1, 3], capacity=1)
    solution = answer(live)
    assert (solution.status, solution.cost) == ("infeasible", 0)
    assert "1 too little" in solution.reason
    live.change_arc(3, capacity=2)
    assert answer(live).flow.tolist() == [1, 1, 2, 2]


def test_unbalanced_supplies_wait_for_their_other_side() -> None:
    """Supplies that do not add up are infeasible until they do; the network stays usable."""
    live = two_ways()
    live.set_supply(0, 4)
    solution = answer(live)
    assert solution.status == "infeasible"
    assert "add up" in solution.reason
    live.set_supply(3, -4)
    assert answer(live).status == "optimal"


def test_an_endless_cycle_is_told_and_can_be_closed() -> None:
    """A negative cycle without end is unbounded; when an arc of it gets an end, there is an optimum again."""
    live = two_ways()
    there, back = live.add_arcs([0, 1], [1, 0], capacity=FLOW_UNBOUNDED, cost=[2, -3]).tolist()
    solution = answer(live)
    assert solution.status == "unbounded"
    assert set(solution.witness.tolist()) == {there, back}
    live.change_arc(there, capacity=7)
    assert answer(live).status == "optimal"


def test_costs_of_any_size_that_fit() -> None:
    """Costs whose prices nearly leave 64 bits are answered exactly, whichever way they change."""
    live, most = two_ways(), FLOW_PRICE_MAX // 5
    for costs in ([most, -most], [-most, most], [most, most], [-most, -most], [most, 0]):
        live.change_arcs([0, 2], cost=costs)
        assert answer(live).status == "optimal"
    live.change_arcs([0, 2], cost=2**40)
    assert answer(live).status == "optimal"


def test_prices_that_drift_come_back() -> None:
    """Prices stay within their bound however long costs only rise, and the answers stay exact."""
    live = two_ways()
    answer(live)
    live._columns.price[:4] -= PRICE_MAX + 5
    answer(live, "all of them far off")
    live._columns.price[:2] -= PRICE_MAX + 5
    live.change_arcs([0, 1, 2, 3], cost=3)
    answer(live, "some of them far off")
    assert np.abs(live.solve().prices).max() < 100


def test_many_changes_are_answered_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """If repair and restart give up, the named algorithm solves it, and repairs continue from there."""
    monkeypatch.setattr(simplex_restart, "WORK_SHARE", 0)
    problem = network(2)
    live = IncrementalSolver(problem, scratch="ortools")
    base = live.add_nodes([0, 0])
    answer(live)
    tasks = live.add_nodes(np.ones(500, np.int64))
    live.add_arcs(tasks, np.full(500, base[0]), 0, 2, 7)
    live.add_arc(int(base[0]), int(base[1]), 0, 1000, 1)
    live.set_supply(int(base[1]), -500)
    # The lower bound of an arc into each task gives every task an excess that no price removes.
    live.add_arcs(np.full(500, base[1]), tasks, 1, 1, -3)
    solution = answer(live)
    assert (solution.status, solution.algorithm) == ("optimal", "ortools")
    live.change_arc(problem.arcs, cost=9)
    assert answer(live).algorithm == "incremental"


def test_a_bulk_change_is_the_same_as_its_parts() -> None:
    """Bulk forms and single forms leave the same network."""
    single, many = two_ways(), two_ways()
    for arc, cost in ((0, 4), (2, 1)):
        single.change_arc(arc, cost=cost)
    many.change_arcs(np.array([0, 2]), cost=np.array([4, 1]))
    assert answer(single).flow.tolist() == answer(many).flow.tolist()
    assert single.problem().cost.tolist() == many.problem().cost.tolist() == [4, 1, 1, 5]


def test_a_compacted_network_is_the_same_without_the_removed() -> None:
    """``compacted`` leaves out what was removed, and says which id each vertex and arc had."""
    live = two_ways()
    live.remove_node(1)
    small = live.compacted()
    assert (small.vertices.tolist(), small.arcs.tolist()) == ([0, 2, 3], [2, 3])
    assert small.problem.tail.tolist() == [0, 1]
    assert solve(small.problem, "ortools").cost == answer(live).cost


def test_an_empty_network_grows() -> None:
    """A network may begin with nothing at all."""
    none = np.zeros(0, np.int64)
    live = IncrementalSolver(FlowProblem(none, none, none, none, none, none))
    assert answer(live).cost == 0
    source, sink = live.add_node(2), live.add_node(-2)
    live.add_arc(source, sink, cost=4)
    assert answer(live).cost == 8


def test_flows_that_leave_64_bits_are_refused_and_survived() -> None:
    """Capacities that add up to more than 64 bits hold are an error, and smaller ones are answered again."""
    live = two_ways()
    arcs = live.add_arcs([0, 0, 0, 3, 3, 3], [3, 3, 3, 0, 0, 0], capacity=2**61 - 1, cost=-1)
    with pytest.raises(OutOfRangeError, match="larger unit"):
        live.solve()
    live.change_arcs(arcs, capacity=2**40)
    assert answer(live).status == "optimal"


REFUSED: Final[dict[str, tuple[Callable[[IncrementalSolver], object], str]]] = {
    "no such arc": (lambda live: live.change_arc(9, cost=1), r"arcs\[0\] is 9, which is no arc"),
    "a negative id": (lambda live: live.remove_arc(-1), r"arcs\[0\] is -1, which is no arc"),
    "a removed arc": (lambda live: live.change_arc(4, cost=1), r"arcs\[0\] is 4, an arc that was removed"),
    "removed twice": (lambda live: live.remove_arcs([0, 1, 4]), r"arcs\[2\] is 4, an arc that was removed"),
    "no such vertex": (lambda live: live.set_supply(7, 1), r"vertices\[0\] is 7, which is no vertex"),
    "a removed vertex": (lambda live: live.remove_node(4), r"vertices\[0\] is 4, a vertex that was removed"),
    "an arc to it": (lambda live: live.add_arc(0, 4), r"head\[0\] is 4, a vertex that was removed"),
    "one bad of many": (
        lambda live: live.change_arcs([0, 1, 2], capacity=[1, -1, 1]),
        r"capacity\[1\] is -1",
    ),
    "bounds crossed": (
        lambda live: live.change_arcs([0, 1], lower=[0, 3]),
        r"lower\[1\] is 3, above capacity\[1\]",
    ),
    "negative bound": (lambda live: live.add_arcs([0, 0], [1, 1], [0, -(1 << 63)], 5), r"lower\[1\] is -"),
    "named twice": (lambda live: live.change_arcs([0, 2, 0], cost=1), r"arcs\[2\] is 0, for the second time"),
    "too few": (lambda live: live.change_arcs([0, 1], cost=[1]), "cost has 1 entries; 2 are needed"),
    "too few heads": (lambda live: live.add_arcs([0, 1], [2]), "head has 1 entries, but tail has 2"),
    "a fraction": (lambda live: live.change_arcs([0], cost=1.5), "cost holds float64 values"),
    "a word": (lambda live: live.add_nodes(["many"]), "supply holds"),
    "too wide": (lambda live: live.set_supply(0, 2**70), "supply holds a value that is no 64-bit number"),
    "too dear": (lambda live: live.change_arc(0, cost=2**60), r"cost\[0\] is .* larger unit"),
    "too much": (lambda live: live.set_supplies([0, 1], FLOW_VOLUME_MAX), "supply would add up to"),
    "too much more": (lambda live: live.add_nodes([FLOW_VOLUME_MAX]), "supply would add up to"),
    "bounds too high": (lambda live: live.add_arc(0, 1, 2**59, 2**59), "lower bounds would add up to"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_change_changes_nothing(case: str) -> None:
    """A change with one bad element is refused with its place, and neither network nor answer change."""
    call, message = REFUSED[case]
    live = two_ways()
    live.remove_arc(live.add_arc(0, 3, 0, 1, 9))
    live.remove_node(live.add_node())
    before, problem = answer(live), live.problem()
    with pytest.raises(InvalidProblemError, match=message):
        call(live)
    after, same = answer(live), live.problem()
    assert after.flow.tolist() == before.flow.tolist()
    for name in ("supply", "tail", "head", "lower", "capacity", "cost"):
        assert getattr(same, name).tolist() == getattr(problem, name).tolist()


def test_more_vertices_than_prices_for_the_costs_are_refused() -> None:
    """A vertex is refused where the costs are so large that prices of one more would leave 64 bits."""
    live = IncrementalSolver(problem_of([1, -1], [(0, 1, 0, 1, FLOW_PRICE_MAX // 3)]))
    with pytest.raises(InvalidProblemError, match="larger unit for costs"):
        live.add_node()
    assert answer(live).cost == FLOW_PRICE_MAX // 3


@pytest.mark.parametrize("stride", [1, 2])
def test_prices_that_leave_their_range_between_repairs_come_back(stride: int) -> None:
    """Before each repair all prices, or every other one, are out of range; each solution is exact."""
    live = IncrementalSolver(network(24), scratch=None)
    history = History(live, 24)
    for step in range(CHANGES):
        live._columns.price[: live._vertices : stride] += (-1) ** step * (PRICE_MAX + 5)
        answer(live, f"step {step} ({history.step()})")


def test_costs_too_large_for_a_repair_are_solved_from_scratch() -> None:
    """If distances might not fit 64 bits, the plain algorithm solves the problem."""
    live = two_ways()
    live.change_arc(0, cost=2**56)
    assert answer(live).algorithm == "network_simplex"
    assert answer(two_ways()).algorithm == "incremental"


def test_answers_from_scratch_keep_their_ids_after_removals() -> None:
    """Removed vertices do not hide the network's shape: the fast algorithm solves it, with the same ids."""
    live = IncrementalSolver(quincy(60, 700, 90, 3).problem())
    assert answer(live).algorithm == "auction"
    live.remove_nodes(np.arange(0, 700, 2))
    live.set_supply(int(np.argmin(live.problem().supply)), -350)
    live._cold = True
    solution = answer(live)
    assert (solution.status, solution.algorithm) == ("optimal", "auction")
    assert not solution.prices[0:700:2].any()
    task = int(live.compacted().vertices[0])
    live.remove_arcs(np.flatnonzero(live.problem().tail[: live._arcs] == task))
    live._cold = True
    solution = answer(live)
    assert solution.status == "infeasible"
    assert str(task) in solution.reason


def test_repairs_of_a_fast_network_are_tried_less_often_after_they_gave_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network that the auction solves goes to it again, mostly without counting excesses before."""
    live, rng = IncrementalSolver(quincy(60, 700, 90, 3).problem()), np.random.default_rng(5)
    assert answer(live).algorithm == "auction"
    problem, tried = live.problem(), 0
    repaired = IncrementalSolver._repaired

    def counted(self: IncrementalSolver, net: repair.Net) -> int:
        nonlocal tried
        tried += 1
        return repaired(self, net)

    monkeypatch.setattr(incremental, "WORK_SHARE", 0)
    monkeypatch.setattr(IncrementalSolver, "_repaired", counted)
    for _ in range(20):
        live.change_arcs(np.arange(problem.arcs), cost=rng.permutation(problem.cost))
        assert answer(live).algorithm == "auction"
    assert 1 < tried < 10
    monkeypatch.setattr(incremental, "WORK_SHARE", 1)
    algorithms = []
    for _ in range(incremental.FAST_ROUNDS_MAX + 1):
        live.change_arc(0, cost=int(rng.integers(100)))
        algorithms.append(answer(live).algorithm)
    assert algorithms[-1] == "incremental"
