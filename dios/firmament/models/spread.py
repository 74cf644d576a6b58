"""The model that a cluster begins with: even load, near the data, strict priorities, nothing moved.

For: clusters of which nothing is known yet: no profiles, no measured machines.
Not for: thousands of machines; it draws an arc to each machine for each task that may come in a round.

A machine is dearer by its load: each task counts one processor, or what it asked for. Inside a round the
costs rise with each further task, which a flow network says by parallel arcs: class A leads to levels,
level i to every machine, for one task, at the cost of being the i-th to come (§6.2.4 has the classes).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.firmament.columns import Floats, Ints
from dios.firmament.descriptors import Level
from dios.firmament.models.base import BaseModel
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.models.terms import WAIT_MAX, class_kinds, class_numbers, not_negative, whole
from dios.firmament.state import WAITING, ClusterState

_ALL: Final = 1
_LEVEL: Final = 2
_LEVELS_MAX: Final = 64
_STEP: Final = 4 * 10**6
"""Between two priorities; more than any load, nearness and waiting together."""
_PRIORITIES: Final = WAIT_MAX // _STEP - 2


class SpreadModel(BaseModel):
    """The least loaded machine, a little nearer where a task's input is; higher priorities first."""

    name = "spread"
    summary = "even load, near the input; strict priorities; no migration"

    def __init__(self, *, load: int = 1000, near: int = 4000, per_second: int = 10) -> None:
        not_negative(self.name, load=load, near=near, per_second=per_second)
        self.load = load
        """Cost of one processor's worth of tasks on a machine."""
        self.near = near
        """What having all of a task's input is worth."""
        self.per_second = per_second
        """What each second of waiting adds, up to half a priority."""

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Every task may go anywhere, by levels."""
        count = len(tasks)
        return Options(
            np.arange(count), np.full(count, class_numbers(_ALL, np.zeros(1, np.int64))[0]), _none(count)
        )

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """A -> level i, as many as there are machines."""
        if not (class_kinds(classes) == _ALL).any():
            return ClassArcs(*(np.zeros(0, np.int64) for _ in range(4)))
        levels = class_numbers(_LEVEL, np.arange(self._levels(state)))
        source = np.full(len(levels), classes[class_kinds(classes) == _ALL][0])
        machines = max(len(state.machine_ids), 1)
        return ClassArcs(source, levels, _none(len(levels)), np.full(len(levels), machines))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Level i -> each machine, for one task: its load with i further ones."""
        levels = classes[class_kinds(classes) == _LEVEL]
        machines = state.resources.at(Level.MACHINE)
        number = levels - class_numbers(_LEVEL, np.zeros(1, np.int64))[0]
        busy, size = self._busy(state, machines), self._processors(state, machines)
        cost = self.load * (busy[None, :] + number[:, None] + 1) / size[None, :]
        return ClassArcs(
            np.repeat(levels, len(machines)),
            np.tile(machines, len(levels)),
            whole(cost.ravel()),
            np.ones(len(levels) * len(machines), np.int64),
        )

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Arcs to the machines that have input: cheaper by the part of it that is there."""
        found: list[tuple[int, int, int]] = []
        for at, task in enumerate(tasks.tolist()):
            here = self._bytes_at(state, task)
            total = sum(here.values())
            for machine, size in sorted(here.items()):
                load = self._load(state, machine)
                found.append((at, machine, round(load - self.near * size / max(total, 1))))
        return Options(*np.array(found, np.int64).reshape(-1, 3).T)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Loads have changed: those that wait and have input somewhere are asked about again."""
        rows = state.tasks.all()
        waiting = rows[state.tasks.status[rows] == WAITING]
        return np.array([row for row in waiting.tolist() if state.tasks.descriptors[row].blocks], np.int64)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """A step for each priority; in between, the seconds of waiting."""
        waited = np.minimum(self.per_second * state.tasks.waiting_time(tasks, state.now), _STEP // 4)
        return self._steps(state, tasks) + whole(waited)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Half a step over waiting: only a higher priority is worth it."""
        return self._steps(state, tasks) + _STEP // 2

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Load, and nearness."""
        table = state.resources
        if int(table.level[resource]) != Level.MACHINE:
            return ""
        row = np.array([resource])
        busy, size = float(self._busy(state, row)[0]), float(self._processors(state, row)[0])
        here = self._bytes_at(state, task)
        near = f", {here.get(resource, 0)} of {sum(here.values())} input bytes there" if here else ""
        return f"{busy:g} processors' worth of tasks on {size:g}{near}"

    def _steps(self, state: ClusterState, tasks: Ints) -> Ints:
        return _STEP * (1 + np.clip(state.tasks.priority[tasks], 0, _PRIORITIES))

    def _levels(self, state: ClusterState) -> int:
        waiting = int((state.tasks.alive & (state.tasks.status == WAITING)).sum())
        return max(1, min(waiting, _LEVELS_MAX))

    def _busy(self, state: ClusterState, machines: Ints) -> Floats:
        """Processors' worth of tasks: one for each, or what was asked for where that is more."""
        table = state.resources
        busy: Floats = np.maximum(table.running[machines], table.reserved[machines, 0])
        return busy

    def _processors(self, state: ClusterState, machines: Ints) -> Floats:
        size: Floats = np.maximum(state.resources.capacity[machines, 0], 1.0)
        return size

    def _load(self, state: ClusterState, machine: int) -> float:
        row = np.array([machine])
        return float(self.load * (self._busy(state, row)[0] + 1) / self._processors(state, row)[0])

    def _bytes_at(self, state: ClusterState, task: int) -> dict[int, int]:
        """Bytes of a task's input by machine row."""
        found: dict[int, int] = {}
        for block in state.tasks.descriptors[task].blocks:
            for machine in block.machines:
                row = state.machine_row(machine)
                if row >= 0:
                    found[row] = found.get(row, 0) + max(block.size, 1)
        return found


def _none(count: int) -> Ints:
    return np.zeros(count, np.int64)
