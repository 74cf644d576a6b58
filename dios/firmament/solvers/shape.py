"""Is this network of scheduling shape? Then contracts it: tasks to rows of options, closed trees to one arc.

Tasks are vertices of supply 1 that nothing enters. All others are upper vertices; their arcs must be free of
cycles, and one of them must be a sink. ``expand`` gives the answer for the network as it was (thesis §6.2).

Not for: solving (``auction.py``, ``repair.py``), and not for networks of other shapes: those are told why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dios.firmament.solvers.columns import Indices, Ints, exact_sum, grouped, spans
from dios.firmament.solvers.problem import FlowProblem
from dios.firmament.solvers.repair_net import SINK, ArcColumns, Net, new_net
from dios.firmament.solvers.shape_inner import NO_PIECES, Pieces, Upper, convex_costs, fill_in
from dios.firmament.solvers.shape_rows import (
    classified,
    closed_vertices,
    row_columns,
    start_prices,
    topological,
)

PRICE_ROOM: Final = 2**60
"""Prices of the contracted network stay below this, which the certificate's bound holds twice."""


@dataclass(frozen=True, eq=False)
class Contracted:
    """A network of scheduling shape in its small form, and the way back.

    ``net`` with prices that hold for no flow at all and nobody seated, ``supply`` of its vertices.
    ``number`` (V,): a task's row, or -1 less the upper vertex. ``option_arc`` (O,) and ``upper_arc`` are arcs
    of the problem. ``order`` is that of ``net``'s vertices, ``dead`` the price of those without a way to
    the sink. ``vertex_of`` (U,): an upper vertex' vertex in ``net``, -1 for those taken in.
    ``kept`` (K,): the upper arcs that are the first K arcs of ``net``; the rest are pieces, of ``pieces_of``.
    """

    net: Net
    supply: Ints
    number: Ints
    option_arc: Indices
    upper: Upper
    upper_arc: Ints
    vertex_of: Ints
    kept: Ints
    pieces: Pieces
    pieces_of: Ints
    order: Ints
    dead: int


def _sink(problem: FlowProblem, leaves: Ints) -> int:
    """The vertex without arcs out that takes the most, -1 where nothing takes anything."""
    taking = np.where(leaves == 0, problem.supply, 0)
    sink = int(np.argmin(taking)) if len(taking) else 0
    return sink if len(taking) and taking[sink] < 0 else -1


def _upper(
    problem: FlowProblem, number: Ints, enters: Ints, sink: int, volume: int
) -> tuple[Upper, Ints, Ints] | str:
    """The network without tasks, its arcs in the problem, and lower bounds; or why it does not fit."""
    arcs = np.flatnonzero(number[problem.tail] < 0)
    head = -1 - number[problem.head[arcs]]
    lower = problem.lower[arcs]
    capacity = np.maximum(np.minimum(problem.capacity[arcs], volume + 1), lower)
    vertices = np.flatnonzero(number < 0)
    start, order = grouped(-1 - number[problem.tail[arcs]], len(vertices))
    topology = topological(head, start, order)
    if len(topology) < len(vertices):
        return "the arcs between the aggregates have a cycle"
    upper_sink = int(-1 - number[sink])
    lonely = ((enters[vertices] == 1) & (problem.supply[vertices] == 0)).astype(np.int64)
    closed = closed_vertices(head, lower, start, order, topology, lonely, upper_sink)
    return Upper(head, capacity, problem.cost[arcs], start, order, topology, closed, upper_sink), arcs, lower


