"""CIEL (Table 8.6; Murray et al., NSDI 2011): run a task where its input is, sweetheart references above all.

It suits dynamic data flow with iterations that read the same large input again and again. In CIEL a program
marks such an input as a sweetheart reference. A task here has no such mark: a machine that holds at least the
share ``sweetheart`` of a task's input counts as the holder of one.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import gigabytes, not_negative, unmoved, whole
from dios.firmament.models.data_model import DataCosts, DataModel
from dios.firmament.models.locality import Holdings, held_at, holdings

GIGABYTE = 10**9
_ALWAYS = 1_000
"""Added to the cost of the worst place, so that no task waits after its patience."""


class CielModel(UnmovedModel, DataModel):
    """Input that is not there costs its bytes; a sweetheart is worth a wait.

    Args:
        move: the cost of moving 1 GB of input.
        sweetheart: the share of a task's input that makes a machine the holder of its sweetheart.
        patience: the number of seconds for which a task waits for such a machine.
        threshold: see ``DataModel``.
        machine_arcs: see ``DataModel``.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "ciel"
    summary = "CIEL: the machine with most of the input; a short wait for a sweetheart reference"

    def __init__(
        self,
        *,
        move: int = 1_000,
        sweetheart: float = 0.5,
        patience: float = 10.0,
        threshold: float = 0.05,
        machine_arcs: int = 7,
    ) -> None:
        super().__init__(threshold=threshold, machine_arcs=machine_arcs, rack_arcs=0)
        not_negative(self.name, move=move, patience=patience)
        not_negative(self.name, 1, sweetheart=sweetheart)
        self.move = move
        self.sweetheart = sweetheart
        self.patience = patience

    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return the cost of the input that is not on a machine; racks do not matter to CIEL."""
        at_machine = self._moving(inputs.total[inputs.machine_task] - inputs.machine_bytes)
        return DataCosts(at_machine, self._moving(inputs.total[inputs.rack_task]), self._moving(inputs.total))

    def _moving(self, size: Ints) -> Ints:
        return whole(self.move * size.astype(np.float64) / GIGABYTE)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return more than the worst place, or while it waits for its sweetheart more than such a place."""
        inputs = holdings(state, tasks)
        waited = state.tasks.waiting_time(tasks, state.now)
        longest = np.minimum(whole(waited), _ALWAYS)
        holds = inputs.machine_bytes >= self.sweetheart * inputs.total[inputs.machine_task]
        holds &= (inputs.machine_bytes > 0) & state.resources.usable[inputs.machine]
        has = np.zeros(len(tasks), np.bool_)
        has[inputs.machine_task[holds]] = True
        lacking = self._moving(np.ceil((1 - self.sweetheart) * inputs.total).astype(np.int64))
        patient = has & (waited < self.patience)
        return np.where(patient, lacking + 1, self._moving(inputs.total) + _ALWAYS + longest)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the part of the input that is on the machine, and if that is a sweetheart."""
        if running := unmoved(state, task):
            return running
        inputs = holdings(state, np.array([task]))
        total = int(inputs.total[0])
        if total == 0:
            return "it has no input, so all places are equal"
        if state.resources.machine[resource] < 0:
            return f"moving {gigabytes(total)} of input costs {int(self._moving(inputs.total)[0])}"
        held = int(held_at(state, inputs, state.resources.machine[[resource]])[0][0])
        sweet = " (its sweetheart)" if held >= self.sweetheart * total else ""
        return f"{gigabytes(held)} of its {gigabytes(total)} of input are on the machine{sweet}"
