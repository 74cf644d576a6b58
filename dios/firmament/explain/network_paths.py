"""Ways through a round's network, and what-if questions to it.

For: ``explain_task``. Not for: words.
"""

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
"""The length of a way that there is not."""


@dataclass(frozen=True, eq=False)
class Ways:
    """The cheapest ways from a task over the upper network, whether there is room on them or not."""

    length: Ints
    """(vertices,); ``FAR`` where no way leads."""
    last: Ints
    """(vertices,): the upper arc by which each vertex is reached, or ABSENT."""

    def arcs(self, vertex: int, tail: Ints) -> list[int]:
        """The upper arcs of the way to a vertex, in order."""
        found: list[int] = []
        while self.last[vertex] != ABSENT:
            found.append(int(self.last[vertex]))
            vertex = int(tail[found[-1]])
        return found[::-1]


def ways_from(start: Ints, cost: Ints, upper: UpperArcs, vertices: int, open_arcs: Flags) -> Ways:
    """From vertices ``start`` at ``cost`` on. There is no circle: as many passes as the network is deep."""
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
    return Ways(length, last)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A round's network with one thing changed."""

    network: RoundNetwork
    names: VertexNames
    algorithm: str
    limited: list[int]
    """Numbers of filters that let in fewer tasks than there are slots."""

    def waiting_arc(self, index: int) -> int:
        """The arc of the task at an index to its unscheduled aggregator; ABSENT when it has none."""
        rows = self.network.rows
        mine = np.arange(rows.start[index], rows.start[index + 1])
        found = mine[rows.kind[mine] == UNSCHEDULED]
        return int(found[0]) if len(found) else ABSENT

    def without(self, arc: int) -> FlowSolution:
        """The best that there is without one task arc."""
        problem = self.network.problem()
        capacity = problem.capacity.copy()
        capacity[arc] = 0
        return solve(replace(problem, capacity=capacity), self.algorithm)

    def with_slot(self, leaf: int, chain: set[int], arc: int) -> FlowSolution:
        """The best with one more slot at a leaf vertex, and with the task arc cheaper by 1.

        ``chain`` are the vertices of the leaf and of what stands above it: more room below is more room on
        the way down. Who is placed although waiting is cheaper by 1 is placed in every best solution.
        """
        problem, upper = self.network.problem(), self.network.upper
        shift = len(self.network.rows.target)
        capacity, cost = problem.capacity.copy(), problem.cost.copy()
        # Behind a filter with limits slots are not what limits.
        limited = np.isin(self.names.row[upper.tail], self.limited)
        limited &= self.names.kind[upper.tail] == VertexKind.ONLY
        down = np.isin(upper.head, list(chain)) & ~limited & (upper.capacity > 0)
        down &= self.names.kind[upper.tail] != VertexKind.CLASS
        capacity[shift:][down | ((upper.tail == leaf) & (upper.head == SINK))] += 1
        cost[arc] -= 1
        return solve(replace(problem, capacity=capacity, cost=cost), self.algorithm)
