"""The contracted network of a scheduler, and its exact repair: from any prices to an optimal flow.

The network has upper vertices (aggregates, machines, the sink) with arcs between them. A task is a row of
options, one for each vertex that it can send its unit to; it takes one of them. In the residual network an
edge leads from the vertex that a task takes to the vertex of each of its other options.

The repair works in phases, first from each excess towards the sink, then from the sink towards each deficit
(primal-dual; thesis §6.4). A phase is a blocking depth-first search along edges of reduced cost 0. The
vertices from which the search could not go on are the zone; their prices then change by their distance to
the zone's border. Both steps keep complementary slackness, so the flow at the end is optimal.

Good prices to begin with come from ``auction``. ``warm_solver`` keeps a network between solutions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Indices, Ints, grouped
from dios.kernels import force_inlined_kernel, no_refcount_kernel

FAR: Final = 2**62
"""A distance greater than that between any two vertices."""

NONE: Final = -(2**62)
"""The code for no edge. The codes of arcs and options are all greater."""

INFEASIBLE: Final = 0
SOLVED: Final = 1
GAVE_UP: Final = 2
_OUT_OF_REACH: Final = 3
"""The results of a repair. The last is one between its parts: prices fell below the options at hand."""

SINK: Final = 0
"""The vertex of the sink. Its price stays 0; it takes every excess and supplies every deficit."""

FORWARD: Final = 1
BACKWARD: Final = -1
"""The directions of a search: from an excess along the edges, or from a deficit against them."""

NO_LIMIT: Final = 2**62
"""A limit of work that no repair reaches."""

NEAR_SHARE: Final = 1 / 4
"""The share of all options that searches from many deficits read, before they read all."""

_SAMPLES: Final = 8192
"""The approximate number of options in a sample of the falls of prices."""

FEW_SHARE: Final = 64
"""If searches from deficits reached at most one vertex of this many, they continue with the options that lead
to these vertices."""

PACED_SHARE: Final = 4
"""A repair can judge its pace after it did one part of this many of the work allowed."""

INNER_EDGES_MAX: Final = 2**17
"""The number of edges within a zone that are recorded. In larger zones the adjacency lists are read again."""

CLOCK: Final = 0
PATHS: Final = 1
WORK_LEFT: Final = 2
"""The places in a repair's counters, see :func:`repair`."""


