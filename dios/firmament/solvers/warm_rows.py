"""The tasks of a network that changes: columns with room to grow, rows that come and go, holes closed.

Not for: what is best for a task (``repair_net.seat_best``), or the face to callers (``warm.py``).
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dios.compiled import compiled
from dios.firmament.solvers.columns import Ints, grouped, spans
from dios.firmament.solvers.repair_net import (
    ArcColumns,
    Net,
    list_askers,
    new_net,
    sit,
    unlist_askers,
    unseat,
)

ROOM: Final = 64
"""Columns begin with room for so many entries; they double."""

_Number = TypeVar("_Number", np.int64, np.int32)


@compiled
def leave(net: Net, tasks: Ints) -> None:
    """Take tasks off their options, and their options out of all lists; their rows are empty then."""
    for task in tasks:
        if net.seat[task] >= 0:
            unseat(net, task)
        unlist_askers(net, np.arange(net.begin[task], net.end[task]))
        for option in range(net.begin[task], net.end[task]):
            net.row[option] = -1
        net.begin[task] = 0
        net.end[task] = 0


@compiled
def enter(net: Net, tasks: Ints, start: Ints, first: int, before: Ints) -> None:
    """Give tasks the rows that stand at ``first`` and on, bounds in ``start`` (n + 1,).

    ``before`` (n,) is the vertex where a task sat until now (-1: nowhere): there it sits again if it may.
    """
    for place in range(len(tasks)):
        task = tasks[place]
        net.begin[task] = first + start[place]
        net.end[task] = first + start[place + 1]
        net.seat[task] = -1
        for option in range(net.begin[task], net.end[task]):
            net.row[option] = task
            if net.target[option] == before[place] and net.seat[task] < 0:
                sit(net, task, option)
    list_askers(net, np.arange(first, first + start[-1]))


def empty_net() -> Net:
    """A network of the sink alone, with room for tasks and options."""
    none = np.zeros(0, np.int64)
    start = np.zeros(ROOM + 1, np.int64)
    target = np.zeros(ROOM, np.int32)
    row = np.full(ROOM, -1, np.int32)
    return new_net(1, ArcColumns(none, none, none, none, none), start, target, np.zeros(ROOM, np.int64), row)


def wider(column: NDArray[_Number], length: int, fill: int) -> NDArray[_Number]:
    """A copy with this length; what is new is ``fill``."""
    grown = np.full(length, fill, column.dtype)
    grown[: len(column)] = column
    return grown


def with_tasks(net: Net, tasks: int) -> Net:
    """The network with room for so many tasks."""
    if tasks <= len(net.seat):
        return net
    room = max(tasks, 2 * len(net.seat))
    return net._replace(
        begin=wider(net.begin, room, 0),
        end=wider(net.end, room, 0),
        seat=wider(net.seat, room, -1),
        following=wider(net.following, room, -1),
        preceding=wider(net.preceding, room, -1),
        leaves=wider(net.leaves, room, 0),
    )


def with_options(net: Net, options: int) -> Net:
    """The network with room for so many options."""
    if options <= len(net.target):
        return net
    room = max(options, 2 * len(net.target))
    return net._replace(
        target=wider(net.target, room, 0),
        option_cost=wider(net.option_cost, room, 0),
        row=wider(net.row, room, -1),
        asked_next=wider(net.asked_next, room, -1),
        asked_back=wider(net.asked_back, room, -1),
        comes=wider(net.comes, room, 0),
    )


def without_holes(net: Net) -> tuple[Net, int]:
    """The network with its rows side by side, and how many options they are."""
    length = net.end - net.begin
    kept = spans(net.begin, length)
    begin = np.cumsum(length) - length
    seat = np.where(net.seat >= 0, net.seat - net.begin + begin, -1)
    count, room = len(kept), len(net.target)
    closed = net._replace(
        begin=begin,
        end=begin + length,
        seat=seat,
        target=wider(net.target[kept], room, 0),
        option_cost=wider(net.option_cost[kept], room, 0),
        row=wider(net.row[kept], room, -1),
        asked=np.full(len(net.asked), -1, np.int32),
    )
    list_askers(closed, np.arange(count))
    return closed, count


def with_vertices(net: Net, vertices: int) -> Net:
    """The network with so many vertices; new ones have price 0 and nobody there."""
    return net._replace(
        price=wider(net.price, vertices, 0),
        excess=np.zeros(vertices, np.int64),
        first=wider(net.first, vertices, -1),
        asked=wider(net.asked, vertices, -1),
    )


def with_arcs(net: Net, arcs: ArcColumns) -> Net:
    """The network with these arcs behind its own; :func:`indexed` has to follow."""
    return net._replace(
        tail=np.concatenate([net.tail, arcs.tail]),
        head=np.concatenate([net.head, arcs.head]),
        lower=np.concatenate([net.lower, arcs.lower]),
        capacity=np.concatenate([net.capacity, arcs.capacity]),
        cost=np.concatenate([net.cost, arcs.cost]),
        flow=np.concatenate([net.flow, arcs.lower]),
    )


def indexed(net: Net) -> Net:
    """The network with the lists of arcs by vertex made new."""
    vertices = len(net.price)
    out_start, out_arcs = grouped(net.tail, vertices)
    in_start, in_arcs = grouped(net.head, vertices)
    return net._replace(out_start=out_start, out_arcs=out_arcs, in_start=in_start, in_arcs=in_arcs)
