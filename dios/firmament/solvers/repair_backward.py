"""Draws in what is missing at a vertex, from the sink: the mirror of ``repair_forward.py``.

Searches run against the edges, and the zone from which a missing unit cannot be reached is lowered.

Not for: what is too much; that is sent on first, so that the sink is all that can give here.
"""

from __future__ import annotations

from dios.compiled import borrowing
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.repair_net import (
    FAR,
    GAVE_UP,
    INFEASIBLE,
    NONE,
    SINK,
    SOLVED,
    Net,
    Search,
    gather_zone,
    nearer,
    path_room,
    settle_distances,
    sit,
    unseat,
)


@borrowing
def _next_asker(net: Net, search: Search, vertex: int, now: int) -> int:
    """An option that names this vertex, of a task that could come for nothing; as a code."""
    price = net.price[vertex]
    option = search.task_cursor[vertex]
    while option >= 0:
        if net.comes[option] >= price:
            seat = net.seat[net.row[option]]
            source = net.target[seat]
            net.comes[option] = net.option_cost[seat] + net.price[source] - net.option_cost[option]
            if net.comes[option] == price and search.stamp[source] != now and source != vertex:
                search.task_cursor[vertex] = option
                return int(-1 - option)
        option = net.asked_next[option]
    search.task_cursor[vertex] = -1
    return NONE


@borrowing
def _edge_before(net: Net, search: Search, vertex: int, now: int) -> int:
    """The next edge into this vertex that costs nothing: an arc (2a), one taken back (2a + 1), an option."""
    price = net.price[vertex]
    for place in range(search.out_cursor[vertex], net.out_start[vertex + 1]):
        arc = net.out_arcs[place]
        source = net.head[arc]
        if (
            net.flow[arc] > net.lower[arc]
            and net.cost[arc] + net.price[source] == price
            and search.stamp[source] != now
        ):
            search.out_cursor[vertex] = place
            return int(2 * arc + 1)
    search.out_cursor[vertex] = net.out_start[vertex + 1]
    for place in range(search.in_cursor[vertex], net.in_start[vertex + 1]):
        arc = net.in_arcs[place]
        source = net.tail[arc]
        if (
            net.flow[arc] < net.capacity[arc]
            and net.cost[arc] + price == net.price[source]
            and search.stamp[source] != now
        ):
            search.in_cursor[vertex] = place
            return int(2 * arc)
    search.in_cursor[vertex] = net.in_start[vertex + 1]
    return _next_asker(net, search, vertex, now)


@borrowing
def _draw(net: Net, search: Search, depth: int) -> None:
    """Draw along the path as much as fits; the path's first vertex is where it is missing."""
    amount = -net.excess[search.path[0]]
    amount = path_room(net, search, depth, amount)
    for step in range(depth):
        code = search.edge[step]
        if code < 0:
            option = -1 - code
            task = net.row[option]
            search.task_cursor[search.path[step]] = net.asked_next[option]
            unseat(net, task)
            sit(net, task, option)
        elif code % 2:
            net.flow[code >> 1] -= amount
        else:
            net.flow[code >> 1] += amount
    net.excess[search.path[0]] += amount
    net.excess[SINK] -= amount


@borrowing
def _search_back(net: Net, search: Search, wanting: int, now: int, found: int) -> tuple[int, int]:
    """Look depth first for a way from the sink: whether there was one, and how many were found so far."""
    depth = 0
    search.path[0] = wanting
    while True:
        vertex = search.path[depth]
        if vertex == SINK:
            _draw(net, search, depth)
            for step in range(depth):
                search.stamp[search.path[step]] = 0
            return 1, found
        search.stamp[vertex] = now
        if search.opened[vertex] != now:
            search.opened[vertex] = now
            search.out_cursor[vertex] = net.out_start[vertex]
            search.in_cursor[vertex] = net.in_start[vertex]
            search.task_cursor[vertex] = net.asked[vertex]
            search.found[found] = vertex
            found += 1
        code = _edge_before(net, search, vertex, now)
        if code == NONE:
            if not depth:
                return 0, found
            depth -= 1
            continue
        search.edge[depth] = code
        depth += 1
        if code < 0:
            search.path[depth] = net.target[net.seat[net.row[-1 - code]]]
        elif code % 2:
            search.path[depth] = net.head[code >> 1]
        else:
            search.path[depth] = net.tail[code >> 1]


