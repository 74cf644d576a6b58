"""Expected run times of tasks, from descriptions and profiles.

Models that plan in time use them (Apollo, Jockey).
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.knowledge.samples import Metric

_NS = 1e9


class Runtimes:
    """Expected run times in seconds; ``unknown`` for tasks with neither a description nor a profile."""

    def __init__(self, unknown: float) -> None:
        self.unknown = unknown
        self._described: Floats = np.zeros(0)
        self._identifier: Ints = np.zeros(0, np.int64)

    def described(self, state: ClusterState, tasks: Ints) -> Floats:
        """Return the run times from the descriptions, NaN where missing; shape (n,).

        Each description is read once.
        """
        missing = len(state.tasks.alive) - len(self._described)
        if missing > 0:
            self._described = np.concatenate([self._described, np.full(missing, np.nan)])
            self._identifier = np.concatenate([self._identifier, np.full(missing, -1)])
        fresh = tasks[self._identifier[tasks] != state.tasks.id[tasks]]
        for row in fresh.tolist():
            expected = state.tasks.descriptors[row].expected_runtime
            self._described[row] = np.nan if expected is None else expected
        self._identifier[fresh] = state.tasks.id[fresh]
        return self._described[tasks]

    def profiled(self, state: ClusterState, classes: Ints, machine_type: str | None = None) -> Floats:
        """Return the mean run time of each class on a type of machine or on all; NaN: unknown; shape (n,)."""
        base = state.knowledge
        seconds = np.full(len(classes), np.nan)
        for at, number in enumerate(classes.tolist() if base is not None else ()):
            profile = base.profile(state.equivalences.names[number], machine_type) if base else None
            mean = profile.mean(Metric.RUNTIME_NS) if profile is not None else None
            seconds[at] = np.nan if mean is None else mean / _NS
        return seconds

    def expected(self, state: ClusterState, tasks: Ints) -> Floats:
        """Return the described run time, else the mean on all machines, else ``unknown``; shape (n,)."""
        described = self.described(state, tasks)
        missing = np.isnan(described)
        if missing.any():
            classes, which = np.unique(state.tasks.equivalence[tasks[missing]], return_inverse=True)
            described[missing] = self.profiled(state, classes)[which]
        return np.where(np.isnan(described), self.unknown, described)
