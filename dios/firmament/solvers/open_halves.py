"""The half arcs of a vertex that have room, apart from those that have none.

In a scheduling network an aggregator is the target of thousands of arcs and has flow on few of them: who asks
where its excess can go looks at those few only.

Not for: algorithms that look at the other direction, from a vertex to who could send to it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.compiled import compiled
from dios.firmament.solvers.columns import Indices, Ints
from dios.firmament.solvers.half_arcs import Halves


class Open(NamedTuple):
    """``order[first[v] : end[v]]`` are the half arcs of v with room; ``slot`` says where each stands."""

    order: Indices
    slot: Indices
    end: Ints


@compiled
def open_halves(graph: Halves) -> tuple[Indices, Indices, Ints]:
    """The columns of an :class:`Open` for a network as it is."""
    order = np.empty(len(graph.target), np.int32)
    slot = np.empty(len(graph.target), np.int32)
    end = graph.first[:-1].copy()
    for vertex in range(len(end)):
        closed = graph.first[vertex + 1]
        for half in range(graph.first[vertex], graph.first[vertex + 1]):
            if graph.room[half] > 0:
                place = end[vertex]
                end[vertex] += 1
            else:
                closed -= 1
                place = closed
            order[place] = half
            slot[half] = place
    return order, slot, end


@compiled
def _swap(opened: Open, half: int, place: int) -> None:
    """Let a half arc stand at another's place, and the other at its."""
    other, own = opened.order[place], opened.slot[half]
    opened.order[own], opened.order[place] = other, half
    opened.slot[other], opened.slot[half] = own, place


@compiled
def push(graph: Halves, opened: Open, half: int, amount: int) -> None:
    """Send an amount above 0 along a half arc that has the room, in place."""
    mate = graph.mate[half]
    vertex, other = graph.target[mate], graph.target[half]
    graph.room[half] -= amount
    if graph.room[half] == 0:
        opened.end[vertex] -= 1
        _swap(opened, half, opened.end[vertex])
    if graph.room[mate] == 0:
        _swap(opened, mate, opened.end[other])
        opened.end[other] += 1
    graph.room[mate] += amount
