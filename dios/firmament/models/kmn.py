"""KMN (Table 8.6; Venkataraman et al., OSDI 2014): any k of a job's n tasks will do, so take the k nearest.

For: jobs over a sample of their input. The job is submitted with n tasks and ``gang`` (or
``minimum_running``) k; that k of them start together is the gang's doing (§6.3.3).
Not for: withdrawing the rest once k are done, which is up to whoever submitted them.

Which k: those that the solver finds cheapest by data, over all jobs and slots at once. The other n - k
have a v of ``extra``: they run only where a place costs less than that, so 0 lets none run, and a larger
value buys insurance against stragglers. Who runs beyond the k gives way to others at the same price; the
k themselves are held by the gang.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import not_negative
from dios.firmament.models.quincy import QuincyModel


class KmnModel(QuincyModel):
    """Quincy's data terms; v is small for tasks of which only some are needed.

    Args:
        psi: see ``QuincyModel``, as all but the last.
        xi: see there.
        omega: see there; for jobs that need all their tasks.
        theta: see there.
        threshold: see there.
        machine_arcs: see there.
        rack_arcs: see there.
        extra: the cost of doing without one of the n - k tasks that are not needed.

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
        """How many of each task's job are needed; 0 means all of them; shape (n,)."""
        jobs = state.tasks.job[tasks]
        return np.maximum(state.jobs.gang[jobs], state.jobs.minimum[jobs])

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """``extra`` where only some are needed, otherwise Quincy's."""
        some = self.needed(state, tasks) > 0
        return np.where(some, self.extra, super().task_to_unscheduled(state, tasks))

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """How many are needed, and what the data costs."""
        needed = int(self.needed(state, np.array([task]))[0])
        text = super().explain(state, task, resource)
        return f"{needed} tasks of its job are needed; {text}" if needed else text
