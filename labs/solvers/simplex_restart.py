"""The network simplex continued from the flow of a similar network, for problems that change (§6.4.3).

It serves changes that are too many or reach too far for a repair (``repair``), in networks of any shape.

Any flow within the bounds is a start. The arcs with a flow between their bounds become the spanning tree,
together with arcs whose reduced cost was 0 at the former prices. The imbalance of a subtree is sent up the
tree as far as there is room, and an artificial arc carries the remainder, as such arcs carry all flow at the
start of ``network_simplex``. After changes of costs alone, no artificial arc carries anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.network_simplex import (
    ARC,
    BEFORE,
    COLUMNS,
    DOWN,
    DRIFT_MAX,
    EMPTY,
    FULL,
    INSIDE,
    LAST,
    NONE,
    PARENT,
    SIZE,
    UP,
    SimplexArcs,
    SimplexState,
    SimplexTree,
    block_size,
    pivots,
    result_of,
    searched_arcs,
)
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.standard import StandardProblem, StandardResult, solve_by
from dios.kernels import force_inlined_kernel, no_refcount_kernel
from dios.limits import FLOW_UNBOUNDED

WORK_SHARE: Final = 400
"""The most work, as a multiple of the number of arcs. A start from nothing takes 100 to 1,000; a restart on
networks of 40,000 arcs, after changes of 200 costs, usually less than 60, and 360 on circulations."""


@dataclass(frozen=True, eq=False)
class FormerSolution:
    """The flow (E,) and the prices (V,) from which a solution continues; the flow may break any bound."""

    flow: Ints
    prices: Ints


class _WorkUsedUpError(Exception):
    """The algorithm gave up."""


@no_refcount_kernel
def _candidates(arcs: SimplexArcs, flow: Ints, prices: Ints, start: Ints, near: Ints) -> None:
    """List for each vertex the arcs that may be in the tree: ``near`` from ``start`` (V + 2,) on.

    These have a flow between their bounds, or the reduced cost 0 and room for flow. ``near`` is (2 K,).
    """
    for turn in range(2):
        for arc in range(len(flow)):
            tail, head = arcs.tail[arc], arcs.head[arc]
            between = 0 < flow[arc] < arcs.room[arc]
            if not between and (arcs.cost[arc] + prices[tail] - prices[head] != 0 or arcs.room[arc] == 0):
                continue
            for vertex in (tail, head):
                if turn == 0:
                    start[vertex + 2] += 1
                else:
                    near[start[vertex + 1]] = arc
                    start[vertex + 1] += 1
        if turn == 0:
            for vertex in range(len(start) - 2):
                start[vertex + 2] += start[vertex + 1]


@force_inlined_kernel
def _join(arcs: SimplexArcs, flow: Ints, row: NDArray[np.int64], arc: int, parent: int) -> int:
    """Let an arc into the tree, below ``parent``; return its other end, or NONE if that is in the tree."""
    tail, head = int(arcs.tail[arc]), int(arcs.head[arc])
    child = head if tail == parent else tail
    if row[child, ARC] != NONE:
        return NONE
    rest = arcs.room[arc] - flow[arc]
    room_up = rest if child == tail else flow[arc]
    # Every vertex must be able to send up, so that no pivots repeat themselves.
    if room_up == 0:
        return NONE
    row[child, PARENT], row[child, ARC] = parent, arc
    row[child, UP], row[child, DOWN] = room_up, arcs.room[arc] - room_up
    arcs.state[arc] = INSIDE
    return child


@force_inlined_kernel
def _join_between(
    arcs: SimplexArcs, flow: Ints, row: NDArray[np.int64], start: Ints, near: Ints, order: Ints, seen: int
) -> int:
    """Join what hangs with the last vertex of ``order`` by arcs between their bounds; return the length."""
    waiting = seen - 1
    while waiting < seen:
        vertex = order[waiting]
        waiting += 1
        for place in range(start[vertex], start[vertex + 1]):
            arc = near[place]
            if 0 < flow[arc] < arcs.room[arc]:
                child = _join(arcs, flow, row, arc, vertex)
                if child >= 0:
                    order[seen] = child
                    seen += 1
    return seen


@no_refcount_kernel
def _spanning(
    arcs: SimplexArcs, flow: Ints, row: NDArray[np.int64], start: Ints, near: Ints, tops: Ints, order: Ints
) -> None:
    """Join all vertices into trees below artificial arcs; ``order`` (V,) lists parents before children.

    ``tops`` (V,) are the vertices in the order in which they begin a tree. ``row[:, ARC]`` begins as NONE.
    """
    seen, chosen = 0, 0
    for top in tops:
        if row[top, ARC] != NONE:
            continue
        row[top, PARENT], row[top, ARC] = len(order), len(flow) + top
        order[seen] = top
        seen = _join_between(arcs, flow, row, start, near, order, seen + 1)
        while chosen < seen:
            vertex = order[chosen]
            chosen += 1
            for place in range(start[vertex], start[vertex + 1]):
                arc = near[place]
                if flow[arc] == 0 or flow[arc] == arcs.room[arc]:
                    child = _join(arcs, flow, row, arc, vertex)
                    if child >= 0:
                        order[seen] = child
                        seen = _join_between(arcs, flow, row, start, near, order, seen + 1)


@no_refcount_kernel
def _balance(
    arcs: SimplexArcs, flow: Ints, row: NDArray[np.int64], order: Ints, excess: Ints, sent: Ints
) -> None:
    """Settle the other arcs, send imbalances up the tree, and what does not fit over artificial arcs.

    ``excess`` (V,) begins as the supplies. ``sent`` (V,) receives the flow of each vertex' artificial arc to
    the root.
    """
    root, count = len(order), len(flow)
    for arc in range(count):
        if arcs.state[arc] != INSIDE:
            full = flow[arc] > 0 and 2 * flow[arc] >= arcs.room[arc]
            arcs.state[arc] = FULL if full else EMPTY
            flow[arc] = arcs.room[arc] if full else 0
        excess[arcs.tail[arc]] -= flow[arc]
        excess[arcs.head[arc]] += flow[arc]
    for place in range(root - 1, -1, -1):
        vertex = order[place]
        arc, amount = row[vertex, ARC], excess[vertex]
        if arc < count:
            if -row[vertex, DOWN] <= amount < row[vertex, UP]:
                row[vertex, UP] -= amount
                row[vertex, DOWN] += amount
                excess[row[vertex, PARENT]] += amount
                continue
            up = amount > 0
            moved = row[vertex, UP] if up else -row[vertex, DOWN]
            excess[row[vertex, PARENT]] += moved
            amount -= moved
            arcs.state[arc] = FULL if (arcs.tail[arc] == vertex) == up else EMPTY
            row[vertex, PARENT], row[vertex, ARC] = root, count + vertex
        sent[vertex] = amount
        row[vertex, UP] = FLOW_UNBOUNDED - amount if amount >= 0 else -amount
        row[vertex, DOWN] = amount if amount >= 0 else FLOW_UNBOUNDED + amount


@no_refcount_kernel
def _number(
    arcs: SimplexArcs,
    tree: SimplexTree,
    links: NDArray[np.int64],
    order: Ints,
    sent: Ints,
    prices: Ints,
    far: int,
) -> None:
    """Find the preorder, sizes and prices of the tree; an artificial arc costs about ``far``.

    ``links`` (2, V + 1), which begins as NONE, is room for the children of each vertex.
    """
    root, count = len(order), len(arcs.cost)
    below, beside = links[0], links[1]
    row, after, price = tree.row, tree.after, tree.price
    for place in range(root - 1, -1, -1):
        parent = row[order[place], PARENT]
        beside[order[place]], below[parent] = below[parent], order[place]
    row[root, PARENT], row[root, ARC] = NONE, NONE
    for vertex in range(root + 1):
        row[vertex, SIZE], row[vertex, LAST] = 1, vertex
    vertex, previous = root, root
    while True:
        if vertex != root:
            arc = row[vertex, ARC]
            if arc >= count:
                price[vertex] = prices[vertex] + (far if sent[vertex] < 0 else -far)
            elif arcs.tail[arc] == vertex:
                price[vertex] = price[row[vertex, PARENT]] - arcs.cost[arc]
            else:
                price[vertex] = price[row[vertex, PARENT]] + arcs.cost[arc]
            after[previous], row[vertex, BEFORE] = vertex, previous
            previous = vertex
        if below[vertex] != NONE:
            vertex = below[vertex]
            continue
        while vertex != root and beside[vertex] == NONE:
            vertex = row[vertex, PARENT]
        if vertex == root:
            break
        vertex = beside[vertex]
    after[previous], row[root, BEFORE] = root, previous
    vertex = previous
    while vertex != root:
        parent = row[vertex, PARENT]
        row[parent, SIZE] += row[vertex, SIZE]
        if row[parent, LAST] == parent:
            row[parent, LAST] = row[vertex, LAST]
        vertex = row[vertex, BEFORE]


def _tree_of(
    standard: StandardProblem, arcs: SimplexArcs, flow: Ints, prices: Ints, far: int
) -> tuple[SimplexTree, Ints]:
    """Return the tree for a flow (K,), and the flow of each artificial arc towards the root, (V,)."""
    vertices = len(standard.supply)
    row = np.full((vertices + 1, COLUMNS), NONE, np.int64)
    start, near = np.zeros(vertices + 2, np.int64), np.empty(2 * len(flow), np.int64)
    _candidates(arcs, flow, prices, start, near)
    order, sent = np.empty(vertices, np.int64), np.zeros(vertices, np.int64)
    # Arcs of reduced cost 0 without flow lead up a tree that begins at their highest price.
    _spanning(arcs, flow, row, start, near, np.argsort(-prices), order)
    _balance(arcs, flow, row, order, standard.supply.copy(), sent)
    tree = SimplexTree(row, np.empty(vertices + 1, np.int64), np.zeros(vertices + 1, np.int64))
    _number(arcs, tree, np.full((2, vertices + 1), NONE, np.int64), order, sent, prices, far)
    return tree, sent


def solved_from(
    standard: StandardProblem, flow: Ints, prices: Ints, counters: Ints, work_max: int
) -> StandardResult | None:
    """Return the result from a flow (K,) and prices (V,), or None if it takes more work or room.

    ``counters`` (3,) begins as zeros, as in ``network_simplex``.
    """
    vertices, count = len(standard.supply), len(standard.kept)
    prices = prices - prices.min(initial=0)
    far = (int(np.abs(standard.cost).max(initial=0)) + 1) * vertices
    if 2 * far + int(prices.max(initial=0)) >= DRIFT_MAX:
        return None
    arcs, order = searched_arcs(standard)
    began = np.minimum(np.maximum(flow[order], 0), arcs.room)
    tree, sent = _tree_of(standard, arcs, began, prices, far + int(prices.max(initial=0)))
    if not pivots(arcs, tree, block_size(count), counters, work_max):
        return None
    return result_of(standard, SimplexState(arcs, tree, sent, order))


def solve_from(problem: FlowProblem, former: FormerSolution) -> FlowSolution | None:
    """Return the solution by pivots from a former one, or None after a bounded amount of work.

    It also returns None if the costs leave too little room for prices.
    """

    def core(standard: StandardProblem) -> StandardResult:
        flow = (former.flow - problem.lower)[standard.kept]
        work_max = WORK_SHARE * (len(standard.kept) + len(standard.supply))
        solution = solved_from(standard, flow, former.prices, np.zeros(3, np.int64), work_max)
        if solution is None:
            raise _WorkUsedUpError
        return solution

    try:
        return solve_by(core, problem, "network_simplex")
    except _WorkUsedUpError:
        return None
