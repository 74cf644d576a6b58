"""Networks like those of a real cluster, by seed: for benchmarks, tests and documents.

Jobs of tasks whose input stands on some machines, racks of machines, a cluster aggregator, and an
unscheduled aggregator for each job: the network of Quincy (thesis §6.2, §C.2, §C.3).

Not for: simulated time (``dios.firmament.simulate``), and not for real workloads: costs are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dios.firmament.generate_inner import INNER_VERTICES, Arcs, inner_arcs
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.problem import FlowProblem

SIZES: Final = {"S": (100, 1_000), "M": (3_000, 40_000), "L": (12_550, 150_000)}
"""Machines and tasks of each size; L is the cluster of the Google trace (thesis §8.4)."""

RACK_MACHINES: Final = 40
PREFERENCES_MAX: Final = 7
"""A task prefers at most so many machines, and at most so many racks."""

JOB_TASKS: Final = 45
"""The mean number of tasks of a job; sizes are spread widely around it."""

RACK_COST: Final = 8
CLUSTER_COST: Final = 20
"""Moving 1 GB through a rack's switch (psi of Table C.2), and through the cluster's (xi)."""

WAITING_COST: Final = 6
"""One more second of waiting (omega of Table C.3)."""

PLACED_GAIN: Final = 400
"""Waiting costs so much from the start, so that tasks run where there is room."""


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
        """How many tasks there are."""
        return len(self.job)

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return len(self.slots)

    @property
    def racks(self) -> int:
        """How many racks there are."""
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
        """N_j of each job, (J,)."""
        return np.bincount(self.job, minlength=len(self.least)).astype(np.int64)

    def upper_supply(self) -> Ints:
        """The supplies of the upper vertices, (U,): F_j - N_j, and the rest at the sink (§C.2)."""
        supply = np.zeros(self.upper_vertices, np.int64)
        count = self.sizes()
        supply[self.cluster + 1 : self.sink] = np.minimum(self.most - count, 0)
        supply[self.sink] = -self.tasks - supply[self.cluster + 1 : self.sink].sum()
        return supply

    def upper_arcs(self) -> Arcs:
        """The arcs above the machines, from the machines' slots, and from the aggregators (Table C.1)."""
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
        """The flow network: the tasks are the first vertices, then the upper ones, then inner ones."""
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
    """``total`` in ``parts`` numbers that differ by one at the most."""
    bounds = np.arange(parts + 1, dtype=np.int64) * total // parts
    return np.diff(bounds)


def _job_sizes(tasks: int, rng: np.random.Generator) -> Ints:
    """Sizes that add up to ``tasks``, widely spread."""
    sizes: list[int] = []
    left = tasks
    while left:
        size = min(left, max(1, int(rng.lognormal(np.log(JOB_TASKS) - 0.7, 1.2))))
        sizes.append(size)
        left -= size
    return np.array(sizes, dtype=np.int64)


def rows(workload: Workload, job: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Options of new tasks: (start, target, cost) as in :class:`Workload`, for tasks of these jobs (T,).

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
    # A rack's share is that of all its machines which hold a part.
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
    """A cluster whose tasks need ``load`` per cent of its slots.

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
