"""Recognises networks of scheduling shape and contracts them: tasks to rows of options, closed trees to arcs.

Tasks are vertices of supply 1 that no arc enters. All others are upper vertices; their arcs must be free of
cycles, and one of them must be a sink. ``expand`` computes the solution of the original network (thesis
§6.2).

A closed vertex leads only to the sink and to closed vertices of which it is the only parent. The cost of
sending x units through it is convex, so it is given by a list of pieces (cost of a unit, units), cheapest
first. For other shapes ``contract`` returns the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Indices, Ints, exact_sum, grouped, spans
from dios.firmament.solvers.problem import FlowProblem
from dios.firmament.solvers.repair import FAR, SINK, ArcColumns, Net, new_net
from dios.kernels import kernel, no_refcount_kernel

_UNLIMITED: Final = 2**60


class Pieces(NamedTuple):
    """Convex costs of vertices: those of v are ``start[v]`` to ``end[v]`` of ``cost`` and ``units``."""

    start: Ints
    end: Ints
    cost: Ints
    units: Ints


NO_PIECES: Final = Pieces(*(np.zeros(0, np.int64) for _ in Pieces._fields))


class UpperNetwork(NamedTuple):
    """The columns of the network without its tasks, arcs by their tails; ``order`` is topological.

    ``closed`` (U,) is 1 for the tops of closed trees, 2 for the vertices below them. ``sink`` is a vertex.
    """

    head: Ints
    capacity: Ints
    cost: Ints
    start: Ints
    arcs: Ints
    order: Ints
    closed: Ints
    sink: int


@no_refcount_kernel
def _gather_pieces(upper: UpperNetwork, pieces: Pieces, vertex: int, cost: Ints, units: Ints) -> int:
    """Copy all children's pieces, cut to their arcs' capacities, and return their number."""
    count = 0
    for place in range(upper.start[vertex], upper.start[vertex + 1]):
        arc = upper.arcs[place]
        child, room = upper.head[arc], upper.capacity[arc]
        if child == upper.sink:
            if room:
                cost[count], units[count] = upper.cost[arc], room
                count += 1
            continue
        for piece in range(pieces.start[child], pieces.end[child]):
            if room <= 0:
                break
            taken = min(room, pieces.units[piece])
            cost[count], units[count] = upper.cost[arc] + pieces.cost[piece], taken
            room -= taken
            count += 1
    return count


@kernel
def _sort_pieces(cost: Ints, units: Ints, count: int) -> int:
    """Sort ``count`` pieces by cost and join those of equal cost, in place; return the new count."""
    order = np.argsort(cost[:count], kind="mergesort")
    costs, amounts = cost[:count][order], units[:count][order]
    kept = 0
    for place in range(count):
        if kept and cost[kept - 1] == costs[place]:
            units[kept - 1] += amounts[place]
        else:
            cost[kept], units[kept] = costs[place], amounts[place]
            kept += 1
    return kept


@no_refcount_kernel
def _pieces_max(upper: UpperNetwork, pieces: Pieces, vertex: int) -> int:
    """Return the largest number of pieces that a vertex can gather."""
    need = 0
    for place in range(upper.start[vertex], upper.start[vertex + 1]):
        child = upper.head[upper.arcs[place]]
        need += 1 if child == upper.sink else pieces.end[child] - pieces.start[child]
    return int(need)


@no_refcount_kernel
def _join_if_uniform(cost: Ints, units: Ints, count: int) -> bool:
    """Return True if all pieces have one cost; then add the units of all to the first piece."""
    for piece in range(1, count):
        if cost[piece] != cost[0]:
            return False
    for piece in range(1, count):
        units[0] += units[piece]
    return count > 0


@kernel
def convex_costs(upper: UpperNetwork) -> Pieces:
    """Return the convex costs of all closed vertices in trees, (U,) pieces."""
    vertices = len(upper.start) - 1
    start, end = np.zeros(vertices, np.int64), np.zeros(vertices, np.int64)
    pieces = Pieces(start, end, np.empty(1024, np.int64), np.empty(1024, np.int64))
    cost, units = np.empty(1024, np.int64), np.empty(1024, np.int64)
    used = 0
    for place in range(len(upper.order) - 1, -1, -1):
        vertex = upper.order[place]
        if not upper.closed[vertex]:
            continue
        need = _pieces_max(upper, pieces, vertex)
        if need > len(cost):
            cost, units = np.empty(2 * need, np.int64), np.empty(2 * need, np.int64)
        count = _gather_pieces(upper, pieces, vertex, cost, units)
        if _join_if_uniform(cost, units, count):
            count = 1
        else:
            count = _sort_pieces(cost, units, count)
        if used + count > len(pieces.cost):
            room = 2 * (used + count)
            wider, longer = np.empty(room, np.int64), np.empty(room, np.int64)
            wider[:used], longer[:used] = pieces.cost[:used], pieces.units[:used]
            pieces = Pieces(start, end, wider, longer)
        for piece in range(count):
            pieces.cost[used + piece] = cost[piece]
            pieces.units[used + piece] = units[piece]
        start[vertex], end[vertex] = used, used + count
        used += count
    return pieces


@no_refcount_kernel
def _margins(pieces: Pieces, vertex: int, through: int) -> tuple[int, int]:
    """Return the cost of the last unit of ``through``, and the cost of one more."""
    below, above = -_UNLIMITED, _UNLIMITED
    passed = 0
    for piece in range(pieces.start[vertex], pieces.end[vertex]):
        if passed < through:
            below = pieces.cost[piece]
        passed += pieces.units[piece]
        if passed > through:
            above = pieces.cost[piece]
            break
    return below, above


@no_refcount_kernel
def _units_below(pieces: Pieces, child: int, room: int, bound: int, sink: int) -> int:
    """Return the number of units that a child takes, within its arc's room, for less than ``bound`` each."""
    if child == sink:
        return room if bound > 0 else 0
    total = 0
    for piece in range(pieces.start[child], pieces.end[child]):
        if pieces.cost[piece] < bound:
            total += pieces.units[piece]
    return min(room, total)


