"""Successive shortest paths: Dijkstra's algorithm with potentials, and many paths by one search.

It is exact for every cost that fits a problem, without scaling; other algorithms hand over to it. In large
oversubscribed networks it searches far for every unit, and cost scaling is faster.

At the start negative arcs are filled: then no residual arc has a negative reduced cost, and none ever gets
one. A search backward from all deficits lowers prices until each excess has a path of reduced cost 0, and a
depth-first search sends as much as possible along those. The last few excesses have a search each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.half_arcs import Halves, halves, saturate
from dios.firmament.solvers.heap import pop, push_or_raise
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import NO_VERTICES, StandardProblem, StandardResult, solve_by
from dios.kernels import kernel

FAR: Final = 2**63 - 1
FORWARD, BACKWARD = 1, -1
ALONE_MAX: Final = 16
"""The number of excesses up to which each is searched for alone, because a common search is wide."""

REPEAT_SHARE: Final = 16
"""A common search is not repeated if it removed fewer than one of this many excesses."""


class PathSearch(NamedTuple):
    """The columns of a search, each (V,), made once for all searches.

    ``reached`` holds the ``number[0]`` vertices whose distance is not FAR. ``state`` and ``current`` belong
    to the depth-first search: a vertex is untouched in the round, open, on the path, or dead.
    """

    distance: Ints
    heap: Ints
    position: Ints
    reached: Ints
    number: Ints
    state: Ints
    current: Ints
    path: Ints


def new_search(vertices: int) -> PathSearch:
    """Return empty columns for a network with this number of vertices."""
    far = np.full(vertices, FAR, np.int64)
    blank = [np.zeros(vertices, np.int64) for _ in range(5)]
    heap, reached, state, current, path = blank
    return PathSearch(
        far, heap, np.full(vertices, -1, np.int64), reached, np.zeros(1, np.int64), state, current, path
    )


@kernel
def _start(search: PathSearch, excess: Ints, only: int, direction: int) -> int:
    """Put ``only``, or all excesses (backward: deficits), at distance 0; return the heap's size."""
    for place in range(search.number[0]):
        vertex = search.reached[place]
        search.distance[vertex] = FAR
        search.position[vertex] = -1
    search.number[0] = 0
    size = 0
    for vertex in range(len(excess)) if only < 0 else range(only, only + 1):
        if direction * excess[vertex] > 0:
            search.distance[vertex] = 0
            size = push_or_raise(search.heap, search.position, size, search.distance, vertex)
            search.reached[search.number[0]] = vertex
            search.number[0] += 1
    return size


@kernel
def _scan(graph: Halves, price: Ints, search: PathSearch, size: int, vertex: int, direction: int) -> int:
    """Shorten the distances of a settled vertex' neighbours; return the heap's new size."""
    near = search.distance[vertex]
    for half in range(graph.first[vertex], graph.first[vertex + 1]):
        other = graph.target[half]
        room = graph.room[half] if direction == FORWARD else graph.room[graph.mate[half]]
        if room <= 0:
            continue
        length = near + direction * (graph.cost[half] + price[vertex] - price[other])
        if length < search.distance[other]:
            if search.distance[other] == FAR:
                search.reached[search.number[0]] = other
                search.number[0] += 1
            search.distance[other] = length
            size = push_or_raise(search.heap, search.position, size, search.distance, other)
    return size


@kernel
def _shorten(
    graph: Halves, price: Ints, excess: Ints, search: PathSearch, only: int, goals: int, direction: int
) -> bool:
    """Search until ``goals`` goals are settled, and make the arcs on shortest paths to them free.

    Return False if there are fewer goals: then no other vertex can ever be reached.
    """
    size = _start(search, excess, only, direction)
    far = 0
    while goals:
        if size == 0:
            return False
        vertex = search.heap[0]
        size = pop(search.heap, search.position, size, search.distance)
        far = search.distance[vertex]
        if direction * excess[vertex] < 0:
            goals -= 1
        if goals:
            size = _scan(graph, price, search, size, vertex, direction)
    for place in range(search.number[0]):
        vertex = search.reached[place]
        if search.distance[vertex] < far:
            price[vertex] += direction * (search.distance[vertex] - far)
    return True


@kernel
def _send(graph: Halves, excess: Ints, search: PathSearch, depth: int, root: int, end: int) -> None:
    """Send as much as fits from root to end along the path of ``depth`` half arcs."""
    amount = min(excess[root], -excess[end])
    for step in range(depth):
        amount = min(amount, graph.room[search.path[step]])
    for step in range(depth):
        half = search.path[step]
        graph.room[half] -= amount
        graph.room[graph.mate[half]] += amount
    excess[root] -= amount
    excess[end] += amount


