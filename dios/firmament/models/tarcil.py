"""Tarcil (Table 8.6; Delimitrou et al., SoCC 2015): sample as many machines as the wanted quality needs.

It suits large clusters with short and long tasks. The quality of a place is between 0 and 1: the speed of a
task's class on the type of machine relative to its best type, and the free part of the machine. The number of
samples follows from the share of machines that are good enough: with n samples one of them is good with the
wanted confidence. If none is, the task waits for ``patience`` seconds (admission control), then it takes the
best sample.

Tarcil's schedulers work in parallel, as coordinators with a seed each do. The dynamic choice between sampling
and one central scheduler is not modelled.
"""

from __future__ import annotations

import math

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.cost_terms import (
    BadModelError,
    draws,
    not_negative,
    open_machines,
    unmoved,
    waiting_tasks,
    whole,
)
from dios.firmament.models.protocol import NO_OPTIONS, Options
from dios.firmament.models.trivial import TrivialModel
from dios.firmament.models.whare import Scores, scores

_LOAD = 0.5
"""The part of the quality that a full machine lacks."""
_COST = 1_000
_JUST_BELOW_1 = 1 - 1e-9


class TarcilModel(TrivialModel):
    """Sampling with a bound on quality.

    Args:
        seed: of the samples; use a different one for each scheduler.
        target: the quality that a sample should have, 0 to 1.
        confidence: the probability with which some sample should have it.
        samples: the most samples of a task in a round.
        patience: the number of seconds for which a task rejects samples below the target.
        waiting: the cost of waiting at once.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "tarcil"
    summary = "Tarcil: as many sampled machines as the wanted quality needs"

    def __init__(
        self,
        *,
        seed: int = 0,
        target: float = 0.8,
        confidence: float = 0.9,
        samples: int = 16,
        patience: float = 5.0,
        waiting: int = 100_000,
        per_second: int = 10,
    ) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, seed=seed, patience=patience)
        not_negative(self.name, 1, target=target, confidence=confidence)
        not_negative(self.name, 1_000, samples=samples)
        if samples == 0:
            raise BadModelError("model tarcil: samples must be above 0")
        self.seed = seed
        self.target = target
        self.confidence = min(confidence, _JUST_BELOW_1)
        self.samples = samples
        self.patience = patience
        self._scores: Scores | None = None

    def begin(self, state: ClusterState) -> None:
        """Drop the scores of the last round."""
        self._scores = None

    def quality(self, state: ClusterState, number: int, machines: Ints) -> Floats:
        """Return the quality of machines for a class (its number), shape (n,)."""
        known = self._scores
        if known is None or number >= len(known.number):
            present = np.unique(state.tasks.equivalence[state.tasks.all()])
            known = self._scores = scores(state, state.knowledge, present)
        table = state.resources
        speed = np.ones(len(machines))
        row = int(known.number[number])
        if row != ABSENT:
            mean = known.mean[row, table.machine_type[machines]]
            least = float(np.nanmin(known.mean[row]))
            # A type on which the class never ran counts as good.
            speed = np.where(np.isnan(mean), 1.0, least / np.maximum(mean, 1e-9))
        full = table.running[machines] / np.maximum(table.slots[machines], 1)
        qualities: Floats = np.clip(speed * (1 - _LOAD * full), 0.0, 1.0)
        return qualities

    def sample_size(self, quality: Floats) -> int:
        """Return the number of samples with which one has the target quality with the confidence."""
        below = float(np.mean(quality < self.target)) if len(quality) else 0.0
        if below <= 0.0:
            return 1
        if below >= 1.0:
            return self.samples
        wanted = math.ceil(math.log(1 - self.confidence) / math.log(below))
        return min(max(wanted, 1), self.samples)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the waiting tasks: they sample again in each round."""
        return waiting_tasks(state)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs to the samples of each task, at the quality that they lack."""
        machines = open_machines(state)
        if not len(machines) or not len(tasks):
            return NO_OPTIONS
        waited = state.tasks.waiting_time(tasks, state.now)
        numbers = state.tasks.equivalence[tasks]
        qualities = {
            class_number: self.quality(state, class_number, machines)
            for class_number in np.unique(numbers).tolist()
        }
        sizes = {class_number: self.sample_size(quality) for class_number, quality in qualities.items()}
        keys = state.tasks.id[tasks] + whole(np.floor(waited)) * (2**40 + 1)
        at: list[Ints] = []
        target: list[Ints] = []
        cost: list[Ints] = []
        for index, number in enumerate(numbers.tolist()):
            drawn = np.unique(draws(self.seed, keys[index : index + 1], sizes[number], len(machines))[0])
            quality = qualities[number][drawn]
            if waited[index] < self.patience:
                drawn, quality = drawn[quality >= self.target], quality[quality >= self.target]
            at.append(np.full(len(drawn), index))
            target.append(machines[drawn])
            cost.append(whole(_COST * (1 - quality)))
        return Options(*(np.concatenate(column).astype(np.int64) for column in (at, target, cost)))

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the quality of the machine, and the number of samples."""
        if running := unmoved(state, task):
            return running
        self.begin(state)
        number = int(state.tasks.equivalence[task])
        size = self.sample_size(self.quality(state, number, open_machines(state)))
        text = f"{size} samples for a quality of {self.target:g}"
        if state.resources.level[resource] < Level.MACHINE:
            return text
        machine = state.resources.machine[[resource]]
        return f"{text}; this machine has {float(self.quality(state, number, machine)[0]):.2f}"