@no_refcount_kernel
def expand_closed(upper: UpperNetwork, pieces: Pieces, through: Ints, price: Ints, flow: Ints) -> None:
    """Fill in the flow of the arcs below closed vertices, and the prices there, from the top down.

    ``through`` (U,) is the flow into closed vertices and ``price`` (U,) the cost of a unit from there to the
    sink; both are given at the tops of trees. ``flow`` is that of the upper network's arcs.
    """
    for vertex in upper.order:
        if not upper.closed[vertex]:
            continue
        margin, _ = _margins(pieces, vertex, through[vertex])
        left = through[vertex]
        first, last = upper.start[vertex], upper.start[vertex + 1]
        for arc in upper.arcs[first:last]:
            taken = _units_below(
                pieces, upper.head[arc], upper.capacity[arc], margin - upper.cost[arc], upper.sink
            )
            flow[arc] = taken
            left -= taken
        for arc in upper.arcs[first:last]:
            child = upper.head[arc]
            bound = margin - upper.cost[arc] + 1
            more = _units_below(pieces, child, upper.capacity[arc], bound, upper.sink) - flow[arc]
            flow[arc] += min(left, more)
            left -= min(left, more)
            if child != upper.sink:
                through[child] = flow[arc]
                below, above = _margins(pieces, child, flow[arc])
                price[child] = min(max(price[vertex] - upper.cost[arc], below), above)


@kernel
def classify(supply: Ints, tail: Ints, head: Ints, lower: Ints) -> tuple[Ints, Ints, Ints]:
    """Return each vertex' number, the number of arcs that leave it, and of those that enter it.

    A task's number is its row, from 0. The others get -1 minus their number among the upper vertices.
    """
    vertices = len(supply)
    leaves, enters = np.zeros(vertices, np.int64), np.zeros(vertices, np.int64)
    bound = np.zeros(vertices, np.int8)
    for arc in range(len(tail)):
        leaves[tail[arc]] += 1
        enters[head[arc]] += 1
        if lower[arc] > 0:
            bound[tail[arc]] = 1
    number = np.empty(vertices, np.int64)
    tasks, others = 0, 0
    for vertex in range(vertices):
        if supply[vertex] == 1 and not enters[vertex] and leaves[vertex] and not bound[vertex]:
            number[vertex] = tasks
            tasks += 1
        else:
            others += 1
            number[vertex] = -others
    return number, leaves, enters