class Net(NamedTuple):
    """The columns of a network with V vertices, A arcs, T tasks and O options.

    ``price`` (V,) is the cost of a unit from a vertex to the sink: the price of thesis §C.1.2 with its sign
    reversed. Complementary slackness holds between searches: the reduced cost
    ``cost - price[tail] + price[head]`` of an arc is >= 0 where the arc has room, and <= 0 where its flow is
    above ``lower``; each task takes an option whose ``option_cost + price[target]`` is the least of its row.

    ``excess`` (V,) is the flow that still has to leave a vertex (negative: has to reach it).
    The arcs that leave vertex v are ``out_arcs[out_start[v] : out_start[v + 1]]``; ``in_start`` and
    ``in_arcs`` are the same for the arcs that enter it.

    The options of task t are ``row_start[t]`` to ``row_end[t]``; ``choice`` (T,) is the one that it takes, or
    -1. The tasks that take vertex v are a doubly linked list: ``first_task`` (V,), ``next_task`` and
    ``previous_task`` (T,), -1 at both ends. ``option_task`` (O,) is the task of an option, -1 for an option
    that is not in use.

    A bound lets a search skip most rows: no task wants to leave its vertex while the price there is below
    ``leave_price`` (T,), which stays valid while other prices rise.
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
    row_start: Ints
    row_end: Ints
    choice: Ints
    target: Indices
    option_cost: Ints
    option_task: Indices
    first_task: Indices
    next_task: Indices
    previous_task: Indices
    leave_price: Ints


class ArcColumns(NamedTuple):
    """The columns of A arcs."""

    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints


class Near(NamedTuple):
    """The options by which tasks may come to a vertex while prices fall a little, next to each other.

    The options to vertex v are ``option[start[v] : start[v + 1]]``. No task takes an option while the price
    of its vertex is above the option's ``join_price``, which stays valid while other prices fall. No task
    takes any other option while the price is above ``floor`` (V,).
    """

    start: Ints
    option: Indices
    join_price: Ints
    floor: Ints


class Search(NamedTuple):
    """The working memory of searches, with at least V entries in each column.

    ``stamp`` is the phase in which a vertex was last reached, ``opened`` the phase in which its cursors were
    last reset. The cursors are the positions in its arcs, and in its list of tasks or its near options.
    ``path`` are the vertices of the path at hand and ``edge`` the codes of its edges. ``reached`` lists the
    vertices of a phase. ``distance`` is the distance of a vertex of the zone to the zone's border.
    ``inner_from``, ``inner_to`` and ``inner_length`` (INNER_EDGES_MAX entries) are the recorded edges within
    the zone.
    """

    stamp: Ints
    opened: Ints
    out_cursor: Ints
    in_cursor: Ints
    list_cursor: Ints
    path: Ints
    edge: Ints
    reached: Ints
    distance: Ints
    inner_from: Ints
    inner_to: Ints
    inner_length: Ints


def new_search(vertices: int) -> Search:
    """Return the working memory for searches in a network with this number of vertices."""
    columns = (np.zeros(2 * vertices + 1, np.int64) for _ in range(len(Search._fields) - 3))
    return Search(*columns, *(np.empty(INNER_EDGES_MAX, np.int64) for _ in range(3)))


def new_net(
    vertices: int, arcs: ArcColumns, row_start: Ints, target: Indices, option_cost: Ints, option_task: Indices
) -> Net:
    """Return a network in which no task takes an option, with the least flow and prices of 0.

    ``row_start`` has (T + 1,) entries: the row of task t ends where the next row starts.
    """
    tasks = len(row_start) - 1
    return Net(
        *arcs,
        arcs.lower.copy(),
        *grouped(arcs.tail, vertices),
        *grouped(arcs.head, vertices),
        np.zeros(vertices, np.int64),
        np.zeros(vertices, np.int64),
        row_start[:-1].copy(),
        row_start[1:].copy(),
        np.full(tasks, -1, np.int64),
        target,
        option_cost,
        option_task,
        np.full(vertices, -1, np.int32),
        np.full(tasks, -1, np.int32),
        np.full(tasks, -1, np.int32),
        np.full(tasks, -FAR, np.int64),
    )


@no_refcount_kernel
def _link(first: Indices, following: Indices, previous: Indices, group: int, entry: int) -> None:
    """Insert an entry at the front of a group's list."""
    second = first[group]
    following[entry] = second
    previous[entry] = -1
    first[group] = entry
    if second >= 0:
        previous[second] = entry


@no_refcount_kernel
def _unlink(first: Indices, following: Indices, previous: Indices, group: int, entry: int) -> None:
    """Remove an entry from a group's list."""
    before, after = previous[entry], following[entry]
    if before >= 0:
        following[before] = after
    else:
        first[group] = after
    if after >= 0:
        previous[after] = before


@no_refcount_kernel
def clear_choice(net: Net, task: int) -> None:
    """Take the option that it chose from a task."""
    _unlink(net.first_task, net.next_task, net.previous_task, net.target[net.choice[task]], task)
    net.choice[task] = -1


@no_refcount_kernel
def choose(net: Net, task: int, option: int) -> None:
    """Give an option to a task that takes none."""
    net.choice[task] = option
    net.leave_price[task] = -FAR
    _link(net.first_task, net.next_task, net.previous_task, net.target[option], task)


@no_refcount_kernel
def choose_best(net: Net, tasks: Ints) -> int:
    """Let each of these tasks take its cheapest option; return the number of tasks without options.

    A task keeps its present option where that is one of the cheapest.
    """
    without = 0
    for task in tasks:
        present = net.choice[task]
        best, least = -1, FAR
        for option in range(net.row_start[task], net.row_end[task]):
            pays = net.option_cost[option] + net.price[net.target[option]]
            if pays < least or (pays == least and option == present):
                best, least = option, pays
        if best < 0:
            without += 1
        elif best != present:
            if present >= 0:
                clear_choice(net, task)
            choose(net, task, best)
    return without


@no_refcount_kernel
def settle_arcs(net: Net) -> None:
    """Give every arc a flow that is right for the prices.

    An arc of negative reduced cost is filled, one of positive reduced cost carries its lower bound, and the
    flow of the others is only brought within their bounds.
    """
    for arc in range(len(net.tail)):
        reduced = net.cost[arc] - net.price[net.tail[arc]] + net.price[net.head[arc]]
        if reduced < 0:
            net.flow[arc] = net.capacity[arc]
        elif reduced > 0:
            net.flow[arc] = net.lower[arc]
        else:
            net.flow[arc] = min(max(net.flow[arc], net.lower[arc]), net.capacity[arc])


