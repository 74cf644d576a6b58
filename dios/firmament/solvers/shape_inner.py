"""Trees below a vertex that nobody else enters, as one convex cost: contracted before, filled in afterwards.

A closed vertex leads only to the sink and to closed vertices of which it is the one parent. What it costs to
send x units through it is convex, so a list of (cost of a unit, units), cheapest first, says it all.

Not for: finding out which vertices are closed (``shape.py``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.compiled import borrowing, compiled
from dios.firmament.solvers.columns import Ints

_UNLIMITED: Final = 2**60


class Pieces(NamedTuple):
    """Convex costs of vertices: those of v are ``start[v]`` to ``end[v]`` of ``cost`` and ``units``."""

    start: Ints
    end: Ints
    cost: Ints
    units: Ints


NO_PIECES: Final = Pieces(*(np.zeros(0, np.int64) for _ in Pieces._fields))


class Upper(NamedTuple):
    """The network without its tasks, as columns: arcs by their tails; ``order`` is topological.

    ``closed`` (U,) is 1 for the tops of closed trees, 2 for the vertices below them; ``sink`` is a vertex.
    """

    head: Ints
    capacity: Ints
    cost: Ints
    start: Ints
    arcs: Ints
    order: Ints
    closed: Ints
    sink: int


@borrowing
def _gathered(upper: Upper, pieces: Pieces, vertex: int, cost: Ints, units: Ints) -> int:
    """Copy all children's pieces, each cut to its arc's capacity, to ``cost`` and ``units``; how many."""
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


@compiled
def _sorted_pieces(cost: Ints, units: Ints, count: int) -> int:
    """Sort the first ``count`` pieces by cost and join those of equal cost, in place; how many are left."""
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


@borrowing
def _need(upper: Upper, pieces: Pieces, vertex: int) -> int:
    """How many pieces a vertex gathers at the most."""
    need = 0
    for place in range(upper.start[vertex], upper.start[vertex + 1]):
        child = upper.head[upper.arcs[place]]
        need += 1 if child == upper.sink else pieces.end[child] - pieces.start[child]
    return int(need)


@borrowing
def _uniform(cost: Ints, units: Ints, count: int) -> bool:
    """Whether all pieces, one at least, have one cost; then the first takes in the units of all."""
    for piece in range(1, count):
        if cost[piece] != cost[0]:
            return False
    for piece in range(1, count):
        units[0] += units[piece]
    return count > 0


@compiled
def convex_costs(upper: Upper) -> Pieces:
    """The convex cost of every closed vertex that has closed children or is one, (U,) pieces."""
    vertices = len(upper.start) - 1
    start, end = np.zeros(vertices, np.int64), np.zeros(vertices, np.int64)
    pieces = Pieces(start, end, np.empty(1024, np.int64), np.empty(1024, np.int64))
    cost, units = np.empty(1024, np.int64), np.empty(1024, np.int64)
    used = 0
    for place in range(len(upper.order) - 1, -1, -1):
        vertex = upper.order[place]
        if not upper.closed[vertex]:
            continue
        need = _need(upper, pieces, vertex)
        if need > len(cost):
            cost, units = np.empty(2 * need, np.int64), np.empty(2 * need, np.int64)
        count = _gathered(upper, pieces, vertex, cost, units)
        if _uniform(cost, units, count):
            count = 1
        else:
            count = _sorted_pieces(cost, units, count)
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


@borrowing
def _margins(pieces: Pieces, vertex: int, through: int) -> tuple[int, int]:
    """What the last unit of ``through`` cost, and what one more would: the slopes on both sides."""
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


@borrowing
def _below(pieces: Pieces, child: int, room: int, bound: int, sink: int) -> int:
    """How many units a child takes, within its arc's room, for less than ``bound`` each."""
    if child == sink:
        return room if bound > 0 else 0
    total = 0
    for piece in range(pieces.start[child], pieces.end[child]):
        if pieces.cost[piece] < bound:
            total += pieces.units[piece]
    return min(room, total)


@borrowing
def fill_in(upper: Upper, pieces: Pieces, through: Ints, price: Ints, flow: Ints) -> None:
    """Fill in the flow of the arcs below closed vertices, and the prices there, from the top.

    ``through`` (U,) is the flow into closed vertices, right at the tops of trees; ``price`` (U,) likewise
    (what a unit pays from there to the sink). ``flow`` is that of the upper network's arcs.
    """
    for vertex in upper.order:
        if not upper.closed[vertex]:
            continue
        margin, _ = _margins(pieces, vertex, through[vertex])
        left = through[vertex]
        first, last = upper.start[vertex], upper.start[vertex + 1]
        for arc in upper.arcs[first:last]:
            taken = _below(pieces, upper.head[arc], upper.capacity[arc], margin - upper.cost[arc], upper.sink)
            flow[arc] = taken
            left -= taken
        for arc in upper.arcs[first:last]:
            child = upper.head[arc]
            bound = margin - upper.cost[arc] + 1
            more = _below(pieces, child, upper.capacity[arc], bound, upper.sink) - flow[arc]
            flow[arc] += min(left, more)
            left -= min(left, more)
            if child != upper.sink:
                through[child] = flow[arc]
                below, above = _margins(pieces, child, flow[arc])
                price[child] = min(max(price[vertex] - upper.cost[arc], below), above)
