"""Arcs and supplies above the tasks: classes, the tree of resources, unscheduled aggregators, the sink.

Capacities are those of Table C.1. The tasks' own arcs are in ``task_rows``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.network.model_answers import ModelAnswers, ModelQuestions
from dios.firmament.network.vertices import SINK, VertexKind, Vertices
from dios.firmament.policies.filters import FilterColumns, Narrowing, TreeArcs

SHORTFALL_COST = 2**40 - 1
"""The cost of each task that E_j asks for and for which the cluster has no room, where E_j is soft."""


@dataclass(frozen=True, eq=False)
class JobBounds:
    """The bounds of the running tasks of each job, by job row (Table C.1: E_j and F_j)."""

    least: Ints
    most: Ints
    tasks: Ints
    """N_j: the number of tasks in the network."""
    may_miss: Ints
    """The part of ``least`` that may be missed if there is no other way; each missing task is expensive."""

    def allowing(self, which: Flags) -> JobBounds:
        """Return the same bounds, where flagged jobs may miss all of ``least``."""
        return replace(self, may_miss=np.where(which, self.least, 0))


@dataclass(frozen=True, eq=False)
class UpperArcs:
    """Arcs between upper vertices; ``supply`` is (vertices,), 0 for the sink."""

    tail: Ints
    head: Ints
    capacity: Ints
    cost: Ints
    supply: Ints


def tree_arcs(state: ClusterState, questions: ModelQuestions, answers: ModelAnswers) -> TreeArcs:
    """Return costs and capacities down the tree, by the child's row; a drained machine takes no new tasks."""
    tree = state.resources
    cost = np.zeros(len(tree.alive), np.int64)
    capacity = np.zeros(len(tree.alive), np.int64)
    cost[questions.children] = answers.tree_cost
    capacity[questions.children] = answers.tree_capacity
    capacity[(tree.level == Level.MACHINE) & ~tree.usable] = 0
    return TreeArcs(cost, capacity)


def machine_of(state: ClusterState, vertices: Vertices) -> Ints:
    """Return the row of the machine that each vertex is or belongs to, (vertices,); else ABSENT."""
    machines = np.full(vertices.used, ABSENT, np.int64)
    resources = vertices.all_of(VertexKind.RESOURCE)
    machines[resources] = state.resources.machine[vertices.row[resources]]
    return machines


def closed_vertices(state: ClusterState, vertices: Vertices) -> Flags:
    """Return flags for the resources of drained machines, (vertices,); no new arc leads there."""
    machine = machine_of(state, vertices)
    closed: Flags = (machine != ABSENT) & ~state.resources.usable[machine]
    return closed


def class_columns(answers: ModelAnswers, vertices: Vertices, closed: Flags) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the arcs out of the model's classes: tail, head, capacity, cost."""
    to, on = answers.class_resources, answers.class_classes
    tail = vertices.classes(np.concatenate([to.source, on.source]))
    head = np.concatenate([vertices.resources(to.target), vertices.classes(on.target)])
    capacity = np.concatenate([to.capacity, on.capacity])
    shut = np.zeros(vertices.used, np.bool_)
    shut[: len(closed)] = closed
    return tail, head, np.where(shut[head], 0, capacity), np.concatenate([to.cost, on.cost])


def upper_arcs(
    state: ClusterState,
    vertices: Vertices,
    questions: ModelQuestions,
    answers: ModelAnswers,
    narrowing: Narrowing,
    classes: tuple[Ints, Ints, Ints, Ints],
    bounds: JobBounds,
    held: Ints,
) -> UpperArcs:
    """Return all arcs above the tasks; ``held`` (by resource row) counts tasks that cannot leave."""
    columns = FilterColumns()
    tree, children, leaves = state.resources, questions.children, questions.leaves
    arcs = tree_arcs(state, questions, answers)
    columns.add(*classes)
    narrowing.arcs(arcs, classes, columns)
    columns.add(
        vertices.resources(tree.parent[children]),
        vertices.resources(children),
        arcs.capacity[children],
        arcs.cost[children],
    )
    columns.add(
        vertices.resources(leaves),
        np.full(len(leaves), SINK),
        np.maximum(tree.slots[leaves], held[leaves]),
        answers.leaf_cost,
    )
    jobs = questions.jobs
    waiting = vertices.jobs(jobs)
    sink = np.full(len(jobs), SINK)
    columns.add(waiting, sink, (bounds.most - bounds.least)[jobs], answers.job_cost)
    if bounds.may_miss.any():
        columns.add(waiting, sink, bounds.may_miss[jobs], np.full(len(jobs), SHORTFALL_COST))
    tail, head, capacity, cost = columns.joined()
    supply = np.zeros(vertices.used, np.int64)
    supply[waiting] = (bounds.most - bounds.tasks)[jobs]
    return UpperArcs(tail, head, capacity, cost, supply)