@no_refcount_kernel
def count_excess(net: Net, supply: Ints) -> None:
    """Set ``net.excess`` from the flow, the choices of the tasks, and the supplies (V,)."""
    for vertex in range(len(supply)):
        net.excess[vertex] = supply[vertex]
    for arc in range(len(net.tail)):
        net.excess[net.tail[arc]] -= net.flow[arc]
        net.excess[net.head[arc]] += net.flow[arc]
    for task in range(len(net.choice)):
        if net.choice[task] >= 0:
            net.excess[net.target[net.choice[task]]] += 1


# The functions below serve both directions. Where they take a direction they are inlined into the two
# kernels at the end of this file, in which it is a constant.


@force_inlined_kernel
def _room(net: Net, arc: int, against: int) -> int:
    """Return the flow that an arc can still take (``against`` 0), or that can be taken back (1)."""
    if against:
        return int(net.flow[arc] - net.lower[arc])
    return int(net.capacity[arc] - net.flow[arc])


@force_inlined_kernel
def _next_option_out(net: Net, search: Search, vertex: int, phase: int) -> int:
    """Return the code of an option of reduced cost 0 by which a task can leave this vertex."""
    price = net.price[vertex]
    task = search.list_cursor[vertex]
    while task >= 0:
        if net.leave_price[task] <= price:
            present_cost = net.option_cost[net.choice[task]]
            leave_price = FAR
            for option in range(net.row_start[task], net.row_end[task]):
                other = net.target[option]
                if other != vertex:
                    level = net.option_cost[option] + net.price[other] - present_cost
                    leave_price = min(leave_price, level)
                    if level == price and search.stamp[other] != phase:
                        search.list_cursor[vertex] = task
                        return -1 - option
            net.leave_price[task] = leave_price
        task = net.next_task[task]
    search.list_cursor[vertex] = -1
    return NONE


@force_inlined_kernel
def _next_option_in(net: Net, search: Search, near: Near, vertex: int, phase: int) -> int:
    """Return the code of an option of reduced cost 0 by which a task can come to this vertex."""
    price = net.price[vertex]
    for place in range(search.list_cursor[vertex], near.start[vertex + 1]):
        if near.join_price[place] >= price:
            option = near.option[place]
            present = net.choice[net.option_task[option]]
            other = net.target[present]
            near.join_price[place] = net.option_cost[present] + net.price[other] - net.option_cost[option]
            if near.join_price[place] == price and search.stamp[other] != phase and other != vertex:
                search.list_cursor[vertex] = place
                return int(-1 - option)
    search.list_cursor[vertex] = near.start[vertex + 1]
    return NONE


@force_inlined_kernel
def _next_edge(net: Net, search: Search, near: Near, vertex: int, phase: int, direction: int) -> int:
    """Return the code of the next edge of reduced cost 0 to a vertex that the phase has not reached.

    The code is 2a for arc a, 2a + 1 where its flow is taken back, -1 - o for option o, and NONE.
    """
    price = net.price[vertex]
    against = int(direction == BACKWARD)
    for place in range(search.out_cursor[vertex], net.out_start[vertex + 1]):
        arc = net.out_arcs[place]
        other = net.head[arc]
        if (
            _room(net, arc, against) > 0
            and net.cost[arc] + net.price[other] == price
            and search.stamp[other] != phase
        ):
            search.out_cursor[vertex] = place
            return int(2 * arc + against)
    search.out_cursor[vertex] = net.out_start[vertex + 1]
    for place in range(search.in_cursor[vertex], net.in_start[vertex + 1]):
        arc = net.in_arcs[place]
        other = net.tail[arc]
        if (
            _room(net, arc, 1 - against) > 0
            and net.cost[arc] + price == net.price[other]
            and search.stamp[other] != phase
        ):
            search.in_cursor[vertex] = place
            return int(2 * arc + 1 - against)
    search.in_cursor[vertex] = net.in_start[vertex + 1]
    if direction == FORWARD:
        return _next_option_out(net, search, vertex, phase)
    return _next_option_in(net, search, near, vertex, phase)


