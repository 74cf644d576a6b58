"""Generators of networks like those of a real cluster, by seed, and of the changes between rounds.

``quincy`` draws jobs of tasks whose input is stored on some machines, racks of machines, a cluster
aggregator, and an unscheduled aggregator for each job: the network of Quincy (thesis §6.2, §C.2, §C.3).
``next_round`` replaces some tasks and changes all costs, and ``WarmCluster`` keeps a workload in a warm
solver. Machines may have inner vertices for sockets, caches, cores and threads (§6.5.2, Figure 6.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from dios.firmament.solvers.columns import Ints, spans
from dios.firmament.solvers.problem import FlowProblem
from dios.firmament.solvers.warm_solver import WarmSolver

INNER_VERTICES: Final = 66
"""The number of vertices below each machine in the thesis' networks (§8.4)."""


def _parents() -> Ints:
    """Return the parents of two sockets, four caches in each, three cores in each cache, and threads."""
    parents = [-1, -1]
    parents += [socket for socket in range(2) for _ in range(4)]
    parents += [2 + cache for cache in range(8) for _ in range(3)]
    parents += [10 + thread % 24 for thread in range(INNER_VERTICES - len(parents))]
    return np.array(parents, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Arcs:
    """Arcs as columns of the same length; lower bounds are 0."""

    tail: Ints
    head: Ints
    capacity: Ints
    cost: Ints

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return all arcs of the parts, in order."""
        return cls(
            np.concatenate([part.tail for part in parts]),
            np.concatenate([part.head for part in parts]),
            np.concatenate([part.capacity for part in parts]),
            np.concatenate([part.cost for part in parts]),
        )


def inner_arcs(slots: Ints, slot_cost: Ints, first: int, sink: int) -> Arcs:
    """Return the arcs inside each machine (M,): down its tree, and from the threads to the sink.

    A machine's slots are spread evenly over its threads, and each thread's slots cost ``slot_cost``.
    The inner vertices are numbered from ``first``, each machine's in one run.
    """
    parents = _parents()
    machines = len(slots)
    threads = np.setdiff1d(np.arange(INNER_VERTICES), parents)
    base = first + np.arange(machines, dtype=np.int64)[:, None] * INNER_VERTICES
    own = np.arange(machines, dtype=np.int64)[:, None]
    tail = np.where(parents < 0, own, base + np.maximum(parents, 0))
    head = base + np.arange(INNER_VERTICES)
    room = np.zeros((machines, INNER_VERTICES), np.int64)
    steps = np.arange(len(threads) + 1)
    room[:, threads] = np.diff(slots[:, None] * steps // len(threads), axis=1)
    for vertex in range(INNER_VERTICES - 1, -1, -1):
        if parents[vertex] >= 0:
            room[:, parents[vertex]] += room[:, vertex]
    leaf_tail = base + threads
    count = leaf_tail.size
    down = Arcs(tail.ravel(), head.ravel(), room.ravel(), np.zeros(room.size, np.int64))
    leaf_cost = np.repeat(slot_cost, len(threads))
    leaves = Arcs(leaf_tail.ravel(), np.full(count, sink), room[:, threads].ravel(), leaf_cost)
    return Arcs.joined([down, leaves])


SIZES: Final = {"S": (100, 1_000), "M": (3_000, 40_000), "L": (12_550, 150_000)}
"""Machines and tasks of each size; L is the cluster of the Google trace (thesis §8.4)."""

RACK_MACHINES: Final = 40
PREFERENCES_MAX: Final = 7
"""The largest number of machines, and of racks, that a task prefers."""

JOB_TASKS: Final = 45
"""The mean number of tasks of a job; sizes are spread widely around it."""

RACK_COST: Final = 8
CLUSTER_COST: Final = 20
"""Moving 1 GB through a rack's switch (psi of Table C.2), and through the cluster's (xi)."""

WAITING_COST: Final = 6
"""One more second of waiting (omega of Table C.3)."""

PLACED_GAIN: Final = 400
"""The cost of waiting from the start, so that tasks run where there is room."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A cluster and its tasks, as columns; vertices are numbered as in :meth:`problem`'s upper part.

    ``slots`` (M,), ``rack`` (M,) of each machine. Tasks are rows: the options of task t are ``start[t]`` to
    ``start[t + 1]`` of ``target`` and ``cost``. Targets: machines from 0, racks from M, then the cluster
    aggregator, then the unscheduled aggregators of the jobs. The last option of a row is its aggregator.
    ``job`` (T,). ``least`` and ``most`` (J,) are E_j and F_j of Table C.1.
    ``cluster_cost`` (R,), ``rack_cost`` (M,) and ``slot_cost`` (M,) are the costs of the upper arcs.
    """

    slots: Ints
    rack: Ints
    start: Ints
    target: Ints
    cost: Ints
    job: Ints
    least: Ints
    most: Ints
    cluster_cost: Ints
    rack_cost: Ints
    slot_cost: Ints
    inner: bool = False

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.job)

    @property
    def machines(self) -> int:
        """The number of machines."""
        return len(self.slots)

    @property
    def racks(self) -> int:
        """The number of racks."""
        return len(self.cluster_cost)

    @property
    def cluster(self) -> int:
        """The cluster aggregator's number."""
        return self.machines + self.racks

    @property
    def upper_vertices(self) -> int:
        """Machines, racks, the cluster aggregator, the jobs' aggregators and the sink, which is the last."""
        return self.cluster + 2 + len(self.least)

    @property
    def sink(self) -> int:
        """The sink's number."""
        return self.upper_vertices - 1

    def sizes(self) -> Ints:
        """Return N_j of each job, (J,)."""
        return np.bincount(self.job, minlength=len(self.least)).astype(np.int64)

    def upper_supply(self) -> Ints:
        """Return the supplies of the upper vertices, (U,): F_j - N_j, and the rest at the sink (§C.2)."""
        supply = np.zeros(self.upper_vertices, np.int64)
        count = self.sizes()
        supply[self.cluster + 1 : self.sink] = np.minimum(self.most - count, 0)
        supply[self.sink] = -self.tasks - supply[self.cluster + 1 : self.sink].sum()
        return supply

    def upper_arcs(self) -> Arcs:
        """Return the arcs above the machines, from their slots, and from the aggregators (Table C.1)."""
        machine = np.arange(self.machines)
        count = self.sizes()
        racks = np.arange(self.racks)
        room = np.bincount(self.rack, weights=self.slots, minlength=self.racks).astype(np.int64)
        jobs = np.arange(len(self.least)) + self.cluster + 1
        waiting = np.maximum(np.minimum(self.most, count) - self.least, 0)
        parts = [
            Arcs(np.full(self.racks, self.cluster), self.machines + racks, room, self.cluster_cost),
            Arcs(self.machines + self.rack, machine, self.slots, self.rack_cost),
            Arcs(machine, np.full(self.machines, self.sink), self.slots, self.slot_cost),
            Arcs(jobs, np.full(len(jobs), self.sink), waiting, np.zeros(len(jobs), np.int64)),
        ]
        if self.inner:
            parts[2] = inner_arcs(self.slots, self.slot_cost, self.upper_vertices, self.sink)
        return Arcs.joined(parts)

    def problem(self) -> FlowProblem:
        """Return the flow network: tasks are the first vertices, then upper ones, then inner ones."""
        upper = self.upper_arcs()
        inner = INNER_VERTICES * self.machines if self.inner else 0
        rows = np.repeat(np.arange(self.tasks), np.diff(self.start))
        supply = np.concatenate(
            [np.ones(self.tasks, np.int64), self.upper_supply(), np.zeros(inner, np.int64)]
        )
        arcs = Arcs.joined(
            [
                Arcs(rows, self.target + self.tasks, np.ones(len(rows), np.int64), self.cost),
                Arcs(upper.tail + self.tasks, upper.head + self.tasks, upper.capacity, upper.cost),
            ]
        )
        lower = np.zeros(len(arcs.tail), np.int64)
        return FlowProblem(supply, arcs.tail, arcs.head, lower, arcs.capacity, arcs.cost)


def _spread(total: int, parts: int) -> Ints:
    """Divide ``total`` into ``parts`` numbers that differ by at most 1."""
    bounds = np.arange(parts + 1, dtype=np.int64) * total // parts
    return np.diff(bounds)


def _job_sizes(tasks: int, rng: np.random.Generator) -> Ints:
    """Draw widely spread sizes that add up to ``tasks``."""
    sizes: list[int] = []
    left = tasks
    while left:
        size = min(left, max(1, int(rng.lognormal(np.log(JOB_TASKS) - 0.7, 1.2))))
        sizes.append(size)
        left -= size
    return np.array(sizes, dtype=np.int64)


def rows(workload: Workload, job: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Draw the options of new tasks of these jobs (T,): (start, target, cost) as in :class:`Workload`.

    Input of 1 to 64 GB stands in parts on up to seven machines; costs are Quincy's data terms (Table C.3).
    """
    tasks = len(job)
    gigabytes = np.minimum(rng.lognormal(2.0, 1.0, tasks) + 1, 64)
    waited = rng.exponential(20, tasks)
    count = rng.integers(0, PREFERENCES_MAX + 1, tasks)
    used = np.arange(PREFERENCES_MAX) < count[:, None]
    machine = rng.integers(0, workload.machines, (tasks, PREFERENCES_MAX))
    share = np.where(used, rng.random((tasks, PREFERENCES_MAX)), 0.0)
    share *= (rng.uniform(0.3, 1.0, tasks) / np.maximum(share.sum(1), 1e-9))[:, None]
    rack = workload.rack[machine]
    # A rack's share is that of all its machines that hold a part.
    same = (rack[:, :, None] == rack[:, None, :]) & used[:, None, :]
    rack_share = (share[:, None, :] * same).sum(2)
    again = np.tril(machine[:, :, None] == machine[:, None, :], -1) & used[:, None, :]
    used_machine = used & ~again.any(2)
    first = ~(np.tril(same, -1)).any(2)
    used_rack = used & first & (rng.random((tasks, PREFERENCES_MAX)) < 0.75)
    data = gigabytes[:, None]
    at_machine = data * (RACK_COST * (rack_share - share) + CLUSTER_COST * (1 - rack_share))
    at_rack = data * (RACK_COST * rack_share + CLUSTER_COST * (1 - rack_share))
    anywhere = gigabytes * CLUSTER_COST
    waiting = PLACED_GAIN + anywhere + WAITING_COST * waited
    target = np.concatenate(
        [
            machine,
            workload.machines + rack,
            np.full((tasks, 1), workload.cluster),
            (workload.cluster + 1 + job)[:, None],
        ],
        axis=1,
    )
    cost = np.concatenate([at_machine, at_rack, anywhere[:, None], waiting[:, None]], axis=1)
    there = np.concatenate([used_machine, used_rack, np.ones((tasks, 2), np.bool_)], axis=1)
    start = np.concatenate([[0], np.cumsum(there.sum(1))]).astype(np.int64)
    return start, target[there].astype(np.int64), np.rint(cost[there]).astype(np.int64)


def quincy(
    machines: int, tasks: int, load: int, seed: int, *, aggregate: bool = False, inner: bool = False
) -> Workload:
    """Draw a cluster whose tasks need ``load`` per cent of its slots.

    ``aggregate``: costs also from the cluster aggregator to racks, racks to machines, and machines to the
    sink. ``inner``: each machine has the thesis' 66 vertices of sockets, caches, cores and threads inside.
    """
    rng = np.random.default_rng(seed)
    racks = -(-machines // RACK_MACHINES)
    sizes = _job_sizes(tasks, rng)

    def drawn(count: int, most: int) -> Ints:
        values: Ints = rng.integers(0, most, count) if aggregate else np.zeros(count, np.int64)
        return values

    empty = np.zeros(0, np.int64)
    bare = Workload(
        slots=_spread(tasks * 100 // load, machines),
        rack=np.arange(machines, dtype=np.int64) // RACK_MACHINES,
        start=np.zeros(1, np.int64),
        target=empty,
        cost=empty,
        job=np.repeat(np.arange(len(sizes)), sizes),
        least=np.zeros(len(sizes), np.int64),
        most=sizes,
        cluster_cost=drawn(racks, 60),
        rack_cost=drawn(machines, 30),
        slot_cost=drawn(machines, 90),
        inner=inner,
    )
    start, target, cost = rows(bare, bare.job, rng)
    return replace(bare, start=start, target=target, cost=cost)


RUNNING_GAIN: Final = 1
"""The amount by which staying becomes cheaper each round (theta of Table C.3)."""


@dataclass(frozen=True, eq=False)
class Round:
    """The changes from one round to the next; tasks are positions in the workload before.

    ``departed`` leave. Option ``index[i]`` of task ``drifted[i]`` has the new ``cost[i]``. The rows
    ``start``, ``target``, ``arrived_cost`` are those of new tasks, of jobs ``arrived_job``. ``after`` is the
    workload then: the tasks that stay, in order, and then the new ones.
    """

    departed: Ints
    drifted: Ints
    index: Ints
    cost: Ints
    start: Ints
    target: Ints
    arrived_cost: Ints
    arrived_job: Ints
    after: Workload


def next_round(workload: Workload, choice: Ints, rng: np.random.Generator, share: float = 0.01) -> Round:
    """Draw a round that replaces ``share`` of the tasks; ``choice`` (T,) is the present option of each.

    Waiting becomes more expensive for waiting tasks, and staying cheaper for running ones.
    """
    count = max(1, round(share * workload.tasks))
    departed = np.sort(rng.choice(workload.tasks, count, replace=False)).astype(np.int64)
    stays = np.ones(workload.tasks, np.bool_)
    stays[departed] = False
    drifted = np.flatnonzero(stays)
    length = np.diff(workload.start)
    waits = choice[drifted] == length[drifted] - 1
    places = workload.start[drifted] + choice[drifted]
    cost = workload.cost[places] + np.where(waits, WAITING_COST, -RUNNING_GAIN)
    costs = workload.cost.copy()
    costs[places] = cost
    job = rng.integers(0, len(workload.least), count)
    start, target, arrived = rows(workload, job, rng)
    kept = spans(workload.start[drifted], length[drifted])
    jobs = np.concatenate([workload.job[drifted], job])
    bounds = np.concatenate([[0], np.cumsum(np.concatenate([length[drifted], np.diff(start)]))])
    after = replace(
        workload,
        start=bounds.astype(np.int64),
        target=np.concatenate([workload.target[kept], target]),
        cost=np.concatenate([costs[kept], arrived]),
        job=jobs,
        most=np.bincount(jobs, minlength=len(workload.least)).astype(np.int64),
    )
    return Round(departed, drifted, choice[drifted], cost, start, target, arrived, job, after)


class WarmCluster:
    """A workload in a warm solver: ``ids`` (T,) are its tasks' ids; vertices are one higher, the sink 0."""

    def __init__(self, workload: Workload) -> None:
        self.warm: Final = WarmSolver()
        self._sink: Final = workload.sink
        self._jobs: Final = workload.cluster + 1 + np.arange(len(workload.least))
        self.warm.add_vertices(workload.sink)
        upper = workload.upper_arcs()
        arcs = self.warm.add_arcs(
            self._vertex(upper.tail), self._vertex(upper.head), upper.capacity, upper.cost
        )
        self._job_arcs: Final = arcs[np.isin(upper.tail, self._jobs)]
        self.warm.set_supply(self._jobs + 1, workload.upper_supply()[self._jobs])
        self.ids = self.warm.add_tasks(workload.start, self._vertex(workload.target), workload.cost)

    def _vertex(self, upper: Ints) -> Ints:
        return np.where(upper == self._sink, 0, upper + 1)

    def apply(self, change: Round) -> None:
        """Apply all changes to the warm solver."""
        self.warm.change_costs(self.ids[change.drifted], change.index, change.cost)
        self.warm.remove_tasks(self.ids[change.departed])
        came = self.warm.add_tasks(change.start, self._vertex(change.target), change.arrived_cost)
        self.ids = np.concatenate([self.ids[change.drifted], came])
        waiting = change.after.sizes() - change.after.least
        self.warm.change_arcs(self._job_arcs, capacity=np.maximum(waiting, 0))
        self.warm.set_supply(self._jobs + 1, change.after.upper_supply()[self._jobs])
