"""Lowers first prices that were too high, all together, until the slots left over find their tasks.

The slots that a vertex could not fill although its price is above its cost would each be a deficit for the
exact repair. Here all such prices fall by as much as it takes for as many tasks from elsewhere to come in;
what they differ by among themselves stays, so the bids so far stay good.

Not for: bids (``auction_bids.py``), or exactness.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.compiled import borrowing
from dios.firmament.solvers.auction_bids import (
    AGGREGATE,
    DEPTH,
    SLOTS,
    Market,
    bid_all,
    slot_value,
)
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.repair_net import FAR, SINK, Net

BIDS_EACH_MAX: Final = 64
BIDS_MAX: Final = 2000
"""More bids for each task that comes in, and in all, would be a war for too few slots."""

NEAR_SHARE: Final = 8
"""So many times as many tasks as are wanted are kept in view for the next round."""

ROUNDS_MAX: Final = 12
"""After so many rounds the rest is left to the repair."""


@borrowing
def _margin(net: Net, market: Market, vertex: int) -> int:
    """What the next slot of a vertex costs, or the last one where all are taken; FAR where it has none."""
    first, last = net.out_start[vertex], net.out_start[vertex + 1]
    if first == last:
        return FAR
    return int(net.cost[market.arc_heap[min(market.piece[vertex], last - 1)]] * market.scale)


@borrowing
def _bound(net: Net, market: Market, vertex: int) -> int:
    """Whether a vertex' slots are above their cost, so that they could become cheaper."""
    return int(market.kind[vertex] == SLOTS and market.value[vertex] > _margin(net, market, vertex))


@borrowing
def _left_over(net: Net, market: Market) -> int:
    """How many slots are free and above their cost."""
    count = 0
    for vertex in range(len(net.price)):
        if vertex != SINK and _bound(net, market, vertex):
            for place in range(market.piece[vertex], net.out_start[vertex + 1]):
                arc = market.arc_heap[place]
                if net.cost[arc] * market.scale < market.floor[vertex]:
                    room = net.capacity[arc]
                    count += market.left[vertex] if place == market.piece[vertex] else room
    return count


@borrowing
def _gaps(net: Net, market: Market, tasks: Ints, room: Ints, gaps: Ints) -> None:
    """By how much the bound prices must fall before each of ``tasks`` would come in, FAR where it cannot.

    ``gaps`` is beside ``tasks``; ``room`` (V,) is filled with how far each vertex' price is above its cost.
    """
    for vertex in range(len(room)):
        room[vertex] = 0
        if _bound(net, market, vertex):
            room[vertex] = market.value[vertex] - _margin(net, market, vertex)
    for place in range(len(tasks)):
        task = tasks[place]
        gaps[place] = FAR
        option = market.chosen[task]
        if option < 0:
            continue
        vertex = net.target[option]
        pays = net.option_cost[option] * market.scale
        for step in range(DEPTH):
            arc = market.way[task, step]
            if arc < 0:
                break
            pays += net.cost[arc] * market.scale
            vertex = net.head[arc]
        # Its own place falls too, but not under its cost.
        pays += market.value[vertex] - room[vertex]
        gap = FAR
        for other in range(net.begin[task], net.end[task]):
            target = net.target[other]
            if room[market.leaf[target]]:
                gap = min(gap, net.option_cost[other] * market.scale + market.value[target] - pays)
        gaps[place] = gap


@borrowing
def _lower(net: Net, market: Market, order: Ints, fall: int) -> None:
    """Lower all bound prices, and those of the aggregates above."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        first, last = net.out_start[vertex], net.out_start[vertex + 1]
        if _bound(net, market, vertex):
            least = _margin(net, market, vertex)
            base = market.slot_start[vertex]
            for slot in range(base, base + market.size[vertex]):
                market.slot_price[slot] = max(least, market.slot_price[slot] - fall)
            market.floor[vertex] -= fall
            market.value[vertex] = slot_value(net, market, vertex)
        elif market.kind[vertex] == AGGREGATE:
            # Sorted by insertion: keys keep most of their order when all fall alike.
            for at in range(first, last):
                arc = market.arc_heap[at]
                key = FAR
                if net.capacity[arc] > net.lower[arc]:
                    key = net.cost[arc] * market.scale + market.value[net.head[arc]]
                slot = at
                while slot > first and market.arc_key[slot - 1] > key:
                    market.arc_key[slot] = market.arc_key[slot - 1]
                    market.arc_heap[slot] = market.arc_heap[slot - 1]
                    slot -= 1
                market.arc_key[slot] = key
                market.arc_heap[slot] = arc
            market.value[vertex] = min(FAR, market.arc_key[first])
            market.leaf[vertex] = market.leaf[net.head[market.arc_heap[first]]]


@borrowing
def _release(net: Net, market: Market, task: int) -> None:
    """Take a task off its slot, which is free again at the price of others that are."""
    vertex = net.target[market.chosen[task]]
    for step in range(DEPTH):
        if market.way[task, step] < 0:
            break
        vertex = net.head[market.way[task, step]]
    market.chosen[task] = -1
    if market.kind[vertex] != SLOTS:
        return
    base, size = market.slot_start[vertex], market.size[vertex]
    # A sorted array is a heap too, and these are short.
    for at in range(base + 1, base + size):
        price, who, slot = market.slot_price[at], market.slot_task[at], at
        while slot > base and market.slot_price[slot - 1] > price:
            market.slot_price[slot] = market.slot_price[slot - 1]
            market.slot_task[slot] = market.slot_task[slot - 1]
            slot -= 1
        market.slot_price[slot] = price
        market.slot_task[slot] = who
    found = base
    while market.slot_task[found] != task:
        found += 1
    for at in range(found, base + size - 1):
        market.slot_price[at] = market.slot_price[at + 1]
        market.slot_task[at] = market.slot_task[at + 1]
    market.size[vertex] = size - 1
    if market.piece[vertex] == net.out_start[vertex + 1]:
        market.piece[vertex] -= 1
    market.left[vertex] += 1


@borrowing
def _release_all(net: Net, market: Market, tasks: Ints) -> None:
    """Take tasks off their slots."""
    for task in tasks:
        _release(net, market, task)


def ease(net: Net, market: Market, order: Ints) -> None:
    """Lower the bound prices until no slot above its cost is free, or little more is to be had."""
    room, near = np.empty(len(net.price), np.int64), np.arange(len(net.seat))
    for _ in range(ROUNDS_MAX):
        free = _left_over(net, market)
        if not free:
            return
        gaps = np.empty(len(near), np.int64)
        _gaps(net, market, near, room, gaps)
        wanted = min(free, int(np.count_nonzero(gaps < FAR)))
        if not wanted:
            return
        if NEAR_SHARE * wanted < len(near):
            # Bids raise prices, so that who is far away now is not among the next to come.
            nearest = np.argpartition(gaps, NEAR_SHARE * wanted)[: NEAR_SHARE * wanted]
            near, gaps = near[nearest], gaps[nearest]
        ranked = np.argsort(gaps, kind="stable")[:wanted]
        fall = max(0, int(gaps[ranked[-1]]))
        if fall:
            _lower(net, market, order, fall)
        moving = near[ranked]
        _release_all(net, market, moving)
        market.stack[: len(moving)] = moving[::-1]
        bid_all(net, market, len(moving), BIDS_EACH_MAX * len(moving) + BIDS_MAX)
