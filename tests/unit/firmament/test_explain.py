from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.explain.explanation import Explanation
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import Options
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.wire.types import Affinity

GB = 2.0**30


class TableModel(BaseModel):
    """Costs from a table: of each task on each machine, and of each task's waiting, which may be raised."""

    name = "table"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.raised: dict[int, int] = {}
        self.changed: dict[tuple[int, int], int] = {}

    def _cost(self, task: int, machine: int) -> int:
        if (task, machine) in self.changed:
            return self.changed[task, machine]
        return random.Random(f"{self.seed} {task} {machine}").randrange(0, 100)  # noqa: S311 - a table

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Every machine."""
        arcs = [
            (at, row, self._cost(int(state.tasks.id[task]), state.machine_ids[row]))
            for at, task in enumerate(tasks.tolist())
            for row in sorted(state.machine_ids)
        ]
        columns = np.array(arcs, np.int64).reshape(-1, 3).T
        return Options(*columns)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Machines may have come."""
        return state.tasks.all()

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Of the table, and one more each second."""
        ids = state.tasks.id[tasks].tolist()
        own = [self.raised.get(task, 50 + self._cost(task, -1)) for task in ids]
        waited: Ints = state.tasks.waiting_time(tasks, state.now).astype(np.int64)
        return np.array(own, np.int64).reshape(-1) + waited

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """As waiting, at the time zero."""
        return np.array([50 + self._cost(int(state.tasks.id[task]), -1) for task in tasks], np.int64)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """As the place, from the table."""
        costs = [
            self._cost(int(state.tasks.id[task]), state.machine_ids[int(state.tasks.machine[task])])
            for task in tasks
        ]
        return np.array(costs, np.int64).reshape(-1)


def crowd(seed: int, *, slots_more: int = -1) -> tuple[FlowScheduler, TableModel]:
    """A cluster with too many tasks, after two rounds; then ``slots_more`` has one slot more."""
    chance = random.Random(seed)  # noqa: S311 - a seed, not a secret
    model = TableModel(seed)
    scheduler = FlowScheduler(model, SchedulerSettings(certify_every=1))
    machines = [
        MachineDescriptor(number, f"n{number}", f"r{number % 2}", slots=chance.randint(1, 3))
        for number in range(4)
    ]
    for machine in machines:
        scheduler.add_machine(machine, 0.0)
    for job in range(4):
        tasks = [TaskDescriptor(10 * job + at) for at in range(chance.randint(2, 5))]
        scheduler.submit(JobDescriptor(job), tasks, 0.0)
    for now in (0.0, 1.0):
        assert scheduler.round(now).stands
    if slots_more >= 0:
        more_slots(scheduler, slots_more)
    return scheduler, model


def more_slots(scheduler: FlowScheduler, machine: int) -> None:
    """One more slot, as if the machine had been described so."""
    tree = scheduler.state.resources
    at = scheduler.state.machine_row(machine)
    while at != -1:
        tree.slots[at] += 1
        at = int(tree.parent[at])


def waiting(scheduler: FlowScheduler) -> list[int]:
    """Identifiers of the tasks that wait."""
    tasks = scheduler.state.tasks
    return [int(tasks.id[row]) for row in tasks.all() if tasks.status[row] != RUNNING]


def runs(scheduler: FlowScheduler, task: int) -> bool:
    """Return True if a task runs."""
    tasks = scheduler.state.tasks
    return bool(tasks.status[tasks.row(task)] == RUNNING)


def enough(explanation: Explanation) -> set[tuple[str, int | None]]:
    """Return the changes that the explanation calls sufficient."""
    return {(remedy.kind, remedy.machine) for remedy in explanation.enough}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.extended(keep=1)
def test_one_more_slot_where_it_says_places_the_task(seed: int) -> None:
    """A slot that is called sufficient is so: with it the next round places the task."""
    scheduler, _ = crowd(seed)
    said = [
        (task, remedy.machine)
        for task in waiting(scheduler)
        for remedy in scheduler.explain(task).enough
        if remedy.kind == "slot" and remedy.machine is not None
    ]
    assert said or not waiting(scheduler), f"seed {seed}: nothing is ever enough"
    for task, machine in said:
        changed, _ = crowd(seed, slots_more=machine)
        assert task in waiting(changed), f"seed {seed}"
        changed.round(1.0)
        assert runs(changed, task), f"seed {seed}: task {task} does not run with a slot more on n{machine}"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.extended(keep=1)
def test_a_dearer_wait_places_the_task_and_not_a_bit_earlier(seed: int) -> None:
    """Above the cost of waiting that is named the task runs; at one below that it still waits."""
    scheduler, _ = crowd(seed)
    for task in waiting(scheduler):
        bound = next(remedy for remedy in scheduler.explain(task).enough if remedy.kind == "waiting cost")
        assert bound.cost is not None
        for more, outcome in ((-1, False), (1, True)):
            changed, model = crowd(seed)
            # A second has passed, which the model adds.
            model.raised[task] = bound.cost + more - 1
            changed.round(1.0)
            assert runs(changed, task) is outcome, f"seed {seed}: task {task}, bound {bound}, {more:+d}"


def test_the_time_that_it_names_is_when_the_task_runs() -> None:
    """If the cost of waiting rises by 1 each second, the stated seconds are the distance to the bound."""
    scheduler, _ = crowd(3)
    task = waiting(scheduler)[0]
    bound = next(remedy for remedy in scheduler.explain(task).enough if remedy.kind == "waiting cost")
    assert bound.seconds == pytest.approx(bound.worth)


@pytest.mark.parametrize("seed", range(6))
def test_its_way_costs_what_it_says_and_ends_at_the_sink(seed: int) -> None:
    """The arcs of a task's way follow each other from the task to the sink, and their costs add up."""
    scheduler, _ = crowd(seed)
    for row in scheduler.state.tasks.all():
        task = int(scheduler.state.tasks.id[row])
        said = scheduler.explain(task)
        assert said.path[0].source == f"task {task}"
        assert said.path[-1].target == "sink"
        assert all(arc.target == other.source for arc, other in zip(said.path, said.path[1:], strict=False))
        assert sum(step.cost for step in said.path) == said.cost
        assert said.status == ("runs" if runs(scheduler, task) else "waits")


