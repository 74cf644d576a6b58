from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Inner, JobDescriptor, Level, MachineDescriptor, TaskDescriptor
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.network.export import NamedProblem, TooLargeError
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.firmament.solvers import FlowProblem, certificate, solve
from tests.support.firmament.cluster_histories import History

K = 3


class EverywhereModel(BaseModel):
    """Every task may go to the cluster vertex, to the first rack, to the first machine, and to a class."""

    name = "everywhere"

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """X at 5, a rack at 3, a machine at 1."""
        tree = state.resources
        targets = [state.cluster, int(tree.at(Level.RACK)[0]), int(tree.at(Level.MACHINE)[0])]
        count = len(tasks)
        return Options(
            np.repeat(np.arange(count), 3),
            np.tile(np.array(targets, np.int64), count),
            np.tile(np.array([5, 3, 1]), count),
        )

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """One class for all."""
        return Options(np.arange(len(tasks)), np.full(len(tasks), 7), np.full(len(tasks), 4))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """To the last machine, for two tasks."""
        last = np.full(len(classes), state.resources.at(Level.MACHINE)[-1])
        return ClassArcs(classes, last, np.zeros(len(classes), np.int64), np.full(len(classes), 2))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Dear."""
        return np.full(len(tasks), 100)


def cluster(job: JobDescriptor, tasks: int, inner: tuple[Inner, ...] = ()) -> FlowScheduler:
    """Two racks, of two machines and of one, K slots each; one job."""
    scheduler = FlowScheduler(EverywhereModel(), SchedulerSettings(certify_every=1))
    for number in range(3):
        scheduler.add_machine(
            MachineDescriptor(number, f"n{number}", f"r{number // 2}", slots=K, inner=inner), 0.0
        )
    scheduler.submit(job, [TaskDescriptor(task) for task in range(tasks)], 0.0)
    return scheduler


def arcs(named: NamedProblem, tail: str, head: str) -> list[tuple[int, int]]:
    """Capacity and cost of the arcs between vertices of these names."""
    problem = named.problem
    return [
        (int(problem.capacity[arc]), int(problem.cost[arc]))
        for arc in range(problem.arcs)
        if named.names[problem.tail[arc]] == tail and named.names[problem.head[arc]] == head
    ]


JOB = JobDescriptor(1, name="j", minimum_running=2, maximum_running=5)
WAITING = "waiting (j)"

# Table C.1, row by row -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "head", "capacity"),
    [
        pytest.param("task 0", "n0", 1, id="T-M"),
        pytest.param("task 0", "r0", 1, id="T-R"),
        pytest.param("task 0", "cluster", 1, id="T-X"),
        pytest.param("task 0", WAITING, 1, id="T-U"),
        pytest.param("r0", "n1", K, id="R-M"),
        pytest.param("cluster", "r0", 2 * K, id="X-R"),
        pytest.param("cluster", "r1", K, id="X-R of one machine"),
        pytest.param("n0", "sink", K, id="M-S"),
        pytest.param(WAITING, "sink", 5 - 2, id="U-S"),
        pytest.param("task 0", "class 7", 1, id="T-class"),
        pytest.param("class 7", "n2", 2, id="class-M"),
    ],
)
def test_each_kind_of_arc_has_the_capacity_of_table_c1(tail: str, head: str, capacity: int) -> None:
    """Table C.1: the capacity of each kind of arc, with E_j = 2 and F_j = 5 of seven tasks."""
    assert [room for room, _ in arcs(cluster(JOB, 7).problem(), tail, head)] == [capacity]


def test_supplies_are_those_of_appendix_c2() -> None:
    """C.2: each task sends 1, U_j takes in N_j - F_j, the sink the sum of F_j."""
    named = cluster(JOB, 7).problem()
    supply = {named.names[at]: int(units) for at, units in enumerate(named.problem.supply) if units}
    assert supply == {**{f"task {task}": 1 for task in range(7)}, WAITING: 5 - 7, "sink": -5}


def test_bounds_are_clamped_to_the_tasks_that_there_are() -> None:
    """C.2: 0 <= E_j <= F_j <= N_j; a job of one task with E_j = 2 and F_j = 5 has both at 1."""
    named = cluster(JOB, 1).problem()
    assert [room for room, _ in arcs(named, WAITING, "sink")] == [0]
    assert named.problem.supply[named.names.index(WAITING)] == 0


def test_a_running_task_has_an_arc_to_its_leaf_and_its_other_options() -> None:
    """§6.2.3: once placed, one arc says what staying costs; other options bear the hysteresis."""
    scheduler = cluster(JobDescriptor(1, name="j"), 1)
    scheduler.round(0.0)
    named = scheduler.problem()
    assert arcs(named, "task 0", "n0") == [(1, 0)]
    assert arcs(named, "task 0", "r0") == [(1, 3 + 1)]
    assert arcs(named, "task 0", WAITING) == [(1, 100 + 1)]


def test_the_inside_of_machines_divides_their_slots() -> None:
    """§6.5.2: flow passes sockets and cores; what leaves a machine's leaves adds up to K."""
    inside = (Inner(Level.SOCKET, "s", (Inner(Level.CORE, "c0"), Inner(Level.CORE, "c1"))),)
    named = cluster(JOB, 7, inside).problem()
    assert arcs(named, "n0", "n0/s") == [(K, 0)]
    assert sorted(arcs(named, "n0/c0", "sink") + arcs(named, "n0/c1", "sink")) == [(1, 0), (2, 0)]
    assert arcs(named, "n0", "sink") == []


