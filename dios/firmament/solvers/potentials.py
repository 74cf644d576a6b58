"""Shortest-path potentials by label correction: prices for an optimal flow, or a negative cycle.

Inside a solver's loop prices keep lengths non-negative, and Dijkstra's algorithm is used instead.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.solvers.columns import Ints, grouped
from dios.kernels import kernel


@kernel
def _on_cycle(tail: Ints, parent: Ints) -> int:
    """Return a vertex on a cycle of parent arcs, or -1."""
    seen = np.zeros(len(parent), np.int64)
    for start in range(len(parent)):
        vertex = start
        while seen[vertex] == 0 and parent[vertex] >= 0:
            seen[vertex] = start + 1
            vertex = tail[parent[vertex]]
        if seen[vertex] == start + 1 and parent[vertex] >= 0:
            return vertex
        seen[vertex] = start + 1
    return -1


@kernel
def _correct(first: Ints, order: Ints, tail: Ints, head: Ints, length: Ints, price: Ints) -> tuple[int, Ints]:
    """Lower ``price`` in place until ``length + price[tail] - price[head] >= 0`` on every arc.

    Return a vertex on a cycle of parent arcs if that is impossible, else -1; and each vertex' parent arc.
    """
    vertices = len(price)
    parent = np.full(vertices, -1, np.int64)
    queue = np.arange(vertices)
    queued = np.ones(vertices, np.bool_)
    begin, waiting, lowered = 0, vertices, 0
    while waiting:
        vertex = queue[begin]
        begin = begin + 1 if begin + 1 < vertices else 0
        waiting -= 1
        queued[vertex] = False
        for position in range(first[vertex], first[vertex + 1]):
            arc = order[position]
            other = head[arc]
            if price[vertex] + length[arc] >= price[other]:
                continue
            price[other] = price[vertex] + length[arc]
            parent[other] = arc
            lowered += 1
            if not queued[other]:
                queued[other] = True
                end = begin + waiting
                queue[end if end < vertices else end - vertices] = other
                waiting += 1
        # A cycle of parents exists within V passes of the cycle in the network; the check costs O(V).
        if lowered > vertices:
            lowered = 0
            on_cycle = _on_cycle(tail, parent)
            if on_cycle >= 0:
                return on_cycle, parent
    return -1, parent


def potentials(vertices: int, tail: Ints, head: Ints, length: Ints, price: Ints) -> Ints:
    """Lower ``price`` (V,) in place until ``length + price[tail] - price[head] >= 0`` on every arc (E,).

    Return the arcs of a negative cycle, in order, if there is one (then ``price`` is not usable), else no
    arcs. O(VE) in the worst case, near O(E) if ``price`` is nearly right.
    """
    first, order = grouped(tail, vertices)
    vertex, parent = _correct(first, order, tail, head, length, price)
    cycle: list[int] = []
    start = vertex
    while vertex >= 0:
        cycle.append(int(parent[vertex]))
        vertex = int(tail[cycle[-1]])
        if vertex == start:
            break
    return np.array(cycle[::-1], np.int64)
