"""Bids for slots: a quick way to prices that are nearly right (Bertsekas' auction, for similar objects).

Each vertex with slots keeps the prices of those taken in a heap; each aggregate keeps its arcs in a heap by
what a unit would pay there, which is refreshed only at the top, since prices but rise. A task bids for its
best slot up to the next best outside the same vertex, and throws out who had it.

Not for: exactness. The end of it is rounded and repaired (``auction.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from dios.compiled import borrowing
from dios.firmament.solvers.columns import Indices, Ints
from dios.firmament.solvers.repair_net import FAR, Net

AGGREGATE = 0
SLOTS = 1
ENDLESS = 2
"""What a vertex is to a bidder: others below it, slots at rising prices, or room for all at one price."""

DEPTH = 3
"""A way from an option's vertex to a vertex with slots has at most so many arcs."""


class Market(NamedTuple):
    """The state of an auction. All prices are scaled, by ``scale``.

    Bids rise by ``step`` above the next best at least, those by way of an aggregate by ``war_step``.

    ``askers`` (how many options name it), ``kind``, ``value`` (what a unit pays from here), ``leaf`` (the
    vertex with slots that is best from here) and ``size`` (of the heap) are (V,). An aggregate's heap of arcs
    is ``arc_heap`` and ``arc_key`` (A,) from its ``out_start``. A vertex' heap of taken slots is
    ``slot_price``, ``slot_task`` (H,) from ``slot_start``.
    ``piece`` (V,) is the place of the piece (an arc to the sink, cheapest first, in ``arc_heap``) that the
    next free slot belongs to, ``left`` (V,) how many it has left; ``floor`` (V,) is the least slot price.
    ``chosen`` (T,) is a task's option and ``way`` (T, DEPTH) the arcs from there. ``stack`` is for tasks that
    wait, ``climb`` for vertices whose price rose.
    """

    scale: int
    step: int
    war_step: int
    askers: Ints
    kind: Ints
    value: Ints
    leaf: Ints
    size: Ints
    arc_heap: Ints
    arc_key: Ints
    slot_start: Ints
    slot_price: Ints
    slot_task: Indices
    piece: Ints
    left: Ints
    floor: Ints
    chosen: Ints
    way: Indices
    stack: Indices
    climb: Ints


@borrowing
def _sink(keys: Ints, kept: Ints | Indices, base: int, size: int, key: int, entry: int) -> None:
    """Put an entry in the place of a heap's top one, and let it sink; the heap begins at ``base``."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and keys[base + child + 1] < keys[base + child]:
            child += 1
        if keys[base + child] >= key:
            break
        keys[base + place] = keys[base + child]
        kept[base + place] = kept[base + child]
        place = child
    keys[base + place] = key
    kept[base + place] = entry


@borrowing
def refresh(net: Net, market: Market, vertex: int) -> int:
    """Make the top of an aggregate's heap right; what a unit pays from there."""
    base, size = net.out_start[vertex], market.size[vertex]
    while True:
        arc = market.arc_heap[base]
        key = net.cost[arc] * market.scale + market.value[net.head[arc]]
        if key <= market.arc_key[base]:
            return int(key)
        _sink(market.arc_key, market.arc_heap, base, size, key, arc)


@borrowing
def _climb(net: Net, market: Market, vertex: int) -> None:
    """Tell the aggregates above a vertex that its price rose, where it was their best."""
    market.climb[0] = vertex
    count = 1
    while count:
        count -= 1
        below = market.climb[count]
        for place in range(net.in_start[below], net.in_start[below + 1]):
            arc = net.in_arcs[place]
            above = net.tail[arc]
            if market.arc_heap[net.out_start[above]] != arc:
                continue
            value = refresh(net, market, above)
            leaf = market.leaf[net.head[market.arc_heap[net.out_start[above]]]]
            if value != market.value[above] or leaf != market.leaf[above]:
                market.value[above] = value
                market.leaf[above] = leaf
                market.climb[count] = above
                count += 1


@borrowing
def _second(net: Net, market: Market, vertex: int) -> int:
    """At least what a unit pays from an aggregate when it must not end where it is best."""
    passed, best = 0, FAR
    while market.kind[vertex] == AGGREGATE:
        base = net.out_start[vertex]
        for place in range(1, min(3, market.size[vertex])):
            best = min(best, passed + market.arc_key[base + place])
        arc = market.arc_heap[base]
        passed += net.cost[arc] * market.scale
        vertex = net.head[arc]
    return best


