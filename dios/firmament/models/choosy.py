"""Choosy and H-DRF (Table 8.6; Ghodsi et al., EuroSys 2013; Bhattacharya et al., SoCC 2013), by admission.

Fairness counts only the resources that tasks can use: constrained max-min fairness over slots, and dominant
shares over a hierarchy of principals. An admitted task may go wherever its constraints allow.

In each round the model assigns one free slot after another to the principal with the least share that has a
task for the slot. Only the admitted tasks have an arc to X; the others have an arc to U alone (admission
control). No task is stopped: shares even out as tasks end.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.admission import DominantShares, Pools, Shares, SlotShares, WaitingTasks, fill
from dios.firmament.models.cost_terms import (
    PlaceRules,
    not_negative,
    open_machines,
    permitted,
    place_rules,
    running_tasks,
    unmoved,
    waiting_tasks,
)
from dios.firmament.models.protocol import Options
from dios.firmament.models.trivial import TrivialModel


class ChoosyModel(TrivialModel):
    """Constrained max-min fairness over slots.

    Args:
        wave: the largest number of tasks that are admitted in one round.
        waiting: the cost of waiting at once.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "choosy"
    summary = "Choosy: max-min fairness over slots that counts hard constraints, by admission"

    def __init__(self, *, wave: int = 1000, waiting: int = 1000, per_second: int = 10) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, wave=wave)
        self.wave = wave
        self._admitted: Flags = np.zeros(0, np.bool_)
        self._last_admitted: Flags = np.zeros(0, np.bool_)

    def shares(self, state: ClusterState) -> Shares:
        """Return the shares of a cluster without running tasks."""
        return SlotShares()

    def begin(self, state: ClusterState) -> None:
        """Admit waiting tasks to the free slots."""
        self._admitted = np.zeros(len(state.tasks.alive), np.bool_)
        shares = self.shares(state)
        for row in running_tasks(state).tolist():
            shares.add(_principal(state, row), state.tasks.demand[row])
        waiting, pools = _queues(state)
        self._admitted[fill(waiting, pools, shares, self.wave)] = True

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the waiting tasks that were admitted or rejected since the scheduler last asked."""
        waiting = waiting_tasks(state)
        changed: Flags = self._admitted[waiting] != self._admitted_before(len(self._admitted))[waiting]
        return waiting[changed]

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return X for the admitted tasks."""
        self._admitted_before(len(self._admitted))[tasks] = self._admitted[tasks]
        chosen = np.flatnonzero(self._admitted[tasks])
        return Options(chosen, np.full(len(chosen), state.cluster), np.zeros(len(chosen), np.int64))

    def _admitted_before(self, length: int) -> Flags:
        """Return for each task row whether it was admitted when the scheduler last asked."""
        if len(self._last_admitted) < length:
            self._last_admitted = np.concatenate(
                [self._last_admitted, np.zeros(length - len(self._last_admitted), np.bool_)]
            )
        return self._last_admitted

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the task's principal, and whether the task was admitted."""
        if running := unmoved(state, task):
            return running
        who = _principal(state, task) or "nobody"
        admitted = task < len(self._admitted) and self._admitted[task]
        turn = "was admitted" if admitted else "was not admitted in the last round"
        return f"a task of {who}, and it {turn}; {super().explain(state, task, resource)}"


class HdrfModel(ChoosyModel):
    """Hierarchical dominant resource fairness: principals are paths, such as "org/team/user"."""

    name = "h-drf"
    summary = "H-DRF: dominant shares over a hierarchy of principals, by admission"

    def shares(self, state: ClusterState) -> Shares:
        """Return dominant shares of the cluster's whole capacity."""
        return DominantShares(state.resources.capacity[state.cluster])


def _principal(state: ClusterState, task: int) -> str:
    return state.principals.names[int(state.jobs.principal[state.tasks.job[task]])]


def _queues(state: ClusterState) -> tuple[list[WaitingTasks], Pools]:
    """Return the waiting tasks by principal and hard constraints, and the free slots that each may use."""
    waiting = waiting_tasks(state)
    waiting = waiting[np.argsort(state.tasks.submitted[waiting], kind="stable")]
    signatures: dict[PlaceRules, int] = {}
    queues: dict[tuple[str, int], WaitingTasks] = {}
    for row in waiting.tolist():
        signature = signatures.setdefault(place_rules(state, row), len(signatures))
        key = _principal(state, row), signature
        queue = queues.setdefault(key, WaitingTasks(*key, deque(), deque()))
        queue.tasks.append(row)
        queue.demands.append(state.tasks.demand[row])
    return list(queues.values()), _pools(state, list(signatures))


def _pools(state: ClusterState, signatures: list[PlaceRules]) -> Pools:
    table = state.resources
    machines = open_machines(state)
    may = permitted(state, machines, signatures)
    kinds, pool = np.unique(may, axis=0, return_inverse=True)
    slots = np.maximum(table.slots - table.running, 0)[machines]
    free = np.bincount(pool.ravel(), slots, minlength=len(kinds)).astype(np.int64)
    order = np.argsort(kinds.sum(axis=1), kind="stable")
    allowed = [order[kinds[order, at]].tolist() for at in range(len(signatures))]
    return Pools(free.tolist(), allowed, state.available(np.array([state.cluster]))[0])
