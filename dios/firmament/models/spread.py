"""The default model: even load, near the data, strict priorities, no migration.

It needs no profiles, and uses the measured load of other programs if there is any. It does not suit thousands
of machines, because it draws an arc to each machine for each task that may arrive in a round.

A machine costs more the higher its load: each task counts one processor, or its demand if that is more. The
measured use of other programs (``coordinator.outside_load``) counts for the part that tasks leave, and not
for all of it, so that a machine with room is never dearer than one that its tasks fill.

Inside a round the cost rises with each further task. The flow network expresses this by parallel arcs: class
A leads to levels, and level i leads to every machine, for one task, at the cost of being the i-th to arrive
(§6.2.4 describes classes). A machine that holds input of waiting tasks has a class and levels of its own
instead, to which A and those tasks lead. So all arriving tasks are counted, with input there or without.
Tasks under different constraints are not counted together before the next round, because the network narrows
classes by copying them.

Staying where a task runs is worth more than any place is to other tasks of its priority, and being stopped is
cheaper than any move. So a higher priority stops running tasks, and nothing else does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.base import BaseModel, zeros
from dios.firmament.models.cost_terms import (
    class_kinds,
    class_members,
    class_numbers,
    gigabytes,
    joined,
    not_negative,
    waiting_tasks,
    whole,
)
from dios.firmament.models.locality import held_at, holdings
from dios.firmament.models.protocol import ClassArcs, Options

_ALL: Final = 1
_LEVEL: Final = 2
_NEAR: Final = 3
"""The class of one machine, by its row, for tasks with input there."""
_NEAR_LEVEL: Final = 4
"""The class of one machine's level: its row times _LEVELS_MAX, plus the level."""
_LEVELS_MAX: Final = 64
"""The most tasks that come to one machine in a round."""
_STEP: Final = 4 * 10**6
"""The difference of two priorities; more than load, nearness and waiting together."""
_SMALL_INPUT: Final = 0.25
"""The worth of all of a small input, as a part of ``near``."""
_TERM_MAX: Final = _STEP // 8
"""The largest cost of load, or of being far from the input."""
_OUTSIDE_PART: Final = 7 / 8
"""The part of a machine's free processors that count as taken if other programs use all of them."""
PRIORITY_MAX: Final = 500
"""Higher priorities count as this one, and priorities below 0 as 0, so that waiting stays below WAIT_MAX."""


