"""Quincy's cost model against Tables C.2 and C.3, with numbers that were worked out by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dios.firmament.cluster.state import ClusterState
from dios.firmament.custom_model.example_clusters import random_cluster
from dios.firmament.descriptors import Block, JobDescriptor, MachineDescriptor, TaskDescriptor
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.locality import holdings
from dios.firmament.models.protocol import COST_MAX
from dios.firmament.models.quincy import QuincyModel
from dios.firmament.scheduler import FlowScheduler
from tests.support.firmament import clusters as small
from tests.support.firmament.clusters import block, cluster, machine, rack, rows, run

MODEL = {"psi": 10, "xi": 100, "omega": 7, "theta": 3}
"""Small numbers, so that a sum shows which terms it has."""


def task(*blocks: Block, number: int = 1) -> TaskDescriptor:
    """A task that reads these blocks."""
    return TaskDescriptor(number, blocks=blocks)


def options(model: QuincyModel, state: ClusterState, row: int) -> dict[int, int]:
    """The costs of one task's arcs by resource row."""
    arcs = model.task_options(state, rows(row))
    assert not arcs.task.any()
    return dict(zip(arcs.target.tolist(), arcs.cost.tolist(), strict=True))


def test_psi_is_the_cost_of_a_gigabyte_across_the_top_of_rack_switch() -> None:
    """Table C.2, psi: 4 GB from the same rack cost four times psi, and what is on the machine nothing."""
    state = cluster(2)
    row = small.add_task(state, task(block(4, 0)))
    model = QuincyModel(**MODEL)
    run(state, row, 1)
    assert model.task_continuation(state, rows(row)).tolist() == [40]
    other = small.add_task(state, task(block(4, 1), number=2))
    run(state, other, 1)
    assert model.task_continuation(state, rows(other)).tolist() == [0]


def test_xi_is_the_cost_of_a_gigabyte_across_the_aggregation_switch() -> None:
    """Table C.2, xi: 4 GB from another rack, or from a machine that nobody knows, cost four times xi."""
    state = cluster(1, 1)
    model = QuincyModel(**MODEL)
    for number, holder in enumerate((100, 77)):
        row = small.add_task(state, task(block(4, holder), number=number))
        run(state, row, 0)
        assert model.task_continuation(state, rows(row)).tolist() == [400]


def test_leaving_a_task_unscheduled_costs_omega_for_each_second_waited() -> None:
    """Table C.3, first row: v = omega * waiting, all times of waiting together."""
    state = cluster(1)
    state.now = 100.0
    fresh = small.add_task(state, task())
    waiting = small.add_task(state, task(number=2), waited=30)
    state.tasks.waited[waiting] = 12
    got = QuincyModel(**MODEL).task_to_unscheduled(state, rows(fresh, waiting))
    assert got.tolist() == [0, 7 * 42]


def test_alpha_is_the_transfer_at_the_worst_place_of_the_cluster() -> None:
    """Table C.3, second row: with a rack that holds nothing, all bytes come across the aggregation switch."""
    state = cluster(2, 2)
    row = small.add_task(state, task(block(3, 0), block(1, 0, 1)))
    assert options(QuincyModel(**MODEL), state, row)[state.cluster] == 100 * 4


def test_alpha_counts_what_even_the_worst_rack_holds() -> None:
    """Table C.3, second row: where every rack holds something, the worst of them is the worst place."""
    state = cluster(2, 2)
    row = small.add_task(state, task(block(3, 0), block(2, 100)))
    # In rack 0's other machine: 3 GB from the rack, 2 from afar: 230. In rack 1's: 2 and 3: 320.
    assert options(QuincyModel(**MODEL), state, row)[state.cluster] == 320


def test_rho_is_the_transfer_at_the_worst_machine_of_the_rack() -> None:
    """Table C.3, third row: R counts what the rack holds and that machine does not, X the rest."""
    state = cluster(2, 1, 1)
    row = small.add_task(state, task(block(5, 0), block(2, 100)))
    costs = options(QuincyModel(**MODEL), state, row)
    assert costs[rack(state, 0)] == 10 * 5 + 100 * 2
    # The only machine of rack 1 holds its 2 GB itself, so that only the other 5 are fetched.
    assert costs[rack(state, 1)] == 100 * 5


def test_rho_takes_the_machine_that_holds_least_when_all_hold_something() -> None:
    """Table C.3, third row: in a rack whose machines hold 5 and 2 GB the worst one fetches 5."""
    state = cluster(2, 1)
    row = small.add_task(state, task(block(5, 0), block(2, 1)))
    assert options(QuincyModel(**MODEL), state, row)[rack(state, 0)] == 10 * 5


