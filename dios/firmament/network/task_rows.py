"""Tasks as rows of options: the model's options, narrowed by policy, and the arcs that every task has.

A row has in this order: the model's options, the arc to where the task runs, and the arc to its job's
unscheduled aggregator (thesis §6.2.1; all have capacity 1, Table C.1). The arcs between aggregates are made
in ``upper_arcs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.network.option_pool import OptionPool, ranges

Narrow = Callable[[Ints, Ints, Ints, Ints], tuple[Ints, Ints, Ints]]
"""Filters arcs: (filter, owner, target, cost) of each to the (owner, target, cost) of those that remain."""

OPTION = 0
CONTINUE = 1
UNSCHEDULED = 2


@dataclass(frozen=True, eq=False)
class TaskRows:
    """The rows of some tasks: those of the i-th are ``start[i]`` to ``start[i + 1]`` of the other columns."""

    tasks: Ints
    start: Ints
    target: Ints
    """Upper vertices."""
    cost: Ints
    kind: Ints

    def owner(self) -> Ints:
        """Return for each arc the index of its task."""
        return np.repeat(np.arange(len(self.tasks)), np.diff(self.start))

    def select(self, index: Ints) -> TaskRows:
        """Return the rows of some of the tasks, given by index."""
        count = np.diff(self.start)[index]
        at = ranges(self.start[index], count)
        start = np.concatenate([[0], np.cumsum(count)])
        return TaskRows(self.tasks[index], start, self.target[at], self.cost[at], self.kind[at])


@dataclass(frozen=True, eq=False)
class RowRules:
    """The rules of a round for the tasks whose rows are made; all (n,) except the last three."""

    tasks: Ints
    movable: Flags
    """True if the model's options count: for waiting tasks, and running ones that may move."""
    running: Flags
    leaf: Ints
    """The vertex of the leaf on which the task runs; ABSENT while it waits."""
    machine: Ints
    """The row of the machine on which the task runs; ABSENT while it waits."""
    stay_cost: Ints
    may_wait: Flags
    """True if the task has an arc to its unscheduled aggregator."""
    waiting_vertex: Ints
    waiting_cost: Ints
    filters: Ints
    """The number of the filter that narrows its options; 0: none."""
    machine_of: Ints
    """(vertices,): the row of the machine that a vertex is or belongs to; else ABSENT."""
    closed: Flags
    """(vertices,): True where no new task may go, as at a drained machine."""
    migration_hysteresis: int

    def select(self, which: Flags) -> RowRules:
        """Return the rules of some of the tasks, given by flags."""
        return replace(
            self,
            tasks=self.tasks[which],
            movable=self.movable[which],
            running=self.running[which],
            leaf=self.leaf[which],
            machine=self.machine[which],
            stay_cost=self.stay_cost[which],
            may_wait=self.may_wait[which],
            waiting_vertex=self.waiting_vertex[which],
            waiting_cost=self.waiting_cost[which],
            filters=self.filters[which],
        )


def make_rows(pool: OptionPool, rules: RowRules, narrow: Narrow) -> TaskRows:
    """Return the rows of tasks in this round."""
    owner, target, cost = pool.gather(rules.tasks)
    keep = rules.movable[owner] & ~rules.closed[target]
    # On its own machine the arc for continuing is the only one: it has the cost of staying.
    keep &= (rules.machine[owner] != rules.machine_of[target]) | (rules.machine[owner] == ABSENT)
    if not keep.all():
        owner, target, cost = owner[keep], target[keep], cost[keep]
    if rules.running.any() and rules.migration_hysteresis:
        cost = cost + rules.running[owner] * np.int64(rules.migration_hysteresis)
    if rules.filters.any():
        owner, target, cost = narrow(rules.filters[owner], owner, target, cost)
    stay = np.flatnonzero(rules.leaf != ABSENT)
    wait = np.flatnonzero(rules.may_wait)
    owner = np.concatenate([owner, stay, wait])
    order = np.argsort(owner, kind="stable")
    kinds = np.concatenate(
        [
            np.full(len(target), OPTION),
            np.full(len(stay), CONTINUE),
            np.full(len(wait), UNSCHEDULED),
        ]
    )
    target = np.concatenate([target, rules.leaf[stay], rules.waiting_vertex[wait]])
    cost = np.concatenate([cost, rules.stay_cost[stay], rules.waiting_cost[wait]])
    start = np.zeros(len(rules.tasks) + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=len(rules.tasks)), out=start[1:])
    return TaskRows(rules.tasks, start, target[order], cost[order], kinds[order])
