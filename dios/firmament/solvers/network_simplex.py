"""The primal network simplex method, with block search and strongly feasible spanning trees.

It serves networks of every shape. It is exact for every cost that fits a problem, because prices are sums of
at most V costs, and nothing is scaled.

A spanning tree carries all flow that is between the bounds of its arc (Ahuja, Magnanti and Orlin, "Network
Flows", §11.5). It starts as artificial arcs between a root and every vertex, which cost more than any path.
Each pivot lets one arc of the wrong reduced cost into the tree and removes one that is full or empty. The
leaving arc is the last such arc of the cycle from its top on (Cunningham 1976), so that the tree stays
strongly feasible and no sequence of pivots repeats itself.

Two choices keep a pivot short. A vertex' place in the tree is one row of eight numbers, which is one line of
a processor's cache. And the prices of the smaller part of the divided tree change, because only their
differences to the other part matter.
"""

from __future__ import annotations

from math import isqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dios.firmament.solvers.columns import Indices, Ints
from dios.firmament.solvers.feasibility import unsendable
from dios.firmament.solvers.potentials import potentials
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import NO_VERTICES, StandardProblem, StandardResult, solve_by
from dios.kernels import force_inlined_kernel, no_refcount_kernel
from dios.limits import FLOW_UNBOUNDED

PARENT: Final = 0
ARC: Final = 1
UP: Final = 2
DOWN: Final = 3
SIZE: Final = 4
LAST: Final = 5
BEFORE: Final = 6
COLUMNS: Final = 8
"""The numbers of a vertex' row: its parent, the tree arc to it, the room of that arc towards the parent and
from it, the size of its subtree, the last vertex of that in preorder, and the vertex before it.
"""

NONE: Final = -1
EMPTY: Final = 1
FULL: Final = -1
INSIDE: Final = 0
"""The states of an arc: outside the tree without flow, outside and full, or inside."""

BLOCK_MIN: Final = 10
BLOCK_SHARE: Final = 3
"""The best of a block of arcs enters the tree: half of BLOCK_SHARE times the root of their number, at least
BLOCK_MIN of them."""

DRIFT_MAX: Final = 2**60
"""The largest price of the root. Prices differ from it by less than 2**61, so that reduced costs fit."""

WORK, PIVOTS, POSITION = 0, 1, 2
"""The counters: arcs and vertices read, pivots made, and the arc at which the search goes on."""

NO_LIMIT: Final = 2**62


class SimplexArcs(NamedTuple):
    """The arcs in the order in which they are searched: ``state`` is EMPTY, FULL or INSIDE."""

    tail: Indices
    head: Indices
    room: Ints
    cost: Ints
    state: NDArray[np.int8]


class SimplexTree(NamedTuple):
    """The spanning tree: for each vertex and the root, which is the last, a row, ``after``, and a price.

    The next vertex in preorder is ``after``, a column of its own, because long parts of the preorder are
    read for nothing but prices. The arcs of the network are numbered from 0, and the artificial arcs of the
    vertices follow them.
    """

    row: NDArray[np.int64]
    after: Ints
    price: Ints


@force_inlined_kernel
def _entering(arcs: SimplexArcs, price: Ints, block: int, counters: Ints) -> int:
    """Return the arc of the worst reduced cost in the next block that has any, or NONE."""
    count = len(arcs.tail)
    worst, entering, read = 0, NONE, 0
    begin = counters[POSITION]
    while read < count:
        end = min(begin + block, count)
        for arc in range(begin, end):
            reduced = arcs.state[arc] * (arcs.cost[arc] + price[arcs.tail[arc]] - price[arcs.head[arc]])
            if reduced < worst:
                worst, entering = reduced, arc
        read += end - begin
        begin = end if end < count else 0
        if entering >= 0:
            break
    counters[POSITION] = begin
    counters[WORK] += read
    return entering