@force_inlined_kernel
def _next_vertex(net: Net, code: int, direction: int) -> int:
    """Return the vertex that an edge leads to; the choices of the tasks are those before the path is used."""
    if code < 0:
        option = -1 - code
        if direction == FORWARD:
            return int(net.target[option])
        return int(net.target[net.choice[net.option_task[option]]])
    if code % 2 == int(direction == FORWARD):
        return int(net.tail[code >> 1])
    return int(net.head[code >> 1])


@force_inlined_kernel
def _move_task(net: Net, search: Search, vertex: int, option: int, direction: int) -> None:
    """Let the task of an option take it, and move the cursor of the list that the search reads."""
    task = net.option_task[option]
    if direction == BACKWARD:
        search.list_cursor[vertex] += 1
    elif search.list_cursor[vertex] == task:
        search.list_cursor[vertex] = net.next_task[task]
    clear_choice(net, task)
    choose(net, task, option)


@force_inlined_kernel
def _augment(net: Net, search: Search, depth: int, direction: int) -> None:
    """Send as much as fits along the path of ``depth`` edges; an option carries one unit."""
    start, end = search.path[0], search.path[depth]
    amount = direction * net.excess[start]
    if end != SINK:
        amount = min(amount, -direction * net.excess[end])
    for step in range(depth):
        code = search.edge[step]
        amount = min(amount, 1 if code < 0 else _room(net, code >> 1, code % 2))
    for step in range(depth):
        code = search.edge[step]
        if code < 0:
            _move_task(net, search, search.path[step], -1 - code, direction)
        elif code % 2:
            net.flow[code >> 1] -= amount
        else:
            net.flow[code >> 1] += amount
    net.excess[start] -= direction * amount
    net.excess[end] += direction * amount


@force_inlined_kernel
def _search(
    net: Net, search: Search, near: Near, start: int, phase: int, reached_count: int, direction: int
) -> tuple[int, int]:
    """Search a path of reduced cost 0 depth first, and use it.

    Return 1 if there was one, else 0, and the number of vertices in ``search.reached``.
    """
    depth = 0
    search.path[0] = start
    while True:
        vertex = search.path[depth]
        if vertex == SINK or (direction * net.excess[vertex] < 0 and depth):
            _augment(net, search, depth, direction)
            for step in range(depth):
                search.stamp[search.path[step]] = 0
            return 1, reached_count
        search.stamp[vertex] = phase
        if search.opened[vertex] != phase:
            search.opened[vertex] = phase
            search.out_cursor[vertex] = net.out_start[vertex]
            search.in_cursor[vertex] = net.in_start[vertex]
            if direction == FORWARD:
                search.list_cursor[vertex] = net.first_task[vertex]
            else:
                search.list_cursor[vertex] = near.start[vertex]
            search.reached[reached_count] = vertex
            reached_count += 1
        code = _next_edge(net, search, near, vertex, phase, direction)
        if code == NONE:
            if not depth:
                return 0, reached_count
            depth -= 1
            continue
        search.edge[depth] = code
        depth += 1
        search.path[depth] = _next_vertex(net, code, direction)


@no_refcount_kernel
def _gather_zone(search: Search, phase: int, kept: int, reached_count: int, grows: int) -> int:
    """Leave the zone in ``search.reached`` and return its size.

    The zone consists of the vertices that the phase reached in vain. If it ``grows`` (1), the first ``kept``
    entries, which are the zone before, belong to it too.
    """
    for place in range(kept):
        vertex = search.reached[place]
        # A vertex of the zone before that was reached again is in the list twice; the second entry counts.
        if grows and search.stamp[vertex] != phase:
            search.stamp[vertex] = phase
        else:
            search.reached[place] = -1
    size = 0
    for place in range(reached_count):
        vertex = search.reached[place]
        if vertex >= 0 and search.stamp[vertex] == phase:
            search.reached[size] = vertex
            search.distance[vertex] = FAR
            size += 1
    return size


@force_inlined_kernel
def _nearer(
    search: Search, phase: int, vertex: int, other: int, length: int, best: int, inner: int
) -> tuple[int, int]:
    """Return the distance of a vertex to the border by an edge, and the number of edges within the zone.

    ``length`` is less than ``best``, the distance so far. An edge within the zone is recorded.
    """
    if search.stamp[other] != phase:
        return length, inner
    if inner < len(search.inner_from):
        search.inner_from[inner] = vertex
        search.inner_to[inner] = other
        search.inner_length[inner] = length
    return min(best, length + search.distance[other]), inner + 1


