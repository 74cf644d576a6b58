"""Cheapest paths through a round's network, and solutions of the network with one change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.network.export import VertexNames
from dios.firmament.network.flow_network import RoundNetwork
from dios.firmament.network.task_rows import UNSCHEDULED
from dios.firmament.network.upper_arcs import UpperArcs
from dios.firmament.network.vertices import SINK, VertexKind
from dios.firmament.solvers import FlowSolution, solve

FAR = 2**61
"""The length of a path that does not exist."""


@dataclass(frozen=True, eq=False)
class CheapestPaths:
    """The cheapest paths from a task over the upper network, on arcs with and without room."""

    length: Ints
    """(vertices,); ``FAR`` where no path leads."""
    last: Ints
    """(vertices,): the upper arc by which the path reaches each vertex, or ABSENT."""

    def arcs(self, vertex: int, tail: Ints) -> list[int]:
        """Return the upper arcs of the path to a vertex, in order."""
        arcs: list[int] = []
        while self.last[vertex] != ABSENT:
            arcs.append(int(self.last[vertex]))
            vertex = int(tail[arcs[-1]])
        return arcs[::-1]


def cheapest_paths(
    start: Ints, cost: Ints, upper: UpperArcs, vertices: int, open_arcs: Flags
) -> CheapestPaths:
    """Return the paths from the vertices ``start``, which cost ``cost`` to reach.

    The network has no cycles, so there are as many passes as it is deep.
    """
    length = np.full(vertices, FAR, np.int64)
    np.minimum.at(length, start, cost)
    tail, head, price = upper.tail[open_arcs], upper.head[open_arcs], upper.cost[open_arcs]
    while True:
        through = np.where(length[tail] < FAR, length[tail] + price, FAR)
        better = length.copy()
        np.minimum.at(better, head, through)
        if np.array_equal(better, length):
            break
        length = better
    last = np.full(vertices, ABSENT, np.int64)
    tight = np.flatnonzero(open_arcs)[(length[head] < FAR) & (through == length[head])]
    last[upper.head[tight]] = tight
    begins = np.zeros(vertices, np.bool_)
    begins[start[cost == length[start]]] = True
    last[begins] = ABSENT
    return CheapestPaths(length, last)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A round's network with one thing changed."""

    network: RoundNetwork
    names: VertexNames
    algorithm: str
    limited: list[int]
    """The numbers of filters that admit fewer tasks than there are slots."""

    def waiting_arc(self, index: int) -> int:
        """Return the arc of the task at an index to its unscheduled aggregator, or ABSENT."""
        rows = self.network.rows
        mine = np.arange(rows.start[index], rows.start[index + 1])
        unscheduled = mine[rows.kind[mine] == UNSCHEDULED]
        return int(unscheduled[0]) if len(unscheduled) else ABSENT

    def without(self, arc: int) -> FlowSolution:
        """Return the best solution without one task arc."""
        problem = self.network.problem()
        capacity = problem.capacity.copy()
        capacity[arc] = 0
        return solve(replace(problem, capacity=capacity), self.algorithm)

    def with_slot(self, leaf: int, chain: set[int], arc: int) -> FlowSolution:
        """Return the best solution with one more slot at a leaf vertex, and with the task arc cheaper by 1.

        ``chain`` are the vertices of the leaf and of its ancestors, whose incoming arcs get the slot as well.
        A task that is placed although waiting is cheaper by 1 is placed in every best solution.
        """
        problem, upper = self.network.problem(), self.network.upper
        shift = len(self.network.rows.target)
        capacity, cost = problem.capacity.copy(), problem.cost.copy()
        # Below a filter with limits, the limit is the bottleneck and not the slots.
        limited = np.isin(self.names.row[upper.tail], self.limited)
        limited &= self.names.kind[upper.tail] == VertexKind.ONLY
        down = np.isin(upper.head, list(chain)) & ~limited & (upper.capacity > 0)
        down &= self.names.kind[upper.tail] != VertexKind.CLASS
        capacity[shift:][down | ((upper.tail == leaf) & (upper.head == SINK))] += 1
        cost[arc] -= 1
        return solve(replace(problem, capacity=capacity, cost=cost), self.algorithm)