@borrowing
def _best(net: Net, market: Market, task: int) -> tuple[int, int, int]:
    """A task's best option, what it pays there, and what it pays at the next best outside the same slots."""
    option, least = -1, FAR
    for other in range(net.begin[task], net.end[task]):
        pays = net.option_cost[other] * market.scale + market.value[net.target[other]]
        if pays < least:
            option, least = other, pays
    if option < 0:
        return option, least, least
    leaf = market.leaf[net.target[option]]
    second = FAR
    for other in range(net.begin[task], net.end[task]):
        target = net.target[other]
        pays = net.option_cost[other] * market.scale + market.value[target]
        if pays < second:
            if market.leaf[target] != leaf:
                second = pays
            elif market.kind[target] == AGGREGATE:
                again = net.option_cost[other] * market.scale + _second(net, market, target)
                second = min(second, again)
    return option, least, second


@borrowing
def _place(market: Market, vertex: int, price: int, task: int) -> None:
    """Put a taken slot into a vertex' heap."""
    base, place = market.slot_start[vertex], market.size[vertex]
    market.size[vertex] += 1
    while place:
        above = (place - 1) >> 1
        if market.slot_price[base + above] <= price:
            break
        market.slot_price[base + place] = market.slot_price[base + above]
        market.slot_task[base + place] = market.slot_task[base + above]
        place = above
    market.slot_price[base + place] = price
    market.slot_task[base + place] = task


@borrowing
def _outbid(market: Market, vertex: int, price: int, task: int) -> int:
    """Give the cheapest taken slot to a task at a higher price; who had it."""
    base, size = market.slot_start[vertex], market.size[vertex]
    loser = market.slot_task[base]
    _sink(market.slot_price, market.slot_task, base, size, price, task)
    return int(loser)


@borrowing
def _free_price(net: Net, market: Market, vertex: int) -> int:
    """The price of a vertex' next free slot, FAR where it has none."""
    if market.piece[vertex] == net.out_start[vertex + 1]:
        return FAR
    arc = market.arc_heap[market.piece[vertex]]
    return int(max(market.floor[vertex], net.cost[arc] * market.scale))


@borrowing
def skip_full_pieces(net: Net, market: Market, vertex: int) -> None:
    """Go on to the next piece with a free slot, if there is one."""
    while not market.left[vertex] and market.piece[vertex] < net.out_start[vertex + 1]:
        market.piece[vertex] += 1
        if market.piece[vertex] < net.out_start[vertex + 1]:
            market.left[vertex] = net.capacity[market.arc_heap[market.piece[vertex]]]


@borrowing
def slot_value(net: Net, market: Market, vertex: int) -> int:
    """The price of the cheapest slot, free or taken."""
    free = _free_price(net, market, vertex)
    return int(min(free, market.slot_price[market.slot_start[vertex]])) if market.size[vertex] else int(free)


@borrowing
def _take(net: Net, market: Market, task: int, vertex: int, price: int) -> int:
    """Give a task the cheapest slot of a vertex, at a price; the task that lost it, or -1."""
    loser = -1
    if market.value[vertex] == _free_price(net, market, vertex):
        market.left[vertex] -= 1
        _place(market, vertex, price, task)
        skip_full_pieces(net, market, vertex)
    else:
        loser = _outbid(market, vertex, price, task)
    value = slot_value(net, market, vertex)
    if value != market.value[vertex]:
        market.value[vertex] = value
        _climb(net, market, vertex)
    return loser


@borrowing
def bid_all(net: Net, market: Market, waiting: int, bids_max: int) -> int:
    """Let the tasks on the stack bid until all have a slot, or ``bids_max`` were made; the number of bids."""
    bids = 0
    while waiting and bids < bids_max:
        bids += 1
        waiting -= 1
        task = market.stack[waiting]
        option, least, second = _best(net, market, task)
        if option < 0:
            continue
        market.chosen[task] = option
        vertex, depth = net.target[option], 0
        while market.kind[vertex] == AGGREGATE:
            arc = market.arc_heap[net.out_start[vertex]]
            market.way[task, depth] = arc
            depth += 1
            vertex = net.head[arc]
        if depth < DEPTH:
            market.way[task, depth] = -1
        if market.kind[vertex] == ENDLESS or market.value[vertex] == FAR:
            continue
        step = market.war_step if depth else market.step
        rise = min(second - least, market.scale << 20) + step
        loser = _take(net, market, task, vertex, market.value[vertex] + rise)
        if loser >= 0:
            market.chosen[loser] = -1
            market.stack[waiting] = loser
            waiting += 1
    return bids
