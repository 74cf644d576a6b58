"""The interface of cost models: Listing C.1 as a typed protocol whose methods work on vectors.

A model gives the costs of places. It never changes the cluster and never sees the solver, and its answers are
checked before they are used. Capacities that follow from the network itself (Table C.1), and policies that
hold for every model (constraints, gangs, fairness), are in ``network`` and ``policies``.

The network asks once each round about what exists then, in this order:

1. ``begin`` passes the state; then the statistics go from the leaves up (``prepare``, ``gather``). 2.
``task_options`` and ``task_classes``: the places where waiting and movable tasks may go, for new tasks and
for
   those that ``stale_tasks`` names.
3. ``class_to_resources`` and ``class_to_classes``: the arcs that leave a class.
4. The remaining costs, as vectors.

A model that divides room does so among the tasks of the round alone (``TaskTable.takes_part``): others cannot
start, whatever it gives them.

Costs are int64, a smaller cost is better, within ± ``COST_MAX``; negative costs are allowed. All methods are
called in one thread, with row numbers of the tables of ``ClusterState``. A class (equivalence class,
aggregator vertex) is any 63-bit integer that the model chooses; it exists while an arc leads to it.
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

    ``task`` is an index into the vector of rows of the question (not into the table), ascending; ``target``
    is a resource row or a class; ``cost`` as above. There is at most one arc for a pair.
    """

    task: Ints
    target: Ints
    cost: Ints


class ClassArcs(NamedTuple):
    """Arcs from classes; all arrays have one length."""

    source: Ints
    """A class."""
    target: Ints
    """A resource row, or a class, depending on the method."""
    cost: Ints
    capacity: Ints


NO_OPTIONS = Options(*(np.zeros(0, np.int64) for _ in range(3)))
NO_CLASS_ARCS = ClassArcs(*(np.zeros(0, np.int64) for _ in range(4)))


@runtime_checkable
class CostModel(Protocol):
    """One scheduling policy. ``BaseModel`` (``models.base``) has defaults for all but the name."""

    name: str
    """The name in ``dios sched set-model NAME``."""
    summary: str
    """One line for ``dios sched models``."""

    # Machines, tasks and statistics (lines 35 to 44 of the listing) ---------------------------------

    def begin(self, state: ClusterState) -> None:
        """Begin a round; ``state`` is the one that later calls are about."""

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """React to a new machine; ``machine`` is its row."""

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """React to a machine that leaves; its row still exists."""

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """React to new tasks; their rows are filled."""

    def remove_task(self, state: ClusterState, task: int) -> None:
        """React to a task that leaves; its row still exists."""

    def prepare(self, state: ClusterState) -> None:
        """Set the statistics of the leaves, before ``gather`` is called."""

    def gather(self, state: ClusterState, parents: Ints, children: Ints) -> None:
        """Add the children's statistics to their parents'; called for the deepest level first."""

    # Tasks ------------------------------------------------------------------------------------------

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the rows of known tasks whose options or classes have changed since they were asked for."""

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return preference arcs T -> resource: racks, machines, inner vertices, or the cluster vertex X."""

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs T -> class; ``target`` is a class."""

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of waiting one more round for each task, shape (n,)."""

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of staying for each running task, shape (n,)."""

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of being stopped and waiting for each running task, shape (n,)."""

    # Aggregates and resources -----------------------------------------------------------------------

    def unscheduled_to_sink(self, state: ClusterState, jobs: Ints) -> Ints:
        """Return the cost of U_j -> sink, shape (n,)."""

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return arcs from classes to resources; the capacity is in tasks."""

    def class_to_classes(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return arcs between classes, without circles."""

    def resource_to_resource(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Return the cost of each arc down the tree, shape (n,)."""

    def leaf_to_sink(self, state: ClusterState, leaves: Ints) -> Ints:
        """Return the cost of one task at each leaf, shape (n,)."""

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Return the most tasks over each arc down the tree, with running ones; usually the slots below."""

    # Explanations -------------------------------------------------------------------------------------

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return in words the parts of the cost of this task at this resource row."""
