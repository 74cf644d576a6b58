"""The residual network of a standard problem: each arc as two halves, beside the others of their vertex.

Not for: networks that change their arcs (``incremental.py``), or any algorithm's own state. Prices and
excesses are plain columns beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.compiled import compiled
from dios.firmament.solvers.columns import Indices, Ints
from dios.firmament.solvers.standard import Standard


class Halves(NamedTuple):
    """Half arcs in the order of the vertex they leave.

    Those of vertex v stand at ``first[v]`` to ``first[v + 1]``. Each has its ``target``, its other half
    ``mate``, the ``room`` left on it, and its ``cost``. Flow pushed along a half leaves its room and enters
    its mate's.
    """

    first: Ints
    target: Indices
    mate: Indices
    room: Ints
    cost: Ints


@compiled
def _halves(
    vertices: int, tail: Ints, head: Ints, room: Ints, cost: Ints
) -> tuple[Ints, Indices, Indices, Ints, Ints, Ints]:
    arcs = len(tail)
    first = np.zeros(vertices + 1, np.int64)
    for arc in range(arcs):
        first[tail[arc] + 1] += 1
        first[head[arc] + 1] += 1
    for vertex in range(vertices):
        first[vertex + 1] += first[vertex]
    filled = first[:-1].copy()
    target = np.empty(2 * arcs, np.int32)
    mate = np.empty(2 * arcs, np.int32)
    left = np.zeros(2 * arcs, np.int64)
    price = np.empty(2 * arcs, np.int64)
    place = np.empty(arcs, np.int64)
    for arc in range(arcs):
        forth = filled[tail[arc]]
        filled[tail[arc]] += 1
        back = filled[head[arc]]
        filled[head[arc]] += 1
        target[forth], target[back] = head[arc], tail[arc]
        mate[forth], mate[back] = back, forth
        price[forth], price[back] = cost[arc], -cost[arc]
        left[forth] = room[arc]
        place[arc] = forth
    return first, target, mate, left, price, place


def halves(standard: Standard) -> tuple[Halves, Ints]:
    """The residual network of no flow, and where the forward half of each arc (K,) stands."""
    first, target, mate, room, cost, place = _halves(
        len(standard.supply), standard.tail, standard.head, standard.room, standard.cost
    )
    return Halves(first, target, mate, room, cost), place


@compiled
def saturate(graph: Halves, price: Ints, excess: Ints) -> None:
    """Fill every half arc of negative reduced cost, in place; excess (V,) is what a vertex has too much."""
    for vertex in range(len(price)):
        for half in range(graph.first[vertex], graph.first[vertex + 1]):
            pushed = graph.room[half]
            other = graph.target[half]
            if pushed > 0 and graph.cost[half] + price[vertex] - price[other] < 0:
                graph.room[half] = 0
                graph.room[graph.mate[half]] += pushed
                excess[vertex] -= pushed
                excess[other] += pushed
