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

from dios.compiled import compiled
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

PRICE_LOW: Final = -2 * FLOW_PRICE_MAX
"""Below this a price must come back before the next search. Deficits that stay may let prices fall so far."""

DONE, STUCK, TIRED, WIDE, OVERFLOW = 0, 1, 2, 3, 4
"""How a repair ends: all sent; some cannot be sent; too much work; a price, or an excess, out of range."""


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
def _reach(net: LiveNet, half: int, endless: int) -> tuple[int, int]:
    """The other end of a half-arc, and the reduced cost of sending there; -1 where there is no room."""
    arc = half >> 1
    if half & 1:
        return net.tail[arc], -_reduced(net, arc) if net.flow[arc] > net.lower[arc] else -1
    return net.head[arc], _reduced(net, arc) if net.flow[arc] < _room(net, arc, endless) else -1


@compiled
def _search(net: LiveNet, source: int, endless: int, targets: Ints, work_max: int) -> tuple[int, int, int]:
    """Settle vertices by their distance from ``source`` until the deficits found can take its excess.

    Returns how many deficits are in ``targets`` (nearest first; -1: none, and ``work_max`` is spent), how
    many vertices are settled, and the work done in half-arcs looked at. What is as near as the vertex at hand
    waits on the stack, as many are. Nothing is nearer than a deficit among them: it counts when it is seen.
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
            if net.excess[vertex] < 0:
                targets[found] = vertex
                found += 1
                wanted += net.excess[vertex]
        if wanted <= 0:
            break
        if work > work_max:
            return found or -1, settled, work
        net.settled[settled] = vertex
        settled += 1
        half = net.first[vertex]
        while half >= 0 and wanted > 0:
            work += 1
            other, step = _reach(net, half, endless)
            if step >= 0:
                seen = net.mark[other] == stamp
                distance = net.distance[vertex] + step
                if not seen or distance < net.distance[other]:
                    net.mark[other], net.distance[other], net.via[other] = stamp, distance, half
                    if not seen:
                        net.place[other] = -1
                    if seen or step:
                        size = bring(net.heap, net.place, size, net.distance, other)
                    else:
                        net.stack[stacked] = other
                        stacked += 1
                        if net.excess[other] < 0:
                            targets[found] = other
                            found += 1
                            wanted += net.excess[other]
            half = net.following[half]
    return found, settled, work


@compiled
def _augment(net: LiveNet, target: int, endless: int) -> None:
    """Send what fits to ``target`` along the way by which a search came there from one of its sources."""
    amount = -net.excess[target]
    for turn in range(2):
        vertex = target
        while net.via[vertex] >= 0:
            half = net.via[vertex]
            arc = half >> 1
            if half & 1:
                vertex = net.head[arc]
                amount = min(amount, net.flow[arc] - net.lower[arc]) if turn == 0 else amount
                net.flow[arc] -= amount if turn else 0
            else:
                vertex = net.tail[arc]
                amount = min(amount, _room(net, arc, endless) - net.flow[arc]) if turn == 0 else amount
                net.flow[arc] += amount if turn else 0
        if turn == 0:
            amount = min(amount, net.excess[vertex])
            if amount <= 0:
                return
        else:
            net.excess[vertex] -= amount
            net.excess[target] += amount


@compiled
def _advance(net: LiveNet, found: int, settled: int, endless: int, targets: Ints, price_low: int) -> int:
    """After a search: lower prices so that all ways to its targets are free, and send; DONE or WIDE."""
    reach, outcome = net.distance[targets[found - 1]], DONE
    for position in range(settled):
        vertex = net.settled[position]
        net.price[vertex] -= max(reach - net.distance[vertex], 0)
        if net.price[vertex] < price_low:
            outcome = WIDE
    for position in range(found):
        _augment(net, targets[position], endless)
    return outcome


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
def _drain(
    net: LiveNet, source: int, endless: int, targets: Ints, work_max: int, price_low: int
) -> tuple[int, int, int]:
    """Send all excess of a vertex: how it ended, how many vertices the last search settled, and the work."""
    total = 0
    while net.excess[source] > 0:
        found, settled, work = _search(net, source, endless, targets, work_max - total)
        total += work
        if found <= 0:
            return TIRED if found else STUCK, settled, total
        if _advance(net, found, settled, endless, targets, price_low) == WIDE:
            return WIDE, 0, total
    return DONE, 0, total


@compiled
def repair(net: LiveNet, endless: int, work_max: int, price_low: int) -> tuple[int, int]:
    """Send every excess to a deficit; all flagged arcs must be settled before.

    Returns how it ended (DONE, STUCK, TIRED or WIDE) and, when stuck, how many of ``settled`` are the
    vertices that have more to send than can leave them. In each case prices and flow are right on every arc,
    for the next repair. ``work_max`` bounds the half-arcs looked at; below
    ``price_low`` a price is out of range.
    """
    targets = np.empty(net.counts[ACTIVE], np.int64)
    outcome, settled = DONE, 0
    for position in range(net.counts[ACTIVE]):
        vertex = net.active[position]
        if net.excess[vertex] > 0:
            outcome, settled, work = _drain(net, vertex, endless, targets, work_max, price_low)
            work_max -= work
            if outcome != DONE:
                break
    _forget_balanced(net)
    return outcome, settled


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
