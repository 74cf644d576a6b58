"""The fast solver from scratch for networks of scheduling shape: contraction, auction, exact repair.

The auction (Bertsekas, for similar objects) finds prices that are nearly right; they are rounded and
repaired. Each vertex with slots keeps the prices of its taken slots in a heap. Each aggregate keeps its
arcs in a heap by the cost of a unit there; only the top is refreshed, because prices only rise. A task bids
for its best slot up to the price of the next best outside the same vertex, and displaces the task that had
it.

Where tasks want more slots than there are, the first prices are not the slots' costs but close to the price
that clears the auction, which bids would reach only in small steps. First prices that were too high are
lowered together at the end.

Networks of other shapes are left to ``network_simplex``, networks that change to ``warm_solver``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dios.firmament.solvers import network_simplex
from dios.firmament.solvers.columns import Indices, Ints, exact_product, exact_sum
from dios.firmament.solvers.contraction import Contracted, contract, expand
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.firmament.solvers.repair import (
    FAR,
    GAVE_UP,
    INFEASIBLE,
    NO_LIMIT,
    SINK,
    SOLVED,
    Net,
    choose,
    choose_best,
    count_excess,
    new_search,
    repair,
    settle_arcs,
)
from dios.kernels import kernel, no_refcount_kernel

AGGREGATE = 0
SLOTS = 1
UNLIMITED = 2
"""The kinds of vertices: others below them, slots at rising prices, or room for all at one price."""

DEPTH = 3
"""The largest number of arcs on a path from an option's vertex to a vertex with slots."""


class AuctionState(NamedTuple):
    """The state of an auction. All prices are scaled by ``scale``.

    A bid exceeds the next best price by ``step`` at least, by ``coarse_step`` if it goes through an
    aggregate.

    By vertex: ``option_count`` is the number of options that lead to it, ``kind`` its kind, ``value`` the
    cost of a unit from it, ``best_vertex`` the best vertex with slots below it, and ``size`` the size of
    its heap. The heap of an aggregate's arcs is ``arc_heap`` and ``arc_key`` (A,) from its ``out_start``
    on. The heap of a vertex' taken slots is ``slot_price`` and ``slot_task`` (H,) from its ``slot_start``
    on. ``piece`` (V,) is the place in ``arc_heap`` of the piece (an arc to the sink, cheapest first) to
    which the next free slot belongs, ``piece_left`` (V,) the number of its free slots, and ``price_floor``
    (V,) the least price of a slot. By task: ``chosen`` is its option and ``chosen_path`` (T, DEPTH) the
    arcs from there. ``stack`` holds waiting tasks, ``rising`` vertices whose price rose.
    """

    scale: int
    step: int
    coarse_step: int
    option_count: Ints
    kind: Ints
    value: Ints
    best_vertex: Ints
    size: Ints
    arc_heap: Ints
    arc_key: Ints
    slot_start: Ints
    slot_price: Ints
    slot_task: Indices
    piece: Ints
    piece_left: Ints
    price_floor: Ints
    chosen: Ints
    chosen_path: Indices
    stack: Indices
    rising: Ints


@no_refcount_kernel
def _sift_down(keys: Ints, kept: Ints | Indices, base: int, size: int, key: int, entry: int) -> None:
    """Replace the top of a heap, which begins at ``base``, and sift it down."""
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


@no_refcount_kernel
def refresh(net: Net, auction: AuctionState, vertex: int) -> int:
    """Refresh the top of an aggregate's heap; return the cost of a unit from the aggregate."""
    base, size = net.out_start[vertex], auction.size[vertex]
    while True:
        arc = auction.arc_heap[base]
        key = net.cost[arc] * auction.scale + auction.value[net.head[arc]]
        if key <= auction.arc_key[base]:
            return int(key)
        _sift_down(auction.arc_key, auction.arc_heap, base, size, key, arc)


