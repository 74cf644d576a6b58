"""Relaxation: dual ascent by single vertices and small sets, after Bertsekas and Tseng.

It is fast where most choices are free, as in a cluster with room (thesis §6.4.3), because it touches only
vertices with excess. In contended networks sets grow large and each step gains little: after a limit of work
the problem is handed over to cost scaling, and the solution's ``reason`` says so.

No residual arc ever has a negative reduced cost. From a vertex with excess a set grows along arcs of
reduced cost 0. If it meets a deficit, flow is sent there. If the set has more excess than its free arcs can
take, these are filled and its prices fall together until the next arc is free, which raises the dual cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dios.firmament.solvers import network_simplex
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import NO_VERTICES, StandardProblem, StandardResult, solve_by
from dios.kernels import kernel
from labs.solvers import cost_scaling
from labs.solvers.cost_scaling import NO_STOP, StoppedError
from labs.solvers.half_arcs import Halves, OpenHalves, halves, open_halves, push, saturate

WORK_MAX: Final = 60
"""The limit of half arcs that are read, as a multiple of their number; easy networks take some dozens."""

WORK_LEAST: Final = 1_000_000
"""The least limit, because handing over a small network never pays."""

DONE, STUCK, WORK_USED_UP, STOPPED = 0, 1, 2, 3
BEGIN, WAITING, WORK, SIZE, ROUND = 0, 1, 2, 3, 4

WIDE: Final = 256
"""The free arcs of a vertex with more arcs than this are not added up: one of them is likely to have room."""

ROOM_ENOUGH: Final = 2**58
"""The room that such a vertex is assumed to have: the set grows on, and prices fall when it cannot."""


class Growth(NamedTuple):
    """The columns of a growing set, each (V,) except ``counts``, which are five numbers: BEGIN to ROUND.

    ``members`` are in the order in which they joined. By vertex: ``inside`` is the round in which it joined,
    ``via`` the half arc by which, ``start`` where its search begins, and ``tried`` how far it has searched.
    ``offered`` is the room on the set's free arcs to an outer vertex, if that was ``seen`` in this round.
    ``queue`` has the vertices with excess, each once (``queued``).
    """

    members: Ints
    inside: Ints
    via: Ints
    start: Ints
    tried: Ints
    offered: Ints
    seen: Ints
    queue: Ints
    queued: Ints
    counts: Ints


def _new_growth(vertices: int) -> Growth:
    sizes = (*[vertices] * 9, 5)
    return Growth(*(np.zeros(size, np.int64) for size in sizes))


@kernel
def _enqueue(growth: Growth, excess: Ints, vertex: int) -> None:
    """Append a vertex with excess to the queue, unless it is in the queue."""
    if growth.queued[vertex] or excess[vertex] <= 0:
        return
    growth.queued[vertex] = 1
    end = growth.counts[BEGIN] + growth.counts[WAITING]
    growth.queue[end if end < len(excess) else end - len(excess)] = vertex
    growth.counts[WAITING] += 1


@kernel
def _join(graph: Halves, opened: OpenHalves, price: Ints, growth: Growth, vertex: int, via: int) -> int:
    """Add a vertex to the set; return the growth of the room on free arcs out of the set."""
    number = growth.counts[ROUND]
    growth.members[growth.counts[SIZE]] = vertex
    growth.counts[SIZE] += 1
    growth.inside[vertex] = number
    growth.via[vertex] = via
    # The search starts where there was room the last time; before that place there was none.
    growth.start[vertex] += growth.tried[vertex]
    growth.tried[vertex] = 0
    growth.counts[WORK] += 1
    if opened.end[vertex] - graph.first[vertex] > WIDE:
        return ROOM_ENOUGH
    growth.counts[WORK] += opened.end[vertex] - graph.first[vertex]
    free = -growth.offered[vertex] if growth.seen[vertex] == number else 0
    for place in range(graph.first[vertex], opened.end[vertex]):
        half = opened.order[place]
        other = graph.target[half]
        if growth.inside[other] == number or graph.cost[half] + price[vertex] != price[other]:
            continue
        if growth.seen[other] != number:
            growth.seen[other] = number
            growth.offered[other] = 0
        growth.offered[other] += graph.room[half]
        free += graph.room[half]
    return free


@kernel
def _ascend(graph: Halves, opened: OpenHalves, price: Ints, excess: Ints, growth: Growth) -> int:
    """Fill the free arcs out of the set, lower its prices until the next is free; return the fall or 0."""
    step = 0
    for member in range(growth.counts[SIZE]):
        vertex = growth.members[member]
        growth.counts[WORK] += opened.end[vertex] - graph.first[vertex] + 1
        # Backwards, because a half arc that is filled changes places with the last one.
        for place in range(opened.end[vertex] - 1, graph.first[vertex] - 1, -1):
            half = opened.order[place]
            other = graph.target[half]
            if growth.inside[other] == growth.counts[ROUND]:
                continue
            reduced = graph.cost[half] + price[vertex] - price[other]
            if reduced > 0:
                step = min(step, reduced) if step else reduced
                continue
            room = graph.room[half]
            push(graph, opened, half, room)
            excess[vertex] -= room
            excess[other] += room
            _enqueue(growth, excess, other)
    for member in range(growth.counts[SIZE]):
        vertex = growth.members[member]
        price[vertex] -= step
        _enqueue(growth, excess, vertex)
    return step


@kernel
def _augment(graph: Halves, opened: OpenHalves, excess: Ints, growth: Growth, root: int, end: int) -> None:
    """Send as much as fits from root to end along the arcs by which the set grew."""
    amount = min(excess[root], -excess[end])
    vertex = end
    while vertex != root:
        half = growth.via[vertex]
        amount = min(amount, graph.room[half])
        vertex = graph.target[graph.mate[half]]
    vertex = end
    while vertex != root:
        half = growth.via[vertex]
        push(graph, opened, half, amount)
        vertex = graph.target[graph.mate[half]]
    excess[root] -= amount
    excess[end] += amount


@kernel
def _next_free(graph: Halves, opened: OpenHalves, price: Ints, growth: Growth, vertex: int) -> int:
    """Return the next free half arc out of the set, from a member back along the path by which it joined.

    Depth first: a deficit is seldom next door, and often a few arcs away in any direction.
    """
    while True:
        begin = graph.first[vertex]
        size = opened.end[vertex] - begin
        place = begin + (growth.start[vertex] + growth.tried[vertex]) % max(size, 1)
        for tried in range(growth.tried[vertex], size):
            half = opened.order[place]
            other = graph.target[half]
            if (
                growth.inside[other] != growth.counts[ROUND]
                and graph.cost[half] + price[vertex] == price[other]
            ):
                growth.counts[WORK] += tried - growth.tried[vertex]
                growth.tried[vertex] = tried
                return int(half)
            place = place + 1 if place + 1 < opened.end[vertex] else begin
        growth.counts[WORK] += size - growth.tried[vertex]
        growth.tried[vertex] = size
        if growth.via[vertex] < 0:
            return -1
        vertex = graph.target[graph.mate[growth.via[vertex]]]


@kernel
def _reduce_excess(
    graph: Halves, opened: OpenHalves, price: Ints, excess: Ints, growth: Growth, root: int
) -> bool:
    """Send some of the root's excess, or raise the dual cost once; return False if neither is possible."""
    growth.counts[ROUND] += 1
    growth.counts[SIZE] = 0
    free = _join(graph, opened, price, growth, root, -1)
    gathered, newest = excess[root], root
    while True:
        if gathered > free:
            return _ascend(graph, opened, price, excess, growth) > 0
        half = _next_free(graph, opened, price, growth, newest)
        if half < 0:
            return _ascend(graph, opened, price, excess, growth) > 0
        other = newest = graph.target[half]
        if excess[other] < 0:
            growth.via[other] = half
            _augment(graph, opened, excess, growth, root, other)
            return True
        gathered += excess[other]
        free += _join(graph, opened, price, growth, other, half)