@force_inlined_kernel
def _leaving(row: NDArray[np.int64], first: int, second: int, room: int) -> tuple[int, int, int, int]:
    """Return the vertex below the arc that leaves, its side, the amount, and the top of the cycle.

    Flow goes from the top down to ``first``, along the entering arc to ``second``, and up again. The side is
    1 below ``first`` and 2 below ``second``; 0 if the entering arc itself is filled.
    """
    above, least = NONE, room
    below, last = NONE, FLOW_UNBOUNDED
    while first != second:
        if row[first, SIZE] < row[second, SIZE]:
            if row[first, DOWN] < least:
                above, least = first, row[first, DOWN]
            first = row[first, PARENT]
        else:
            if row[second, UP] <= last:
                below, last = second, row[second, UP]
            second = row[second, PARENT]
    if below >= 0 and last <= least:
        return below, 2, last, first
    if above >= 0:
        return above, 1, least, first
    return NONE, 0, room, first


@force_inlined_kernel
def _send(row: NDArray[np.int64], first: int, second: int, top: int, amount: int) -> int:
    """Send an amount around the cycle; return the number of its vertices."""
    steps = 0
    while first != top:
        row[first, DOWN] -= amount
        row[first, UP] += amount
        first = row[first, PARENT]
        steps += 1
    while second != top:
        row[second, UP] -= amount
        row[second, DOWN] += amount
        second = row[second, PARENT]
        steps += 1
    return steps


@force_inlined_kernel
def _cut(row: NDArray[np.int64], after_of: Ints, out: int, top: int) -> None:
    """Take the subtree of ``out`` out of the preorder, and out of the sizes below ``top``."""
    last, size = row[out, LAST], row[out, SIZE]
    before, after = row[out, BEFORE], after_of[last]
    after_of[before] = after
    row[after, BEFORE] = before
    vertex = row[out, PARENT]
    while vertex >= 0 and row[vertex, LAST] == last:
        row[vertex, LAST] = before
        vertex = row[vertex, PARENT]
    vertex = row[out, PARENT]
    while vertex != top:
        row[vertex, SIZE] -= size
        vertex = row[vertex, PARENT]


@force_inlined_kernel
def _turn(
    row: NDArray[np.int64],
    after_of: Ints,
    vertex: int,
    out: int,
    parent: int,
    arc: int,
    room_up: int,
    room_down: int,
) -> int:
    """Make ``vertex`` the root of the subtree of ``out``, below ``parent``; return the subtree's last vertex.

    The path between them turns round. The new preorder is the old subtree of each vertex of this path
    without that of the vertex before it, from ``vertex`` up.
    """
    start, size_all, size_before = vertex, row[out, SIZE], 0
    end = row[vertex, LAST]
    last, before, after = end, row[vertex, BEFORE], after_of[end]
    while True:
        above, old_arc = row[vertex, PARENT], row[vertex, ARC]
        old_up, old_down, old_size = row[vertex, UP], row[vertex, DOWN], row[vertex, SIZE]
        row[vertex, PARENT], row[vertex, ARC] = parent, arc
        row[vertex, UP], row[vertex, DOWN] = room_up, room_down
        row[vertex, SIZE] = size_all - size_before
        if vertex == out:
            break
        size_before = old_size
        parent, arc, room_up, room_down = vertex, old_arc, old_down, old_up
        piece_end, above_last, above_before = before, row[above, LAST], row[above, BEFORE]
        if above_last != last:
            after_of[before] = after
            row[after, BEFORE] = before
            piece_end, last, after = above_last, above_last, after_of[above_last]
        after_of[end] = above
        row[above, BEFORE] = end
        end, before, vertex = piece_end, above_before, above
    while vertex != start:
        row[vertex, LAST] = end
        vertex = row[vertex, PARENT]
    row[start, LAST] = end
    return int(end)


@force_inlined_kernel
def _hang(row: NDArray[np.int64], after_of: Ints, vertex: int, end: int, parent: int, top: int) -> None:
    """Put the subtree of ``vertex``, which ends with ``end``, right after ``parent`` into the preorder."""
    size, after = row[vertex, SIZE], after_of[parent]
    after_of[parent] = vertex
    row[vertex, BEFORE] = parent
    after_of[end] = after
    row[after, BEFORE] = end
    above = parent
    while above >= 0 and row[above, LAST] == parent:
        row[above, LAST] = end
        above = row[above, PARENT]
    above = parent
    while above != top:
        row[above, SIZE] += size
        above = row[above, PARENT]