@no_refcount_kernel
def _update_aggregates(net: Net, auction: AuctionState, vertex: int) -> None:
    """Update the aggregates above a vertex whose price rose, where the vertex was their best."""
    auction.rising[0] = vertex
    count = 1
    while count:
        count -= 1
        below = auction.rising[count]
        for place in range(net.in_start[below], net.in_start[below + 1]):
            arc = net.in_arcs[place]
            above = net.tail[arc]
            if auction.arc_heap[net.out_start[above]] != arc:
                continue
            value = refresh(net, auction, above)
            leaf = auction.best_vertex[net.head[auction.arc_heap[net.out_start[above]]]]
            if value != auction.value[above] or leaf != auction.best_vertex[above]:
                auction.value[above] = value
                auction.best_vertex[above] = leaf
                auction.rising[count] = above
                count += 1


@no_refcount_kernel
def _second_best(net: Net, auction: AuctionState, vertex: int) -> int:
    """Return a lower bound of the cost from an aggregate to any vertex but its best one."""
    passed, best = 0, FAR
    while auction.kind[vertex] == AGGREGATE:
        base = net.out_start[vertex]
        for place in range(1, min(3, auction.size[vertex])):
            best = min(best, passed + auction.arc_key[base + place])
        arc = auction.arc_heap[base]
        passed += net.cost[arc] * auction.scale
        vertex = net.head[arc]
    return best


@no_refcount_kernel
def _best(net: Net, auction: AuctionState, task: int) -> tuple[int, int, int]:
    """Return a task's best option, its cost, and the cost of the next best outside the same slots."""
    option, least = -1, FAR
    for other in range(net.row_start[task], net.row_end[task]):
        pays = net.option_cost[other] * auction.scale + auction.value[net.target[other]]
        if pays < least:
            option, least = other, pays
    if option < 0:
        return option, least, least
    leaf = auction.best_vertex[net.target[option]]
    second = FAR
    for other in range(net.row_start[task], net.row_end[task]):
        target = net.target[other]
        pays = net.option_cost[other] * auction.scale + auction.value[target]
        if pays < second:
            if auction.best_vertex[target] != leaf:
                second = pays
            elif auction.kind[target] == AGGREGATE:
                again = net.option_cost[other] * auction.scale + _second_best(net, auction, target)
                second = min(second, again)
    return option, least, second


@no_refcount_kernel
def _add_slot(auction: AuctionState, vertex: int, price: int, task: int) -> None:
    """Add a taken slot to a vertex' heap."""
    base, place = auction.slot_start[vertex], auction.size[vertex]
    auction.size[vertex] += 1
    while place:
        above = (place - 1) >> 1
        if auction.slot_price[base + above] <= price:
            break
        auction.slot_price[base + place] = auction.slot_price[base + above]
        auction.slot_task[base + place] = auction.slot_task[base + above]
        place = above
    auction.slot_price[base + place] = price
    auction.slot_task[base + place] = task


@no_refcount_kernel
def _outbid(auction: AuctionState, vertex: int, price: int, task: int) -> int:
    """Give the cheapest taken slot to a task at a higher price; return the task that had it."""
    base, size = auction.slot_start[vertex], auction.size[vertex]
    loser = auction.slot_task[base]
    _sift_down(auction.slot_price, auction.slot_task, base, size, price, task)
    return int(loser)


@no_refcount_kernel
def _free_price(net: Net, auction: AuctionState, vertex: int) -> int:
    """Return the price of a vertex' next free slot, or FAR."""
    if auction.piece[vertex] == net.out_start[vertex + 1]:
        return FAR
    arc = auction.arc_heap[auction.piece[vertex]]
    return int(max(auction.price_floor[vertex], net.cost[arc] * auction.scale))


@no_refcount_kernel
def skip_full_pieces(net: Net, auction: AuctionState, vertex: int) -> None:
    """Continue with the next piece that has a free slot, if there is one."""
    while not auction.piece_left[vertex] and auction.piece[vertex] < net.out_start[vertex + 1]:
        auction.piece[vertex] += 1
        if auction.piece[vertex] < net.out_start[vertex + 1]:
            auction.piece_left[vertex] = net.capacity[auction.arc_heap[auction.piece[vertex]]]


