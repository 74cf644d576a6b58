"""The repair of a flow after changes: prices stay right on every arc while excesses find their way to
deficits.

For: the warm start of ``incremental.py`` (thesis §6.4.3). Not for: networks of a known shape, where
``warm.py`` is faster by far, and not for a first answer on a large network.

Three steps. An arc with the wrong flow for its reduced cost has one end's price moved where that rights it
and harms no other arc. Else its flow goes to its bound, which makes the change an excess and a deficit.
Then each excess searches its nearest deficits by reduced cost, and prices fall by what is left of that
distance (dual ascent along successive shortest paths), so that the answer is exact after the last of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.firmament.compiled import compiled
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.heap import bring, take
from dios.firmament.solvers.residual import (
    ACTIVE,
    DIRTY,
    OVERFLOWED,
    STAMP,
    LiveNet,
    set_flow,
)
from dios.limits import FLOW_PRICE_MAX

DEGREE_MAX: Final = 64
"""A vertex with more arcs than this is not repriced alone: looking at them all costs more than it saves."""

PRICE_MAX: Final = FLOW_PRICE_MAX // 2
"""Prices start a repair within this: then, with a problem's costs, no distance leaves 64 bits."""

DONE, STUCK, TIRED, OVERFLOW = 0, 1, 2, 3
"""How a repair ends: all sent; a vertex cannot send all; too much work; an excess out of range."""


@compiled
def _room(net: LiveNet, arc: int, endless: int) -> int:
    """The capacity that counts: one without end is as good as ``endless``."""
    return int(min(net.capacity[arc], endless))


@compiled
def _reduced(net: LiveNet, arc: int) -> int:
    return int(net.cost[arc] + net.price[net.tail[arc]] - net.price[net.head[arc]])


@compiled
def _reprice(net: LiveNet, vertex: int, endless: int, newest: int, fresh: int) -> None:
    """Move a vertex' price to the nearest at which all its arcs are right, where there is one.

    Vertices from ``newest`` on have no price yet and do not count. A vertex that is ``fresh`` (0 or 1) gets
    a price in any case.
    """
    none = 4 * PRICE_MAX
    low, high, degree = -none, none, 0
    half = net.first[vertex]
    while half >= 0 and (fresh or degree <= DEGREE_MAX):
        degree += 1
        arc = half >> 1
        out = half & 1 == 0
        other = net.head[arc] if out else net.tail[arc]
        half = net.following[half]
        if other == vertex or other >= newest:
            continue
        level = net.price[other] - net.cost[arc] if out else net.price[other] + net.cost[arc]
        # Room asks an arc's tail to be dear and its head to be cheap; flow to spare asks for the contrary.
        if net.flow[arc] < _room(net, arc, endless):
            if out:
                low = max(low, level)
            else:
                high = min(high, level)
        if net.flow[arc] > net.lower[arc]:
            if out:
                high = min(high, level)
            else:
                low = max(low, level)
    if fresh:
        start = low if low > -none else high if high < none else 0
        net.price[vertex] = min(max(start, -PRICE_MAX), PRICE_MAX)
    elif degree <= DEGREE_MAX and low <= high:
        moved = min(max(net.price[vertex], low), high)
        if -PRICE_MAX <= moved <= PRICE_MAX:
            net.price[vertex] = moved


@compiled
def _wrong(net: LiveNet, arc: int, endless: int) -> bool:
    reduced = _reduced(net, arc)
    return (reduced < 0 and net.flow[arc] < _room(net, arc, endless)) or (
        reduced > 0 and net.flow[arc] > net.lower[arc]
    )


@compiled
def settle(net: LiveNet, endless: int, priced: int, vertices: int) -> int:
    """Make the reduced cost of every flagged arc right for its flow, at the price of excesses; DONE or
    OVERFLOW.

    ``endless`` stands for capacities without end. Vertices from ``priced`` to ``vertices`` are new.
    """
    net.counts[OVERFLOWED] = 0
    for position in range(net.counts[DIRTY]):
        arc = net.dirty[position]
        set_flow(net, arc, min(max(net.flow[arc], net.lower[arc]), _room(net, arc, endless)))
    for vertex in range(priced, vertices):
        _reprice(net, vertex, endless, vertex, 1)
    for position in range(net.counts[DIRTY]):
        arc = net.dirty[position]
        if _wrong(net, arc, endless):
            _reprice(net, net.tail[arc], endless, vertices, 0)
        if _wrong(net, arc, endless):
            _reprice(net, net.head[arc], endless, vertices, 0)
        if _wrong(net, arc, endless):
            set_flow(net, arc, _room(net, arc, endless) if _reduced(net, arc) < 0 else net.lower[arc])
    if net.counts[OVERFLOWED]:
        # Back to flows that fit, so that smaller capacities find a network that can be settled.
        for position in range(net.counts[DIRTY]):
            set_flow(net, net.dirty[position], net.lower[net.dirty[position]])
        return OVERFLOW
    for position in range(net.counts[DIRTY]):
        net.flagged[net.dirty[position]] = 0
    net.counts[DIRTY] = 0
    return DONE