@force_inlined_kernel
def _distance_by_tasks(
    net: Net, search: Search, vertex: int, phase: int, best: int, inner: int
) -> tuple[int, int, int]:
    """Return the distance by the options of the tasks here, the entries read, and the edges recorded."""
    price, read = net.price[vertex], 0
    task = net.first_task[vertex]
    while task >= 0:
        read += 1
        if net.leave_price[task] - price < best:
            read += net.row_end[task] - net.row_start[task]
            present_cost = net.option_cost[net.choice[task]]
            leave_price = FAR
            for option in range(net.row_start[task], net.row_end[task]):
                other = net.target[option]
                if other != vertex:
                    level = net.option_cost[option] + net.price[other] - present_cost
                    leave_price = min(leave_price, level)
                    if level - price < best:
                        best, inner = _nearer(search, phase, vertex, other, level - price, best, inner)
            net.leave_price[task] = leave_price
        task = net.next_task[task]
    return best, read, inner


@force_inlined_kernel
def _distance_by_options(
    net: Net, search: Search, near: Near, vertex: int, phase: int, best: int, inner: int
) -> tuple[int, int, int]:
    """Return the distance by the options that lead here, the entries read, and the edges recorded.

    The distance ends where other options than the near ones would have to be read.
    """
    price = net.price[vertex]
    if near.floor[vertex] > -FAR:
        best = min(best, price - near.floor[vertex])
    for place in range(near.start[vertex], near.start[vertex + 1]):
        if price - near.join_price[place] < best:
            option = near.option[place]
            present = net.choice[net.option_task[option]]
            other = net.target[present]
            near.join_price[place] = net.option_cost[present] + net.price[other] - net.option_cost[option]
            length = price - near.join_price[place]
            if length < best and other != vertex:
                best, inner = _nearer(search, phase, vertex, other, length, best, inner)
    return best, near.start[vertex + 1] - near.start[vertex], inner


@force_inlined_kernel
def _distance(
    net: Net, search: Search, near: Near, vertex: int, phase: int, inner: int, direction: int
) -> tuple[int, int, int]:
    """Return a vertex' distance to the border of the zone by what its neighbours have found so far.

    Return also the number of entries of lists that were read, and the number of edges within the zone;
    ``inner`` is that number before.
    """
    price = net.price[vertex]
    against = int(direction == BACKWARD)
    best = search.distance[vertex]
    read = net.out_start[vertex + 1] - net.out_start[vertex] + net.in_start[vertex + 1] - net.in_start[vertex]
    for place in range(net.out_start[vertex], net.out_start[vertex + 1]):
        arc = net.out_arcs[place]
        other = net.head[arc]
        length = direction * (net.cost[arc] + net.price[other] - price)
        if _room(net, arc, against) > 0 and length < best:
            best, inner = _nearer(search, phase, vertex, other, length, best, inner)
    for place in range(net.in_start[vertex], net.in_start[vertex + 1]):
        arc = net.in_arcs[place]
        other = net.tail[arc]
        length = direction * (net.price[other] - net.cost[arc] - price)
        if _room(net, arc, 1 - against) > 0 and length < best:
            best, inner = _nearer(search, phase, vertex, other, length, best, inner)
    if direction == FORWARD:
        best, more, inner = _distance_by_tasks(net, search, vertex, phase, best, inner)
    else:
        best, more, inner = _distance_by_options(net, search, near, vertex, phase, best, inner)
    return int(best), int(read + more), int(inner)


@no_refcount_kernel
def _settle_distances(search: Search, count: int) -> None:
    """Shorten distances along the first ``count`` recorded edges until none can be shortened."""
    changed = True
    while changed:
        changed = False
        for edge in range(count):
            length = search.inner_length[edge] + search.distance[search.inner_to[edge]]
            if length < search.distance[search.inner_from[edge]]:
                search.distance[search.inner_from[edge]] = length
                changed = True


