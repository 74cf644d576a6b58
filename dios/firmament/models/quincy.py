"""Quincy's policy (§7.1, Appendix C.3): data transfer against waiting against lost work.

Quincy suits clusters whose tasks read large inputs from each other's disks. For machines that differ and
tasks that disturb each other see ``whare`` and ``coco``.

Costs are thousandths of a second of lost work, so that p* = theta of Table C.3 is 1,000 per second.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import BadModelError, gigabytes, not_negative, waiting_cost, whole
from dios.firmament.models.data_model import DataCosts, DataModel
from dios.firmament.models.locality import Holdings, held_at, holdings
from dios.firmament.models.protocol import COST_MAX

GIGABYTE = 10**9


class QuincyModel(DataModel):
    """The cost model with all terms of Tables C.2 and C.3.

    Args:
        psi: cost of moving 1 GB across a top-of-rack switch; 1,000 is 8 Gb/s.
        xi: cost of moving 1 GB across the aggregation switch; at least ``psi``.
        omega: cost of a second of waiting. If it equals ``theta``, a task waits for a better place for at
            most the time that moving its data would take. If it is larger, waiting tasks displace running
            tasks again and again.
        theta: cost of losing a second of work (1,000: as in the table).
        threshold: the share of the input that a machine or rack must hold for an arc of its own.
        machine_arcs: the most such arcs to machines for each task.
        rack_arcs: the most such arcs to racks for each task.
    """

    name = "quincy"
    summary = "data locality, waiting and lost work in one currency (section 7.1)"

    def __init__(
        self,
        *,
        psi: int = 1_000,
        xi: int = 2_000,
        omega: int = 1_000,
        theta: int = 1_000,
        threshold: float = 0.14,
        machine_arcs: int = 7,
        rack_arcs: int = 7,
    ) -> None:
        super().__init__(threshold=threshold, machine_arcs=machine_arcs, rack_arcs=rack_arcs)
        not_negative(self.name, psi=psi, xi=xi, omega=omega, theta=theta)
        if xi < psi:
            raise BadModelError(
                f"model quincy: xi is {xi}, below psi ({psi}); "
                "xi must be at least psi, because a longer way cannot cost less"
            )
        self.psi = psi
        self.xi = xi
        self.omega = omega
        self.theta = theta
        self._here_cost = np.zeros(0, np.int64)
        self._here_machine = np.zeros(0, np.int64)

    def moving(self, in_rack: Ints, across: Ints) -> Ints:
        """Return the data term psi * R + xi * X for bytes from the same rack and from others; any shape."""
        return whole((self.psi * in_rack.astype(np.float64) + self.xi * across.astype(np.float64)) / GIGABYTE)

    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return gamma for machines (without running time), rho for racks, alpha for the whole cluster."""
        machine_total = inputs.total[inputs.machine_task]
        rack_total = inputs.total[inputs.rack_task]
        rho = self.moving(inputs.rack_bytes - inputs.rack_least, rack_total - inputs.rack_bytes)
        alpha = np.where(inputs.outside, self.moving(np.zeros_like(inputs.total), inputs.total), 0)
        np.maximum.at(alpha, inputs.rack_task, rho)
        gamma = self.moving(
            inputs.machine_rack_bytes - inputs.machine_bytes, machine_total - inputs.machine_rack_bytes
        )
        return DataCosts(gamma, rho, alpha)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return omega for each second of waiting, over all waits of the task."""
        return waiting_cost(state, tasks, self.omega)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return gamma of a running task: d* - p*, the data term less theta for each second of running."""
        lost = self.theta * state.tasks.running_time(tasks, state.now)
        return whole(np.maximum(self._data_here(state, tasks) - lost, -COST_MAX))

    def _data_here(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return d* of the machine where each task runs, computed once for each placement."""
        missing = len(state.tasks.alive) - len(self._here_cost)
        if missing > 0:
            self._here_cost = np.concatenate([self._here_cost, np.zeros(missing, np.int64)])
            self._here_machine = np.concatenate([self._here_machine, np.full(missing, ABSENT)])
        machines = state.tasks.machine[tasks]
        new = self._here_machine[tasks] != machines
        if np.any(new):
            moved = tasks[new]
            inputs = holdings(state, moved)
            on_machine, in_rack = held_at(state, inputs, machines[new])
            self._here_cost[moved] = self.moving(in_rack - on_machine, inputs.total - in_rack)
            self._here_machine[moved] = machines[new]
        return self._here_cost[tasks]

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """Record the machines with the tasks' data. A row may have belonged to another task before."""
        super().add_tasks(state, tasks)
        self._forget(tasks)

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """Drop the cached costs at the machine, because another machine may soon have its row."""
        super().remove_machine(state, machine)
        self._here_machine[self._here_machine == machine] = ABSENT

    def changed_tasks(self, tasks: Ints) -> None:
        """Drop the cached data terms of running tasks, too."""
        super().changed_tasks(tasks)
        self._forget(tasks)

    def _forget(self, tasks: Ints) -> None:
        self._here_machine[tasks[tasks < len(self._here_machine)]] = ABSENT

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the bytes, their cost, and the discount for the time that the task has run there."""
        text = self.explain_data(state, task, resource)
        here = int(state.tasks.machine[task])
        if here == ABSENT or here != state.resources.machine[resource]:
            return text
        row = np.array([task])
        cost = int(self.task_continuation(state, row)[0])
        ran = float(state.tasks.running_time(row, state.now)[0])
        return f"{text}, less {ran:.0f} s of work done: {cost}"

    def explain_data(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the data term at a resource as text."""
        inputs = holdings(state, np.array([task]))
        total = int(inputs.total[0])
        if total == 0:
            return "the task has no input to move"
        if state.resources.machine[resource] == ABSENT:
            costs = self.data_costs(state, inputs)
            at_rack = costs.rack[inputs.rack == resource]
            cost = int(at_rack[0] if len(at_rack) else costs.worst[0])
            return f"moving {gigabytes(total)} of input costs {cost} at the worst place there"
        machine = state.resources.machine[[resource]]
        on_machine, in_rack = (int(column[0]) for column in held_at(state, inputs, machine))
        cost = int(self.moving(np.array(in_rack - on_machine), np.array(total - in_rack)))
        return (
            f"of {gigabytes(total)} of input, {gigabytes(on_machine)} are on the machine, "
            f"{gigabytes(in_rack - on_machine)} in its rack (cost {self.psi} per GB) "
            f"and {gigabytes(total - in_rack)} elsewhere (cost {self.xi} per GB): {cost}"
        )
