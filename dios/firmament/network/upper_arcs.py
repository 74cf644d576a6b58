"""Arcs and supplies above the tasks: classes, the tree of resources, unscheduled aggregators, the sink.

Capacities are those of Table C.1. Not for: tasks' own arcs (``network_rows``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.network.model_answers import Answers, Questions
from dios.firmament.network.vertices import SINK, VertexKind, Vertices
from dios.firmament.policies.filters import Columns, Narrowing, TreeArcs

SHORTFALL_COST = 2**40 - 1
"""What each task costs that a job's E_j asks for and the cluster has no room for, where E_j is soft."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """How many tasks of each job run, by job row (Table C.1: E_j and F_j), and how many there are."""

    least: Ints
    most: Ints
    tasks: Ints
    """N_j: those in the network."""
    may_miss: Ints
    """How many of ``least`` may be missed where there is no other way; each missing task is dear."""

    def allowing(self, which: Flags) -> Bounds:
        """The same, where flagged jobs may miss all of ``least``."""
        return replace(self, may_miss=np.where(which, self.least, 0))


@dataclass(frozen=True, eq=False)
class UpperArcs:
    """Arcs between upper vertices; ``supply`` is (vertices,), the sink's left out."""

    tail: Ints
    head: Ints
    capacity: Ints
    cost: Ints
    supply: Ints


def tree_arcs(state: ClusterState, questions: Questions, answers: Answers) -> TreeArcs:
    """Costs and capacities down the tree, by the child's row; nothing new comes to a drained machine."""
    tree = state.resources
    cost = np.zeros(len(tree.alive), np.int64)
    capacity = np.zeros(len(tree.alive), np.int64)
    cost[questions.children] = answers.tree_cost
    capacity[questions.children] = answers.tree_capacity
    capacity[(tree.level == Level.MACHINE) & ~tree.usable] = 0
    return TreeArcs(cost, capacity)


def machine_of(state: ClusterState, vertices: Vertices) -> Ints:
    """(vertices,): the row of the machine that a vertex is or belongs to; ABSENT of all others."""
    found = np.full(vertices.used, ABSENT, np.int64)
    resources = vertices.all_of(VertexKind.RESOURCE)
    found[resources] = state.resources.machine[vertices.row[resources]]
    return found


def closed_vertices(state: ClusterState, vertices: Vertices) -> Flags:
    """(vertices,): resources of drained machines, where no new arc leads."""
    machine = machine_of(state, vertices)
    closed: Flags = (machine != ABSENT) & ~state.resources.usable[machine]
    return closed


def class_columns(answers: Answers, vertices: Vertices, closed: Flags) -> tuple[Ints, Ints, Ints, Ints]:
    """The arcs out of the model's classes: tail, head, capacity, cost."""
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
    questions: Questions,
    answers: Answers,
    narrowing: Narrowing,
    classes: tuple[Ints, Ints, Ints, Ints],
    bounds: Bounds,
    held: Ints,
) -> UpperArcs:
    """All arcs above the tasks. ``held``, by resource row, is how many tasks cannot leave each leaf."""
    found = Columns()
    tree, children, leaves = state.resources, questions.children, questions.leaves
    arcs = tree_arcs(state, questions, answers)
    found.add(*classes)
    narrowing.arcs(arcs, classes, found)
    found.add(
        vertices.resources(tree.parent[children]),
        vertices.resources(children),
        arcs.capacity[children],
        arcs.cost[children],
    )
    found.add(
        vertices.resources(leaves),
        np.full(len(leaves), SINK),
        np.maximum(tree.slots[leaves], held[leaves]),
        answers.leaf_cost,
    )
    jobs = questions.jobs
    waiting = vertices.jobs(jobs)
    sink = np.full(len(jobs), SINK)
    found.add(waiting, sink, (bounds.most - bounds.least)[jobs], answers.job_cost)
    if bounds.may_miss.any():
        found.add(waiting, sink, bounds.may_miss[jobs], np.full(len(jobs), SHORTFALL_COST))
    tail, head, capacity, cost = found.joined()
    supply = np.zeros(vertices.used, np.int64)
    supply[waiting] = (bounds.most - bounds.tasks)[jobs]
    return UpperArcs(tail, head, capacity, cost, supply)
