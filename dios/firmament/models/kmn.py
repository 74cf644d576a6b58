"""KMN (Table 8.6; Venkataraman et al., OSDI 2014): any k of a job's n tasks will do, so take the k nearest.

It suits jobs over a sample of their input. Submit the job with n tasks, and k as ``gang`` (or
``minimum_running``). The gang makes k of them start together (§6.3.3). When k are done, the submitter of the
job must withdraw the others.

The solver selects the k tasks that are cheapest by data, over all jobs and slots at once. The cost of waiting
(v) of the other n - k tasks is ``extra``. They run only in a place that costs less, so 0 lets none of them
run, and a larger value insures against stragglers. A running task beyond the k gives way to other tasks at
the same cost; the gang protects the k themselves.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import not_negative
from dios.firmament.models.quincy import QuincyModel


class KmnModel(QuincyModel):
    """Quincy's data terms, with a low cost of waiting for tasks of jobs that need only some of their tasks.

    Args:
        psi: see ``QuincyModel``.
        xi: see ``QuincyModel``.
        omega: see ``QuincyModel``; it applies to jobs that need all their tasks.
        theta: see ``QuincyModel``.
        threshold: see ``QuincyModel``.
        machine_arcs: see ``QuincyModel``.
        rack_arcs: see ``QuincyModel``.
        extra: the cost of not running one of the n - k tasks that are not needed.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "kmn"
    summary = "KMN: of n tasks the k that are nearest to their data"

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
        extra: int = 0,
    ) -> None:
        super().__init__(
            psi=psi,
            xi=xi,
            omega=omega,
            theta=theta,
            threshold=threshold,
            machine_arcs=machine_arcs,
            rack_arcs=rack_arcs,
        )
        not_negative(self.name, extra=extra)
        self.extra = extra

    def needed(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the number of needed tasks of each task's job; 0 means all of them; shape (n,)."""
        jobs = state.tasks.job[tasks]
        return np.maximum(state.jobs.gang[jobs], state.jobs.minimum[jobs])

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return ``extra`` for jobs that need only some of their tasks, otherwise Quincy's cost."""
        some = self.needed(state, tasks) > 0
        return np.where(some, self.extra, super().task_to_unscheduled(state, tasks))

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the number of needed tasks, and the costs of the data."""
        needed = int(self.needed(state, np.array([task]))[0])
        text = super().explain(state, task, resource)
        return f"{needed} tasks of its job are needed; {text}" if needed else text
