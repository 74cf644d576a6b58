"""The passes over a problem's arcs with which ``shape.py`` recognises and contracts; each is linear.

Not for: deciding what the shape means.
"""

from __future__ import annotations

import numpy as np

from dios.compiled import borrowing, compiled
from dios.firmament.solvers.columns import Indices, Ints
from dios.firmament.solvers.repair_net import FAR, SINK, Net


@compiled
def classified(supply: Ints, tail: Ints, head: Ints, lower: Ints) -> tuple[Ints, Ints, Ints]:
    """Each vertex' number, how many arcs leave it, and how many enter it.

    A task has its row's number from 0, all others -1 less their number among the upper vertices.
    """
    vertices = len(supply)
    leaves, enters = np.zeros(vertices, np.int64), np.zeros(vertices, np.int64)
    bound = np.zeros(vertices, np.int8)
    for arc in range(len(tail)):
        leaves[tail[arc]] += 1
        enters[head[arc]] += 1
        if lower[arc] > 0:
            bound[tail[arc]] = 1
    number = np.empty(vertices, np.int64)
    tasks, others = 0, 0
    for vertex in range(vertices):
        if supply[vertex] == 1 and not enters[vertex] and leaves[vertex] and not bound[vertex]:
            number[vertex] = tasks
            tasks += 1
        else:
            others += 1
            number[vertex] = -others
    return number, leaves, enters


@compiled
def topological(head: Ints, start: Ints, arcs: Ints) -> Ints:
    """The vertices in an order in which arcs lead only onward; fewer than all where there is a cycle."""
    vertices = len(start) - 1
    waits = np.zeros(vertices, np.int64)
    for end in head:
        waits[end] += 1
    order = np.empty(vertices, np.int64)
    known = 0
    for vertex in range(vertices):
        if not waits[vertex]:
            order[known] = vertex
            known += 1
    done = 0
    while done < known:
        vertex = order[done]
        done += 1
        for index in range(start[vertex], start[vertex + 1]):
            arc = arcs[index]
            to = head[arc]
            waits[to] -= 1
            if not waits[to]:
                order[known] = to
                known += 1
    return order[:known]


@compiled
def closed_vertices(
    head: Ints, lower: Ints, start: Ints, arcs: Ints, order: Ints, lonely: Ints, sink: int
) -> Ints:
    """Who is closed, (U,): 2 for those a closed parent takes in, 1 for the tops of such trees, 0 for others.

    ``lonely`` (U,) is 1 for vertices without supply that one arc enters, and that may be taken in.
    """
    vertices = len(start) - 1
    closed = np.zeros(vertices, np.int64)
    for place in range(vertices - 1, -1, -1):
        vertex = order[place]
        if vertex == sink:
            continue
        fits = 1
        for index in range(start[vertex], start[vertex + 1]):
            arc = arcs[index]
            to = head[arc]
            if lower[arc] > 0 or (to != sink and not (closed[to] and lonely[to])):
                fits = 0
                break
        closed[vertex] = fits
    status = np.zeros(vertices, np.int64)
    for vertex in range(vertices):
        if closed[vertex]:
            for index in range(start[vertex], start[vertex + 1]):
                arc = arcs[index]
                if head[arc] != sink:
                    status[head[arc]] = 2
                    status[vertex] = max(status[vertex], 1)
    return status


@compiled
def row_columns(
    number: Ints, tail: Ints, head: Ints, capacity: Ints, cost: Ints, vertex_of: Ints
) -> tuple[Ints, Indices, Ints, Indices, Indices]:
    """The tasks' options: where rows begin (T + 1,), and (O,) targets, costs, arcs and rows.

    ``vertex_of`` (U,) gives the contracted vertex of an upper one. Arcs without capacity are no options.
    """
    tasks = 0
    for value in number:
        if value >= 0:
            tasks += 1
    begin = np.zeros(tasks + 1, np.int64)
    for arc in range(len(tail)):
        task = number[tail[arc]]
        if task >= 0 and capacity[arc] > 0:
            begin[task + 1] += 1
    for task in range(tasks):
        begin[task + 1] += begin[task]
    options = begin[tasks]
    target, row = np.empty(options, np.int32), np.empty(options, np.int32)
    option_cost, option_arc = np.empty(options, np.int64), np.empty(options, np.int32)
    cursor = begin.copy()
    for arc in range(len(tail)):
        task = number[tail[arc]]
        if task >= 0 and capacity[arc] > 0:
            place = cursor[task]
            cursor[task] += 1
            target[place] = vertex_of[-1 - number[head[arc]]]
            option_cost[place] = cost[arc]
            option_arc[place] = arc
            row[place] = task
    return begin, target, option_cost, option_arc, row


@borrowing
def start_prices(net: Net, order: Ints, dead: int) -> None:
    """The cheapest way to the sink from each vertex (``order`` is topological); ``dead`` where none is."""
    for place in range(len(order) - 1, -1, -1):
        vertex = order[place]
        if vertex == SINK:
            continue
        best = FAR
        for arc in net.out_arcs[net.out_start[vertex] : net.out_start[vertex + 1]]:
            if net.capacity[arc] > net.lower[arc]:
                best = min(best, net.cost[arc] + net.price[net.head[arc]])
        net.price[vertex] = dead if best == FAR else best
