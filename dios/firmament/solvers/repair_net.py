"""A contracted network as columns, and the small steps that every kernel of the fast solver takes on it.

A residual edge leads from where a task is to each of its other options, besides those of the arcs.

Not for: recognising the shape (``shape.py``), searching (``repair_forward.py``, ``repair_backward.py``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.compiled import borrowing
from dios.firmament.solvers.columns import Indices, Ints, grouped

FAR: Final = 2**62
"""More than any distance between two vertices."""

NONE: Final = -(2**62)
"""No edge: beyond the codes of all arcs and options."""

INFEASIBLE: Final = 0
SOLVED: Final = 1
GAVE_UP: Final = 2
"""How a repair ends."""

SINK: Final = 0
"""The sink's vertex. Its price is 0 for ever, and it takes and gives whatever is left."""


class Net(NamedTuple):
    """The network's columns. V vertices, A arcs, T tasks, O options.

    ``price`` (V,) is what a unit pays from a vertex to the sink: the price of thesis §C.1.2 with its sign
    turned. Complementary slackness holds between searches: an arc's ``cost - price[tail] + price[head]``
    is >= 0 where it has room, <= 0 where its flow is above ``lower``, and each task sits on an option whose
    ``option_cost + price[target]`` is the least of its row.
    ``excess`` (V,) is what still has to leave (or, negative, to come). ``out_arcs`` between ``out_start``
    and the like for ``in`` list the arcs of a vertex.
    A task's options are ``begin`` to ``end``; ``seat`` is the one it takes, -1 where it takes none; the tasks
    that sit at a vertex are a list: ``first`` (V,), ``following``, ``preceding`` (T,), -1 at its ends.
    ``row`` (O,) is an option's task, -1 where the option is of no task any more. The options that name a
    vertex are a list ``asked`` (V,), ``asked_next``, ``asked_back`` (O,).
    Two bounds spare searches most rows: no task wants to leave its vertex while the price there is below
    ``leaves`` (T,), and none to come by an option while the price there is above ``comes`` (O,). The first
    holds while other prices rise, the second while they fall.
    """

    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints
    flow: Ints
    out_start: Ints
    out_arcs: Ints
    in_start: Ints
    in_arcs: Ints
    price: Ints
    excess: Ints
    begin: Ints
    end: Ints
    seat: Ints
    target: Indices
    option_cost: Ints
    row: Indices
    first: Indices
    following: Indices
    preceding: Indices
    asked: Indices
    asked_next: Indices
    asked_back: Indices
    leaves: Ints
    comes: Ints


class ArcColumns(NamedTuple):
    """Arcs as columns."""

    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints


class Search(NamedTuple):
    """What a search remembers, (V,) each: who was seen in this phase, how far each list was read, the path.

    ``found`` lists the vertices seen in a phase. ``distance`` is how far a vertex of the zone is from
    leaving it. ``inner_from``, ``inner_to`` and ``inner_far`` (other lengths) are the edges within a zone.
    """

    stamp: Ints
    opened: Ints
    out_cursor: Ints
    in_cursor: Ints
    task_cursor: Ints
    path: Ints
    edge: Ints
    found: Ints
    distance: Ints
    inner_from: Ints
    inner_to: Ints
    inner_far: Ints


INNER_EDGES: Final = 2**17
"""So many edges within a zone are noted; where there are more, lists are read again and again."""


def new_search(vertices: int) -> Search:
    """The memory of searches in a network of so many vertices."""
    columns = (np.zeros(2 * vertices + 1, np.int64) for _ in range(len(Search._fields) - 3))
    return Search(*columns, *(np.empty(INNER_EDGES, np.int64) for _ in range(3)))


def new_net(
    vertices: int, arcs: ArcColumns, begin: Ints, target: Indices, option_cost: Ints, row: Indices
) -> Net:
    """A network with nobody seated, the least flow, and prices of 0; ``begin`` is (T + 1,)."""
    tasks, options = len(begin) - 1, len(target)
    return Net(
        *arcs,
        arcs.lower.copy(),
        *grouped(arcs.tail, vertices),
        *grouped(arcs.head, vertices),
        np.zeros(vertices, np.int64),
        np.zeros(vertices, np.int64),
        begin[:-1].copy(),
        begin[1:].copy(),
        np.full(tasks, -1, np.int64),
        target,
        option_cost,
        row,
        np.full(vertices, -1, np.int32),
        np.full(tasks, -1, np.int32),
        np.full(tasks, -1, np.int32),
        np.full(vertices, -1, np.int32),
        np.empty(options, np.int32),
        np.empty(options, np.int32),
        np.full(tasks, -FAR, np.int64),
        np.full(options, FAR, np.int64),
    )


@borrowing
def _link(first: Indices, after: Indices, before: Indices, group: int, entry: int) -> None:
    """Put an entry at the front of a group's list."""
    second = first[group]
    after[entry] = second
    before[entry] = -1
    first[group] = entry
    if second >= 0:
        before[second] = entry


