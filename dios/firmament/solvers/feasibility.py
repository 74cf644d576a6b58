"""The test that a network can carry its supplies: a largest flow by blocking flows, without costs.

The flow grows along shortest paths to vertices that still receive, level by level (Dinic 1970). It takes a
fraction of the time of a cheapest flow, which learns that nothing more can be sent only with its last pivot.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Indices, Ints, grouped
from dios.firmament.solvers.standard import NO_VERTICES, StandardProblem
from dios.kernels import kernel, no_refcount_kernel

_FAR: Final = -1


class _Halves(NamedTuple):
    """Both directions of each arc, grouped by the vertex that they leave.

    ``first`` (V + 1,) are the beginnings of the groups. ``end`` (2K,) is the vertex to which a half leads,
    ``room`` what it can still carry, and ``mate`` the other half of its arc.
    """

    first: Ints
    end: Indices
    room: Ints
    mate: Indices


@no_refcount_kernel
def _set_levels(halves: _Halves, excess: Ints, level: Indices, queue: Indices) -> bool:
    """Set each vertex' distance to one that receives, by arcs with room; return True if a sender has one."""
    first, end, room, mate = halves
    waiting, senders = 0, False
    for vertex in range(len(excess)):
        level[vertex] = _FAR
        if excess[vertex] < 0:
            level[vertex] = 0
            queue[waiting] = vertex
            waiting += 1
    begin = 0
    while begin < waiting:
        vertex = queue[begin]
        begin += 1
        senders |= excess[vertex] > 0
        for half in range(first[vertex], first[vertex + 1]):
            other = end[half]
            if level[other] == _FAR and room[mate[half]] > 0:
                level[other] = level[vertex] + 1
                queue[waiting] = other
                waiting += 1
    return senders


@no_refcount_kernel
def _block(halves: _Halves, excess: Ints, level: Indices, cursor: Ints, path: Ints) -> None:
    """Send all that paths of falling levels carry."""
    first, end, room, mate = halves
    for vertex in range(len(excess)):
        cursor[vertex] = first[vertex]
    for source in range(len(excess)):
        steps, vertex = 0, source
        while excess[source] > 0 and level[source] != _FAR:
            if excess[vertex] < 0:
                amount = min(excess[source], -excess[vertex])
                for step in range(steps):
                    amount = min(amount, room[path[step]])
                excess[source] -= amount
                excess[vertex] += amount
                full = 0
                for step in range(steps - 1, -1, -1):
                    room[path[step]] -= amount
                    room[mate[path[step]]] += amount
                    if room[path[step]] == 0:
                        full = step
                # Go on before the first full arc; if only the receiver is full, from the start.
                steps = full
                vertex = end[mate[path[full]]] if full > 0 else source
                continue
            half, stop, below = cursor[vertex], first[vertex + 1], level[vertex] - 1
            while half < stop and (room[half] == 0 or level[end[half]] != below or below < 0):
                half += 1
            cursor[vertex] = half
            if half < stop:
                path[steps] = half
                steps += 1
                vertex = end[half]
            else:
                level[vertex] = _FAR
                if steps > 0:
                    steps -= 1
                    vertex = end[mate[path[steps]]]


@kernel
def _reach(halves: _Halves, excess: Ints, queue: Indices) -> int:
    """Fill ``queue`` with the vertices that unsent supplies can reach; return their number."""
    first, end, room, _mate = halves
    seen = excess > 0
    waiting = 0
    for vertex in range(len(excess)):
        if seen[vertex]:
            queue[waiting] = vertex
            waiting += 1
    begin = 0
    while begin < waiting:
        vertex = queue[begin]
        begin += 1
        for half in range(first[vertex], first[vertex + 1]):
            other = end[half]
            if room[half] > 0 and not seen[other]:
                seen[other] = True
                queue[waiting] = other
                waiting += 1
    return waiting


@kernel
def _send_all(halves: _Halves, excess: Ints) -> Indices:
    """Send as much as possible; return the vertices that unsent supplies can reach."""
    vertices = len(excess)
    level, queue = np.empty(vertices, np.int32), np.empty(vertices, np.int32)
    cursor, path = np.empty(vertices, np.int64), np.empty(vertices, np.int64)
    while _set_levels(halves, excess, level, queue):
        _block(halves, excess, level, cursor, path)
    return queue[: _reach(halves, excess, queue)]


def unsendable(standard: StandardProblem) -> Ints:
    """Return the vertices that unsent supplies can reach in a largest flow: none if all supplies are sent.

    They are the same for every largest flow, and together have more to send than can leave them.
    """
    if not standard.supply.any():
        return NO_VERTICES
    count = len(standard.tail)
    # Before they are grouped, the halves k and count + k are the two directions of arc k.
    first, order = grouped(np.concatenate([standard.tail, standard.head]), len(standard.supply))
    place = np.empty(2 * count, np.int32)
    place[order] = np.arange(2 * count, dtype=np.int32)
    end = np.concatenate([standard.head, standard.tail]).astype(np.int32)[order]
    room = np.concatenate([standard.room, np.zeros_like(standard.room)])[order]
    halves = _Halves(first, end, room, place[np.where(order < count, order + count, order - count)])
    return np.sort(_send_all(halves, standard.supply.copy()).astype(np.int64))