@pytest.mark.parametrize("seed", range(6))
def test_the_best_places_are_the_cheapest_ones_in_order(seed: int) -> None:
    """Places stand in the order of the model's costs, each with the difference to what is paid now."""
    scheduler, model = crowd(seed)
    for task in waiting(scheduler):
        said = scheduler.explain(task)
        assert said.cost is not None
        costs = {machine: model._cost(task, machine) for machine in range(4)}
        assert [place.cost for place in said.places] == sorted(costs.values())
        assert all(place.cost == costs[place.machine] for place in said.places)
        assert all(place.against_chosen == place.cost - said.cost for place in said.places)
        assert said.binding or said.places[0].cost >= said.cost


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.extended(keep=1)
def test_a_running_task_leaves_when_staying_costs_more_than_it_says(seed: int) -> None:
    """The bound of a running task: above it the next round moves or stops it, at it nothing happens."""
    for row in crowd(seed)[0].state.tasks.all():
        scheduler, model = crowd(seed)
        task = int(scheduler.state.tasks.id[row])
        bounds = [remedy for remedy in scheduler.explain(task).enough if remedy.kind == "staying cost"]
        if not bounds or not runs(scheduler, task):
            continue
        bound = bounds[0].cost
        assert bound is not None
        here = scheduler.state.tasks.machine[row]
        machine = scheduler.state.machine_ids[int(here)]
        for more, stays in ((-1, True), (1, False)):
            again, model = crowd(seed)
            model.changed[task, machine] = bound + more
            again.round(1.0)
            assert bool(again.state.tasks.machine[row] == here) is stays, f"seed {seed}: {task} {more:+d}"


def small(**task: object) -> FlowScheduler:
    """Four different machines, and a task that may be described."""
    scheduler = FlowScheduler(TableModel(0))
    for number in range(4):
        scheduler.add_machine(
            MachineDescriptor(
                number,
                f"n{number}",
                capacity=Resources(4, 2 * GB if number == 0 else 16 * GB),
                slots=1,
                labels=(("gpu", "yes"),) if number < 2 else (),
            ),
            0.0,
        )
    described = replace(TaskDescriptor(1, Resources(1, GB)), **task)  # type: ignore[arg-type]
    scheduler.submit(JobDescriptor(1), [described], 0.0)
    return scheduler


def test_excluded_machines_are_counted_by_reason() -> None:
    """Each machine counts once, for the first reason that keeps the task away."""
    scheduler = small(demand=Resources(1, 4 * GB), constraints=(Constraint("gpu", value="yes"),))
    scheduler.drain(1, drained=True)
    said = scheduler.explain(1)
    assert {(exclusion.machines, exclusion.reason.split(":")[0]) for exclusion in said.excluded} == {
        (2, "lack gpu=yes"),
        (1, "too small"),
        (1, "drained"),
    }
    assert [len(exclusion.names) for exclusion in said.excluded] == [
        exclusion.machines for exclusion in said.excluded
    ]
    assert said.reason == "no machine can take it now; most of them: lack gpu=yes"


