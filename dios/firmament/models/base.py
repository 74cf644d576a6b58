"""Base classes of cost models: ``BaseModel`` with defaults, ``UnmovedModel``, and ``PerArcModel``.

A model that only lists places is ten lines long (``models.trivial``).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import stay, stop_nobody
from dios.firmament.models.protocol import NO_CLASS_ARCS, NO_OPTIONS, ClassArcs, CostModel, Options


def zeros(rows: Ints) -> Ints:
    """Return a cost of 0 for each row."""
    return np.zeros(len(rows), np.int64)


class BaseModel(CostModel):
    """The defaults of a cost model: no options, no classes, no costs."""

    name = "base"
    summary = ""
    inside = False
    """True if the model places tasks on parts of machines; the live scheduler describes these only then."""

    def begin(self, state: ClusterState) -> None:
        """Do nothing."""

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """Do nothing."""

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """Do nothing."""

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """Do nothing."""

    def remove_task(self, state: ClusterState, task: int) -> None:
        """Do nothing."""

    def prepare(self, state: ClusterState) -> None:
        """Do nothing: there are no statistics."""

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        """Do nothing: there are no statistics."""

    def stale_tasks(self, state: ClusterState) -> Ints:
        return np.zeros(0, np.int64)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        return NO_OPTIONS

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        return NO_OPTIONS

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        return zeros(tasks)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        return zeros(tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        return self.task_to_unscheduled(state, tasks)

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        return zeros(jobs)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        return NO_CLASS_ARCS

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        return NO_CLASS_ARCS

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        return zeros(children)

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        return zeros(leaves)

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        return state.resources.slots[children].copy()

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        return ""


class UnmovedModel(BaseModel):
    """A model that stops and moves no running task."""

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        return stay(tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        return stop_nobody(tasks)


class PerArcModel(BaseModel):
    """A model written arc by arc, with the names of Listing C.1; loops make the vectors.

    It is slow, and the easiest form to write and to compare with the listing. The tests compare models that
    have both forms.
    """

    def task_to_unscheduled_cost(self, state: ClusterState, task: int) -> int:
        """TaskToUnscheduledAggCost."""
        return 0

    def unscheduled_to_sink_cost(self, state: ClusterState, job: int) -> int:
        """UnscheduledAggToSinkCost."""
        return 0

    def task_preference_arcs(self, state: ClusterState, task: int) -> Iterable[int]:
        """GetTaskPreferenceArcs: resource rows."""
        return ()

    def task_to_resource_cost(self, state: ClusterState, task: int, resource: int) -> int:
        """TaskToResourceNodeCost."""
        return 0

    def task_equivalence_classes(self, state: ClusterState, task: int) -> Iterable[int]:
        """GetTaskEquivClasses."""
        return ()

    def task_to_class_cost(self, state: ClusterState, task: int, equivalence: int) -> int:
        """TaskToEquivClassAggregatorCost."""
        return 0

    def task_continuation_cost(self, state: ClusterState, task: int) -> int:
        """TaskContinuationCost."""
        return 0

    def task_preemption_cost(self, state: ClusterState, task: int) -> int:
        """TaskPreemptionCost."""
        return self.task_to_unscheduled_cost(state, task)

    def class_resource_arcs(self, state: ClusterState, equivalence: int) -> Iterable[int]:
        """GetOutgoingEquivClassPrefArcs: resource rows."""
        return ()

    def class_to_resource_cost(self, state: ClusterState, equivalence: int, resource: int) -> tuple[int, int]:
        """EquivClassToResourceNodeCost: the cost and the capacity."""
        return 0, int(state.resources.slots[resource])

    def class_class_arcs(self, state: ClusterState, equivalence: int) -> Iterable[int]:
        """GetEquivClassToEquivClassesArcs, the outgoing ones."""
        return ()

    def class_to_class_cost(self, state: ClusterState, equivalence: int, other: int) -> tuple[int, int]:
        """EquivClassToEquivClassCost: the cost and the capacity."""
        return 0, int(state.resources.slots[state.cluster])

    def resource_to_resource_cost(self, state: ClusterState, source: int, destination: int) -> int:
        """ResourceNodeToResourceNodeCost."""
        return 0

    def leaf_to_sink_cost(self, state: ClusterState, leaf: int) -> int:
        """LeafResourceNodeToSinkCost."""
        return 0

    # The vectors ------------------------------------------------------------------------------------

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        return _vector(self.task_to_unscheduled_cost(state, int(task)) for task in tasks)

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        return _vector(self.unscheduled_to_sink_cost(state, int(job)) for job in jobs)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        return _options(
            (at, target, self.task_to_resource_cost(state, int(task), target))
            for at, task in enumerate(tasks)
            for target in self.task_preference_arcs(state, int(task))
        )

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        return _options(
            (at, target, self.task_to_class_cost(state, int(task), target))
            for at, task in enumerate(tasks)
            for target in self.task_equivalence_classes(state, int(task))
        )

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        return _vector(self.task_continuation_cost(state, int(task)) for task in tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        return _vector(self.task_preemption_cost(state, int(task)) for task in tasks)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        return _class_arcs(
            (int(class_number), target, *self.class_to_resource_cost(state, int(class_number), target))
            for class_number in classes
            for target in self.class_resource_arcs(state, int(class_number))
        )

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        return _class_arcs(
            (int(class_number), target, *self.class_to_class_cost(state, int(class_number), target))
            for class_number in classes
            for target in self.class_class_arcs(state, int(class_number))
        )

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        return _vector(
            self.resource_to_resource_cost(state, int(parent), int(child))
            for parent, child in zip(parents, children, strict=True)
        )

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        return _vector(self.leaf_to_sink_cost(state, int(leaf)) for leaf in leaves)


def _vector(costs: Iterable[int]) -> Ints:
    return np.fromiter(costs, np.int64)


def _options(arcs: Iterable[tuple[int, int, int]]) -> Options:
    columns = np.array(list(arcs), np.int64).reshape(-1, 3).T
    return Options(*columns)


def _class_arcs(arcs: Iterable[tuple[int, int, int, int]]) -> ClassArcs:
    columns = np.array(list(arcs), np.int64).reshape(-1, 4).T
    return ClassArcs(*columns)
