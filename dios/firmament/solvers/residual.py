"""A flow network that changes: its columns, and for each vertex the list of its arcs.

Not for: finding flows (``residual_repair.py``), and not for checking what a caller asks
(``residual_changes.py``).

Arc ``a`` is two half-arcs: ``2a`` leaves its tail, ``2a + 1`` leaves its head. The halves that leave a
vertex are a doubly linked list, so that an arc comes and goes at a cost that does not depend on the size of
the network.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dios.compiled import compiled
from dios.firmament.solvers.columns import Ints

NONE: Final = -1
DIRTY, ACTIVE, OVERFLOWED, STAMP = 0, 1, 2, 3
"""Places in ``LiveNet.counts``: arcs to look at, vertices with excess, whether one is too large, searches
made."""

EXCESS_MAX: Final = 2**61
"""No vertex may have more to send or to receive than this; two such still add up within 64 bits."""


class LiveNet(NamedTuple):
    """The columns of a network with a flow that may leave excesses; all int64.

    By vertex: ``supply``; ``excess``, which is supply plus what comes in less what goes out; ``price``;
    ``first``, the first half-arc of its list; ``active``, a list of vertices, among them all with an
    excess, each ``listed`` once; ``vertex_there`` (0 or 1); and what a search leaves: ``distance``, ``via``
    (the half-arc by which it was reached), ``mark`` (the search that saw it), ``settled`` (in that order),
    ``heap``, ``place`` in it, and ``stack``. By arc: ``tail``, ``head``, ``lower``, ``capacity``, ``cost``,
    ``flow``; ``dirty``, a list of arcs that may have the wrong flow for their price, each ``flagged`` once;
    ``arc_there``. By half-arc: ``following`` and ``previous``.
    """

    supply: Ints
    excess: Ints
    price: Ints
    first: Ints
    active: Ints
    listed: Ints
    vertex_there: Ints
    distance: Ints
    via: Ints
    mark: Ints
    settled: Ints
    heap: Ints
    place: Ints
    stack: Ints
    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints
    flow: Ints
    dirty: Ints
    flagged: Ints
    arc_there: Ints
    following: Ints
    previous: Ints
    counts: Ints


_BY_ARC: Final = frozenset(
    {"tail", "head", "lower", "capacity", "cost", "flow", "dirty", "flagged", "arc_there"}
)
_BY_HALF: Final = frozenset({"following", "previous"})
_EMPTY_LIST: Final = frozenset({"first"})
_COUNTS: Final = 4


def new_net(vertices: int, arcs: int) -> LiveNet:
    """Columns with room for so many vertices and arcs, none of them there yet."""
    columns: dict[str, Ints] = {}
    for name in LiveNet._fields:
        rows = arcs if name in _BY_ARC else 2 * arcs if name in _BY_HALF else vertices
        columns[name] = np.full(rows, NONE if name in _EMPTY_LIST else 0, np.int64)
    columns["counts"] = np.zeros(_COUNTS, np.int64)
    return LiveNet(**columns)


def grown(net: LiveNet, vertices: int, arcs: int) -> LiveNet:
    """The same network with room for so many vertices and arcs; at least doubled where it was too small."""
    vertices = max(vertices, 2 * len(net.supply)) if vertices > len(net.supply) else len(net.supply)
    arcs = max(arcs, 2 * len(net.tail)) if arcs > len(net.tail) else len(net.tail)
    larger = new_net(vertices, arcs)
    for old, new in zip(net, larger, strict=True):
        new[: len(old)] = old
    return larger


@compiled
def _link_half(net: LiveNet, half: int, vertex: int) -> None:
    second = net.first[vertex]
    net.following[half] = second
    net.previous[half] = -1
    if second >= 0:
        net.previous[second] = half
    net.first[vertex] = half


@compiled
def _unlink_half(net: LiveNet, half: int, vertex: int) -> None:
    before, after = net.previous[half], net.following[half]
    if before >= 0:
        net.following[before] = after
    else:
        net.first[vertex] = after
    if after >= 0:
        net.previous[after] = before


@compiled
def disturb(net: LiveNet, vertex: int, amount: int) -> None:
    """Give a vertex so much more excess, and list it; one that grows too large is told in ``counts``."""
    net.excess[vertex] += amount
    if abs(net.excess[vertex]) > EXCESS_MAX:
        net.counts[OVERFLOWED] = 1
    if not net.listed[vertex]:
        net.listed[vertex] = 1
        net.active[net.counts[ACTIVE]] = vertex
        net.counts[ACTIVE] += 1


@compiled
def flag_arcs(net: LiveNet, arcs: Ints) -> None:
    """Have these arcs looked at before the next answer."""
    for arc in arcs:
        if not net.flagged[arc]:
            net.flagged[arc] = 1
            net.dirty[net.counts[DIRTY]] = arc
            net.counts[DIRTY] += 1


@compiled
def set_flow(net: LiveNet, arc: int, flow: int) -> None:
    """Change an arc's flow; its ends' excesses follow."""
    change = flow - net.flow[arc]
    if change:
        net.flow[arc] = flow
        disturb(net, net.tail[arc], -change)
        disturb(net, net.head[arc], change)


@compiled
def link_arcs(net: LiveNet, arcs: Ints) -> None:
    """Put new arcs, whose columns are written, into the lists of their ends; they carry their lower bound."""
    for arc in arcs:
        _link_half(net, 2 * arc, net.tail[arc])
        _link_half(net, 2 * arc + 1, net.head[arc])
        net.flow[arc] = 0
        set_flow(net, arc, net.lower[arc])
    flag_arcs(net, arcs)


@compiled
def unlink_arcs(net: LiveNet, arcs: Ints) -> None:
    """Take arcs out; what they carried becomes excess and deficit. They are left as loops without room."""
    for arc in arcs:
        set_flow(net, arc, 0)
        _unlink_half(net, 2 * arc, net.tail[arc])
        _unlink_half(net, 2 * arc + 1, net.head[arc])
        net.tail[arc] = 0
        net.head[arc] = 0
        net.lower[arc] = 0
        net.capacity[arc] = 0
        net.cost[arc] = 0


@compiled
def change_supplies(net: LiveNet, vertices: Ints, supplies: Ints) -> None:
    """Set the supply of these vertices; the difference is excess."""
    for position in range(len(vertices)):
        vertex = vertices[position]
        change = supplies[position] - net.supply[vertex]
        net.supply[vertex] = supplies[position]
        if change:
            disturb(net, vertex, change)


@compiled
def arcs_of(net: LiveNet, vertices: Ints) -> Ints:
    """The arcs at these vertices; an arc between two of them, and a loop, comes twice."""
    count = 0
    for vertex in vertices:
        half = net.first[vertex]
        while half >= 0:
            count += 1
            half = net.following[half]
    found = np.empty(count, np.int64)
    count = 0
    for vertex in vertices:
        half = net.first[vertex]
        while half >= 0:
            found[count] = half >> 1
            count += 1
            half = net.following[half]
    return found
