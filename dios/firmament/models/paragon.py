"""Paragon and Quasar (Table 8.6; Delimitrou and Kozyrakis, ASPLOS 2013 and 2014): classify, then place.

Both suit shared clusters of unlike machines whose work recurs or resembles other work. Paragon estimates how
a new class runs on machine types on which it never ran from the classes that ran there: collaborative
filtering, here with one factor for each class and each type. It places a task where neither it nor its
neighbours lose more than the target allows; else the task waits a while (admission control).

Quasar also chooses the amount of resources. A cost model cannot change the requests of a task (Table 8.6 has
the tick in parentheses): this model chooses the number of a job's tasks that run at once (scale-out), from
deadlines and expected run times. Their sizes (scale-up) stay as submitted.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import BadModelError, whole
from dios.firmament.models.jockey import JockeyModel
from dios.firmament.models.whare import CLASSES_MAX, RATIO, Scores, WhareModel

_STEPS = 20
"""Steps of the alternating fit; with two factors it converges in a few."""


def completed_scores(table: Floats) -> Floats:
    """Fill the unknown scores of classes (rows) on types (columns): a class factor times a type factor.

    The factors fit the logarithms of the known scores. A type on which nothing ran has the factor 1. A table
    without any known score stays as it is.
    """
    known = ~np.isnan(table)
    if not known.any() or known.all():
        return table
    logs = np.log(np.maximum(np.where(known, table, 1.0), 1e-9))
    by_type = np.zeros(table.shape[1])
    by_class = np.zeros(table.shape[0])
    rows = np.maximum(known.sum(axis=1), 1)
    columns = np.maximum(known.sum(axis=0), 1)
    for _ in range(_STEPS):
        by_class = np.where(known, logs - by_type[None, :], 0.0).sum(axis=1) / rows
        by_type = np.where(known, logs - by_class[:, None], 0.0).sum(axis=0) / columns
    completed: Floats = np.where(known, table, np.exp(by_class[:, None] + by_type[None, :]))
    return completed


def all_scores(state: ClusterState) -> Floats:
    """Return the mean scores of the classes that ran on two types here or more, shape (classes, types)."""
    base = state.knowledge
    types = state.machine_types.names
    rows: list[list[float]] = []
    for name in base.classes()[:CLASSES_MAX] if base is not None else ():
        profiles = [base.profile(name, machine_type) for machine_type in types] if base is not None else []
        scored = [profile.score() if profile is not None else None for profile in profiles]
        metrics = [score[0] for score in scored if score is not None]
        metric = metrics[0] if metrics else None
        if sum(other is metric for other in metrics) > 1:
            rows.append(
                [score[1] if score is not None and score[0] is metric else np.nan for score in scored]
            )
    return np.array(rows, np.float64).reshape(len(rows), len(types))


class ParagonModel(UnmovedModel, WhareModel):
    """Places by estimated slow-downs of a task and of its neighbours.

    Args:
        target: the share of its best speed that a task should keep; places below cost more than waiting.
        omega: the cost of a second of waiting, in thousandths of slow-down.
        unknown: the cost of every place for a class without any measurement.
        arcs: the most arcs from one class to single machines.
        refresh: seconds before the scores are computed again.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "paragon"
    summary = "Paragon: estimated speed by machine type, little interference in both directions"

    def __init__(
        self,
        *,
        target: float = 0.8,
        omega: int = 20,
        unknown: int = 1000,
        arcs: int = 1000,
        refresh: float = 5.0,
    ) -> None:
        super().__init__(omega=omega, theta=0, unknown=unknown, arcs=arcs, refresh=refresh)
        if not 0 < target <= 1:
            raise BadModelError(f"model {self.name}: target is {target}; it must be above 0 and at most 1")
        self.target = target
        self._others: Floats = np.zeros((0, 0))

    def begin(self, state: ClusterState) -> None:
        """Read the scores of all classes, also of those without a task."""
        super().begin(state)
        self._others = all_scores(state)

    def policy(self, tables: Scores) -> Scores:
        """Return the scores with estimates where a class never ran."""
        size = len(tables.mean)
        if not size or self._others.shape[1] != tables.mean.shape[1]:
            return tables
        return Scores(
            tables.number,
            completed_scores(np.concatenate([tables.mean, self._others]))[:size],
            completed_scores(np.concatenate([tables.alone, self._others]))[:size],
            tables.harm,
            tables.known,
            present=tables.present,
        )

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the slow-down that the target allows, and ``omega`` for each second of waiting."""
        waited = state.tasks.waiting_time(tasks, state.now)
        known = self._known(state, tasks)
        allowed = np.where(known, RATIO / self.target, float(self.unknown))
        return whole(np.minimum(allowed + self.omega * waited, 2.0**31)) + 1

    def _known(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return 1 for tasks of classes with scores, else 0."""
        known: Ints = (self._view(state).scores.number[state.tasks.equivalence[tasks]] >= 0).astype(np.int64)
        return known

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the estimated slow-down, and the one at which the task begins to wait."""
        text = super().explain(state, task, resource)
        return f"{text}; it waits for one of {RATIO / self.target:.0f} at first"


class QuasarModel(ParagonModel):
    """Paragon's places, for as many tasks of a job as its deadline needs.

    Args:
        target: see ``ParagonModel``.
        margin: the share of the time until a deadline for which the model plans.
        utility: the cost of waiting of a task that is needed when no time is left.
        runtime: the assumed run time in seconds of a task of unknown length.
        omega: see ``ParagonModel``.
        unknown: see ``ParagonModel``.
        arcs: see ``ParagonModel``.
        refresh: see ``ParagonModel``.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "quasar"
    summary = "Quasar: Paragon's places, and only as many tasks as a deadline needs"

    def __init__(
        self,
        *,
        target: float = 0.8,
        margin: float = 0.8,
        utility: int = 1_000_000,
        runtime: float = 60.0,
        omega: int = 20,
        unknown: int = 1000,
        arcs: int = 1000,
        refresh: float = 5.0,
    ) -> None:
        super().__init__(target=target, omega=omega, unknown=unknown, arcs=arcs, refresh=refresh)
        self._sizes = JockeyModel(idle=1, utility=utility, margin=margin, unknown=runtime)

    def begin(self, state: ClusterState) -> None:
        """Compute for all jobs with deadlines which tasks are needed."""
        super().begin(state)
        self._sizes.begin(state)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return Paragon's cost, more for needed tasks; tasks that are not needed yet do not start."""
        usual = super().task_to_unscheduled(state, tasks)
        urgent = self._sizes.task_to_unscheduled(state, tasks)
        dated = np.isfinite(state.tasks.deadline[tasks])
        needed = urgent > self._sizes.idle
        return np.where(dated, np.where(needed, usual + urgent, 0), usual)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return Paragon's explanation, and the number of tasks that the job needs."""
        text = super().explain(state, task, resource)
        return f"{text}; {self._sizes.explain(state, task, resource)}"
