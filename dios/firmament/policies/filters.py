"""Filters: the machines that a group of tasks may use in a round, and extra costs of some of them.

A filter expresses everything that narrows a task's choice: constraints, affinity, pinning, machines that
refused the task, and machines where it did not fit. All tasks with the same restrictions share a filter, so
the network grows with the number of kinds of restriction and not with the number of tasks (thesis §6.2.4,
§6.3.1).

A wildcard arc T -> X of a filtered task leads to a vertex of its own, "X, as far as the filter allows". From
there arcs lead to racks that are allowed completely, and to single machines of other racks.

``policies.restrictions`` decides which filter holds for which task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import ResourceTable
from dios.firmament.descriptors import Level
from dios.firmament.network.vertices import VertexKind, Vertices


@dataclass(frozen=True, eq=False)
class PlacementFilter:
    """The machines that one group of tasks may use; columns over the rows of the table of resources."""

    number: int
    allowed: Flags
    """True at the rows of allowed machines."""
    penalty: Ints
    """An addition to the cost of each machine, for unmet soft constraints."""
    limit: Ints | None = None
    """The number of the group's tasks that may come to each machine; None for its number of slots."""

    def same(self, other: PlacementFilter | None) -> bool:
        """Return True if tasks under both filters have the same arcs."""
        return (
            other is not None
            and same_limit(self.limit, other.limit)
            and np.array_equal(self.allowed, other.allowed)
            and np.array_equal(self.penalty, other.penalty)
        )


def same_limit(limit: Ints | None, other: Ints | None) -> bool:
    """Return True if two filters allow the same numbers of tasks."""
    if limit is None or other is None:
        return limit is other
    return np.array_equal(limit, other)


@dataclass(frozen=True, eq=False)
class TreeArcs:
    """The arcs down the tree of resources in a round: one into each row except the cluster's."""

    cost: Ints
    """By the child's row."""
    capacity: Ints