@force_inlined_kernel
def _move_prices(
    net: Net, search: Search, near: Near, phase: int, size: int, counters: Ints, direction: int
) -> int:
    """Change the price of each vertex of the zone by its distance to the border.

    Return the zone's size, or -1 where an excess (or a deficit) has no way out of the zone. Where the work
    allowed is used up the prices are left as they are.
    """
    read, again = 0, True
    while again and read <= counters[WORK_LEFT]:
        again, inner = False, 0
        for place in range(size - 1, -1, -1):
            vertex = search.reached[place]
            best, looked, inner = _distance(net, search, near, vertex, phase, inner, direction)
            read += looked
            again |= best < search.distance[vertex]
            search.distance[vertex] = best
        recorded = len(search.inner_from)
        _settle_distances(search, min(inner, recorded))
        again &= inner > recorded
    counters[WORK_LEFT] -= read
    if counters[WORK_LEFT] < 0:
        return size
    most = 0
    for place in range(size):
        vertex = search.reached[place]
        if search.distance[vertex] < FAR:
            most = max(most, search.distance[vertex])
        elif direction * net.excess[vertex] > 0:
            return -1
    for place in range(size):
        vertex = search.reached[place]
        net.price[vertex] += direction * min(most, search.distance[vertex])
    return size


@force_inlined_kernel
def _is_out_of_reach(net: Net, search: Search, near: Near, size: int) -> int:
    """Return 1 if the price of a vertex of the zone fell to its floor, so that more options count."""
    for place in range(size):
        vertex = search.reached[place]
        if net.price[vertex] <= near.floor[vertex]:
            return 1
    return 0


@force_inlined_kernel
def _repair(net: Net, search: Search, near: Near, starts: Ints, counters: Ints, direction: int) -> int:
    """Remove the excess, or the deficit, of all ``starts``; return how it ended."""
    left = 0
    for vertex in starts:
        if direction * net.excess[vertex] > 0 and vertex != SINK:
            starts[left] = vertex
            left += 1
    size = 0
    work_first, paths_first = counters[WORK_LEFT], counters[PATHS]
    while left:
        counters[CLOCK] += 1
        phase = counters[CLOCK]
        paths, reached_count, kept = counters[PATHS], size, 0
        for place in range(left):
            vertex = starts[place]
            while direction * net.excess[vertex] > 0 and search.stamp[vertex] != phase:
                used, reached_count = _search(net, search, near, vertex, phase, reached_count, direction)
                counters[PATHS] += used
            if direction * net.excess[vertex] > 0:
                starts[kept] = vertex
                kept += 1
        left = kept
        if left:
            # The zone grows until a path is found, so that prices do not move in small steps for ever.
            size = _gather_zone(search, phase, size, reached_count, int(counters[PATHS] == paths))
            size = _move_prices(net, search, near, phase, size, counters, direction)
            if size < 0:
                return INFEASIBLE
            if counters[WORK_LEFT] < 0:
                return GAVE_UP
            if direction == BACKWARD and _is_out_of_reach(net, search, near, size):
                return _OUT_OF_REACH
            # Give up early where the rest would use up the work at the pace so far.
            work = work_first - counters[WORK_LEFT]
            pace = work // max(1, counters[PATHS] - paths_first)
            if work * PACED_SHARE > work_first and counters[WORK_LEFT] < pace * left:
                return GAVE_UP
    return SOLVED


@no_refcount_kernel
def _repair_excess(net: Net, search: Search, near: Near, starts: Ints, counters: Ints) -> int:
    return _repair(net, search, near, starts, counters, FORWARD)


@no_refcount_kernel
def _repair_deficits(net: Net, search: Search, near: Near, starts: Ints, counters: Ints) -> int:
    return _repair(net, search, near, starts, counters, BACKWARD)


