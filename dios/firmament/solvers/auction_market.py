"""Opens the auction (who sells what, at which first prices) and closes it (prices and seats for repair).

Where tasks want more than there is, slots do not begin at their cost but near the price that clears the
market, since bids would climb there in small steps.

Not for: the bids themselves (``auction_bids.py``).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.compiled import borrowing, compiled
from dios.firmament.solvers.auction_bids import (
    AGGREGATE,
    DEPTH,
    ENDLESS,
    SLOTS,
    Market,
    skip_full_pieces,
    slot_value,
)
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.repair_net import FAR, SINK, Net, sit

SCALE: Final = 8
"""Prices in the auction are in eighths of a cost unit, so that the smallest step is rounded away."""

WAR_STEPS: Final = 2
"""Where aggregates' arcs cost unlike, many slots below them come to be worth the same, and bids there would
be a long war of small steps: they rise by a unit in so many. In one, the rounding parts too many; and where
the arcs cost alike the first prices are so good that the small step is the better one."""

STEPS_MAX: Final = 2**17
"""The dearest cost is so many steps at the most: wars over large costs would take too long in small ones."""

SCALED_MAX: Final = 2**57
"""Scaled costs stay below this, so that sums along a way fit 64 bits."""

SAMPLE: Final = 2048
"""About so many tasks are asked for the first prices."""

NEVER: Final = -(2**58)
"""A price that no slot is under."""


@compiled
def _askers(net: Net) -> Ints:
    """How many tasks' options name each vertex, (V,); options of tasks that left do not count."""
    count = np.zeros(len(net.price), np.int64)
    for option in range(len(net.target)):
        if net.row[option] >= 0:
            count[net.target[option]] += 1
    return count


@compiled
def _kinds(net: Net, askers: Ints) -> tuple[Ints, Ints]:
    """Each vertex' kind and how many slots it has, (V,) each."""
    vertices = len(net.price)
    kind, slots = np.full(vertices, SLOTS, np.int64), np.zeros(vertices, np.int64)
    kind[SINK] = ENDLESS
    for arc in range(len(net.tail)):
        if net.head[arc] != SINK:
            kind[net.tail[arc]] = AGGREGATE
    for arc in range(len(net.tail)):
        vertex = net.tail[arc]
        if kind[vertex] != AGGREGATE:
            slots[vertex] = min(slots[vertex] + net.capacity[arc], len(net.seat))
            if (
                net.in_start[vertex] == net.in_start[vertex + 1]
                and net.out_start[vertex + 1] - net.out_start[vertex] == 1
                and net.capacity[arc] >= askers[vertex]
            ):
                kind[vertex] = ENDLESS
                slots[vertex] = 0
    return kind, slots


@compiled
def _paths(net: Net, kind: Ints, order: Ints) -> tuple[Ints, Ints]:
    """What the cheapest way from the top to each vertex costs, and how many arcs at most lead from it to one
    with slots; (V,) each.
    """
    vertices = len(net.price)
    path, depth = np.full(vertices, FAR, np.int64), np.zeros(vertices, np.int64)
    for vertex in order:
        if net.in_start[vertex] == net.in_start[vertex + 1]:
            path[vertex] = 0
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            path[net.head[arc]] = min(path[net.head[arc]], path[vertex] + net.cost[arc])
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        if kind[vertex] == AGGREGATE:
            for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
                depth[vertex] = max(depth[vertex], depth[net.head[arc]] + 1)
    return path, depth


@borrowing
def _demand(net: Net, kind: Ints, path: Ints, every: int, price: int) -> int:
    """How many of every ``every``-th task want a slot that would go for less than ``price`` at the top."""
    count = 0
    for task in range(0, len(net.seat), every):
        best, wants = FAR, 0
        for option in range(net.begin[task], net.end[task]):
            target = net.target[option]
            pays = net.option_cost[option] + net.price[target]
            cheap = 0
            if kind[target] != ENDLESS and net.price[target] < price - path[target]:
                pays = net.option_cost[option] + price - path[target]
                cheap = 1
            if pays < best or (pays == best and cheap):
                best, wants = pays, cheap
        count += wants
    return count