def test_a_block_with_copies_in_one_rack_is_there_once() -> None:
    """Copies beside each other are one piece of input, and one on the machine itself costs nothing."""
    state = cluster(3, 1)
    row = small.add_task(state, task(block(4, 0, 1, 1), block(2, 1)))
    costs = options(QuincyModel(**MODEL, threshold=0.0), state, row)
    assert costs[machine(state, 0)] == 10 * 2
    assert costs[machine(state, 1)] == 0
    assert costs[rack(state, 0)] == 10 * 6


def test_gamma_is_the_data_term_where_the_task_does_not_run() -> None:
    """Table C.3, fourth row, first case, and fifth row: psi * R + xi * X for that machine."""
    state = cluster(2, 1)
    row = small.add_task(state, task(block(5, 0), block(3, 1), block(1, 100)))
    costs = options(QuincyModel(**MODEL, threshold=0.0), state, row)
    assert costs[machine(state, 0)] == 10 * 3 + 100 * 1
    assert costs[machine(state, 1)] == 10 * 5 + 100 * 1
    # The worst machine of all has no arc of its own: X costs the same.
    assert machine(state, 100) not in costs
    assert costs[state.cluster] == 100 * 8


def test_gamma_is_discounted_where_the_task_runs() -> None:
    """Table C.3, fourth row, second case: d* - p*."""
    state = cluster(2, 1)
    state.now = 50.0
    row = small.add_task(state, task(block(5, 0)), waited=50)
    run(state, row, 1, since=30.0)
    assert QuincyModel(**MODEL).task_continuation(state, rows(row)).tolist() == [50 - 3 * 20]


def test_the_preemption_term_counts_the_work_of_earlier_placements() -> None:
    """Table C.3, last row: p* = theta, the seconds run anywhere."""
    state = cluster(1)
    state.now = 50.0
    row = small.add_task(state, task(), waited=50)
    state.tasks.ran[row] = 9.0
    run(state, row, 0, since=30.0)
    assert QuincyModel(theta=1).task_continuation(state, rows(row)).tolist() == [-(20 + 9)]


def test_a_task_that_ran_for_ages_stays_within_the_largest_cost() -> None:
    """The discount of a service that runs for a century is still a cost that a model may give."""
    state = cluster(1)
    state.now = 3e9
    row = small.add_task(state, task())
    run(state, row, 0, since=0.0)
    assert QuincyModel().task_continuation(state, rows(row)).tolist() == [-COST_MAX]


def test_the_data_term_follows_a_task_that_moves() -> None:
    """What is kept of the place where a task ran is not used for the place where it runs now."""
    state = cluster(2, 1)
    row = small.add_task(state, task(block(4, 0)))
    model = QuincyModel(**MODEL)
    run(state, row, 1)
    assert model.task_continuation(state, rows(row)).tolist() == [40]
    state.tasks.machine[row] = machine(state, 100)
    assert model.task_continuation(state, rows(row)).tolist() == [400]


def test_only_places_that_hold_enough_get_an_arc() -> None:
    """A machine or rack below the threshold is reached through X alone."""
    state = cluster(2, 1, 1)
    row = small.add_task(state, task(block(8, 0), block(2, 100)))
    costs = options(QuincyModel(**MODEL, threshold=0.5), state, row)
    assert set(costs) == {machine(state, 0), rack(state, 0), state.cluster}


def test_arcs_are_few_and_the_best() -> None:
    """Of many machines that hold enough, those that hold the most get the arcs."""
    state = cluster(9, 1)
    pieces = [block(1 + number, number) for number in range(9)]
    row = small.add_task(state, task(*pieces))
    costs = options(QuincyModel(**MODEL, threshold=0.0, machine_arcs=3, rack_arcs=0), state, row)
    assert set(costs) == {state.cluster, *(machine(state, number) for number in (6, 7, 8))}


def test_racks_that_save_nothing_get_no_arc() -> None:
    """Where the rack is as far away as all else, X is the only way beside the machine itself."""
    state = cluster(2, 1)
    row = small.add_task(state, task(block(4, 0)))
    costs = options(QuincyModel(psi=10, xi=10), state, row)
    assert costs == {machine(state, 0): 0, state.cluster: 40}


def test_a_task_without_data_may_go_anywhere_for_nothing() -> None:
    """No blocks, one arc to X, no cost."""
    state = cluster(2, 2)
    row = small.add_task(state, task())
    assert options(QuincyModel(**MODEL), state, row) == {state.cluster: 0}