@no_refcount_kernel
def _sample_falls(net: Net, falls: Ints) -> int:
    """Write by how much prices have to fall until a task comes, for some options; return their number."""
    count, step = 0, max(1, len(net.target) // len(falls))
    for option in range(0, len(net.target), step):
        task = net.option_task[option]
        if task >= 0 and count < len(falls):
            present = net.choice[task]
            pays = net.option_cost[present] + net.price[net.target[present]]
            falls[count] = net.option_cost[option] + net.price[net.target[option]] - pays
            count += 1
    return count


@no_refcount_kernel
def _find_near(net: Net, floor: Ints, option: Indices, join_price: Ints, start: Ints) -> int:
    """Find the options whose join price is above the floor of their vertex; return their number.

    ``option`` and ``join_price`` receive them in the order of tasks. ``start`` (V + 1,) receives the number
    of those that lead to vertex v at place v + 1.
    """
    count, price, target, option_cost = 0, net.price, net.target, net.option_cost
    for task in range(len(net.choice)):
        first, last = net.row_start[task], net.row_end[task]
        if first < last:
            present = net.choice[task]
            pays = option_cost[present] + price[target[present]]
            for other in range(first, last):
                # Without a branch, which the processor could not foresee: the next option overwrites it.
                joins = pays - option_cost[other]
                option[count] = other
                join_price[count] = joins
                count += int(joins > floor[target[other]])
    for place in range(count):
        start[target[option[place]] + 1] += 1
    return count


@no_refcount_kernel
def _sort_near(net: Net, option: Indices, join_price: Ints, place: Ints, near: Near) -> None:
    """Copy options by their vertices; ``place`` (V,) is where the next one of each vertex belongs."""
    for index in range(len(option)):
        vertex = net.target[option[index]]
        near.option[place[vertex]] = option[index]
        near.join_price[place[vertex]] = join_price[index]
        place[vertex] += 1


def _near(net: Net, floor: Ints) -> Near:
    """Return the options by which tasks may come before a price falls to its floor (V,)."""
    start = np.zeros(len(net.price) + 1, np.int64)
    # The kernel writes each option before it knows if the option counts, so it needs one more entry.
    option, join_price = np.empty(len(net.target) + 1, np.int32), np.empty(len(net.target) + 1, np.int64)
    count = _find_near(net, floor, option, join_price, start)
    start = np.cumsum(start)
    near = Near(start, np.empty(count, np.int32), np.empty(count, np.int64), floor)
    _sort_near(net, option[:count], join_price[:count], start[:-1].copy(), near)
    return near


def _floors(net: Net, share: float) -> Ints:
    """Return floors of the prices (V,) above which about this share of the options are near."""
    falls = np.empty(_SAMPLES, np.int64)
    count = _sample_falls(net, falls)
    return net.price - int(np.quantile(falls[:count], share)) - 1 if count else net.price


def repair(net: Net, search: Search, counters: Ints, *, work_max: int = NO_LIMIT) -> int:
    """Move flow until no vertex has an excess or a deficit; return SOLVED, INFEASIBLE or GAVE_UP.

    Complementary slackness must hold, and ``net.excess`` must be counted. ``counters`` (3,) begins as zeros
    and belongs to ``search``: the number of phases, the number of paths, and the work left. The repair gives
    up, with the flow as far as it came, where it would read more than ``work_max`` entries of lists to find
    distances, or would do so at its pace so far.
    """
    counters[WORK_LEFT] = work_max
    vertices = len(net.price)
    nothing = np.zeros(0, np.int64)
    none = Near(np.zeros(vertices + 1, np.int64), nothing.astype(np.int32), nothing, net.price.copy())
    ended = _repair_excess(net, search, none, np.flatnonzero(net.excess > 0), counters)
    if ended != SOLVED or not (net.excess[1:] < 0).any():
        return ended
    # Prices fall from here on. The bounds of leaving do not survive that.
    net.leave_price[:] = -FAR
    if not len(net.choice):
        none.floor[:] = -FAR
        return _repair_deficits(net, search, none, np.flatnonzero(net.excess < 0), counters)
    # Most deficits need no option of a task: arcs to the sink carry less.
    none.floor[:] = net.price
    ended = _repair_deficits(net, search, none, np.flatnonzero(net.excess < 0), counters)
    if ended == _OUT_OF_REACH:
        reached = search.stamp[:vertices] == counters[CLOCK]
        if np.count_nonzero(reached) * FEW_SHARE <= vertices:
            near = _near(net, np.where(reached, -FAR, net.price))
            ended = _repair_deficits(net, search, near, np.flatnonzero(net.excess < 0), counters)
    if ended == _OUT_OF_REACH:
        near = _near(net, _floors(net, NEAR_SHARE))
        ended = _repair_deficits(net, search, near, np.flatnonzero(net.excess < 0), counters)
    if ended == _OUT_OF_REACH:
        near = _near(net, np.full(vertices, -FAR))
        ended = _repair_deficits(net, search, near, np.flatnonzero(net.excess < 0), counters)
    return ended