@no_refcount_kernel
def slot_value(net: Net, auction: AuctionState, vertex: int) -> int:
    """Return the price of the cheapest slot, free or taken."""
    free = _free_price(net, auction, vertex)
    return (
        int(min(free, auction.slot_price[auction.slot_start[vertex]])) if auction.size[vertex] else int(free)
    )


@no_refcount_kernel
def _take_slot(net: Net, auction: AuctionState, task: int, vertex: int, price: int) -> int:
    """Give a task the cheapest slot of a vertex at a price; return the task that lost it, or -1."""
    loser = -1
    if auction.value[vertex] == _free_price(net, auction, vertex):
        auction.piece_left[vertex] -= 1
        _add_slot(auction, vertex, price, task)
        skip_full_pieces(net, auction, vertex)
    else:
        loser = _outbid(auction, vertex, price, task)
    value = slot_value(net, auction, vertex)
    if value != auction.value[vertex]:
        auction.value[vertex] = value
        _update_aggregates(net, auction, vertex)
    return loser


@no_refcount_kernel
def run_bids(net: Net, auction: AuctionState, waiting: int, bids_max: int) -> int:
    """Let the tasks on the stack bid until all have a slot or ``bids_max`` is reached; return the bids."""
    bids = 0
    while waiting and bids < bids_max:
        bids += 1
        waiting -= 1
        task = auction.stack[waiting]
        option, least, second = _best(net, auction, task)
        if option < 0:
            continue
        auction.chosen[task] = option
        vertex, depth = net.target[option], 0
        while auction.kind[vertex] == AGGREGATE:
            arc = auction.arc_heap[net.out_start[vertex]]
            auction.chosen_path[task, depth] = arc
            depth += 1
            vertex = net.head[arc]
        if depth < DEPTH:
            auction.chosen_path[task, depth] = -1
        if auction.kind[vertex] == UNLIMITED or auction.value[vertex] == FAR:
            continue
        step = auction.coarse_step if depth else auction.step
        rise = min(second - least, auction.scale << 20) + step
        loser = _take_slot(net, auction, task, vertex, auction.value[vertex] + rise)
        if loser >= 0:
            auction.chosen[loser] = -1
            auction.stack[waiting] = loser
            waiting += 1
    return bids


SCALE: Final = 8
"""The number of price steps in a cost unit, so that the smallest step is lost in rounding."""

COARSE_STEPS: Final = 2
"""The steps in a cost unit where the aggregates' arcs have different costs. Many slots below them then
come to the same value, and small steps would make a long bidding war. A step of a whole unit is too much
for the rounding. Where the arcs cost the same, first prices are so good that the small step is better."""

STEPS_MAX: Final = 2**17
"""The largest cost in steps; with smaller steps, bidding wars over large costs would take too long."""

SCALED_MAX: Final = 2**57
"""The limit of scaled costs, so that sums along a path fit 64 bits."""

SAMPLE_TASKS: Final = 2048
"""The approximate number of tasks from which the first prices are estimated."""

NO_PRICE: Final = -(2**58)
"""A price below that of every slot."""


@kernel
def _option_counts(net: Net) -> Ints:
    """Return the number of options that lead to each vertex, (V,); unused options do not count."""
    count = np.zeros(len(net.price), np.int64)
    for option in range(len(net.target)):
        if net.option_task[option] >= 0:
            count[net.target[option]] += 1
    return count


@kernel
def _kinds(net: Net, option_count: Ints) -> tuple[Ints, Ints]:
    """Return the kind and the number of slots of each vertex, (V,) each."""
    vertices = len(net.price)
    kind, slots = np.full(vertices, SLOTS, np.int64), np.zeros(vertices, np.int64)
    kind[SINK] = UNLIMITED
    for arc in range(len(net.tail)):
        if net.head[arc] != SINK:
            kind[net.tail[arc]] = AGGREGATE
    for arc in range(len(net.tail)):
        vertex = net.tail[arc]
        if kind[vertex] != AGGREGATE:
            slots[vertex] = min(slots[vertex] + net.capacity[arc], len(net.choice))
            if (
                net.in_start[vertex] == net.in_start[vertex + 1]
                and net.out_start[vertex + 1] - net.out_start[vertex] == 1
                and net.capacity[arc] >= option_count[vertex]
            ):
                kind[vertex] = UNLIMITED
                slots[vertex] = 0
    return kind, slots


