"""Random histories of a cluster, and what has to hold after each of its rounds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    Inner,
    JobDescriptor,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.policies.gangs import needed
from dios.firmament.rounds.results import Change, Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.wire.types import Affinity

CLASSES = 3
GB = 2.0**30


class AnyModel(BaseModel):
    """Costs and options drawn by a seed: every kind of arc there is, and other ones in each round."""

    name = "any"

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def _draw(self, rows: Ints, low: int = 0, high: int = 50) -> Ints:
        return self.random.integers(low, high, len(rows), dtype=np.int64)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Some, by chance."""
        rows = state.tasks.all()
        return rows[self.random.random(len(rows)) < 0.3]

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Three resources of any level."""
        targets = state.resources.all()
        arcs = [
            (at, int(target))
            for at in range(len(tasks))
            for target in sorted(set(self.random.choice(targets, 3).tolist()))
        ]
        columns = np.array(arcs, np.int64).reshape(-1, 2)
        return Options(columns[:, 0], columns[:, 1], self._draw(columns))

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """One class, for half of them."""
        which = np.flatnonzero(self.random.random(len(tasks)) < 0.5).astype(np.int64)
        return Options(which, state.tasks.id[tasks[which]] % CLASSES, self._draw(which))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Resources of any level."""
        tree = state.resources.all()
        targets = [np.unique(self.random.choice(tree, 4)) for _ in classes]
        source = np.repeat(classes, [len(row) for row in targets])
        target = np.concatenate([np.zeros(0, np.int64), *targets])
        return ClassArcs(source, target, self._draw(target), self._draw(target, 0, 5))

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """A chain."""
        source = classes[classes < CLASSES - 1]
        return ClassArcs(source, source + 1, self._draw(source), self._draw(source, 0, 5))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Anything."""
        return self._draw(tasks, 0, 200)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Anything."""
        return self._draw(tasks)

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Anything, gains too."""
        return self._draw(children, -5, 20)

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        """Anything, gains too."""
        return self._draw(leaves, -5, 20)

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        """Anything."""
        return self._draw(jobs)


class History:
    """A cluster to which things happen by a seed, with a mirror of where every task is."""

    def __init__(self, seed: int, settings: SchedulerSettings | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a history by seed
        self.seed = seed
        self.settings = settings or SchedulerSettings(certify_every=1)
        self.scheduler = FlowScheduler(AnyModel(seed), self.settings)
        self.machine_of: dict[int, int] = {}
        self.now = 0.0
        self.next_task = self.next_job = self.next_machine = 0
        self.drained: set[int] = set()
        for _ in range(4):
            self.add_machine()

    @property
    def state(self) -> ClusterState:
        """The scheduler's."""
        return self.scheduler.state

    def add_machine(self) -> None:
        """A machine of some size, every third with two cores."""
        number = self.next_machine
        self.next_machine += 1
        inner = tuple(Inner(Level.CORE, f"core{at}") for at in range(2)) if number % 3 == 0 else ()
        capacity = Resources(4.0, 8 * GB) if number % 2 else Resources()
        self.scheduler.add_machine(
            MachineDescriptor(
                number,
                f"n{number}",
                rack=f"r{number % 2}",
                capacity=capacity,
                slots=self.random.choice([0, 1, 3, 4]),
                labels=(("zone", "ab"[number % 2]),),
                inner=inner,
            ),
            self.now,
        )

    def submit(self) -> None:
        """A job with any mixture of policies."""
        count = self.random.randint(1, 5)
        job = JobDescriptor(
            self.next_job,
            f"p{self.next_job % 3}",
            "job",
            minimum_running=self.random.choice([0, 0, 0, 1]),
            maximum_running=self.random.choice([None, None, 5, 3]) if count <= 3 else None,
            gang=self.random.choice([0, 0, 0, count, max(1, count - 1)]),
            affinity=self.random.choice([Affinity.NONE, Affinity.NONE, *Affinity]),
        )
        tasks = []
        for _ in range(count):
            constraint = Constraint("zone", value=self.random.choice("abc"), hard=self.random.random() < 0.5)
            pins = [None] * 9 + [self.random.choice(sorted(self.state.machine_ids.values()) or [None])]
            tasks.append(
                TaskDescriptor(
                    self.next_task,
                    Resources(self.random.choice([0.5, 1.0, 2.0]), self.random.choice([1, 3]) * GB),
                    priority=self.random.randint(0, 2),
                    constraints=(constraint,) if self.random.random() < 0.3 else (),
                    pinned=self.random.choice(pins),
                    restartable=self.random.random() < 0.8,
                )
            )
            self.next_task += 1
        try:
            self.scheduler.submit(job, tasks, self.now)
        except BadDescriptorError:
            assert job.gang, f"seed {self.seed}"
            return
        self.next_job += 1
        self.machine_of.update((descriptor.task, ABSENT) for descriptor in tasks)

    def happen(self) -> None:
        """One event."""
        running = sorted(task for task, machine in self.machine_of.items() if machine != ABSENT)
        machines = sorted(self.state.machine_ids.values())
        event = self.random.choices(
            ["submit", "finish", "add", "remove", "drain", "reject", "withdraw"], [6, 5, 1, 1, 1, 1, 1]
        )[0]
        if event == "submit":
            self.submit()
        elif event == "finish" and running:
            self._finish(self.random.choice(running))
        elif event == "withdraw" and self.machine_of:
            self._finish(self.random.choice(sorted(self.machine_of)))
        elif event == "add":
            self.add_machine()
        elif event == "remove" and len(machines) > 2:
            gone = self.random.choice(machines)
            lost = self.scheduler.remove_machine(gone, self.now)
            assert sorted(lost) == sorted(t for t, m in self.machine_of.items() if m == gone), (
                f"seed {self.seed}"
            )
            self.machine_of.update((task, ABSENT) for task in lost)
            self.drained.discard(gone)
        elif event == "drain" and machines:
            machine = self.random.choice(machines)
            self.drained ^= {machine}
            self.scheduler.drain(machine, machine in self.drained)
        elif event == "reject" and running:
            task = self.random.choice(running)
            self.scheduler.rejected(task, self.now)
            self.machine_of[task] = ABSENT

    def _finish(self, task: int) -> None:
        self.scheduler.finished(task, self.now)
        del self.machine_of[task]

    def round(self) -> Round:
        """A round, with all that has to hold after it."""
        self.now += self.random.choice([0.0, 1.0, 10.0])
        before = dict(self.machine_of)
        outcome = self.scheduler.round(self.now)
        place = f"seed {self.seed}, round {outcome.number}"
        assert outcome.stands, f"{place}: {outcome.faults}"
        # A wrong answer is caught by its certificate and mended from scratch; here it is a failure.
        assert not any(fault.source.startswith("solver") for fault in outcome.faults), (
            f"{place}: {outcome.faults}"
        )
        self._follow(outcome, place)
        check_sums(self.state, place)
        self._check_arrivals(before, place)
        self._check_jobs(outcome, place)
        return outcome

    def _follow(self, outcome: Round, place: str) -> None:
        for delta in outcome.deltas:
            assert self.machine_of[delta.task] == delta.source, f"{place}: {delta}"
            assert delta.source != delta.target, f"{place}: {delta}"
            kinds = {(False, True): Change.PLACE, (True, False): Change.PREEMPT, (True, True): Change.MIGRATE}
            assert delta.change == kinds[delta.source != ABSENT, delta.target != ABSENT], f"{place}: {delta}"
            self.machine_of[delta.task] = delta.target
        assert len({delta.task for delta in outcome.deltas}) == len(outcome.deltas), place
        assert self.machine_of == places(self.state), place
        assert outcome.running == sum(machine != ABSENT for machine in self.machine_of.values()), place

    def _check_arrivals(self, before: dict[int, int], place: str) -> None:
        tasks, tree = self.state.tasks, self.state.resources
        arrived = [task for task, machine in self.machine_of.items() if machine not in (ABSENT, before[task])]
        for task in arrived:
            row, machine = tasks.row(task), self.machine_of[task]
            described = tasks.descriptors[row]
            assert machine not in self.drained, f"{place}: task {task} came to drained {machine}"
            assert described.pinned in (None, machine), f"{place}: task {task} left its machine"
            at = self.state.machine_row(machine)
            for constraint in described.constraints:
                fits = tree.labels[at].get(constraint.key) == constraint.value
                assert fits or not constraint.hard, f"{place}: task {task} on {machine} breaks {constraint}"
            known = (tree.capacity[at] > 0) & self.settings.fit
            assert np.all((tree.reserved[at] <= tree.capacity[at] + 1e-6) | ~known), f"{place}: {machine}"
            assert tree.running[at] <= tree.slots[at], f"{place}: machine {machine} over its slots"
        for task, machine in before.items():
            if machine != ABSENT and not tasks.descriptors[tasks.row(task)].restartable:
                assert self.machine_of[task] == machine, f"{place}: task {task} cannot be restarted"

    def _check_jobs(self, outcome: Round, place: str) -> None:
        state = self.state
        jobs = state.jobs
        reported = {fault.source for fault in outcome.faults}
        for row in jobs.all().tolist():
            mine = state.tasks.all()[state.tasks.job[state.tasks.all()] == row]
            runs = mine[state.tasks.status[mine] == RUNNING]
            stays = ~state.tasks.restartable[runs] | (not self.settings.preemption)
            stuck = int(np.count_nonzero(stays))
            need = int(needed(state, np.array([row]))[0])
            name = f"{place}: job {jobs.id[row]} {jobs.descriptors[row]}"
            assert len(runs) <= max(int(jobs.maximum[row]), stuck), name
            least = min(int(jobs.minimum[row]), len(mine), int(jobs.maximum[row]))
            # What is held back after the solution may be missing, and gangs are whole or not at all.
            certain = not self.settings.fit and not jobs.gang[row] and jobs.affinity[row] == Affinity.NONE
            if certain and f"job {jobs.id[row]}" not in reported:
                assert len(runs) >= least, f"{name}: E_j is missed, and nobody says so"
            assert len(runs) >= need or len(runs) == stuck, f"{name}: {len(runs)} of a gang of {need} run"
            kind = jobs.affinity[row]
            if kind == Affinity.SPREAD_NODES:
                assert most_common(state.tasks.machine[runs]) <= 1, name
            if kind == Affinity.SPREAD_RACKS:
                assert most_common(state.resources.rack[state.tasks.machine[runs]]) <= 1, name