def test_affinity_and_refusals_are_named() -> None:
    """A machine where the job runs already, and one that refused the task, are listed with that reason."""
    scheduler = FlowScheduler(TableModel(0))
    for number in range(3):
        scheduler.add_machine(MachineDescriptor(number, f"n{number}", slots=2), 0.0)
    job = JobDescriptor(1, affinity=Affinity.SPREAD_NODES)
    scheduler.submit(job, [TaskDescriptor(1), TaskDescriptor(2)], 0.0)
    scheduler.round(0.0)
    scheduler.rejected(1, 0.0)
    reasons = " ".join(exclusion.reason for exclusion in scheduler.explain(1).excluded)
    assert "refused" in reasons
    assert "the job runs there already" in reasons


def test_a_running_task_is_not_in_its_own_way() -> None:
    """Neither what it reserves nor its own place excludes its machine; those of others exclude theirs."""
    scheduler = FlowScheduler(TableModel(0))
    for number in range(3):
        scheduler.add_machine(MachineDescriptor(number, f"n{number}", capacity=Resources(2), slots=2), 0.0)
    job = JobDescriptor(1, affinity=Affinity.SPREAD_NODES)
    scheduler.submit(job, [TaskDescriptor(task_id, Resources(1.5)) for task_id in (1, 2)], 0.0)
    for now in (0.0, 1.0):
        scheduler.round(now)
    assert runs(scheduler, 1)
    assert runs(scheduler, 2)
    (other,) = scheduler.explain(1).excluded
    assert (other.machines, "the job runs there already" in other.reason) == (1, True)
    scheduler.submit(JobDescriptor(2), [TaskDescriptor(3, Resources(1.5))], 2.0)
    scheduler.round(2.0)
    (full,) = scheduler.explain(3).excluded
    assert full.machines == 2
    assert full.reason.startswith("not enough free")


@pytest.mark.parametrize(
    ("described", "settings", "reason"),
    [
        ({"restartable": False}, SchedulerSettings(), "it may not be stopped and started again"),
        ({}, SchedulerSettings(preemption=False), "by the setting preemption"),
        ({}, SchedulerSettings(migration=False), "by the setting migration"),
    ],
)
def test_a_task_that_stays_is_told_why_it_does(
    described: dict[str, object], settings: SchedulerSettings, reason: str
) -> None:
    """No machine is called impossible, and none better, if the task would not go there in any case."""
    scheduler = small(**described)
    scheduler.set_settings(settings, 0.0)
    scheduler.round(0.0)
    told = scheduler.explain(1)
    assert reason in told.reason
    assert not told.excluded
    assert not told.places


def test_a_gang_without_room_is_told_as_such() -> None:
    """A task of a gang that cannot start says how many places are wanted."""
    scheduler = small()
    scheduler.submit(JobDescriptor(2, gang=4), [TaskDescriptor(10 + at) for at in range(4)], 0.0)
    scheduler.remove_machine(3, 0.0)
    scheduler.round(0.0)
    assert "gang needs 4 places at once, and the cluster has 3 slots" in scheduler.explain(10).reason


def test_explaining_changes_nothing() -> None:
    """Whatever is explained in between, the rounds decide the same."""
    plain, _ = crowd(5)
    asked, _ = crowd(5)
    for task in waiting(asked):
        asked.explain(task)
    for scheduler in (plain, asked):
        for row in scheduler.state.tasks.all()[::3]:
            scheduler.finished(int(scheduler.state.tasks.id[row]), 2.0)
    assert plain.round(3.0).deltas == asked.round(3.0).deltas


def test_an_explanation_is_plain_data_and_sentences() -> None:
    """It goes through JSON, and its lines name the task, its way and what would be enough."""
    scheduler, _ = crowd(1)
    said = scheduler.explain(waiting(scheduler)[0])
    assert json.loads(json.dumps(asdict(said)))["task"] == said.task
    lines = "\n".join(said.lines())
    assert "waits" in lines
    assert "its path" in lines
    assert "sufficient" in lines


def test_the_example_of_the_page_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/scheduling.md: its program prints what stands below it."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "scheduling.md").read_text()
    page = page.partition("\n## The flow network\n")[2]
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(programs[0], {})  # noqa: S102 - a program of our own page
    assert capsys.readouterr().out == re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]


def test_an_unknown_task_is_an_error() -> None:
    """Explaining a task that is not there says so."""
    with pytest.raises(BadDescriptorError, match="there is no task 77"):
        small().explain(77)
