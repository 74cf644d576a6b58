"""TetriSched (Table 8.6; Tumanov et al., EuroSys 2016): wait for a better place if that ends earlier.

It suits jobs with deadlines and preferred machines. TetriSched plans in time with a mixed integer program.
A flow network has no axis of time: this model has plan-ahead of one step for each task. It compares running
elsewhere now, which takes ``slow`` times longer, with waiting for the expected end of a task on a preferred
machine. The preferred machines of a task hold its input. Tasks that can no longer meet their deadline have
no value any more, and get only what the others leave.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import (
    BadModelError,
    not_negative,
    running_tasks,
    unmoved,
    whole,
)
from dios.firmament.models.data_model import DataCosts, DataModel
from dios.firmament.models.locality import Holdings, holdings
from dios.firmament.models.protocol import Options
from dios.firmament.models.runtimes import Runtimes

_MS = 1_000.0
_VALUE = 10_000
"""The value of a task that can be in time, above that of one which cannot."""
_WAITED_MAX = 5_000


class TetrischedModel(UnmovedModel, DataModel):
    """The expected end on preferred machines, now or later, or elsewhere; in milliseconds.

    Args:
        slow: the factor by which a task takes longer on a machine that it does not prefer.
        horizon: the longest planned wait in seconds.
        unknown: the assumed run time in seconds of a task of unknown length.
        threshold: see ``DataModel``.
        machine_arcs: see ``DataModel``.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "tetrisched"
    summary = "TetriSched: a place now, or a preferred one later, if in time for the deadline"

    def __init__(
        self,
        *,
        slow: float = 1.5,
        horizon: float = 120.0,
        unknown: float = 60.0,
        threshold: float = 0.14,
        machine_arcs: int = 7,
    ) -> None:
        super().__init__(threshold=threshold, machine_arcs=machine_arcs, rack_arcs=0)
        not_negative(self.name, slow=slow, horizon=horizon, unknown=unknown)
        if slow < 1:
            raise BadModelError(f"model tetrisched: slow is {slow}; it must be at least 1")
        self.slow = slow
        self.horizon = horizon
        self.runtimes = Runtimes(unknown)
        self._asked: Ints = np.zeros(0, np.int64)
        self._releases: Floats = np.zeros(0)

    def begin(self, state: ClusterState) -> None:
        """Compute the seconds until each machine has a free slot."""
        table = state.resources
        self._releases = np.where(table.usable & (table.running < table.slots), 0.0, np.inf)
        running = running_tasks(state)
        left = self.runtimes.expected(state, running) - (state.now - state.tasks.since[running])
        place = state.tasks.machine[running]
        # A task that exceeds its expected run time counts as ending in a second.
        ends = np.where(table.usable[place], np.maximum(left, 1.0), np.inf)
        full = table.running[place] >= table.slots[place]
        np.minimum.at(self._releases, place[full], ends[full])

    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return the additional run time by the share of the input that is not there."""
        worst = self._penalty(state, self._asked, inputs)
        missing = 1.0 - inputs.machine_bytes / np.maximum(inputs.total[inputs.machine_task], 1)
        return DataCosts(whole(worst[inputs.machine_task] * missing), worst[inputs.rack_task], worst)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs to preferred machines and to X."""
        self._asked = tasks
        return super().task_options(state, tasks)

    def _penalty(self, state: ClusterState, tasks: Ints, inputs: Holdings) -> Ints:
        """Return the additional milliseconds of a task where it has no input, 0 for tasks without any."""
        run = self.runtimes.expected(state, tasks)
        return whole(np.where(inputs.total > 0, (self.slow - 1) * run * _MS, 0.0))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the planned wait for a preferred machine, or more than any place."""
        inputs = holdings(state, tasks)
        penalty = self._penalty(state, tasks, inputs)
        run = self.runtimes.expected(state, tasks)
        left = state.tasks.deadline[tasks] - state.now
        planned = self._planned(state, tasks, inputs)
        waited = np.minimum(whole(state.tasks.waiting_time(tasks, state.now)), _WAITED_MAX)
        at_once = penalty + 1 + np.where(run <= left, _VALUE, 0) + waited
        worth = (planned > 0) & (planned <= self.horizon) & (planned + run <= left)
        worth &= planned * _MS < penalty
        wait = whole(np.where(worth, planned, 0.0) * _MS) + 1
        return np.where(worth, wait, at_once)

    def _planned(self, state: ClusterState, tasks: Ints, inputs: Holdings) -> Floats:
        """Return the seconds until a preferred machine has a slot, infinity without one; shape (n,)."""
        preferred = (inputs.machine_bytes > 0) & (
            inputs.machine_bytes >= self.threshold * inputs.total[inputs.machine_task]
        )
        missing = max(len(state.resources.alive) - len(self._releases), 0)
        releases = np.concatenate([self._releases, np.full(missing, np.inf)])
        soonest = np.full(len(tasks), np.inf)
        np.minimum.at(soonest, inputs.machine_task[preferred], releases[inputs.machine[preferred]])
        return soonest

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the planned wait, and the price of a place without the input."""
        if running := unmoved(state, task):
            return running
        row = np.array([task])
        inputs = holdings(state, row)
        if not inputs.total[0]:
            return "it prefers no machine, so it takes any place at once"
        planned = float(self._planned(state, row, inputs)[0])
        when = "never" if np.isinf(planned) else f"in {planned:.0f} s"
        late = int(self._penalty(state, row, inputs)[0])
        return f"a preferred machine is free {when}; another one takes {late} ms longer"