@borrowing
def _distance_back(net: Net, search: Search, vertex: int, now: int, inner: int) -> tuple[int, int, int]:
    """How far the border is from a vertex of the zone, as far as its neighbours know; how much was
    read, and how many edges within the zone are noted, ``inner`` of them before.
    """
    price = net.price[vertex]
    best = search.distance[vertex]
    read = net.out_start[vertex + 1] - net.out_start[vertex] + net.in_start[vertex + 1] - net.in_start[vertex]
    for place in range(net.out_start[vertex], net.out_start[vertex + 1]):
        arc = net.out_arcs[place]
        source = net.head[arc]
        far = price - net.cost[arc] - net.price[source]
        if net.flow[arc] > net.lower[arc] and far < best:
            best, inner = nearer(search, now, vertex, source, far, best, inner)
    for place in range(net.in_start[vertex], net.in_start[vertex + 1]):
        arc = net.in_arcs[place]
        source = net.tail[arc]
        far = net.cost[arc] + price - net.price[source]
        if net.flow[arc] < net.capacity[arc] and far < best:
            best, inner = nearer(search, now, vertex, source, far, best, inner)
    option = net.asked[vertex]
    while option >= 0:
        read += 1
        if price - net.comes[option] < best:
            seat = net.seat[net.row[option]]
            source = net.target[seat]
            net.comes[option] = net.option_cost[seat] + net.price[source] - net.option_cost[option]
            far = price - net.comes[option]
            if far < best and source != vertex:
                best, inner = nearer(search, now, vertex, source, far, best, inner)
        option = net.asked_next[option]
    return int(best), int(read), int(inner)


@borrowing
def _lower_zone(net: Net, search: Search, now: int, held: int, found: int, grows: int, stats: Ints) -> int:
    """Lower each vertex of the zone by its distance from the border; the zone's size, or -1 where nothing
    can come in.
    """
    size = gather_zone(search, now, held, found, grows)
    read, again = 0, True
    while again and read <= stats[3]:
        again, inner = False, 0
        for place in range(size - 1, -1, -1):
            vertex = search.found[place]
            best, looked, inner = _distance_back(net, search, vertex, now, inner)
            read += looked
            again |= best < search.distance[vertex]
            search.distance[vertex] = best
        noted = len(search.inner_from)
        settle_distances(search, min(inner, noted))
        again &= inner > noted
    stats[3] -= read
    if stats[3] < 0:
        return size
    most = 0
    for place in range(size):
        vertex = search.found[place]
        if search.distance[vertex] < FAR:
            most = max(most, search.distance[vertex])
        elif net.excess[vertex] < 0:
            return -1
    for place in range(size):
        vertex = search.found[place]
        net.price[vertex] -= min(most, search.distance[vertex])
    return size


@borrowing
def pull_deficits(net: Net, search: Search, wanting: Ints, stats: Ints) -> int:
    """Draw in all that is missing at these vertices; infeasible where it cannot come.

    ``stats`` (4,): [0] is the phases' clock and must go on from search to search, [2] counts paths,
    and [3] is how many entries of lists may still be read for zones before the search gives up.
    """
    left = 0
    for vertex in wanting:
        if net.excess[vertex] < 0 and vertex != SINK:
            wanting[left] = vertex
            left += 1
    if left:
        # Prices fall from here on: that is what bounds may not survive, or begin with.
        net.leaves[:] = -FAR
        net.comes[:] = FAR
    held = 0
    while left:
        stats[0] += 1
        now = stats[0]
        before, found, kept = stats[2], held, 0
        for place in range(left):
            vertex = wanting[place]
            while net.excess[vertex] < 0 and search.stamp[vertex] != now:
                drawn, found = _search_back(net, search, vertex, now, found)
                stats[2] += drawn
            if net.excess[vertex] < 0:
                wanting[kept] = vertex
                kept += 1
        left = kept
        # The zone is kept until a way is found: as it grows, prices do not climb in small steps for ever.
        if left:
            enough = stats[3]
            held = _lower_zone(net, search, now, held, found, int(stats[2] == before), stats)
            if held < 0:
                return INFEASIBLE
            # At this pace the rest will take too long as well.
            if stats[3] < (enough - stats[3]) * left // max(1, stats[2] - before):
                return GAVE_UP
    return SOLVED