class SpreadModel(BaseModel):
    """The least loaded machine, or one near a task's input; higher priorities first.

    Args:
        load: the cost of one task more on a machine of one processor.
        near: the worth of having all of a task's input, if that is large.
        half_bytes: the bytes of input that are worth half of ``near``. Fewer are worth less, but at least a
            quarter, and more are worth more.
        per_second: the cost of each second of waiting, up to a quarter of a priority.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "spread"
    summary = "even load, near the input; strict priorities; no migration"

    def __init__(
        self, *, load: int = 1000, near: int = 4000, half_bytes: int = 4 << 20, per_second: int = 10
    ) -> None:
        not_negative(self.name, _TERM_MAX, load=load, near=near)
        not_negative(self.name, half_bytes=half_bytes, per_second=per_second)
        self.load = load
        self.near = near
        self.half_bytes = half_bytes
        self.per_second = per_second
        self._choosy: Ints = np.zeros(0, np.int64)
        """Rows of the waiting tasks with input."""
        self._wanted: Ints = np.zeros(0, np.int64)
        """Rows of the machines that hold some of that input."""

    def begin(self, state: ClusterState) -> None:
        """Look up the places of the input of waiting tasks."""
        rows = waiting_tasks(state).tolist()
        self._choosy = np.array([row for row in rows if state.tasks.descriptors[row].blocks], np.int64)
        self._wanted = np.unique(holdings(state, self._choosy).machine)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the waiting tasks with input, because machines may have come and gone."""
        return self._choosy

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs to A for every task, and cheaper ones to machines, by the part of its input there."""
        inputs = holdings(state, tasks)
        some = inputs.machine_bytes > 0
        task, machine = inputs.machine_task[some], inputs.machine[some]
        absent = self._far(inputs.total[task] - inputs.machine_bytes[some], inputs.total[task])
        everywhere = np.full(len(tasks), class_numbers(_ALL, np.zeros(1, np.int64))[0])
        owner = np.concatenate([task, np.arange(len(tasks))])
        target = np.concatenate([class_numbers(_NEAR, machine), everywhere])
        cost = np.concatenate([absent, self._far(inputs.total, inputs.total)])
        order = np.argsort(owner, kind="stable")
        return Options(owner[order], target[order], cost[order])

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return A -> level i for each machine, and A -> a machine with input -> its level i for one task."""
        kinds = class_kinds(classes)
        machines = np.intersect1d(class_members(classes[kinds == _NEAR]), self._wanted)
        near, levels = class_numbers(_NEAR, machines), self._levels(state)
        everywhere = np.concatenate(
            [class_numbers(_LEVEL, np.arange(levels)), class_numbers(_NEAR, self._wanted)]
        )
        source = np.repeat(classes[kinds == _ALL], len(everywhere))
        target = np.resize(everywhere, len(source))
        first = ClassArcs(
            source, target, zeros(source), np.full(len(source), max(len(state.machine_ids), levels))
        )
        source, number = np.repeat(machines, levels), np.tile(np.arange(levels), len(machines))
        target = class_numbers(_NEAR_LEVEL, source * _LEVELS_MAX + number)
        cost = self._loads(state, source, number)
        return joined(first, ClassArcs(np.repeat(near, levels), target, cost, np.ones(len(cost), np.int64)))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return level i -> each machine without waiting input, for one task, at its load with i more."""
        kinds = class_kinds(classes)
        levels = classes[kinds == _LEVEL]
        machines = np.setdiff1d(state.resources.at(Level.MACHINE), self._wanted)
        target = np.tile(machines, len(levels))
        cost = self._loads(state, target, np.repeat(class_members(levels), len(machines)))
        shared = ClassArcs(np.repeat(levels, len(machines)), target, cost, np.ones(len(cost), np.int64))
        own = classes[kinds == _NEAR_LEVEL]
        target = class_members(own) // _LEVELS_MAX
        return joined(shared, ClassArcs(own, target, zeros(own), np.ones(len(own), np.int64)))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a step for each priority plus the cost of the seconds of waiting."""
        waited = np.minimum(self.per_second * state.tasks.waiting_time(tasks, state.now), _STEP // 4)
        return self._steps(state, tasks) + whole(waited)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return half a step more than a place is worth to others of its priority."""
        return -self._steps(state, tasks) - _STEP // 2

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return 0: to stop a task is cheaper than to move it."""
        return zeros(tasks)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the load and the nearness of a machine in words."""
        table = state.resources
        if int(table.level[resource]) != Level.MACHINE:
            return ""
        row = np.array([resource])
        busy, size = float(self._busy(state, row)[0]), float(self._processors(state, row)[0])
        outside = float(table.outside[resource])
        others = f", and other programs use {outside:g}" if outside else ""
        cost = self._loads(state, row, row * 0)[0]
        parts = [f"{busy:g} of {size:g} processors are taken{others}, which costs {cost}"]
        inputs = holdings(state, np.array([task]))
        if total := int(inputs.total[0]):
            here = int(held_at(state, inputs, row)[0][0])
            far = int(self._far(np.array([total - here]), np.array([total]))[0])
            parts.append(f"{gigabytes(here)} of {gigabytes(total)} of input are there: the rest costs {far}")
        if state.tasks.status[task] == RUNNING:
            parts.append("it runs, so only a higher priority stops it, and it is not moved")
        return "; ".join(parts)

    def _far(self, absent: Ints, total: Ints) -> Ints:
        """Return the cost of input that is elsewhere, shape (n,), from its bytes and those of all input."""
        size = np.maximum(total.astype(float), 1)
        worth = np.maximum(_SMALL_INPUT, size / (size + self.half_bytes))
        return whole(self.near * worth * absent / size)

    def _steps(self, state: ClusterState, tasks: Ints) -> Ints:
        return _STEP * (1 + np.clip(state.tasks.priority[tasks], 0, PRIORITY_MAX))

    def _levels(self, state: ClusterState) -> int:
        """Return the most tasks that may come to one machine: waiting ones, up to its slots."""
        table = state.resources
        slots = int(table.slots[table.at(Level.MACHINE)].max(initial=0))
        return max(1, min(len(waiting_tasks(state)), slots, _LEVELS_MAX))

    def _loads(self, state: ClusterState, machines: Ints, further: Ints) -> Ints:
        """Return the cost of one task more after ``further`` other new ones, shape (n,); 1 or more."""
        busy, size = self._busy(state, machines), self._processors(state, machines)
        free = np.maximum(1 - (busy + further) / size, 0)
        outside = _OUTSIDE_PART * np.minimum(state.resources.outside[machines] / size, 1) * free
        return whole(np.clip(self.load * (busy + further + 1) / size + self.load * outside, 1, _TERM_MAX))

    def _busy(self, state: ClusterState, machines: Ints) -> Floats:
        """Return the taken processors: one for each task, or its demand if that is more."""
        table = state.resources
        busy: Floats = np.maximum(table.running[machines], table.reserved[machines, 0])
        return busy

    def _processors(self, state: ClusterState, machines: Ints) -> Floats:
        size: Floats = np.maximum(state.resources.capacity[machines, 0], 1.0)
        return size
