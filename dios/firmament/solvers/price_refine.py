"""An early end for cost scaling: prices that prove a flow optimal, if such prices are near.

Long before epsilon is 1 the flow is optimal in most networks; every further refinement moves it for nothing.

Not for: proving that a flow is not optimal. The search gives up after a bound of work, and scaling goes on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.compiled import compiled
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.half_arcs import Halves

LOWERED_MAX: Final = 6
"""So many times the number of vertices may prices be lowered; where it succeeds, two or three times do."""

PRICE_LOW: Final = -(2**62)
"""Prices that fall below this go around a negative cycle, and would leave 64 bits."""


@compiled
def whole_prices(graph: Halves, price: Ints, factor: int) -> bool:
    """Make ``price`` (V,) right for every residual arc, in multiples of ``factor``; False where that is far.

    Costs are multiples of ``factor`` too. Where it is False ``price`` is of no use any more.
    """
    vertices = len(price)
    queue, queued = np.arange(vertices), np.ones(vertices, np.bool_)
    for vertex in range(vertices):
        price[vertex] = price[vertex] // factor * factor
    begin, waiting, left = 0, vertices, LOWERED_MAX * vertices
    while waiting:
        vertex = queue[begin]
        begin = begin + 1 if begin + 1 < vertices else 0
        waiting -= 1
        queued[vertex] = False
        own = price[vertex]
        for half in range(graph.first[vertex], graph.first[vertex + 1]):
            other = graph.target[half]
            if graph.room[half] <= 0 or own + graph.cost[half] >= price[other]:
                continue
            price[other] = own + graph.cost[half]
            left -= 1
            if not queued[other]:
                queued[other] = True
                end = begin + waiting
                queue[end if end < vertices else end - vertices] = other
                waiting += 1
        if left < 0 or own < PRICE_LOW:
            return False
    return True