@kernel
def topological(head: Ints, start: Ints, arcs: Ints) -> Ints:
    """Return the vertices in topological order; not all of them if there is a cycle."""
    vertices = len(start) - 1
    waits = np.zeros(vertices, np.int64)
    for end in head:
        waits[end] += 1
    order = np.empty(vertices, np.int64)
    known = 0
    for vertex in range(vertices):
        if not waits[vertex]:
            order[known] = vertex
            known += 1
    done = 0
    while done < known:
        vertex = order[done]
        done += 1
        for index in range(start[vertex], start[vertex + 1]):
            arc = arcs[index]
            to = head[arc]
            waits[to] -= 1
            if not waits[to]:
                order[known] = to
                known += 1
    return order[:known]


@kernel
def closed_vertices(
    head: Ints, lower: Ints, start: Ints, arcs: Ints, order: Ints, lonely: Ints, sink: int
) -> Ints:
    """Return 2 for closed vertices below a closed parent, 1 for the tops of such trees, else 0, (U,).

    ``lonely`` (U,) is 1 for vertices without supply that exactly one arc enters.
    """
    vertices = len(start) - 1
    closed = np.zeros(vertices, np.int64)
    for place in range(vertices - 1, -1, -1):
        vertex = order[place]
        if vertex == sink:
            continue
        fits = 1
        for index in range(start[vertex], start[vertex + 1]):
            arc = arcs[index]
            to = head[arc]
            if lower[arc] > 0 or (to != sink and not (closed[to] and lonely[to])):
                fits = 0
                break
        closed[vertex] = fits
    status = np.zeros(vertices, np.int64)
    for vertex in range(vertices):
        if closed[vertex]:
            for index in range(start[vertex], start[vertex + 1]):
                arc = arcs[index]
                if head[arc] != sink:
                    status[head[arc]] = 2
                    status[vertex] = max(status[vertex], 1)
    return status


@kernel
def row_columns(
    number: Ints, tail: Ints, head: Ints, capacity: Ints, cost: Ints, vertex_of: Ints
) -> tuple[Ints, Indices, Ints, Indices, Indices]:
    """Return the tasks' options: the starts of rows (T + 1,), and (O,) targets, costs, arcs and rows.

    ``vertex_of`` (U,) is the contracted vertex of an upper one. Arcs without capacity are no options.
    """
    tasks = 0
    for value in number:
        if value >= 0:
            tasks += 1
    begin = np.zeros(tasks + 1, np.int64)
    for arc in range(len(tail)):
        task = number[tail[arc]]
        if task >= 0 and capacity[arc] > 0:
            begin[task + 1] += 1
    for task in range(tasks):
        begin[task + 1] += begin[task]
    options = begin[tasks]
    target, row = np.empty(options, np.int32), np.empty(options, np.int32)
    option_cost, option_arc = np.empty(options, np.int64), np.empty(options, np.int32)
    cursor = begin.copy()
    for arc in range(len(tail)):
        task = number[tail[arc]]
        if task >= 0 and capacity[arc] > 0:
            place = cursor[task]
            cursor[task] += 1
            target[place] = vertex_of[-1 - number[head[arc]]]
            option_cost[place] = cost[arc]
            option_arc[place] = arc
            row[place] = task
    return begin, target, option_cost, option_arc, row


@no_refcount_kernel
def start_prices(net: Net, order: Ints, dead: int) -> None:
    """Set each price to the cheapest path to the sink (``order`` is topological), or to ``dead``."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        if vertex == SINK:
            continue
        best = FAR
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            if net.capacity[arc] > net.lower[arc]:
                best = min(best, net.cost[arc] + net.price[net.head[arc]])
        net.price[vertex] = dead if best == FAR else best


PRICE_ROOM: Final = 2**60
"""The limit of prices in the contracted network, half of the certificate's bound."""