def most_common(column: Iterable[int]) -> int:
    """How often the most frequent value occurs."""
    return max(Counter(list(column)).values(), default=0)


def places(state: ClusterState) -> dict[int, int]:
    """Task to machine, ABSENT while it waits; identifiers."""
    tasks = state.tasks
    return {
        int(tasks.id[row]): state.machine_ids[int(tasks.machine[row])]
        if tasks.status[row] == RUNNING
        else ABSENT
        for row in tasks.all()
    }


def check_sums(state: ClusterState, place: str) -> None:
    """Every sum in the tables is what summing again gives."""
    tasks, tree, jobs = state.tasks, state.resources, state.jobs
    running = np.zeros(len(tree.alive), np.int64)
    reserved = np.zeros(tree.reserved.shape)
    for row in tasks.all().tolist():
        at = int(tasks.leaf[row])
        while at != ABSENT:
            running[at] += 1
            reserved[at] += tasks.demand[row]
            at = int(tree.parent[at])
    alive = tree.all()
    assert np.array_equal(running[alive], tree.running[alive]), place
    assert np.allclose(reserved[alive], tree.reserved[alive]), place
    leaves = tree.leaves()
    assert np.all(running[leaves] <= tree.slots[leaves]), f"{place}: a leaf over its slots"
    for row in jobs.all().tolist():
        mine = tasks.all()[tasks.job[tasks.all()] == row]
        assert jobs.tasks[row] == len(mine), place
        assert jobs.running[row] == np.count_nonzero(tasks.status[mine] == RUNNING), place