@kernel
def _relax(
    graph: Halves, opened: OpenHalves, price: Ints, excess: Ints, growth: Growth, work_max: int, stop: Ints
) -> int:
    """Remove the excess of every vertex in turn; return DONE, STUCK, TIRED or STOPPED."""
    for vertex in range(len(excess)):
        _enqueue(growth, excess, vertex)
    while growth.counts[WAITING]:
        root = growth.queue[growth.counts[BEGIN]]
        growth.counts[BEGIN] = (growth.counts[BEGIN] + 1) % len(excess)
        growth.counts[WAITING] -= 1
        growth.queued[root] = 0
        while excess[root] > 0:
            if not _reduce_excess(graph, opened, price, excess, growth, root):
                return STUCK
            if growth.counts[WORK] > work_max:
                return WORK_USED_UP
            if stop[0]:
                return STOPPED
    return DONE


def core(standard: StandardProblem, stop: Ints) -> StandardResult:
    """Run the algorithm on a standard problem; raise :class:`StoppedError` soon after ``stop`` is not 0."""
    graph, place = halves(standard)
    price, excess = np.zeros(len(standard.supply), np.int64), standard.supply.copy()
    saturate(graph, price, excess)
    work_max = max(WORK_MAX * len(graph.target), WORK_LEAST)
    opened = OpenHalves(*open_halves(graph))
    ended = _relax(graph, opened, price, excess, _new_growth(len(excess)), work_max, stop)
    if ended == WORK_USED_UP:
        return replace(
            cost_scaling.core(standard, stop), note="a contended network: handed over to cost_scaling"
        )
    if ended == STOPPED:
        raise StoppedError("relaxation was stopped")
    if ended == STUCK:
        return network_simplex.shortage(standard)
    return StandardResult(standard.room - graph.room[place], price, NO_VERTICES)


def run(problem: FlowProblem, stop: Ints = NO_STOP) -> FlowSolution:
    """Return the solution by relaxation; ``stop`` (1,) ends it early."""
    return solve_by(lambda standard: core(standard, stop), problem, "relaxation")