@dataclass(frozen=True, eq=False)
class Contracted:
    """A contracted network of scheduling shape, and the data to expand its solution.

    ``net`` has prices that are right without flow, and no task has an option. ``supply`` is by its
    vertices. ``number`` (V,): a task's row, or -1 minus the upper vertex. ``option_arc`` (O,) and
    ``upper_arc`` are arcs of the problem. ``order`` is a topological order of ``net``'s vertices, ``dead``
    the price of those without a path to the sink. ``vertex_of`` (U,): the vertex in ``net`` of an upper
    vertex, -1 inside closed trees. ``kept`` (K,): the upper arcs that are the first K arcs of ``net``; the
    rest are pieces, of ``pieces_of``.
    """

    net: Net
    supply: Ints
    number: Ints
    option_arc: Indices
    upper: UpperNetwork
    upper_arc: Ints
    vertex_of: Ints
    kept: Ints
    pieces: Pieces
    pieces_of: Ints
    order: Ints
    dead: int


def _sink(problem: FlowProblem, leaves: Ints) -> int:
    """Return the vertex without outgoing arcs that takes the most flow, or -1."""
    taking = np.where(leaves == 0, problem.supply, 0)
    sink = int(np.argmin(taking)) if len(taking) else 0
    return sink if len(taking) and taking[sink] < 0 else -1


def _upper(
    problem: FlowProblem, number: Ints, enters: Ints, sink: int, volume: int
) -> tuple[UpperNetwork, Ints, Ints] | str:
    """Return the network without tasks, its arcs in the problem, and lower bounds; or why it does not fit."""
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
    return (
        UpperNetwork(head, capacity, problem.cost[arcs], start, order, topology, closed, upper_sink),
        arcs,
        lower,
    )


def contract(problem: FlowProblem) -> Contracted | str:
    """Return the contracted problem, or a sentence that says why it has not the shape of scheduling."""
    if exact_sum(problem.supply):
        return "the supplies do not add up to 0"
    if problem.lower.min(initial=0) < 0:
        return "an arc has a negative lower bound"
    number, leaves, enters = classify(problem.supply, problem.tail, problem.head, problem.lower)
    tasks = int((number >= 0).sum())
    sink = _sink(problem, leaves)
    if sink < 0:
        return "no vertex without arcs out takes flow"
    volume = exact_sum(np.maximum(problem.supply, 0)) + exact_sum(problem.lower)
    if volume >= 2**40:
        return "there is more flow than tasks make"
    outcome = _upper(problem, number, enters, sink, volume)
    if isinstance(outcome, str):
        return outcome
    upper, upper_arc, lower = outcome
    if int(np.maximum(problem.supply, 0).sum()) > 2 * tasks:
        return "most flow does not begin at tasks (vertices of supply 1 that nothing enters)"
    most = int(np.abs(problem.cost).max(initial=0)) + 1
    if most * (problem.vertices - tasks + 2) * 8 >= PRICE_ROOM:
        return "the costs are too large for prices of 64 bits"
    return _contracted(problem, number, upper, upper_arc, lower, most)


def _contracted(
    problem: FlowProblem, number: Ints, upper: UpperNetwork, upper_arc: Ints, lower: Ints, most: int
) -> Contracted:
    vertex_of = np.full(len(upper.closed), -1, np.int64)
    stays = upper.closed != 2
    stays[upper.sink] = False
    vertex_of[stays] = np.arange(1, int(stays.sum()) + 1)
    vertex_of[upper.sink] = SINK
    vertices = int(stays.sum()) + 1
    tail = -1 - number[problem.tail[upper_arc]]
    kept = np.flatnonzero(upper.closed[tail] == 0)
    # The tops of closed trees lead to the sink by their pieces.
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
    """Return the flow (E,) and the prices (V,) of the problem from its solved contracted form."""
    net = small.net
    flow = problem.lower.copy()
    flow[small.option_arc[net.choice]] = 1
    upper_flow = np.zeros(len(small.upper_arc), np.int64)
    upper_flow[small.kept] = net.flow[: len(small.kept)]
    price = net.price[np.maximum(small.vertex_of, 0)]
    if len(small.pieces.start):
        through = np.zeros(len(price), np.int64)
        np.add.at(through, small.pieces_of, net.flow[len(small.kept) :])
        expand_closed(small.upper, small.pieces, through, price, upper_flow)
    flow[small.upper_arc] = upper_flow
    prices = np.empty(problem.vertices, np.int64)
    task = small.number >= 0
    prices[~task] = -price[-1 - small.number[~task]]
    prices[task] = -(net.option_cost[net.choice] + net.price[net.target[net.choice]])
    return flow, prices