def _clearing_price(net: Net, kind: Ints, path: Ints) -> int:
    """The price at the top below which about as many slots begin as tasks want; NEVER where all fit anyway.

    ``net.price`` must be that of an empty network. A sample of tasks is asked.
    """
    pieces = np.flatnonzero((kind[net.tail] == SLOTS) & (net.in_start[net.tail] < net.in_start[net.tail + 1]))
    base = path[net.tail[pieces]] + net.cost[pieces]
    units = net.capacity[pieces]
    tasks = len(net.seat)
    if not len(pieces) or units[base == base.min()].sum() >= tasks:
        return NEVER
    every = max(1, tasks // SAMPLE)
    low, high = int(base.min()), int(base.max() + np.abs(net.option_cost).max(initial=0) * 2) + 2
    while high - low > 1:
        middle = (low + high) // 2
        if _demand(net, kind, path, every, middle) * every >= units[base < middle].sum():
            low = middle
        else:
            high = middle
    return low


@compiled
def _open(net: Net, market: Market, order: Ints) -> None:
    """Set first prices from the bottom, and each vertex' heap or order of pieces."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        market.leaf[vertex] = vertex
        if vertex == SINK:
            continue
        first, last = net.out_start[vertex], net.out_start[vertex + 1]
        arcs = net.out_arcs[first:last]
        if market.kind[vertex] != AGGREGATE:
            ranked = np.argsort(net.cost[arcs], kind="mergesort")
            market.arc_heap[first:last] = arcs[ranked]
            market.piece[vertex] = first
            if market.kind[vertex] == ENDLESS:
                market.value[vertex] = net.cost[arcs[0]] * market.scale
            else:
                market.left[vertex] = net.capacity[market.arc_heap[first]] if first < last else 0
                skip_full_pieces(net, market, vertex)
                market.value[vertex] = slot_value(net, market, vertex)
            continue
        keys = net.cost[arcs] * market.scale + market.value[net.head[arcs]]
        keys = np.where(net.capacity[arcs] > net.lower[arcs], keys, FAR)
        ranked = np.argsort(keys, kind="mergesort")
        market.arc_heap[first:last] = arcs[ranked]
        market.arc_key[first:last] = keys[ranked]
        market.size[vertex] = last - first
        market.value[vertex] = min(FAR, market.arc_key[first])
        market.leaf[vertex] = market.leaf[net.head[market.arc_heap[first]]]


def open_market(net: Net, order: Ints) -> Market | None:
    """The market of a network, ``order`` its vertices topologically; None where an auction does not fit."""
    vertices, tasks = len(net.price), len(net.seat)
    most = int(max(np.abs(net.option_cost).max(initial=0), np.abs(net.cost).max(initial=0)))
    askers = _askers(net)
    kind, slots = _kinds(net, askers)
    path, depth = _paths(net, kind, order)
    if most * SCALE >= SCALED_MAX or depth.max(initial=0) > DEPTH or slots.sum() > 16 * tasks + 2**16:
        return None
    start = np.cumsum(slots) - slots
    entered = net.in_start[1:] > net.in_start[:-1]
    price = _clearing_price(net, kind, path)
    step, passed = 1 + most * SCALE // STEPS_MAX, net.cost[kind[net.tail] == AGGREGATE]
    war_step = max(step, SCALE // WAR_STEPS) if len(passed) and passed.min() < passed.max() else step
    floor = np.where(entered & (price > NEVER), (price - path) * SCALE, NEVER * SCALE)
    market = Market(
        scale=SCALE,
        askers=askers,
        step=step,
        war_step=war_step,
        kind=kind,
        value=np.zeros(vertices, np.int64),
        leaf=np.zeros(vertices, np.int64),
        size=np.zeros(vertices, np.int64),
        arc_heap=np.zeros(len(net.tail), np.int64),
        arc_key=np.zeros(len(net.tail), np.int64),
        slot_start=start,
        slot_price=np.empty(int(slots.sum()) + 1, np.int64),
        slot_task=np.empty(int(slots.sum()) + 1, np.int32),
        piece=np.zeros(vertices, np.int64),
        left=np.zeros(vertices, np.int64),
        floor=floor,
        chosen=np.full(tasks, -1, np.int64),
        way=np.full((tasks, DEPTH), -1, np.int32),
        stack=np.arange(tasks - 1, -1, -1, dtype=np.int32),
        climb=np.empty(2 * (vertices + len(net.tail)), np.int64),
    )
    _open(net, market, order)
    return market


@borrowing
def adopt_prices(net: Net, market: Market, order: Ints, offset: int, dead: int) -> None:
    """Round the prices of vertices with slots down, ``offset`` added; aggregates follow from below."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        if market.kind[vertex] != AGGREGATE:
            value = market.value[vertex]
            net.price[vertex] = dead if value >= FAR else (value + offset) // market.scale
            continue
        best = dead
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            if net.capacity[arc] > net.lower[arc]:
                best = min(best, net.cost[arc] + net.price[net.head[arc]])
        net.price[vertex] = best


@borrowing
def adopt_seats(net: Net, market: Market) -> None:
    """Seat tasks where they won, if that is best at the rounded prices, with the flow on their ways."""
    for task in range(len(net.seat)):
        option = market.chosen[task]
        if option < 0:
            continue
        least = net.option_cost[option] + net.price[net.target[option]]
        fits = True
        for other in range(net.begin[task], net.end[task]):
            if net.option_cost[other] + net.price[net.target[other]] < least:
                fits = False
                break
        if fits:
            sit(net, task, option)
            for step in range(DEPTH):
                if market.way[task, step] < 0:
                    break
                net.flow[market.way[task, step]] += 1


@borrowing
def fill_pieces(net: Net, market: Market) -> None:
    """Give the arcs to the sink the flow that comes in where slots are, cheapest first."""
    for vertex in range(len(net.price)):
        if vertex == SINK or market.kind[vertex] == AGGREGATE:
            continue
        here = 0
        task = net.first[vertex]
        while task >= 0:
            here += 1
            task = net.following[task]
        for arc in net.in_arcs[net.in_start[vertex] : net.in_start[vertex + 1]]:
            here += net.flow[arc]
        for arc in market.arc_heap[net.out_start[vertex] : net.out_start[vertex + 1]]:
            net.flow[arc] = max(net.lower[arc], min(here, net.capacity[arc]))
            here -= net.flow[arc]