@borrowing
def _unlink(first: Indices, after: Indices, before: Indices, group: int, entry: int) -> None:
    """Take an entry out of a group's list."""
    previous, following = before[entry], after[entry]
    if previous >= 0:
        after[previous] = following
    else:
        first[group] = following
    if following >= 0:
        before[following] = previous


@borrowing
def unseat(net: Net, task: int) -> None:
    """Take a task off its option."""
    _unlink(net.first, net.following, net.preceding, net.target[net.seat[task]], task)
    net.seat[task] = -1


@borrowing
def sit(net: Net, task: int, option: int) -> None:
    """Put a task that takes none on an option."""
    net.seat[task] = option
    net.leaves[task] = -FAR
    _link(net.first, net.following, net.preceding, net.target[option], task)


@borrowing
def gather_zone(search: Search, now: int, held: int, found: int, grows: int) -> int:
    """The zone's size: what was seen in this phase in vain; where it ``grows``, the first ``held`` too."""
    for place in range(held):
        vertex = search.found[place]
        # What is held and was seen again stands in the list twice: the second time counts.
        if grows and search.stamp[vertex] != now:
            search.stamp[vertex] = now
        else:
            search.found[place] = -1
    size = 0
    for place in range(found):
        vertex = search.found[place]
        if vertex >= 0 and search.stamp[vertex] == now:
            search.found[size] = vertex
            search.distance[vertex] = FAR
            size += 1
    return size


@borrowing
def _note_inner(search: Search, count: int, vertex: int, to: int, far: int) -> int:
    """Note an edge within the zone, if there is room; how many there are."""
    if count < len(search.inner_from):
        search.inner_from[count] = vertex
        search.inner_to[count] = to
        search.inner_far[count] = far
    return count + 1


@borrowing
def nearer(
    search: Search, now: int, vertex: int, to: int, far: int, best: int, inner: int
) -> tuple[int, int]:
    """How far a vertex is from leaving the zone, ``best`` so far, by an edge of length ``far`` below that;
    and how many edges within the zone are noted.
    """
    if search.stamp[to] != now:
        return far, inner
    return min(best, far + search.distance[to]), _note_inner(search, inner, vertex, to, far)


@borrowing
def settle_distances(search: Search, count: int) -> None:
    """Carry distances on along the edges noted, until they fit."""
    changed = True
    while changed:
        changed = False
        for edge in range(count):
            far = search.inner_far[edge] + search.distance[search.inner_to[edge]]
            if far < search.distance[search.inner_from[edge]]:
                search.distance[search.inner_from[edge]] = far
                changed = True


@borrowing
def path_room(net: Net, search: Search, depth: int, amount: int) -> int:
    """How much of ``amount`` fits the path; an option carries one unit."""
    for step in range(depth):
        code = search.edge[step]
        if code < 0:
            amount = 1
        elif code % 2:
            amount = min(amount, net.flow[code >> 1] - net.lower[code >> 1])
        else:
            amount = min(amount, net.capacity[code >> 1] - net.flow[code >> 1])
    return amount


@borrowing
def list_askers(net: Net, options: Ints) -> None:
    """Enter options into the lists of the vertices that they name."""
    for option in options:
        _link(net.asked, net.asked_next, net.asked_back, net.target[option], option)


@borrowing
def unlist_askers(net: Net, options: Ints) -> None:
    """Take options out of the lists of the vertices that they name."""
    for option in options:
        _unlink(net.asked, net.asked_next, net.asked_back, net.target[option], option)


@borrowing
def seat_best(net: Net, tasks: Ints) -> int:
    """Move each of these tasks to its cheapest option, where it is not on one; how many have no option."""
    homeless = 0
    for task in tasks:
        seat = net.seat[task]
        best, least = -1, FAR
        for option in range(net.begin[task], net.end[task]):
            pays = net.option_cost[option] + net.price[net.target[option]]
            if pays < least or (pays == least and option == seat):
                best, least = option, pays
        if best < 0:
            homeless += 1
        elif best != seat:
            if seat >= 0:
                unseat(net, task)
            sit(net, task, best)
    return homeless


@borrowing
def settle_arcs(net: Net) -> None:
    """Give every arc a flow that fits the prices: full where it saves, least where it costs."""
    for arc in range(len(net.tail)):
        reduced = net.cost[arc] - net.price[net.tail[arc]] + net.price[net.head[arc]]
        if reduced < 0:
            net.flow[arc] = net.capacity[arc]
        elif reduced > 0:
            net.flow[arc] = net.lower[arc]
        else:
            net.flow[arc] = min(max(net.flow[arc], net.lower[arc]), net.capacity[arc])


@borrowing
def count_excess(net: Net, supply: Ints) -> None:
    """Work out from the flow, the seats and the supplies (V,) what has to leave each vertex or come to it."""
    for vertex in range(len(supply)):
        net.excess[vertex] = supply[vertex]
    for arc in range(len(net.tail)):
        net.excess[net.tail[arc]] -= net.flow[arc]
        net.excess[net.head[arc]] += net.flow[arc]
    for task in range(len(net.seat)):
        if net.seat[task] >= 0:
            net.excess[net.target[net.seat[task]]] += 1
