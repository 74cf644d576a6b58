"""The invariants of a simulation: a scheduler's tables must agree with the simulated world.

Tests use them, and ``dios lab simulate --check``. They say nothing about the quality of a schedule.
"""

from __future__ import annotations

import numpy as np

from dios.errors import InvariantError
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Level
from labs.simulate.scheduling.scheduler_bridge import Scheduler
from labs.simulate.scheduling.world import World


def check(scheduler: Scheduler, world: World) -> None:
    """Compare a scheduler's tables with the world; do nothing for a scheduler without tables.

    Raises:
        InvariantError: a task is lost or exists twice, or it runs on another machine than the scheduler
            has recorded; or a machine has more tasks than slots, or a wrong count of them.
    """
    state = getattr(scheduler, "state", None)
    if not isinstance(state, ClusterState):
        return
    _tasks(state, world)
    _machines(state)


def _tasks(state: ClusterState, world: World) -> None:
    tasks = state.tasks
    rows = tasks.all()
    running = tasks.status[rows] == RUNNING
    believed = {
        int(tasks.id[row]): state.machine_ids[int(tasks.machine[row])] for row in rows[running].tolist()
    }
    actual = world.places()
    if believed != actual:
        wrong = sorted(set(believed.items()) ^ set(actual.items()))[:5]
        raise InvariantError(f"the scheduler and the world disagree about the places of tasks: {wrong}")
    waiting = {int(task_id) for task_id in tasks.id[rows[~running]]}
    if waiting != world.waiting():
        wrong_ids = sorted(waiting ^ world.waiting())[:5]
        raise InvariantError(f"the scheduler and the world disagree about the waiting tasks: {wrong_ids}")


def _machines(state: ClusterState) -> None:
    table, tasks = state.resources, state.tasks
    rows = tasks.all()
    placed = rows[tasks.status[rows] == RUNNING]
    counted = np.bincount(tasks.machine[placed], minlength=len(table.slots))
    for row in table.at(Level.MACHINE).tolist():
        if counted[row] > table.slots[row]:
            raise InvariantError(f"{table.names[row]} has {counted[row]} tasks in {table.slots[row]} slots")
        if counted[row] != table.running[row]:
            raise InvariantError(
                f"{table.names[row]} runs {counted[row]} tasks; {table.running[row]} were counted"
            )