@kernel
def _advance(graph: Halves, price: Ints, search: PathSearch, vertex: int, opened: int) -> int:
    """Return the next free half arc of ``vertex`` to a vertex that the search has not seen, or -1."""
    half = search.current[vertex]
    while half < graph.first[vertex + 1]:
        other = graph.target[half]
        if (
            graph.room[half] > 0
            and search.state[other] <= opened
            and graph.cost[half] + price[vertex] == price[other]
        ):
            search.current[vertex] = half
            return int(half)
        half += 1
    search.current[vertex] = half
    return -1


@kernel
def _drain(graph: Halves, price: Ints, excess: Ints, search: PathSearch, root: int, opened: int) -> None:
    """Send as much of the excess of ``root`` as possible along free arcs, depth first.

    States: below ``opened`` untouched in this round, ``opened``, on the path (+ 1), and dead (+ 2).
    """
    vertex, depth = root, 0
    while excess[root] > 0:
        if search.state[vertex] < opened:
            search.current[vertex] = graph.first[vertex]
        search.state[vertex] = opened + 1
        if excess[vertex] < 0:
            _send(graph, excess, search, depth, root, vertex)
            search.state[vertex] = opened
            for step in range(depth):
                search.state[graph.target[graph.mate[search.path[step]]]] = opened
            vertex, depth = root, 0
            continue
        half = _advance(graph, price, search, vertex, opened)
        if half >= 0:
            search.path[depth] = half
            depth += 1
            vertex = graph.target[half]
            continue
        search.state[vertex] = opened + 2
        if depth == 0:
            return
        depth -= 1
        vertex = graph.target[graph.mate[search.path[depth]]]
        search.current[vertex] += 1


@kernel
def _set_aside(excess: Ints, aside: Ints, search: PathSearch) -> int:
    """Set the excesses aside that a search backward did not reach; return their number."""
    number = 0
    for vertex in range(len(excess)):
        if excess[vertex] > 0 and search.distance[vertex] == FAR:
            aside[vertex] = excess[vertex]
            excess[vertex] = 0
            number += 1
    return number


@kernel
def _search_together(
    graph: Halves, price: Ints, excess: Ints, aside: Ints, search: PathSearch, opened: int
) -> int:
    """Search backward for all excesses while that pays; return the next state of the depth-first search."""
    while True:
        left = 0
        for vertex in range(len(excess)):
            left += excess[vertex] > 0
        if left <= ALONE_MAX:
            return opened
        if not _shorten(graph, price, excess, search, -1, left, BACKWARD):
            _set_aside(excess, aside, search)
            continue
        opened += 3
        rid = 0
        for vertex in range(len(excess)):
            if excess[vertex] > 0:
                _drain(graph, price, excess, search, vertex, opened)
                rid += excess[vertex] == 0
        if rid * REPEAT_SHARE < left:
            return opened


@kernel
def _search_each(
    graph: Halves, price: Ints, excess: Ints, aside: Ints, search: PathSearch, opened: int
) -> None:
    """Search forward for each remaining excess."""
    for vertex in range(len(excess)):
        while excess[vertex] > 0:
            if not _shorten(graph, price, excess, search, vertex, 1, FORWARD):
                aside[vertex] = excess[vertex]
                excess[vertex] = 0
                break
            opened += 3
            _drain(graph, price, excess, search, vertex, opened)


def complete(graph: Halves, price: Ints, excess: Ints) -> Ints:
    """Send every excess to a deficit at the least cost, in place; no reduced cost may be negative.

    If that is impossible, send as much as possible and return the vertices that the rest could reach: they
    have more to send than can leave them, by the missing amount. Otherwise return none.
    """
    search, aside = new_search(len(price)), np.zeros_like(excess)
    opened = _search_together(graph, price, excess, aside, search, 1)
    _search_each(graph, price, excess, aside, search, opened)
    if not aside.any():
        return NO_VERTICES
    _shorten(graph, price, aside, search, -1, 1, FORWARD)
    return np.flatnonzero(search.distance != FAR)


def core(standard: StandardProblem) -> StandardResult:
    """Run the algorithm on a standard problem."""
    graph, place = halves(standard)
    price = np.zeros(len(standard.supply), np.int64)
    excess = standard.supply.copy()
    saturate(graph, price, excess)
    stuck = complete(graph, price, excess)
    return StandardResult(standard.room - graph.room[place], price, stuck)


def shortage(standard: StandardProblem) -> StandardResult:
    """Return where an infeasible problem is short: the same result for whichever algorithm asks."""
    return core(replace(standard, cost=np.zeros_like(standard.cost)))


def run(problem: FlowProblem) -> FlowSolution:
    """Return the solution by successive shortest paths."""
    return solve_by(core, problem, "successive_shortest")
