"""What a cost model is: Listing C.1 as a typed protocol whose methods work on vectors.

For: everybody who writes a policy. A model says how good and how bad places are; it never changes the
cluster, never sees the solver, and its answers are checked before they are used.
Not for: capacities that follow from the network itself (Table C.1) and policies that hold for every
model (constraints, gangs, fairness): those are the network's.

The network asks in this order, once each round, about what exists then:

1. ``begin`` tells of the state; then the statistics go from the leaves up (``prepare``, ``gather``).
2. ``task_options`` and ``task_classes``: where waiting and movable tasks may go; asked for tasks that are
   new and for those that ``stale_tasks`` names.
3. ``class_to_resources`` and ``class_to_classes``: where a class's flow goes on.
4. The remaining costs, as vectors.

Costs are int64, smaller is better, within ± ``COST_MAX``; negative ones are allowed. All methods are
called in one thread, with row numbers of the tables of ``ClusterState``. A class (equivalence class,
aggregator vertex) is any 63-bit integer that the model chooses; it lives while an arc leads to it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState

COST_MAX = 2**40
"""The largest absolute value of a cost that a model may give."""


class Options(NamedTuple):
    """Arcs from tasks to resources or classes; all arrays have one length.

    ``task`` indexes the vector of rows that was asked about (not the table), ascending; ``target`` is a
    resource row or a class; ``cost`` as above. At most one arc for a pair.
    """

    task: Ints
    target: Ints
    cost: Ints


class ClassArcs(NamedTuple):
    """Arcs from classes; all arrays have one length."""

    source: Ints
    """A class."""
    target: Ints
    """A resource row, or a class, after what was asked."""
    cost: Ints
    capacity: Ints


NO_OPTIONS = Options(*(np.zeros(0, np.int64) for _ in range(3)))
NO_CLASS_ARCS = ClassArcs(*(np.zeros(0, np.int64) for _ in range(4)))


@runtime_checkable
class CostModel(Protocol):
    """One scheduling policy. ``BaseModel`` (``models.base``) has defaults for all but the name."""

    name: str
    """What users call it: ``dios sched set-model NAME``."""
    summary: str
    """One line for ``dios sched models``."""

    # Machines, tasks and statistics (lines 35 to 44 of the listing) ---------------------------------

    def begin(self, state: ClusterState) -> None:
        """A round begins; ``state`` is the one that later questions are about."""
        ...

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """A machine came; ``machine`` is its row."""
        ...

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """A machine goes; its row is still there."""
        ...

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """Tasks came; their rows are filled."""
        ...

    def remove_task(self, state: ClusterState, task: int) -> None:
        """A task goes; its row is still there."""
        ...

    def prepare(self, state: ClusterState) -> None:
        """Before the statistics go up: set the leaves' own."""
        ...

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        """Add the children's statistics to their parents'; called for the deepest level first."""
        ...

    # Tasks ------------------------------------------------------------------------------------------

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Rows of known tasks whose options or classes have changed since they were asked for."""
        ...

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Preference arcs T -> resource: racks, machines, inner vertices, or the cluster vertex X."""
        ...

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Arcs T -> class; ``target`` is a class."""
        ...

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """What it costs to let each task wait one more round, shape (n,)."""
        ...

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """What it costs each running task to stay where it is, shape (n,)."""
        ...

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """What it costs to stop each running task and let it wait, shape (n,)."""
        ...

    # Aggregates and resources -----------------------------------------------------------------------

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        """The cost of U_j -> sink, shape (n,)."""
        ...

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Where each class's flow may go; capacity in tasks."""
        ...

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Arcs between classes; they must not lead in a circle."""
        ...

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """The cost of each arc down the tree, shape (n,)."""
        ...

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        """The cost of one task at each leaf, shape (n,)."""
        ...

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """The most tasks over each arc down the tree, running ones included; usually the slots below."""
        ...

    # For people ---------------------------------------------------------------------------------------

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """In words: what the cost of this task at this resource row is made of."""
        ...
