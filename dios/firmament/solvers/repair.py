"""The exact end of the fast solver: from any prices and seats to the optimum, by searches in both directions.

Not for: good prices to begin with (``auction.py``), or for keeping a network (``warm.py``).
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


WITHOUT_END: Final = 2**62


def repair(net: Net, search: Search, stats: Ints, *, askers: bool, patience: int = WITHOUT_END) -> int:
    """Send and draw until nothing is too much or missing: SOLVED, or INFEASIBLE.

    Complementary slackness must hold, and ``net.excess`` must be counted. ``askers``: the lists of options by
    vertex are there already; they are made here where something is missing. ``stats`` (4,) begins as zeros,
    and goes with ``search``. Where it would read more entries of lists than ``patience`` for zones, or at the
    pace so far, it GAVE_UP, in the middle.
    """
    stats[3] = patience
    ended = push_excess(net, search, np.flatnonzero(net.excess > 0), stats)
    wanting = np.flatnonzero(net.excess[1:] < 0) + 1
    if ended != SOLVED or not len(wanting):
        return ended
    if not askers:
        list_askers(net, np.arange(len(net.target)))
    return pull_deficits(net, search, wanting, stats)
