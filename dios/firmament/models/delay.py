"""Delay scheduling (Table 8.6; Zaharia et al., EuroSys 2010): wait a little for a place with the data.

It suits short tasks on busy clusters, where a slot near the data becomes free soon. A place is local, in the
rack, or neither; ``quincy`` also considers the amount of data.

As in the table, the delay is in v, the cost of waiting. At first only the places with the data are cheaper
than waiting. After ``machine_wait`` seconds the places in the rack are cheaper, too, and after ``rack_wait``
seconds all places.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import BadModelError, not_negative, unmoved, whole
from dios.firmament.models.data_model import DataCosts, DataModel
from dios.firmament.models.locality import Holdings

RACK = 2_000
"""The cost of a machine in a rack with the data; 0 with the data itself."""
ANYWHERE = 4_000
"""The cost of any other machine."""
_PATIENT, _RELAXED, _URGENT = 1_000, 3_000, 5_000
"""The cost of waiting in the three phases: below RACK, below ANYWHERE, above ANYWHERE."""


class DelayModel(UnmovedModel, DataModel):
    """Delay scheduling by the time that the task itself has waited.

    Args:
        machine_wait: the number of seconds for which a task waits for a machine with its data.
        rack_wait: the number of seconds after which it may go anywhere; at least ``machine_wait``.
        threshold: see ``DataModel``.
        machine_arcs: see ``DataModel``.
        rack_arcs: see ``DataModel``.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "delay"
    summary = "delay scheduling: wait briefly for a slot near the data"

    def __init__(
        self,
        *,
        machine_wait: float = 5.0,
        rack_wait: float = 10.0,
        threshold: float = 0.14,
        machine_arcs: int = 7,
        rack_arcs: int = 7,
    ) -> None:
        super().__init__(threshold=threshold, machine_arcs=machine_arcs, rack_arcs=rack_arcs)
        not_negative(self.name, machine_wait=machine_wait, rack_wait=rack_wait)
        if rack_wait < machine_wait:
            raise BadModelError(
                f"model delay: rack_wait is {rack_wait}; it must be at least machine_wait ({machine_wait})"
            )
        self.machine_wait = machine_wait
        self.rack_wait = rack_wait

    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return 0, RACK and ANYWHERE; for a task without data every place costs 0."""
        anywhere = np.where(inputs.total > 0, ANYWHERE, 0)
        return DataCosts(np.zeros_like(inputs.machine), np.full_like(inputs.rack, RACK), anywhere)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of the task's phase, plus a little for each second: older tasks go first."""
        waited = state.tasks.waiting_time(tasks, state.now)
        steps = np.where(waited < self.rack_wait, _RELAXED, _URGENT)
        steps = np.where(waited < self.machine_wait, _PATIENT, steps)
        return steps + np.minimum(whole(waited), RACK // 2 - 1)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return how long the task has waited, and the places that it accepts now and later."""
        if running := unmoved(state, task):
            return running
        if not any(block.size for block in state.tasks.descriptors[task].blocks):
            return "it has no input, so all places are equal"
        waited = float(state.tasks.waiting_time(np.array([task]), state.now)[0])
        return (
            f"waited {waited:.1f} s: a machine with its data only for {self.machine_wait:g} s, "
            f"its rack until {self.rack_wait:g} s, then anywhere"
        )