# From flow to places --------------------------------------------------------------------------------


class ManyWaysModel(EverywhereModel):
    """Coming through the cluster vertex is cheaper than staying: all flow meets there."""

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """X, for nothing."""
        return Options(np.arange(len(tasks)), np.full(len(tasks), state.cluster), np.zeros(len(tasks), int))

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """None."""
        return BaseModel().task_classes(state, tasks)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Dearer than anywhere else."""
        return np.full(len(tasks), 50)


@pytest.mark.parametrize("solver", ["auto", "ortools", "network_simplex"])
def test_tasks_are_not_exchanged_for_nothing(solver: str) -> None:
    """Units that meet at an aggregate are alike; where the flow allows it, running tasks stay."""
    scheduler = FlowScheduler(ManyWaysModel(), SchedulerSettings(solver=solver))
    inner = (Inner(Level.CORE, "c0"), Inner(Level.CORE, "c1"))
    for number in range(6):
        machine = MachineDescriptor(number, f"n{number}", f"r{number // 3}", slots=2, inner=inner)
        scheduler.add_machine(machine, 0.0)
    scheduler.submit(JobDescriptor(1), [TaskDescriptor(task) for task in range(12)], 0.0)
    for task in range(12):
        scheduler.started(task, (7 * task + 5) % 6, 0.0)
    assert scheduler.round(1.0).deltas == []
    scheduler.finished(5, 2.0)
    scheduler.submit(JobDescriptor(2), [TaskDescriptor(20)], 2.0)
    assert [delta.task for delta in scheduler.round(2.0).deltas] == [20]


# The change log (§6.4.3) ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_going_on_from_the_last_solution_is_as_good_as_starting_anew(seed: int) -> None:
    """§6.4.3: after every round of a history the kept solver's cost is that of solving from scratch."""
    history = History(100 + seed)
    for _ in range(15):
        for _ in range(history.random.randint(0, 6)):
            history.happen()
        chain = history.scheduler._rounds._chain
        seen: list[tuple[int, int]] = []
        go_on = chain.solve

        def both(network, kept, faults, go_on=go_on, seen=seen):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            solved = go_on(network, kept, faults)
            anew = solve(network.problem(), "ortools")
            assert (anew.status == "optimal") == solved.optimal, f"seed {seed}"
            if solved.optimal:
                seen.append((solved.cost, anew.cost))
            return solved

        chain.solve = both  # type: ignore[method-assign]
        outcome = history.round()
        chain.solve = go_on  # type: ignore[method-assign]
        assert outcome.algorithm == "warm"
        assert all(kept == anew for kept, anew in seen), f"seed {seed}, round {outcome.number}: {seen}"


def test_a_round_without_events_changes_nothing_in_the_log() -> None:
    """§6.4.3: the log holds what changed; with constant costs and no events it is empty."""
    scheduler = cluster(JobDescriptor(1), 4)
    assert scheduler.round(0.0).changes > 0
    scheduler.round(0.0)
    assert scheduler.round(0.0).changes == 0


# For other programs ---------------------------------------------------------------------------------


def test_the_exported_network_can_be_solved_by_others(tmp_path: Path) -> None:
    """DIMACS with names as comments: read again it is the same problem with the same optimum."""
    named = cluster(JOB, 7).problem()
    path = tmp_path / "network.dimacs"
    named.to_dimacs(path)
    text = path.read_text()
    assert f"c vertex {named.names.index('n1') + 1} n1\n" in text
    again = FlowProblem.from_dimacs(path)
    solution = solve(again)
    certificate(named.problem, solution)


def test_a_picture_shows_names_and_used_arcs() -> None:
    """Graphviz text: every vertex with its name, arcs with cost and flow; too large a network is refused."""
    named = cluster(JOB, 2).problem()
    dot = named.to_dot(solve(named.problem).flow)
    assert '[label="waiting (j)"]' in dot
    assert '[label="1, 1/1", penwidth=2]' in dot
    with pytest.raises(TooLargeError, match="export DIMACS"):
        cluster(JOB, 600).problem().to_dot()