@compiled
def _search(net: LiveNet, source: int, endless: int, targets: Ints) -> tuple[int, int, int]:
    """Settle vertices by their distance from ``source`` until the deficits found can take its excess.

    Returns how many deficits are in ``targets`` (nearest first), how many vertices are settled, and the
    work done in half-arcs looked at. What is as near as the vertex at hand waits on the stack: many are.
    """
    net.counts[STAMP] += 1
    stamp = net.counts[STAMP]
    wanted = net.excess[source]
    net.mark[source], net.distance[source], net.via[source], net.place[source] = stamp, 0, -1, -1
    net.stack[0] = source
    stacked, size, found, settled, work = 1, 0, 0, 0, 0
    while stacked or size:
        if stacked:
            stacked -= 1
            vertex = net.stack[stacked]
        else:
            vertex = net.heap[0]
            size = take(net.heap, net.place, size, net.distance)
        net.settled[settled] = vertex
        settled += 1
        if net.excess[vertex] < 0:
            targets[found] = vertex
            found += 1
            wanted += net.excess[vertex]
            if wanted <= 0:
                break
        distance = net.distance[vertex]
        half = net.first[vertex]
        while half >= 0:
            work += 1
            arc = half >> 1
            if half & 1:
                other, step = net.tail[arc], -_reduced(net, arc)
                open_ = net.flow[arc] > net.lower[arc]
            else:
                other, step = net.head[arc], _reduced(net, arc)
                open_ = net.flow[arc] < _room(net, arc, endless)
            if open_:
                seen = net.mark[other] == stamp
                if not seen or distance + step < net.distance[other]:
                    net.mark[other], net.distance[other], net.via[other] = stamp, distance + step, half
                    if not seen:
                        net.place[other] = -1
                    if not seen and step == 0:
                        net.stack[stacked] = other
                        stacked += 1
                    else:
                        size = bring(net.heap, net.place, size, net.distance, other)
            half = net.following[half]
    return found, settled, work


@compiled
def _augment(net: LiveNet, source: int, target: int, endless: int) -> None:
    """Send what fits along the way by which a search came from ``source`` to ``target``."""
    amount = min(net.excess[source], -net.excess[target])
    vertex = target
    while vertex != source:
        half = net.via[vertex]
        arc = half >> 1
        if half & 1:
            amount = min(amount, net.flow[arc] - net.lower[arc])
            vertex = net.head[arc]
        else:
            amount = min(amount, _room(net, arc, endless) - net.flow[arc])
            vertex = net.tail[arc]
    if amount <= 0:
        return
    net.excess[source] -= amount
    net.excess[target] += amount
    vertex = target
    while vertex != source:
        half = net.via[vertex]
        arc = half >> 1
        if half & 1:
            net.flow[arc] -= amount
            vertex = net.head[arc]
        else:
            net.flow[arc] += amount
            vertex = net.tail[arc]


@compiled
def _drain(net: LiveNet, source: int, endless: int, targets: Ints, work_max: int) -> tuple[int, int, int]:
    """Send all excess of one vertex: how it ended, how many vertices the last search settled, and the
    work.
    """
    total = 0
    while net.excess[source] > 0:
        found, settled, work = _search(net, source, endless, targets)
        total += work
        if not found:
            return STUCK, settled, total
        reach = net.distance[targets[found - 1]]
        for position in range(settled):
            vertex = net.settled[position]
            net.price[vertex] -= reach - net.distance[vertex]
        for position in range(found):
            _augment(net, source, targets[position], endless)
        if total > work_max:
            return TIRED, 0, total
    return DONE, 0, total


@compiled
def _forget_balanced(net: LiveNet) -> None:
    kept = 0
    for position in range(net.counts[ACTIVE]):
        vertex = net.active[position]
        if net.excess[vertex]:
            net.active[kept] = vertex
            kept += 1
        else:
            net.listed[vertex] = 0
    net.counts[ACTIVE] = kept


@compiled
def repair(net: LiveNet, endless: int, work_max: int) -> tuple[int, int]:
    """Send every excess to a deficit; all flagged arcs must be settled before.

    Returns how it ended (DONE, STUCK or TIRED) and, when stuck, how many of ``settled`` are the vertices that
    have more to send than can leave them. Prices and flow are right on every arc in each case, for the next.
    """
    targets = np.empty(net.counts[ACTIVE], np.int64)
    left = work_max
    for position in range(net.counts[ACTIVE]):
        vertex = net.active[position]
        if net.excess[vertex] > 0:
            outcome, settled, work = _drain(net, vertex, endless, targets, left)
            left -= work
            if outcome != DONE:
                _forget_balanced(net)
                return outcome, settled
    _forget_balanced(net)
    return DONE, 0


@compiled
def excesses(net: LiveNet) -> int:
    """How many vertices have flow to send."""
    count = 0
    for position in range(net.counts[ACTIVE]):
        if net.excess[net.active[position]] > 0:
            count += 1
    return count


@compiled
def adopt(net: LiveNet, flow: Ints, price: Ints) -> None:
    """Take over an optimal flow and its prices: nothing is left to do."""
    for position in range(net.counts[DIRTY]):
        net.flagged[net.dirty[position]] = 0
    net.counts[DIRTY] = 0
    for arc in range(len(flow)):
        set_flow(net, arc, flow[arc])
    for vertex in range(len(price)):
        net.price[vertex] = price[vertex]
    _forget_balanced(net)
