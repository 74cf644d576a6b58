"""Random clusters with everything that a cost model may meet, by seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

import numpy as np

from dios.firmament.cluster import changes
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import (
    Block,
    Inner,
    Interference,
    JobDescriptor,
    Kind,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.samples import Metric, Sample

KINDS: Final = {
    "empty": (0, 0, 0.0),
    "no machines": (0, 9, 0.0),
    "no tasks": (6, 0, 0.0),
    "one machine": (1, 5, 0.5),
    "all wait": (6, 20, 0.0),
    "all run": (8, 6, 1.0),
    "all drained": (4, 12, 0.5),
    "mixed": (9, 60, 0.5),
}
"""Machines, tasks, and the share of the tasks that runs."""

_GB: Final = 10**9
_JOBS: Final = 3
_TWO_CORES: Final = (Inner(Level.CORE, "core 0"), Inner(Level.CORE, "core 1"))
_MACHINE: Final = Resources(cpus=8, memory=32 * _GB, disk_io=_GB, network=_GB)


def example_cluster(kind: str, seed: int) -> ClusterState:
    """Return a random cluster of one of ``KINDS``."""
    machines, tasks, running = KINDS[kind]
    state = random_cluster(seed, machines=machines, tasks=tasks, running=running)
    if kind == "all drained":
        state.resources.usable[state.resources.at(Level.MACHINE)] = False
    return state


def random_cluster(seed: int, *, machines: int, tasks: int, running: float) -> ClusterState:
    """Return a cluster with racks, types, inner trees, data, deadlines, priorities and services.

    ``running`` is the share of the tasks that run, as far as there are slots.
    """
    chance = random.Random(seed)  # noqa: S311 - a seed, not a secret
    state = ClusterState(now=1000.0)
    for at in range(machines):
        inner = _TWO_CORES if at % 3 == 0 else ()
        slots = chance.randint(1, 4)
        state.add_machine(
            MachineDescriptor(at, f"m{at}", f"r{at % 3}", _MACHINE, slots, f"type {at % 2}", inner=inner)
        )
    for number in range(_JOBS):
        kind = Kind.SERVICE if number == _JOBS - 1 else Kind.BATCH
        changes.add_job(state, JobDescriptor(number, f"org/user {number}", f"job {number}", kind))
    table = state.tasks
    for number in range(tasks):
        task = _random_task(chance, number, machines)
        job = state.jobs.row(chance.randrange(_JOBS))
        row = int(changes.add_tasks(state, job, [task])[0])
        table.submitted[row] = table.since[row] = state.now - chance.uniform(0, 900)
        free = [
            row
            for row in _rows_of(state, range(machines))
            if state.resources.running[row] < state.resources.slots[row]
        ]
        if free and chance.random() < running:
            leaf = changes.emptiest_leaf(state, chance.choice(free))
            changes.start(state, np.array([row]), np.array([leaf]))
            since = chance.uniform(100, 1000)
            table.waited[row] -= min(state.now - since, float(table.waited[row]))
            table.since[row] = since
            # Every third task reports no progress.
            table.progress[row] = number % 10 / 10 if number % 3 else np.nan
    return state


def example_knowledge() -> KnowledgeBase:
    """Return measured profiles of a class of the clusters, on both types of machines and next to others."""
    base = KnowledgeBase("example", 1)
    for number, beside in enumerate([(), ("serve",), ("sort", "serve")]):
        values: dict[int, int] = {Metric.PS_PER_INSTRUCTION: 400 + 90 * number, Metric.RUNTIME_NS: 7 * 10**9}
        base.add(Sample("sort", f"type {number % 2}", "m0", number, values, beside))
    return base


def add_example_task(state: ClusterState, number: int) -> int:
    """Add one more waiting task of the first job; return its row."""
    task = TaskDescriptor(number, equivalence="fresh", blocks=(Block(_GB, (0,)),))
    return int(changes.add_tasks(state, state.jobs.row(0), [task])[0])


def _rows_of(state: ClusterState, machines: Iterable[int]) -> list[int]:
    return [state.machine_row(machine) for machine in machines]


def _random_task(chance: random.Random, number: int, machines: int) -> TaskDescriptor:
    return TaskDescriptor(
        number,
        demand=Resources(cpus=chance.choice([0.5, 1, 2]), memory=chance.randint(1, 8) * _GB),
        priority=chance.randint(0, 9),
        equivalence=chance.choice(["sort", "serve", ""]),
        interference=chance.choice(list(Interference)),
        expected_runtime=chance.choice([None, 30.0, 600.0]),
        deadline=chance.choice([None, 900.0, 1100.0, 5000.0]),
        copy_of=number - 1 if number % 7 == 6 else None,
        # One machine more than there are: a copy where the scheduler knows nobody.
        blocks=tuple(
            Block(chance.randint(0, 2 * _GB), tuple(chance.randint(0, machines) for _ in range(3)))
            for _ in range(chance.randint(0, 4))
        ),
    )
