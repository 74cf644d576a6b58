"""The residual network of a standard problem: each arc as two halves, grouped by the vertex they leave.

``OpenHalves`` keeps the halves with room apart from those without. In a scheduling network an aggregator is
the target of thousands of arcs and has flow on few of them, so a search for room looks only at those few.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Indices, Ints
from dios.firmament.solvers.standard import StandardProblem
from dios.kernels import kernel, no_refcount_kernel


class Halves(NamedTuple):
    """Half arcs in the order of the vertex that they leave.

    Those of vertex v are ``first[v]`` to ``first[v + 1]``. Each has its ``target``, its other half ``mate``,
    its remaining ``room``, and its ``cost``. Flow that is pushed along a half reduces its room and increases
    its mate's.
    """

    first: Ints
    target: Indices
    mate: Indices
    room: Ints
    cost: Ints


@kernel
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


def halves(standard: StandardProblem) -> tuple[Halves, Ints]:
    """Return the residual network without flow, and the place of each arc's forward half (K,)."""
    first, target, mate, room, cost, place = _halves(
        len(standard.supply), standard.tail, standard.head, standard.room, standard.cost
    )
    return Halves(first, target, mate, room, cost), place


@no_refcount_kernel
def saturate(graph: Halves, price: Ints, excess: Ints) -> None:
    """Fill every half arc of negative reduced cost in place; excess (V,) is updated."""
    for vertex in range(len(price)):
        for half in range(graph.first[vertex], graph.first[vertex + 1]):
            pushed = graph.room[half]
            other = graph.target[half]
            if pushed > 0 and graph.cost[half] + price[vertex] - price[other] < 0:
                graph.room[half] = 0
                graph.room[graph.mate[half]] += pushed
                excess[vertex] -= pushed
                excess[other] += pushed


class OpenHalves(NamedTuple):
    """The half arcs of v with room are ``order[first[v] : end[v]]``; ``slot`` is the place of each half."""

    order: Indices
    slot: Indices
    end: Ints


@kernel
def open_halves(graph: Halves) -> tuple[Indices, Indices, Ints]:
    """Return the columns of an :class:`OpenHalves` for the present network."""
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


@kernel
def _swap(opened: OpenHalves, half: int, place: int) -> None:
    """Exchange the places of a half arc and of the one at ``place``."""
    other, own = opened.order[place], opened.slot[half]
    opened.order[own], opened.order[place] = other, half
    opened.slot[other], opened.slot[half] = own, place


@kernel
def push(graph: Halves, opened: OpenHalves, half: int, amount: int) -> None:
    """Send an amount above 0 along a half arc that has room for it, in place."""
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