@dataclass
class FilterColumns:
    """Arcs between upper vertices, collected in columns."""

    tail: list[Ints] = field(default_factory=list)
    head: list[Ints] = field(default_factory=list)
    capacity: list[Ints] = field(default_factory=list)
    cost: list[Ints] = field(default_factory=list)

    def add(self, tail: Ints, head: Ints, capacity: Ints, cost: Ints) -> None:
        """Add arcs, as columns of one length."""
        self.tail.append(tail)
        self.head.append(head)
        self.capacity.append(capacity)
        self.cost.append(cost)

    def joined(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return all arcs: tail, head, capacity, cost."""
        empty = np.zeros(0, np.int64)
        tail, head, capacity, cost = (
            np.concatenate([empty, *part]) for part in (self.tail, self.head, self.capacity, self.cost)
        )
        return tail, head, capacity, cost


class Narrowing:
    """The filters of one round, applied to task arcs and to the aggregates behind them."""

    def __init__(self, tree: ResourceTable, vertices: Vertices, filters: dict[int, PlacementFilter]) -> None:
        self._tree = tree
        self._vertices = vertices
        self.filters = filters
        machines = tree.at(Level.MACHINE)
        self._machines: Ints = machines[np.argsort(tree.rack[machines], kind="stable")]
        """By rack."""
        self._racks: Ints = tree.rack[self._machines]
        self._vertex_of = np.full(len(tree.alive), ABSENT, np.int64)
        """Of machines and racks, by row."""
        for rows in (self._machines, np.unique(self._racks)):
            self._vertex_of[rows] = vertices.resources(rows)
        self._needed: list[tuple[int, int, int]] = []
        self._seen: dict[int, tuple[int, int]] = {}

    def options(self, filters: Ints, owner: Ints, target: Ints, cost: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the task arcs that the filters leave, with narrowed aggregates in place of aggregates."""
        if not len(target):
            return owner, target, cost
        keep = np.ones(len(target), np.bool_)
        target, cost = target.copy(), cost.copy()
        order = np.argsort(filters, kind="stable")
        numbers, starts = np.unique(filters[order], return_index=True)
        for number, start, end in zip(
            numbers.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True
        ):
            if number:
                at = order[start:end]
                target[at], cost[at], keep[at] = self._through(self.filters[number], target[at], cost[at])
        return owner[keep], target[keep], cost[keep]

    def _through(
        self, placement_filter: PlacementFilter, target: Ints, cost: Ints
    ) -> tuple[Ints, Ints, Flags]:
        """Return heads, costs, and which arcs remain, for arcs that lead on under a filter."""
        machine = self._machine_of(target)
        inside = machine != ABSENT
        at = np.where(inside, machine, 0)
        keep = ~inside | placement_filter.allowed[at]
        cost = cost + np.where(inside, placement_filter.penalty[at], 0)
        if not inside.all():
            above, inverse = np.unique(target[~inside], return_inverse=True)
            narrowed = np.array(
                [self.vertex(placement_filter.number, int(inner)) for inner in above], np.int64
            )
            target = target.copy()
            target[~inside] = narrowed[inverse]
        return target, cost, keep

    def _machine_of(self, target: Ints) -> Ints:
        resource = self._vertices.kind[target] == VertexKind.RESOURCE
        return np.where(
            resource, self._tree.machine[np.where(resource, self._vertices.row[target], 0)], ABSENT
        )

    def vertex(self, number: int, inner: int) -> int:
        """Return the vertex of ``inner`` under a filter; its arcs are added later."""
        vertex = self._vertices.key(("only", number, inner))
        if vertex not in self._seen:
            self._seen[vertex] = (number, inner)
            self._needed.append((vertex, number, inner))
        return vertex

    def changed(self, before: Mapping[int, PlacementFilter]) -> Ints:
        """Return the numbers of filters that have changed."""
        return np.array(
            [
                number
                for number, placement_filter in self.filters.items()
                if placement_filter is not before.get(number)
                and not placement_filter.same(before.get(number))
            ],
            np.int64,
        )

    def keep(self, numbers: Ints) -> None:
        """Keep the vertices of these filters, because tasks may lead there."""
        narrowed = self._vertices.all_of(VertexKind.ONLY)
        for vertex in narrowed[np.isin(self._vertices.row[narrowed], numbers)].tolist():
            self.vertex(int(self._vertices.row[vertex]), int(self._vertices.inner[vertex]))

    def vertices_in_use(self) -> Ints:
        """Return all narrowed vertices that are used in this round, ascending."""
        return np.array(sorted(self._seen), np.int64)

    def arcs(
        self, tree_arcs: TreeArcs, classes: tuple[Ints, Ints, Ints, Ints], columns: FilterColumns
    ) -> None:
        """Add the arcs out of all narrowed vertices, and of those that they lead to."""
        order = np.argsort(classes[0], kind="stable")
        tail, head, capacity, cost = (column[order] for column in classes)
        while self._needed:
            vertex, number, inner = self._needed.pop()
            placement_filter = self.filters[number]
            if self._vertices.kind[inner] == VertexKind.RESOURCE:
                self._tree_arcs(vertex, placement_filter, int(self._vertices.row[inner]), tree_arcs, columns)
                continue
            low, high = np.searchsorted(tail, [inner, inner + 1])
            heads, costs, keep = self._through(placement_filter, head[low:high], cost[low:high])
            some = capacity[low:high][keep]
            if placement_filter.limit is not None:
                machine = self._machine_of(heads[keep])
                some = np.where(machine != ABSENT, np.minimum(some, placement_filter.limit[machine]), some)
            columns.add(np.full(len(some), vertex), heads[keep], some, costs[keep])

    def _tree_arcs(
        self, vertex: int, placement_filter: PlacementFilter, row: int, arcs: TreeArcs, columns: FilterColumns
    ) -> None:
        """Add arcs from a narrowed rack or cluster vertex to complete racks and to single machines."""
        tree = self._tree
        from_cluster = tree.level[row] == Level.CLUSTER
        machines = self._machines
        if not from_cluster:
            low, high = np.searchsorted(self._racks, [row, row + 1])
            machines = machines[low:high]
        else:
            machines = self._whole_racks(vertex, placement_filter, arcs, columns)
        machines = machines[placement_filter.allowed[machines]]
        capacity, cost = arcs.capacity[machines], arcs.cost[machines] + placement_filter.penalty[machines]
        if from_cluster:
            cost = cost + arcs.cost[tree.rack[machines]]
            capacity = np.minimum(capacity, arcs.capacity[tree.rack[machines]])
        if placement_filter.limit is not None:
            capacity = np.minimum(capacity, placement_filter.limit[machines])
        columns.add(np.full(len(machines), vertex), self._vertex_of[machines], capacity, cost)

    def _whole_racks(
        self, vertex: int, placement_filter: PlacementFilter, arcs: TreeArcs, columns: FilterColumns
    ) -> Ints:
        """Add arcs to the racks that are allowed completely; return the machines of the others."""
        machines, racks = self._machines, self._racks
        whole = np.zeros(len(self._tree.alive), np.bool_)
        whole[racks] = True
        partly = ~placement_filter.allowed[machines] | (placement_filter.penalty[machines] != 0)
        if placement_filter.limit is not None:
            partly |= placement_filter.limit[machines] < arcs.capacity[machines]
        whole[racks[partly]] = False
        some = np.flatnonzero(whole)
        columns.add(np.full(len(some), vertex), self._vertex_of[some], arcs.capacity[some], arcs.cost[some])
        others: Ints = machines[~whole[racks]]
        return others
