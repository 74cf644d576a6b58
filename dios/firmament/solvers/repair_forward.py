"""Sends what is too much at a vertex on to the sink, or to where something is missing.

A phase is a blocking depth-first search over edges that cost nothing, with dead ends shared by all; then
every vertex of the zone that cannot go on is raised by its distance to the zone's border. Both keep
complementary slackness, so the end is exact (primal-dual; thesis §6.4).

Not for: what is missing and has to be drawn in (``repair_backward.py``).
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
def _next_task(net: Net, search: Search, vertex: int, now: int) -> int:
    """An option, free of cost and not seen yet, of a task that sits here; as a code."""
    price = net.price[vertex]
    task = search.task_cursor[vertex]
    while task >= 0:
        if net.leaves[task] <= price:
            at_seat = net.option_cost[net.seat[task]]
            leaves = FAR
            for option in range(net.begin[task], net.end[task]):
                to = net.target[option]
                if to != vertex:
                    level = net.option_cost[option] + net.price[to] - at_seat
                    leaves = min(leaves, level)
                    if level == price and search.stamp[to] != now:
                        search.task_cursor[vertex] = task
                        return -1 - option
            net.leaves[task] = leaves
        task = net.following[task]
    search.task_cursor[vertex] = -1
    return NONE


@borrowing
def _next_edge(net: Net, search: Search, vertex: int, now: int) -> int:
    """The next edge that costs nothing and leads on: arc (2a), arc back (2a + 1), option (-1 - o)."""
    price = net.price[vertex]
    for place in range(search.out_cursor[vertex], net.out_start[vertex + 1]):
        arc = net.out_arcs[place]
        to = net.head[arc]
        if (
            net.flow[arc] < net.capacity[arc]
            and net.cost[arc] + net.price[to] == price
            and search.stamp[to] != now
        ):
            search.out_cursor[vertex] = place
            return int(2 * arc)
    search.out_cursor[vertex] = net.out_start[vertex + 1]
    for place in range(search.in_cursor[vertex], net.in_start[vertex + 1]):
        arc = net.in_arcs[place]
        to = net.tail[arc]
        if (
            net.flow[arc] > net.lower[arc]
            and net.cost[arc] + price == net.price[to]
            and search.stamp[to] != now
        ):
            search.in_cursor[vertex] = place
            return int(2 * arc + 1)
    search.in_cursor[vertex] = net.in_start[vertex + 1]
    return _next_task(net, search, vertex, now)


@borrowing
def _send(net: Net, search: Search, depth: int) -> None:
    """Send along the path as much as fits."""
    source, end = search.path[0], search.path[depth]
    amount = net.excess[source]
    if end != SINK:
        amount = min(amount, -net.excess[end])
    amount = path_room(net, search, depth, amount)
    for step in range(depth):
        code = search.edge[step]
        if code < 0:
            option = -1 - code
            task = net.row[option]
            if search.task_cursor[search.path[step]] == task:
                search.task_cursor[search.path[step]] = net.following[task]
            unseat(net, task)
            sit(net, task, option)
        elif code % 2:
            net.flow[code >> 1] -= amount
        else:
            net.flow[code >> 1] += amount
    net.excess[source] -= amount
    net.excess[end] += amount


@borrowing
def _search(net: Net, search: Search, source: int, now: int, found: int) -> tuple[int, int]:
    """Look depth first for a way that costs nothing: whether there is one, and the vertices found."""
    depth = 0
    search.path[0] = source
    while True:
        vertex = search.path[depth]
        if vertex == SINK or (net.excess[vertex] < 0 and depth):
            _send(net, search, depth)
            for step in range(depth):
                search.stamp[search.path[step]] = 0
            return 1, found
        search.stamp[vertex] = now
        if search.opened[vertex] != now:
            search.opened[vertex] = now
            search.out_cursor[vertex] = net.out_start[vertex]
            search.in_cursor[vertex] = net.in_start[vertex]
            search.task_cursor[vertex] = net.first[vertex]
            search.found[found] = vertex
            found += 1
        code = _next_edge(net, search, vertex, now)
        if code == NONE:
            if not depth:
                return 0, found
            depth -= 1
            continue
        search.edge[depth] = code
        depth += 1
        if code < 0:
            search.path[depth] = net.target[-1 - code]
        elif code % 2:
            search.path[depth] = net.tail[code >> 1]
        else:
            search.path[depth] = net.head[code >> 1]


@borrowing
def _distance(net: Net, search: Search, vertex: int, now: int, inner: int) -> tuple[int, int, int]:
    """How far a vertex of the zone is from leaving it, as far as its neighbours know; how much was
    read, and how many edges within the zone are noted, ``inner`` of them before.
    """
    price = net.price[vertex]
    best = search.distance[vertex]
    read = net.out_start[vertex + 1] - net.out_start[vertex] + net.in_start[vertex + 1] - net.in_start[vertex]
    for place in range(net.out_start[vertex], net.out_start[vertex + 1]):
        arc = net.out_arcs[place]
        to = net.head[arc]
        far = net.cost[arc] + net.price[to] - price
        if net.flow[arc] < net.capacity[arc] and far < best:
            best, inner = nearer(search, now, vertex, to, far, best, inner)
    for place in range(net.in_start[vertex], net.in_start[vertex + 1]):
        arc = net.in_arcs[place]
        to = net.tail[arc]
        far = net.price[to] - net.cost[arc] - price
        if net.flow[arc] > net.lower[arc] and far < best:
            best, inner = nearer(search, now, vertex, to, far, best, inner)
    task = net.first[vertex]
    while task >= 0:
        read += 1
        if net.leaves[task] - price < best:
            read += net.end[task] - net.begin[task]
            at_seat = net.option_cost[net.seat[task]]
            leaves = FAR
            for option in range(net.begin[task], net.end[task]):
                to = net.target[option]
                if to != vertex:
                    level = net.option_cost[option] + net.price[to] - at_seat
                    leaves = min(leaves, level)
                    far = level - price
                    if far < best:
                        best, inner = nearer(search, now, vertex, to, far, best, inner)
            net.leaves[task] = leaves
        task = net.following[task]
    return int(best), int(read), int(inner)


@borrowing
def _raise_zone(net: Net, search: Search, now: int, held: int, found: int, grows: int, stats: Ints) -> int:
    """Raise each vertex of the zone by its distance to the border; the zone's size, or -1 where some excess
    cannot leave.
    """
    size = gather_zone(search, now, held, found, grows)
    read, again = 0, True
    while again and read <= stats[3]:
        again, inner = False, 0
        for place in range(size - 1, -1, -1):
            vertex = search.found[place]
            best, looked, inner = _distance(net, search, vertex, now, inner)
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
        elif net.excess[vertex] > 0:
            return -1
    for place in range(size):
        vertex = search.found[place]
        net.price[vertex] += min(most, search.distance[vertex])
    return size


@borrowing
def push_excess(net: Net, search: Search, sources: Ints, stats: Ints) -> int:
    """Send on all excess of these vertices; infeasible where some cannot leave.

    ``stats`` (4,): [0] is the phases' clock and must go on from search to search, [1] counts paths,
    and [3] is how many entries of lists may still be read for zones before the search gives up.
    """
    left = 0
    for vertex in sources:
        if net.excess[vertex] > 0 and vertex != SINK:
            sources[left] = vertex
            left += 1
    held = 0
    while left:
        stats[0] += 1
        now = stats[0]
        before, found, kept = stats[1], held, 0
        for place in range(left):
            vertex = sources[place]
            while net.excess[vertex] > 0 and search.stamp[vertex] != now:
                sent, found = _search(net, search, vertex, now, found)
                stats[1] += sent
            if net.excess[vertex] > 0:
                sources[kept] = vertex
                kept += 1
        left = kept
        # The zone is kept until a way is found: as it grows, prices do not climb in small steps for ever.
        if left:
            enough = stats[3]
            held = _raise_zone(net, search, now, held, found, int(stats[1] == before), stats)
            if held < 0:
                return INFEASIBLE
            # At this pace the rest will take too long as well.
            if stats[3] < (enough - stats[3]) * left // max(1, stats[1] - before):
                return GAVE_UP
    return SOLVED
