"""Delay scheduling (Table 8.6; Zaharia et al., EuroSys 2010): wait a little for a place with the data.

For: short tasks on busy clusters, where a slot beside the data comes free soon.
Not for: weighing how much data there is (``quincy``); a place is local, in the rack, or neither.

As the table says, the delay is in v: at first waiting is cheaper than any place but those with the data,
after ``machine_wait`` seconds cheaper than any outside of the rack, and after ``rack_wait`` dearer than all.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import BadModelError, not_negative, stay, stop_nobody, unmoved, whole
from dios.firmament.models.data_model import DataCosts, DataModel
from dios.firmament.models.locality import Holdings

RACK = 2_000
"""The cost of a machine in a rack with the data; 0 with the data itself."""
ANYWHERE = 4_000
"""The cost of any other machine."""
_PATIENT, _RELAXED, _URGENT = 1_000, 3_000, 5_000
"""What waiting costs in the three phases: below RACK, below ANYWHERE, above it."""


class DelayModel(DataModel):
    """The delay goes by the time that the task itself has waited.

    Args:
        machine_wait: so many seconds a task waits for a machine with its data.
        rack_wait: after so many it goes anywhere; not below ``machine_wait``.
        threshold: see ``DataModel``, as the next two.
        machine_arcs: see there.
        rack_arcs: see there.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "delay"
    summary = "delay scheduling: wait briefly for a slot beside the data"

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
            raise BadModelError(f"model delay: rack_wait is {rack_wait}, below machine_wait ({machine_wait})")
        self.machine_wait = machine_wait
        self.rack_wait = rack_wait

    def data_costs(self, state: ClusterState, found: Holdings) -> DataCosts:
        """Nothing, RACK and ANYWHERE; a task without data is at home everywhere."""
        anywhere = np.where(found.total > 0, ANYWHERE, 0)
        return DataCosts(np.zeros_like(found.machine), np.full_like(found.rack, RACK), anywhere)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Three steps, and a little for each second so that the older goes first."""
        waited = state.tasks.waiting_time(tasks, state.now)
        steps = np.where(waited < self.rack_wait, _RELAXED, _URGENT)
        steps = np.where(waited < self.machine_wait, _PATIENT, steps)
        return steps + np.minimum(whole(waited), RACK // 2 - 1)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Nobody moves."""
        return stay(tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Nobody is stopped: delay scheduling waits instead."""
        return stop_nobody(tasks)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """How long it waits for what."""
        if running := unmoved(state, task):
            return running
        if not any(block.size for block in state.tasks.descriptors[task].blocks):
            return "it has no input, so every place is as good"
        waited = float(state.tasks.waiting_time(np.array([task]), state.now)[0])
        return (
            f"waited {waited:.1f} s: a machine with its data only for {self.machine_wait:g} s, "
            f"its rack until {self.rack_wait:g} s, then anywhere"
        )
