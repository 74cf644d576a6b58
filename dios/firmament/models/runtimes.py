"""How long tasks will run: from profiles where there are any, from descriptions where not.

For: models that plan in time (Apollo, Jockey). Not for: how long they ran already (``state``).
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.knowledge.samples import Metric

_NS = 1e9


class Runtimes:
    """Expected run times in seconds; what neither profile nor description knows is ``unknown``."""

    def __init__(self, unknown: float) -> None:
        self.unknown = unknown
        self._told: Floats = np.zeros(0)
        self._identifier: Ints = np.zeros(0, np.int64)

    def told(self, state: ClusterState, tasks: Ints) -> Floats:
        """What descriptions say, NaN where they say nothing; shape (n,). Read once for each task."""
        missing = len(state.tasks.alive) - len(self._told)
        if missing > 0:
            self._told = np.concatenate([self._told, np.full(missing, np.nan)])
            self._identifier = np.concatenate([self._identifier, np.full(missing, -1)])
        fresh = tasks[self._identifier[tasks] != state.tasks.id[tasks]]
        for row in fresh.tolist():
            expected = state.tasks.descriptors[row].expected_runtime
            self._told[row] = np.nan if expected is None else expected
        self._identifier[fresh] = state.tasks.id[fresh]
        return self._told[tasks]

    def profiled(self, state: ClusterState, classes: Ints, machine_type: str | None = None) -> Floats:
        """The mean of what each class took, on a type of machine or on all; NaN: not known; shape (n,)."""
        base = state.knowledge
        found = np.full(len(classes), np.nan)
        for at, number in enumerate(classes.tolist() if base is not None else ()):
            profile = base.profile(state.equivalences.names[number], machine_type) if base else None
            mean = profile.mean(Metric.RUNTIME_NS) if profile is not None else None
            found[at] = np.nan if mean is None else mean / _NS
        return found

    def expected(self, state: ClusterState, tasks: Ints) -> Floats:
        """The description's word, then the profile's on any machine, then ``unknown``; shape (n,)."""
        told = self.told(state, tasks)
        silent = np.isnan(told)
        if silent.any():
            classes, which = np.unique(state.tasks.equivalence[tasks[silent]], return_inverse=True)
            told[silent] = self.profiled(state, classes)[which]
        return np.where(np.isnan(told), self.unknown, told)
