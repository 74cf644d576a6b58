"""The Hadoop Fair Scheduler (Table 8.6): equal shares of slots for pools, with delay scheduling inside.

It suits many users with MapReduce jobs. A pool is a principal. In each round the slots are divided between
pools by max-min fairness over running and waiting tasks; only the oldest waiting tasks within a pool's share
may start. A pool that is below its share for ``preempt_after`` seconds gets slots back: the tasks of pools
above their share that started last are stopped. Weights and minimum shares are not modelled.

The table uses the bounds of unscheduled aggregators. They belong to the setting ``fairness``; here the cost
of waiting does the same for one model.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.models.cost_terms import NEVER, not_negative
from dios.firmament.models.delay import DelayModel

STOPPED = 50_000
"""The cost of stopping a task of a pool above its share."""
STARVED = 100_000
"""The cost of waiting of a task that another one may be stopped for."""
NOT_DUE = -1
"""The cost of waiting of a task beyond its pool's share; every place costs more."""


class HfsModel(DelayModel):
    """Max-min fair shares between principals, by the cost of waiting.

    Args:
        preempt_after: the number of seconds below its share after which a pool gets slots of others.
        machine_wait: see ``DelayModel``.
        rack_wait: see ``DelayModel``.
        threshold: see ``DataModel``.
        machine_arcs: see ``DataModel``.
        rack_arcs: see ``DataModel``.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "hfs"
    summary = "Hadoop Fair Scheduler: equal shares of slots for pools, near the data"

    def __init__(
        self,
        *,
        preempt_after: float = 60.0,
        machine_wait: float = 5.0,
        rack_wait: float = 10.0,
        threshold: float = 0.14,
        machine_arcs: int = 7,
        rack_arcs: int = 7,
    ) -> None:
        super().__init__(
            machine_wait=machine_wait,
            rack_wait=rack_wait,
            threshold=threshold,
            machine_arcs=machine_arcs,
            rack_arcs=rack_arcs,
        )
        not_negative(self.name, preempt_after=preempt_after)
        self.preempt_after = preempt_after
        self._due: Flags = np.zeros(0, np.bool_)
        self._spare: Flags = np.zeros(0, np.bool_)
        self._share: Ints = np.zeros(0, np.int64)

    def begin(self, state: ClusterState) -> None:
        """Divide the slots; find the tasks that may start, and those that may be stopped."""
        table = state.tasks
        tasks = table.all()
        pool = state.jobs.principal[table.job[tasks]]
        waits = table.status[tasks] == WAITING
        pools = len(state.principals)
        running = np.bincount(pool[~waits], minlength=pools)
        self._share = fair_shares(
            np.bincount(pool, minlength=pools), int(state.resources.slots[state.cluster])
        )
        self._due, self._spare = np.zeros(len(table.alive), np.bool_), np.zeros(len(table.alive), np.bool_)
        queue, queue_pool = tasks[waits], pool[waits]
        order = np.lexsort((queue, table.submitted[queue], queue_pool))
        place = _ranks(queue_pool[order])
        self._due[queue[order]] = place < (self._share - running)[queue_pool[order]]
        due = queue[self._due[queue]]
        starving = int(np.count_nonzero(table.waiting_time(due, state.now) >= self.preempt_after))
        busy, busy_pool = tasks[~waits], pool[~waits]
        order = np.lexsort((busy, -table.since[busy], busy_pool))
        over = busy[order][_ranks(busy_pool[order]) < (running - self._share)[busy_pool[order]]]
        over = over[table.restartable[over]]
        newest = np.lexsort((over, -table.since[over]))
        self._spare[over[newest][:starving]] = True

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of delay scheduling for tasks within the share; others do not start."""
        due = self._flags(state, self._due)[tasks]
        starved = due & (state.tasks.waiting_time(tasks, state.now) >= self.preempt_after)
        cost = np.where(due, super().task_to_unscheduled(state, tasks), NOT_DUE)
        return np.where(starved, STARVED, cost)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return 0 for tasks that may be stopped; all others stay."""
        return np.where(self._flags(state, self._spare)[tasks], 0, -NEVER)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of stopping a task beyond its pool's share, which is less than starving."""
        return np.where(self._flags(state, self._spare)[tasks], STOPPED, NEVER)

    def _flags(self, state: ClusterState, flags: Flags) -> Flags:
        """Return flags for all rows; tasks that came after the round have False."""
        missing = max(len(state.tasks.alive) - len(flags), 0)
        return np.concatenate([flags, np.zeros(missing, np.bool_)])

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the pool's running tasks and its share."""
        pool = int(state.jobs.principal[state.tasks.job[task]])
        tasks = state.tasks.all()
        mine = tasks[state.jobs.principal[state.tasks.job[tasks]] == pool]
        runs = int(np.count_nonzero(state.tasks.status[mine] == RUNNING))
        share = int(self._share[pool]) if pool < len(self._share) else 0
        text = f"its pool {state.principals.names[pool]!r} runs {runs} tasks; its fair share is {share}"
        if state.tasks.status[task] == RUNNING:
            return text
        return f"{text}; {super().explain(state, task, resource)}"


def fair_shares(wanted: Ints, slots: int) -> Ints:
    """Return max-min fair whole shares of ``slots``, at most ``wanted`` each, shape (n,)."""
    share = np.zeros(len(wanted), np.int64)
    left = min(slots, int(wanted.sum()))
    while left > 0:
        hungry = np.flatnonzero(share < wanted)
        portion = left // len(hungry)
        # The remainder goes to the first ones, one slot each.
        some = hungry if portion else hungry[:left]
        more = np.minimum(wanted[some] - share[some], max(portion, 1))
        share[some] += more
        left -= int(more.sum())
    return share


def _ranks(sorted_values: Ints) -> Ints:
    """Return the position of each element among its equals, for values in ascending order."""
    ranks: Ints = np.arange(len(sorted_values)) - np.searchsorted(sorted_values, sorted_values)
    return ranks