def test_a_machine_that_goes_or_comes_makes_its_readers_stale() -> None:
    """Tasks with data on a machine, or beside it, are asked again; others are not; once asked, none is."""
    state = cluster(2, 2)
    model = QuincyModel(**MODEL, threshold=0.0)
    reader = small.add_task(state, task(block(2, 0)))
    other = small.add_task(state, task(block(2, 100), number=2))
    model.add_tasks(state, rows(reader, other))
    assert machine(state, 0) in options(model, state, reader)
    model.remove_machine(state, machine(state, 0))
    state.remove_machine(0)
    assert model.stale_tasks(state).tolist() == [reader]
    assert options(model, state, reader) == {state.cluster: 200}
    assert model.stale_tasks(state).tolist() == []
    model.add_machine(state, small.add_machine(state, 0))
    assert model.stale_tasks(state).tolist() == [reader]
    model.remove_task(state, reader)
    assert model.stale_tasks(state).tolist() == []


def test_a_rack_that_comes_or_goes_makes_all_readers_stale() -> None:
    """The worst place of the cluster may be another one with each rack."""
    state = cluster(1)
    model = QuincyModel(**MODEL)
    reader = small.add_task(state, task(block(2, 0)))
    model.add_tasks(state, rows(reader))
    assert options(model, state, reader)[state.cluster] == 0
    model.add_machine(state, small.add_machine(state, 100, rack="r1"))
    assert model.stale_tasks(state).tolist() == [reader]
    assert options(model, state, reader)[state.cluster] == 200


def test_the_data_term_of_a_running_task_follows_its_data() -> None:
    """When the machine with a running task's data goes, what it would fetch comes from afar."""
    state = cluster(3, 1)
    model = QuincyModel(**MODEL)
    row = small.add_task(state, task(block(4, 0)))
    model.add_tasks(state, rows(row))
    run(state, row, 1)
    assert model.task_continuation(state, rows(row)).tolist() == [40]
    model.remove_machine(state, machine(state, 0))
    state.remove_machine(0)
    assert model.task_continuation(state, rows(row)).tolist() == [400]


# On the scheduler ------------------------------------------------------------------------------------


def scheduler(*slots: int, racks: int = 2) -> FlowScheduler:
    """Machines 0, 1, ... with so many slots, dealt out to the racks in turn; default costs."""
    quincy = FlowScheduler(QuincyModel())
    for number, count in enumerate(slots):
        quincy.add_machine(
            MachineDescriptor(number, f"m{number}", f"r{number % racks}", small.MACHINE, count), 0.0
        )
    return quincy


def place(quincy: FlowScheduler, number: int) -> int | None:
    """The machine where a task runs, or None."""
    at = int(quincy.state.tasks.machine[quincy.state.tasks.row(number)])
    return quincy.state.machine_ids.get(at)


def test_tasks_land_where_their_data_is() -> None:
    """With a slot beside everybody's data nobody fetches anything, and nobody waits."""
    quincy = scheduler(1, 1, 1, 1)
    tasks = [task(block(1, holder), number=holder) for holder in (3, 1, 0, 2)]
    quincy.submit(JobDescriptor(1), tasks, 0.0)
    quincy.round(0.1)
    assert [place(quincy, number) for number in range(4)] == [0, 1, 2, 3]


def test_a_task_waits_for_its_data_as_long_as_moving_it_takes() -> None:
    """1 GB from the same rack costs a second: so long the slot with the data is waited for, then not."""
    quincy = scheduler(1, 1, 1, 1)
    tasks = [task(block(1, 0), number=1), task(block(1, 0), number=2)]
    quincy.submit(JobDescriptor(1), tasks, 0.0)
    quincy.round(0.9)
    assert sorted(str(place(quincy, number)) for number in (1, 2)) == ["0", "None"]
    quincy.round(1.1)
    # Machine 2 is the other one of that rack.
    assert sorted(str(place(quincy, number)) for number in (1, 2)) == ["0", "2"]


@pytest.mark.parametrize(("ran", "expected"), [(1.5, 0), (2.5, 1)])
def test_a_task_moves_to_its_data_only_while_little_work_is_lost(ran: float, expected: int) -> None:
    """A better place has to save more than p*: two seconds of transfer against the time that it ran."""
    quincy = scheduler(1, 1)
    quincy.submit(JobDescriptor(1), [task(block(1, 0), number=1)], 0.0)
    quincy.started(1, 1, 10.0)
    quincy.round(10.0 + ran)
    assert place(quincy, 1) == expected


def test_who_waits_displaces_nobody_who_has_run_longer() -> None:
    """One slot: the task that came second stays out while the first has run for as long as it has waited."""
    quincy = scheduler(1, racks=1)
    quincy.submit(JobDescriptor(1), [task(number=1)], 0.0)
    quincy.round(0.1)
    quincy.submit(JobDescriptor(2), [task(number=2)], 1.0)
    for now in (2.0, 10.0, 1000.0):
        assert quincy.round(now).deltas == []