@kernel
def _paths(net: Net, kind: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Return the cost of the cheapest path from the top to each vertex, and its depth; (V,) each.

    The depth is the largest number of arcs from a vertex to one with slots.
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


@no_refcount_kernel
def _demand(net: Net, kind: Ints, path: Ints, every: int, price: int) -> int:
    """Return how many of every ``every``-th task want a slot that costs less than ``price`` at the top."""
    count = 0
    for task in range(0, len(net.choice), every):
        best, wants = FAR, 0
        for option in range(net.row_start[task], net.row_end[task]):
            target = net.target[option]
            pays = net.option_cost[option] + net.price[target]
            cheap = 0
            if kind[target] != UNLIMITED and net.price[target] < price - path[target]:
                pays = net.option_cost[option] + price - path[target]
                cheap = 1
            if pays < best or (pays == best and cheap):
                best, wants = pays, cheap
        count += wants
    return count


def _clearing_price(net: Net, kind: Ints, path: Ints) -> int:
    """Return the price at the top at which the slots below it are as many as tasks want; NEVER if all fit.

    ``net.price`` must be that of an empty network. The price is estimated from a sample of the tasks.
    """
    pieces = np.flatnonzero((kind[net.tail] == SLOTS) & (net.in_start[net.tail] < net.in_start[net.tail + 1]))
    base = path[net.tail[pieces]] + net.cost[pieces]
    units = net.capacity[pieces]
    tasks = len(net.choice)
    if not len(pieces) or units[base == base.min()].sum() >= tasks:
        return NO_PRICE
    every = max(1, tasks // SAMPLE_TASKS)
    low, high = int(base.min()), int(base.max() + np.abs(net.option_cost).max(initial=0) * 2) + 2
    while high - low > 1:
        middle = (low + high) // 2
        if _demand(net, kind, path, every, middle) * every >= units[base < middle].sum():
            low = middle
        else:
            high = middle
    return low


@kernel
def _set_first_prices(net: Net, auction: AuctionState, order: Ints) -> None:
    """Set the first prices from the bottom up, and the heap or the order of pieces of each vertex."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        auction.best_vertex[vertex] = vertex
        if vertex == SINK:
            continue
        first, last = net.out_start[vertex], net.out_start[vertex + 1]
        arcs = net.out_arcs[first:last]
        if auction.kind[vertex] != AGGREGATE:
            ranked = np.argsort(net.cost[arcs], kind="mergesort")
            auction.arc_heap[first:last] = arcs[ranked]
            auction.piece[vertex] = first
            if auction.kind[vertex] == UNLIMITED:
                auction.value[vertex] = net.cost[arcs[0]] * auction.scale
            else:
                auction.piece_left[vertex] = net.capacity[auction.arc_heap[first]] if first < last else 0
                skip_full_pieces(net, auction, vertex)
                auction.value[vertex] = slot_value(net, auction, vertex)
            continue
        keys = net.cost[arcs] * auction.scale + auction.value[net.head[arcs]]
        keys = np.where(net.capacity[arcs] > net.lower[arcs], keys, FAR)
        ranked = np.argsort(keys, kind="mergesort")
        auction.arc_heap[first:last] = arcs[ranked]
        auction.arc_key[first:last] = keys[ranked]
        auction.size[vertex] = last - first
        auction.value[vertex] = min(FAR, auction.arc_key[first])
        auction.best_vertex[vertex] = auction.best_vertex[net.head[auction.arc_heap[first]]]


def new_auction(net: Net, order: Ints) -> AuctionState | None:
    """Return a new auction; ``order`` is topological. Return None if an auction does not fit the network."""
    vertices, tasks = len(net.price), len(net.choice)
    most = int(max(np.abs(net.option_cost).max(initial=0), np.abs(net.cost).max(initial=0)))
    option_count = _option_counts(net)
    kind, slots = _kinds(net, option_count)
    path, depth = _paths(net, kind, order)
    if most * SCALE >= SCALED_MAX or depth.max(initial=0) > DEPTH or slots.sum() > 16 * tasks + 2**16:
        return None
    start = np.cumsum(slots) - slots
    entered = net.in_start[1:] > net.in_start[:-1]
    price = _clearing_price(net, kind, path)
    step, passed = 1 + most * SCALE // STEPS_MAX, net.cost[kind[net.tail] == AGGREGATE]
    war_step = max(step, SCALE // COARSE_STEPS) if len(passed) and passed.min() < passed.max() else step
    floor = np.where(entered & (price > NO_PRICE), (price - path) * SCALE, NO_PRICE * SCALE)
    auction = AuctionState(
        scale=SCALE,
        option_count=option_count,
        step=step,
        coarse_step=war_step,
        kind=kind,
        value=np.zeros(vertices, np.int64),
        best_vertex=np.zeros(vertices, np.int64),
        size=np.zeros(vertices, np.int64),
        arc_heap=np.zeros(len(net.tail), np.int64),
        arc_key=np.zeros(len(net.tail), np.int64),
        slot_start=start,
        slot_price=np.empty(int(slots.sum()) + 1, np.int64),
        slot_task=np.empty(int(slots.sum()) + 1, np.int32),
        piece=np.zeros(vertices, np.int64),
        piece_left=np.zeros(vertices, np.int64),
        price_floor=floor,
        chosen=np.full(tasks, -1, np.int64),
        chosen_path=np.full((tasks, DEPTH), -1, np.int32),
        stack=np.arange(tasks - 1, -1, -1, dtype=np.int32),
        rising=np.empty(2 * (vertices + len(net.tail)), np.int64),
    )
    _set_first_prices(net, auction, order)
    return auction


@no_refcount_kernel
def adopt_prices(net: Net, auction: AuctionState, order: Ints, offset: int, dead: int) -> None:
    """Round the prices of vertices with slots down, after adding ``offset``; compute those of aggregates."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        if auction.kind[vertex] != AGGREGATE:
            value = auction.value[vertex]
            net.price[vertex] = dead if value >= FAR else (value + offset) // auction.scale
            continue
        best = dead
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            if net.capacity[arc] > net.lower[arc]:
                best = min(best, net.cost[arc] + net.price[net.head[arc]])
        net.price[vertex] = best


@no_refcount_kernel
def adopt_choices(net: Net, auction: AuctionState) -> None:
    """Give tasks the options that they won, if these are best at the rounded prices, and set their flow."""
    for task in range(len(net.choice)):
        option = auction.chosen[task]
        if option < 0:
            continue
        least = net.option_cost[option] + net.price[net.target[option]]
        fits = True
        for other in range(net.row_start[task], net.row_end[task]):
            if net.option_cost[other] + net.price[net.target[other]] < least:
                fits = False
                break
        if fits:
            choose(net, task, option)
            for step in range(DEPTH):
                if auction.chosen_path[task, step] < 0:
                    break
                net.flow[auction.chosen_path[task, step]] += 1


@no_refcount_kernel
def fill_pieces(net: Net, auction: AuctionState) -> None:
    """Set the flow of the arcs to the sink from the flow into the vertices with slots, cheapest first."""
    for vertex in range(len(net.price)):
        if vertex == SINK or auction.kind[vertex] == AGGREGATE:
            continue
        here = 0
        task = net.first_task[vertex]
        while task >= 0:
            here += 1
            task = net.next_task[task]
        for arc in net.in_arcs[net.in_start[vertex] : net.in_start[vertex + 1]]:
            here += net.flow[arc]
        for arc in auction.arc_heap[net.out_start[vertex] : net.out_start[vertex + 1]]:
            net.flow[arc] = max(net.lower[arc], min(here, net.capacity[arc]))
            here -= net.flow[arc]


BIDS_EACH_MAX: Final = 64
BIDS_MAX: Final = 2000
"""The bids for each task that comes in, and in all; more would be a bidding war for too few slots."""

NEAR_SHARE: Final = 8
"""The number of candidates that are kept for the next round, as a multiple of the tasks needed."""

ROUNDS_MAX: Final = 12
"""The number of rounds after which the rest is left to the repair."""


@no_refcount_kernel
def _slot_cost(net: Net, auction: AuctionState, vertex: int) -> int:
    """Return the cost of a vertex' next slot, or of the last if all are taken; FAR if it has none."""
    first, last = net.out_start[vertex], net.out_start[vertex + 1]
    if first == last:
        return FAR
    return int(net.cost[auction.arc_heap[min(auction.piece[vertex], last - 1)]] * auction.scale)


@no_refcount_kernel
def _is_above_cost(net: Net, auction: AuctionState, vertex: int) -> int:
    """Return 1 if a vertex' slots are above their cost, so that they could become cheaper."""
    return int(auction.kind[vertex] == SLOTS and auction.value[vertex] > _slot_cost(net, auction, vertex))


@no_refcount_kernel
def _left_over(net: Net, auction: AuctionState) -> int:
    """Return the number of slots that are free and above their cost."""
    count = 0
    for vertex in range(len(net.price)):
        if vertex != SINK and _is_above_cost(net, auction, vertex):
            for place in range(auction.piece[vertex], net.out_start[vertex + 1]):
                arc = auction.arc_heap[place]
                if net.cost[arc] * auction.scale < auction.price_floor[vertex]:
                    room = net.capacity[arc]
                    count += auction.piece_left[vertex] if place == auction.piece[vertex] else room
    return count


@no_refcount_kernel
def _gaps(net: Net, auction: AuctionState, tasks: Ints, room: Ints, gaps: Ints) -> None:
    """Compute by how much prices must fall until each of ``tasks`` would move to them; FAR where it cannot.

    The result is in ``gaps``. ``room`` (V,) receives the amount by which each vertex' price exceeds its cost.
    """
    for vertex in range(len(room)):
        room[vertex] = 0
        if _is_above_cost(net, auction, vertex):
            room[vertex] = auction.value[vertex] - _slot_cost(net, auction, vertex)
    for place in range(len(tasks)):
        task = tasks[place]
        gaps[place] = FAR
        option = auction.chosen[task]
        if option < 0:
            continue
        vertex = net.target[option]
        pays = net.option_cost[option] * auction.scale
        for step in range(DEPTH):
            arc = auction.chosen_path[task, step]
            if arc < 0:
                break
            pays += net.cost[arc] * auction.scale
            vertex = net.head[arc]
        # The price of its own slot falls too, but not below its cost.
        pays += auction.value[vertex] - room[vertex]
        gap = FAR
        for other in range(net.row_start[task], net.row_end[task]):
            target = net.target[other]
            if room[auction.best_vertex[target]]:
                gap = min(gap, net.option_cost[other] * auction.scale + auction.value[target] - pays)
        gaps[place] = gap


@no_refcount_kernel
def _lower(net: Net, auction: AuctionState, order: Ints, fall: int) -> None:
    """Lower all prices that are above their costs by ``fall``, and those of the aggregates above."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        first, last = net.out_start[vertex], net.out_start[vertex + 1]
        if _is_above_cost(net, auction, vertex):
            least = _slot_cost(net, auction, vertex)
            base = auction.slot_start[vertex]
            for slot in range(base, base + auction.size[vertex]):
                auction.slot_price[slot] = max(least, auction.slot_price[slot] - fall)
            auction.price_floor[vertex] -= fall
            auction.value[vertex] = slot_value(net, auction, vertex)
        elif auction.kind[vertex] == AGGREGATE:
            # Insertion sort: keys keep most of their order when all fall by the same amount.
            for at in range(first, last):
                arc = auction.arc_heap[at]
                key = FAR
                if net.capacity[arc] > net.lower[arc]:
                    key = net.cost[arc] * auction.scale + auction.value[net.head[arc]]
                slot = at
                while slot > first and auction.arc_key[slot - 1] > key:
                    auction.arc_key[slot] = auction.arc_key[slot - 1]
                    auction.arc_heap[slot] = auction.arc_heap[slot - 1]
                    slot -= 1
                auction.arc_key[slot] = key
                auction.arc_heap[slot] = arc
            auction.value[vertex] = min(FAR, auction.arc_key[first])
            auction.best_vertex[vertex] = auction.best_vertex[net.head[auction.arc_heap[first]]]


@no_refcount_kernel
def _release(net: Net, auction: AuctionState, task: int) -> None:
    """Take the slot from a task; the slot is then free at the price of the other free ones."""
    vertex = net.target[auction.chosen[task]]
    for step in range(DEPTH):
        if auction.chosen_path[task, step] < 0:
            break
        vertex = net.head[auction.chosen_path[task, step]]
    auction.chosen[task] = -1
    if auction.kind[vertex] != SLOTS:
        return
    base, size = auction.slot_start[vertex], auction.size[vertex]
    # A sorted array is also a heap, and these arrays are short.
    for at in range(base + 1, base + size):
        price, who, slot = auction.slot_price[at], auction.slot_task[at], at
        while slot > base and auction.slot_price[slot - 1] > price:
            auction.slot_price[slot] = auction.slot_price[slot - 1]
            auction.slot_task[slot] = auction.slot_task[slot - 1]
            slot -= 1
        auction.slot_price[slot] = price
        auction.slot_task[slot] = who
    position = base
    while position < base + size and auction.slot_task[position] != task:
        position += 1
    if position == base + size:
        # It chose a vertex without slots, because it had no other option.
        return
    for at in range(position, base + size - 1):
        auction.slot_price[at] = auction.slot_price[at + 1]
        auction.slot_task[at] = auction.slot_task[at + 1]
    auction.size[vertex] = size - 1
    if auction.piece[vertex] == net.out_start[vertex + 1]:
        auction.piece[vertex] -= 1
    auction.piece_left[vertex] += 1


@no_refcount_kernel
def release_all(net: Net, auction: AuctionState, tasks: Ints) -> None:
    """Take the slots from tasks."""
    for task in tasks:
        _release(net, auction, task)


def reduce_prices(net: Net, auction: AuctionState, order: Ints) -> None:
    """Lower prices until no slot above its cost is free, or the remaining gain is small."""
    room, near = np.empty(len(net.price), np.int64), np.arange(len(net.choice))
    for _ in range(ROUNDS_MAX):
        free = _left_over(net, auction)
        if not free:
            return
        gaps = np.empty(len(near), np.int64)
        _gaps(net, auction, near, room, gaps)
        wanted = min(free, int(np.count_nonzero(gaps < FAR)))
        if not wanted:
            return
        if NEAR_SHARE * wanted < len(near):
            # Bids raise prices, so that a task that is far away now will not be among the next to come.
            nearest = np.argpartition(gaps, NEAR_SHARE * wanted)[: NEAR_SHARE * wanted]
            near, gaps = near[nearest], gaps[nearest]
        ranked = np.argsort(gaps, kind="stable")[:wanted]
        fall = max(0, int(gaps[ranked[-1]]))
        if fall:
            _lower(net, auction, order, fall)
        moving = near[ranked]
        release_all(net, auction, moving)
        auction.stack[: len(moving)] = moving[::-1]
        run_bids(net, auction, len(moving), BIDS_EACH_MAX * len(moving) + BIDS_MAX)


ALGORITHM: Final = "auction"

BIDS_PER_TASK_MAX: Final = 40
"""The number of bids for each task after which the rest is left to the repair: it is a bidding war."""

LEFT_MIN: Final = 32
LEFT_SHARE: Final = 16
"""A network does not suit an auction if bids leave more than LEFT_MIN tasks, and one of LEFT_SHARE, without
an option."""

DEMANDS_SHARE: Final = 4
"""A network does not suit an auction either if more than LEFT_MIN vertices, and one for each DEMANDS_SHARE
tasks, have a demand of their own: bids go for the cheapest slots, also where a dear one must be taken."""

REPAIR_MIN: Final = 50_000
REPAIR_SHARE: Final = 16
"""The work of a repair after which another algorithm is likely to be faster: REPAIR_MIN, and REPAIR_SHARE
times the number of options and arcs."""

ROUNDING_STEPS: Final = 2
"""The largest difference in steps between prices that may belong together."""


def start_by_auction(net: Net, order: Ints, dead: int) -> int:
    """Find good prices and options by an auction, if one fits; no task may have an option, no arc flow.

    Return the number of tasks that the bids left without an option; more than a few show that the network
    does not suit an auction.

    ``order`` is topological; ``dead`` is the price of vertices without a path to the sink. Slackness holds
    for the tasks that have an option afterwards; the other tasks and the arcs have to be settled.
    """
    auction = new_auction(net, order)
    if auction is None:
        return 0
    tasks = len(net.choice)
    run_bids(net, auction, tasks, BIDS_PER_TASK_MAX * tasks)
    left = int(np.count_nonzero(auction.chosen < 0))
    reduce_prices(net, auction, order)
    option_count = auction.option_count * (auction.kind == AGGREGATE)
    part = int(auction.value[int(np.argmax(option_count))] % auction.scale) if option_count.any() else 0
    # Tasks in the largest aggregate pay its price or one step more; rounding must not separate them.
    offset = auction.scale - part if part + ROUNDING_STEPS >= auction.scale else 0
    adopt_prices(net, auction, order, offset, dead)
    adopt_choices(net, auction)
    fill_pieces(net, auction)
    return left


def solve_contracted(small: Contracted, work_share: int = 0) -> int:
    """Solve the contracted network in place; return SOLVED, INFEASIBLE or GAVE_UP.

    It gives up only with a ``work_share`` above 0: where many vertices have demands, where bids leave many
    tasks without an option, and where the repair would read more than REPAIR_MIN, and this many times the
    number of options and arcs.
    """
    net = small.net
    demands = np.count_nonzero(small.supply[1:] < 0)
    if work_share and demands > LEFT_MIN + len(net.choice) // DEMANDS_SHARE:
        return GAVE_UP
    left = start_by_auction(net, small.order, small.dead)
    if work_share and left > LEFT_MIN + len(net.choice) // LEFT_SHARE:
        return GAVE_UP
    if choose_best(net, np.flatnonzero(net.choice < 0)):
        return INFEASIBLE
    settle_arcs(net)
    count_excess(net, small.supply)
    work_max = REPAIR_MIN + work_share * (len(net.target) + len(net.tail)) if work_share else NO_LIMIT
    counters = np.zeros(3, np.int64)
    return repair(net, new_search(len(net.price)), counters, work_max=work_max)


def run(problem: FlowProblem) -> FlowSolution:
    """Return the solution; for another shape that of the network simplex, with the reason in ``reason``."""
    began = time.perf_counter()
    outcome = _solved(problem)
    if not isinstance(outcome, str):
        return outcome
    general = network_simplex.run(problem)
    reason = general.reason or f"solved by {general.algorithm}: {outcome}"
    seconds = time.perf_counter() - began
    return replace(general, algorithm=ALGORITHM, seconds=seconds, reason=reason)


def solve_or_none(problem: FlowProblem) -> FlowSolution | None:
    """Return the solution if the problem suits an auction and is feasible, else None after little work."""
    outcome = _solved(problem, REPAIR_SHARE)
    return None if isinstance(outcome, str) else outcome


def _solved(problem: FlowProblem, work_share: int = 0) -> FlowSolution | str:
    began = time.perf_counter()
    small = contract(problem)
    if isinstance(small, str):
        return small
    ended = solve_contracted(small, work_share)
    if ended != SOLVED:
        return "it is infeasible" if ended == INFEASIBLE else "bids do not settle it"
    flow, prices = expand(problem, small)
    net = small.net
    # The contracted network has the same cost and far fewer arcs to add up.
    cost = exact_product(net.flow, net.cost) + exact_sum(net.option_cost[net.choice])
    seconds = time.perf_counter() - began
    return FlowSolution(flow, cost, prices, "optimal", ALGORITHM, seconds)