@force_inlined_kernel
def _move_prices(tree: SimplexTree, vertex: int, end: int, change: int) -> int:
    """Add ``change`` to the prices of a subtree, or subtract it from all others; return their number."""
    row, after_of, price = tree.row, tree.after, tree.price
    root = len(price) - 1
    count = row[vertex, SIZE]
    if 2 * count > len(price) and -DRIFT_MAX <= price[root] - change <= DRIFT_MAX:
        count, change = len(price) - count, -change
        vertex, end = after_of[end], row[vertex, BEFORE]
    price[vertex] += change
    while vertex != end:
        vertex = after_of[vertex]
        price[vertex] += change
    return int(count)


@force_inlined_kernel
def _pivot(arcs: SimplexArcs, tree: SimplexTree, entering: int) -> int:
    """Let an arc into the tree, and another one out; return the number of vertices that were read."""
    row = tree.row
    tail, head = int(arcs.tail[entering]), int(arcs.head[entering])
    forward = arcs.state[entering] == EMPTY
    first, second = (tail, head) if forward else (head, tail)
    room = arcs.room[entering]
    out, side, amount, top = _leaving(row, first, second, room)
    steps = _send(row, first, second, top, amount)
    if side == 0:
        arcs.state[entering] = FULL if forward else EMPTY
        return steps
    old_arc = row[out, ARC]
    if old_arc < len(arcs.tail):
        arcs.state[old_arc] = EMPTY if (arcs.tail[old_arc] == out) == (side == 1) else FULL
    arcs.state[entering] = INSIDE
    reduced = arcs.cost[entering] + tree.price[tail] - tree.price[head]
    vertex, parent, room_up, room_down = first, second, room - amount, amount
    if side == 2:
        vertex, parent, room_up, room_down = second, first, amount, room - amount
    _cut(row, tree.after, out, top)
    end = _turn(row, tree.after, vertex, out, parent, entering, room_up, room_down)
    _hang(row, tree.after, vertex, end, parent, top)
    return steps + _move_prices(tree, vertex, end, -reduced if vertex == tail else reduced)


@no_refcount_kernel
def pivots(arcs: SimplexArcs, tree: SimplexTree, block: int, counters: Ints, work_max: int) -> bool:
    """Make pivots until every reduced cost is right; return False if that takes more than ``work_max``."""
    while counters[WORK] <= work_max:
        arc = _entering(arcs, tree.price, block, counters)
        if arc < 0:
            return True
        counters[WORK] += _pivot(arcs, tree, arc)
        counters[PIVOTS] += 1
    return False


def _new_tree(supply: Ints, arcs: int, price: int) -> SimplexTree:
    """Return the tree of artificial arcs that carry all supplies; ``price`` is the cost of such an arc."""
    vertices = len(supply)
    row = np.zeros((vertices + 1, COLUMNS), np.int64)
    own = np.arange(vertices)
    sends = supply >= 0
    row[:-1, PARENT], row[:-1, ARC] = vertices, arcs + own
    row[:-1, UP] = np.where(sends, FLOW_UNBOUNDED - supply, -supply)
    row[:-1, DOWN] = np.where(sends, supply, FLOW_UNBOUNDED + supply)
    row[:-1, SIZE], row[:-1, LAST] = 1, own
    row[vertices, [PARENT, ARC, SIZE, LAST]] = NONE, NONE, vertices + 1, vertices - 1
    row[:, BEFORE] = np.arange(vertices + 1) - 1
    row[0, BEFORE] = vertices
    after = (np.arange(vertices + 1) + 1) % (vertices + 1)
    return SimplexTree(row, after, np.append(np.where(sends, -price, price), 0))