def contract(problem: FlowProblem) -> Contracted | str:
    """The problem in its small form, or a sentence that says why it is not of scheduling shape."""
    if exact_sum(problem.supply):
        return "the supplies do not add up to 0"
    number, leaves, enters = classified(problem.supply, problem.tail, problem.head, problem.lower)
    tasks = int((number >= 0).sum())
    sink = _sink(problem, leaves)
    if sink < 0:
        return "no vertex without arcs out takes flow"
    volume = exact_sum(np.maximum(problem.supply, 0)) + exact_sum(problem.lower)
    if volume >= 2**40:
        return "there is more flow than tasks make"
    found = _upper(problem, number, enters, sink, volume)
    if isinstance(found, str):
        return found
    upper, upper_arc, lower = found
    if int(np.maximum(problem.supply, 0).sum()) > 2 * tasks:
        return "most flow does not begin at tasks (vertices of supply 1 that nothing enters)"
    most = int(np.abs(problem.cost).max(initial=0)) + 1
    if most * (problem.vertices - tasks + 2) * 8 >= PRICE_ROOM:
        return "the costs are too large for prices of 64 bits"
    return _contracted(problem, number, upper, upper_arc, lower, most)


def _contracted(
    problem: FlowProblem, number: Ints, upper: Upper, upper_arc: Ints, lower: Ints, most: int
) -> Contracted:
    vertex_of = np.full(len(upper.closed), -1, np.int64)
    stays = upper.closed != 2
    stays[upper.sink] = False
    vertex_of[stays] = np.arange(1, int(stays.sum()) + 1)
    vertex_of[upper.sink] = SINK
    vertices = int(stays.sum()) + 1
    tail = -1 - number[problem.tail[upper_arc]]
    kept = np.flatnonzero(upper.closed[tail] == 0)
    # The tops of closed trees lead to the sink by their pieces instead.
    tops = np.flatnonzero(upper.closed == 1)
    pieces = convex_costs(upper) if len(tops) else NO_PIECES
    counts = pieces.end[tops] - pieces.start[tops] if len(tops) else tops
    pieces_of = np.repeat(tops, counts)
    places = spans(pieces.start[tops], counts) if len(tops) else tops
    none = np.zeros(len(places), np.int64)
    arcs = ArcColumns(
        np.concatenate([vertex_of[tail[kept]], vertex_of[pieces_of]]),
        np.concatenate([vertex_of[upper.head[kept]], none]),
        np.concatenate([lower[kept], none]),
        np.concatenate([upper.capacity[kept], pieces.units[places]]),
        np.concatenate([upper.cost[kept], pieces.cost[places]]),
    )
    begin, target, option_cost, option_arc, row = row_columns(
        number, problem.tail, problem.head, problem.capacity, problem.cost, vertex_of
    )
    net = new_net(vertices, arcs, begin, target, option_cost, row)
    order = vertex_of[upper.order]
    order, dead = order[order >= 0], most * (vertices + 1)
    start_prices(net, order, dead)
    supply = np.zeros(vertices, np.int64)
    own = np.flatnonzero(number < 0)[stays]
    supply[vertex_of[stays]] = problem.supply[own]
    return Contracted(
        net, supply, number, option_arc, upper, upper_arc, vertex_of, kept, pieces, pieces_of, order, dead
    )


def expand(problem: FlowProblem, small: Contracted) -> tuple[Ints, Ints]:
    """The flow (E,) and the prices (V,) of the problem, from the solved small form."""
    net = small.net
    flow = problem.lower.copy()
    flow[small.option_arc[net.seat]] = 1
    upper_flow = np.zeros(len(small.upper_arc), np.int64)
    upper_flow[small.kept] = net.flow[: len(small.kept)]
    price = net.price[np.maximum(small.vertex_of, 0)]
    if len(small.pieces.start):
        through = np.zeros(len(price), np.int64)
        np.add.at(through, small.pieces_of, net.flow[len(small.kept) :])
        fill_in(small.upper, small.pieces, through, price, upper_flow)
    flow[small.upper_arc] = upper_flow
    prices = np.empty(problem.vertices, np.int64)
    task = small.number >= 0
    prices[~task] = -price[-1 - small.number[~task]]
    prices[task] = -(net.option_cost[net.seat] + net.price[net.target[net.seat]])
    return flow, prices
