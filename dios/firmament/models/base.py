"""Defaults for cost models: the one to inherit from, and one for those who think in single arcs.

For: new policies; a model that only says where tasks may go is ten lines (``models.trivial``).
Not for: users of models.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.protocol import NO_CLASS_ARCS, NO_OPTIONS, ClassArcs, Options


def zeros(rows: Ints) -> Ints:
    """A cost of nothing for each row."""
    return np.zeros(len(rows), np.int64)


class BaseModel:
    """Every answer of a cost model that is nothing special: no options, no classes, no cost."""

    name = "base"
    summary = ""

    def begin(self, state: ClusterState) -> None:
        """Nothing to prepare."""

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """Nothing to note."""

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """Nothing to forget."""

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """Nothing to note."""

    def remove_task(self, state: ClusterState, task: int) -> None:
        """Nothing to forget."""

    def prepare(self, state: ClusterState) -> None:
        """No statistics."""

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        """No statistics."""

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Options do not change."""
        return np.zeros(0, np.int64)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """No preferences of their own."""
        return NO_OPTIONS

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """No classes."""
        return NO_OPTIONS

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Waiting costs nothing."""
        return zeros(tasks)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Staying costs nothing."""
        return zeros(tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Being stopped costs what waiting costs."""
        return self.task_to_unscheduled(state, tasks)

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        """The cost of waiting stands at the task's own arc."""
        return zeros(jobs)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """No classes."""
        return NO_CLASS_ARCS

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """No classes."""
        return NO_CLASS_ARCS

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """All branches are alike."""
        return zeros(children)

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        """All leaves are alike."""
        return zeros(leaves)

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """As many as there are slots below (Table C.1)."""
        return state.resources.slots[children].copy()

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Nothing beyond the number."""
        return ""


class PerArcModel(BaseModel):
    """A model written arc by arc, with the names of Listing C.1; the vectors are made by loops.

    Slower, and the easiest thing to write and to compare with the listing. The tests compare models
    that have both forms.
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
        """One after the other."""
        return _vector(self.task_to_unscheduled_cost(state, int(task)) for task in tasks)

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        """One after the other."""
        return _vector(self.unscheduled_to_sink_cost(state, int(job)) for job in jobs)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """One after the other."""
        return _options(
            (at, target, self.task_to_resource_cost(state, int(task), target))
            for at, task in enumerate(tasks)
            for target in self.task_preference_arcs(state, int(task))
        )

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """One after the other."""
        return _options(
            (at, target, self.task_to_class_cost(state, int(task), target))
            for at, task in enumerate(tasks)
            for target in self.task_equivalence_classes(state, int(task))
        )

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """One after the other."""
        return _vector(self.task_continuation_cost(state, int(task)) for task in tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """One after the other."""
        return _vector(self.task_preemption_cost(state, int(task)) for task in tasks)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """One after the other."""
        return _class_arcs(
            (int(each), target, *self.class_to_resource_cost(state, int(each), target))
            for each in classes
            for target in self.class_resource_arcs(state, int(each))
        )

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """One after the other."""
        return _class_arcs(
            (int(each), target, *self.class_to_class_cost(state, int(each), target))
            for each in classes
            for target in self.class_class_arcs(state, int(each))
        )

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """One after the other."""
        return _vector(
            self.resource_to_resource_cost(state, int(parent), int(child))
            for parent, child in zip(parents, children, strict=True)
        )

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        """One after the other."""
        return _vector(self.leaf_to_sink_cost(state, int(leaf)) for leaf in leaves)


def _vector(costs: Iterable[int]) -> Ints:
    return np.fromiter(costs, np.int64)


def _options(arcs: Iterable[tuple[int, int, int]]) -> Options:
    columns = np.array(list(arcs), np.int64).reshape(-1, 3).T
    return Options(*columns)


def _class_arcs(arcs: Iterable[tuple[int, int, int, int]]) -> ClassArcs:
    columns = np.array(list(arcs), np.int64).reshape(-1, 4).T
    return ClassArcs(*columns)