def block_size(arcs: int) -> int:
    """Return the number of arcs of a block."""
    return max(isqrt(arcs) * BLOCK_SHARE // 2, BLOCK_MIN)


class SimplexState(NamedTuple):
    """The state between two pivots.

    ``order`` (K,) are the arcs of the problem in the order in which they are searched, and ``sent`` (V,) is
    the flow of each vertex' artificial arc to the root before the first pivot.
    """

    arcs: SimplexArcs
    tree: SimplexTree
    sent: Ints
    order: Ints


def start(standard: StandardProblem) -> SimplexState:
    """Return the state before the first pivot."""
    vertices, count = len(standard.supply), len(standard.kept)
    arcs, order = searched_arcs(standard)
    # Arcs of negative cost begin full, as most of them end. Most of the pivots of a circulation are saved.
    gains = arcs.cost < 0
    arcs.state[gains] = FULL
    sent = standard.supply.copy()
    np.subtract.at(sent, arcs.tail[gains], arcs.room[gains])
    np.add.at(sent, arcs.head[gains], arcs.room[gains])
    tree = _new_tree(sent, count, (int(np.abs(arcs.cost).max(initial=0)) + 1) * vertices)
    return SimplexState(arcs, tree, sent, order)


def searched_arcs(standard: StandardProblem) -> tuple[SimplexArcs, Ints]:
    """Return the arcs, without flow, in the order in which they are searched, and that order.

    Arcs that are far apart follow each other, because neighbours often leave the same vertex.
    """
    count = len(standard.kept)
    step = max(isqrt(count), BLOCK_MIN)
    numbers = np.arange(count, dtype=np.int64)
    order = numbers[np.argsort(numbers % step, kind="stable")]
    tail, head = standard.tail[order].astype(np.int32), standard.head[order].astype(np.int32)
    state = np.full(count, EMPTY, np.int8)
    return SimplexArcs(tail, head, standard.room[order], standard.cost[order], state), order


def _flow(state: SimplexState) -> Ints:
    """Return the flow of all arcs (K,), in the order of the problem."""
    arcs, row = state.arcs, state.tree.row[:-1]
    below = np.flatnonzero(row[:, ARC] < len(arcs.tail))
    inside = row[below, ARC]
    flow = np.where(arcs.state == FULL, arcs.room, 0)
    # The flow of an arc is its room towards its tail.
    flow[inside] = np.where(arcs.tail[inside] == below, row[below, DOWN], row[below, UP])
    ordered = np.empty_like(flow)
    ordered[state.order] = flow
    return ordered


def carries_unsent(state: SimplexState) -> bool:
    """Return True if an artificial arc still carries some of the flow that it began with."""
    row = state.tree.row[:-1]
    unsent = np.where(state.sent >= 0, row[:, DOWN], row[:, UP])
    return bool((unsent[row[:, ARC] >= len(state.order)] > 0).any())


def _stuck(standard: StandardProblem, flow: Ints) -> Ints:
    """Return the vertices that unsent supplies can reach: they have more to send than can leave them.

    Artificial arcs are so dear that the flow is a largest one, and then these vertices are the same for every
    largest flow.
    """
    excess = standard.supply.copy()
    np.subtract.at(excess, standard.tail, flow)
    np.add.at(excess, standard.head, flow)
    forth, back = flow < standard.room, flow > 0
    tail = np.concatenate([standard.tail[forth], standard.head[back]])
    head = np.concatenate([standard.head[forth], standard.tail[back]])
    price = np.where(excess > 0, -1, 0)
    potentials(len(price), tail, head, np.zeros_like(tail), price)
    return np.flatnonzero(price)


def result_of(standard: StandardProblem, state: SimplexState) -> StandardResult:
    """Return the result after the last pivot."""
    flow = _flow(state)
    stuck = _stuck(standard, flow) if carries_unsent(state) else NO_VERTICES
    return StandardResult(flow, state.tree.price[:-1], stuck)


def core(standard: StandardProblem) -> StandardResult:
    """Run the algorithm on a standard problem that can be solved; look for the others first.

    The last pivots of a problem without a solution would take many times as long as this search.
    """
    stuck = unsendable(standard)
    if stuck.size:
        return StandardResult(np.zeros_like(standard.room), None, stuck)
    state = start(standard)
    pivots(state.arcs, state.tree, block_size(len(state.order)), np.zeros(3, np.int64), NO_LIMIT)
    return result_of(standard, state)


def shortage(standard: StandardProblem) -> StandardResult:
    """Return where an infeasible problem is short: the same result for whichever algorithm asks."""
    return StandardResult(np.zeros_like(standard.room), None, unsendable(standard))


def run(problem: FlowProblem) -> FlowSolution:
    """Return the solution by the network simplex method."""
    return solve_by(core, problem, "network_simplex")
