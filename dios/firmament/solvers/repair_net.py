"""A contracted network as columns, and the small steps that every kernel of the fast solver takes on it.

A residual edge leads from where a task is to each of its other options, besides those of the arcs.

Not for: recognising the shape (``shape.py``), searching (``repair_forward.py``, ``repair_backward.py``).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dios.compiled import borrowing, compiled
from dios.firmament.solvers.columns import Ints

Indices: TypeAlias = NDArray[np.int32]

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


@compiled
def grouped(ends: Ints, groups: int) -> tuple[Ints, Ints]:
    """Arcs by one of their ends: where each group starts (groups + 1,), and the arcs in that order."""
    start = np.zeros(groups + 1, np.int64)
    for end in ends:
        start[end + 1] += 1
    for group in range(groups):
        start[group + 1] += start[group]
    order = np.empty(len(ends), np.int64)
    cursor = start.copy()
    for arc in range(len(ends)):
        order[cursor[ends[arc]]] = arc
        cursor[ends[arc]] += 1
    return start, order


def spans(begin: Ints, length: Ints) -> Ints:
    """The numbers of all spans, one after the other: ``length[i]`` numbers from ``begin[i]`` on."""
    ends = np.cumsum(length)
    return np.repeat(begin - ends + length, length) + np.arange(ends[-1] if len(ends) else 0)


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
def unseat(net: Net, task: int) -> None:
    """Take a task off its option."""
    vertex = net.target[net.seat[task]]
    before, after = net.preceding[task], net.following[task]
    if before >= 0:
        net.following[before] = after
    else:
        net.first[vertex] = after
    if after >= 0:
        net.preceding[after] = before
    net.seat[task] = -1


@borrowing
def sit(net: Net, task: int, option: int) -> None:
    """Put a task that takes none on an option."""
    vertex = net.target[option]
    after = net.first[vertex]
    net.seat[task] = option
    net.leaves[task] = -FAR
    net.following[task] = after
    net.preceding[task] = -1
    net.first[vertex] = task
    if after >= 0:
        net.preceding[after] = task


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
def note_inner(search: Search, count: int, vertex: int, to: int, far: int) -> int:
    """Note an edge within the zone, if there is room; how many there are."""
    if count < len(search.inner_from):
        search.inner_from[count] = vertex
        search.inner_to[count] = to
        search.inner_far[count] = far
    return count + 1


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
def list_askers(net: Net, options: Ints) -> None:
    """Enter options into the lists of the vertices that they name."""
    for option in options:
        vertex = net.target[option]
        after = net.asked[vertex]
        net.asked_next[option] = after
        net.asked_back[option] = -1
        net.asked[vertex] = option
        if after >= 0:
            net.asked_back[after] = option


@borrowing
def unlist_askers(net: Net, options: Ints) -> None:
    """Take options out of the lists of the vertices that they name."""
    for option in options:
        before, after = net.asked_back[option], net.asked_next[option]
        if before >= 0:
            net.asked_next[before] = after
        else:
            net.asked[net.target[option]] = after
        if after >= 0:
            net.asked_back[after] = before


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