def by_hand(state: ClusterState, model: QuincyModel, row: int, at: int) -> float:
    """The data term of one machine, block by block."""
    cost = 0.0
    for input_block in state.tasks.descriptors[row].blocks:
        holders = [state.machine_row(number) for number in input_block.machines]
        racks = {int(state.resources.rack[holder]) for holder in holders if holder >= 0}
        if at in holders:
            continue
        near = int(state.resources.rack[at]) in racks
        cost += (model.psi if near else model.xi) * input_block.size / small.GB
    return cost


@pytest.mark.parametrize("seed", range(8))
def test_vectors_agree_with_a_count_block_by_block(seed: int) -> None:
    """On random clusters every arc costs what a loop over blocks and machines finds, bounds as well."""
    state = random_cluster(seed, machines=7, tasks=25, running=0.4)
    model = QuincyModel(threshold=0.0, machine_arcs=99, rack_arcs=99)
    tasks = state.tasks.all()
    arcs = model.task_options(state, tasks)
    machines = sorted(state.machine_ids)
    for number, target, cost in zip(*(column.tolist() for column in arcs), strict=True):
        below = [m for m in machines if target in {m, state.resources.rack[m], state.cluster}]
        worst = max(by_hand(state, model, int(tasks[number]), leaf) for leaf in below)
        assert abs(cost - worst) <= 1, f"seed {seed}: task {number} at {target}"
    running = tasks[state.tasks.status[tasks] == 1]
    term = model.task_continuation(state, running) + model.theta * state.tasks.running_time(
        running, state.now
    )
    for row, cost in zip(running.tolist(), term.tolist(), strict=True):
        expected = by_hand(state, model, row, int(state.tasks.machine[row]))
        assert abs(cost - expected) <= 1, f"seed {seed}: running task {row}"


@pytest.mark.parametrize("seed", range(4))
def test_who_is_stale_is_found_after_thousands_of_tasks(seed: int) -> None:
    """After many tasks came and went, just those are stale that a look at every task finds."""
    chance = random.Random(seed)  # noqa: S311 - a seed, not a secret
    state = cluster(2, 2, 2, 2)
    model = QuincyModel()
    living: list[int] = []
    for number in range(400):
        holders = tuple(chance.sample([0, 1, 100, 101, 200, 201, 300, 301], chance.randint(0, 3)))
        row = small.add_task(state, task(Block(5, holders), number=number))
        model.add_tasks(state, rows(row))
        living.append(row)
        if chance.random() < 0.8:
            gone = living.pop(chance.randrange(len(living)))
            model.remove_task(state, gone)
            state.tasks.remove(int(state.tasks.id[gone]))
    model.remove_machine(state, machine(state, 100))
    touched = {100, 101}
    expected = [r for r in living if touched & set(state.tasks.descriptors[r].blocks[0].machines)]
    assert model.stale_tasks(state).tolist() == sorted(expected), f"seed {seed}"


def test_holdings_of_nobody_are_empty() -> None:
    """No tasks, no machines, or no blocks: empty columns instead of an error."""
    assert len(holdings(ClusterState(), rows()).total) == 0
    state = cluster()
    row = small.add_task(state, task(block(1, 5)))
    held = holdings(state, rows(row))
    assert held.total.tolist() == [small.GB]
    assert len(held.machine) == len(held.rack) == 0
    assert not np.any(held.outside)


def test_an_explanation_has_the_bytes_and_the_sum() -> None:
    """Where 5 GB are on the machine, 3 in its rack and 1 elsewhere it says so, and what that costs."""
    state = cluster(2, 1)
    state.now = 20.0
    row = small.add_task(state, task(block(5, 0), block(3, 1), block(1, 100)))
    model = QuincyModel(**MODEL)
    text = model.explain(state, row, machine(state, 0))
    assert text == (
        "of 9 GB of input, 5 GB are on the machine, 3 GB in its rack (cost 10 per GB) "
        "and 1 GB elsewhere (cost 100 per GB): 130"
    )
    assert "800 at the worst" in model.explain(state, row, state.cluster)
    run(state, row, 0, since=0.0)
    assert model.explain(state, row, machine(state, 0)) == f"{text}, less 20 s of work done: 70"


@pytest.mark.parametrize(
    ("parameters", "names"),
    [({"xi": 1, "psi": 2}, "psi"), ({"omega": -1}, "omega"), ({"threshold": 1.5}, "threshold")],
)
def test_parameters_that_cannot_be_meant_are_refused(parameters: dict[str, int], names: str) -> None:
    """The error names the parameter."""
    with pytest.raises(BadModelError, match=names):
        QuincyModel(**parameters)
