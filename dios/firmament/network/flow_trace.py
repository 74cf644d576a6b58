"""Reads a flow: the leaf that each task's unit reaches (thesis §6.2.1).

Units that meet at an aggregate are interchangeable: many assignments have the same cost. This one keeps
running tasks on their machines wherever the flow allows it.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import ResourceTable
from dios.firmament.network.upper_arcs import UpperArcs
from dios.firmament.network.vertices import SINK, VertexKind, Vertices


def trace(
    tree: ResourceTable, vertices: Vertices, arcs: UpperArcs, flow: Ints, chosen: Ints, leaf: Ints
) -> Ints:
    """Return the leaf row that each task's flow reaches, (n,); ABSENT at an unscheduled aggregator.

    ``chosen`` (n,) is the upper vertex of the arc that each task uses, ``leaf`` (n,) the leaf row on which it
    runs or ABSENT, and ``flow`` the flow of ``arcs``.
    """
    at = chosen.copy()
    used = np.flatnonzero((flow > 0) & (arcs.head != SINK))
    used = used[np.argsort(arcs.tail[used], kind="stable")]
    tail, head, left = arcs.tail[used], arcs.head[used], flow[used].copy()
    depth = _depths(vertices.used, tail, head)
    inner = np.zeros(vertices.used, np.bool_)
    inner[tail] = True
    for level in range(int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(inner[at] & (depth[at] == level))
        if not len(here):
            continue
        rest = _stay(tree, vertices, here, leaf, at, (tail, head, left))
        _move(rest, at, depth, level, (tail, head, left))
    is_place = vertices.kind[at] == VertexKind.RESOURCE
    return np.where(is_place, vertices.row[at], ABSENT)


def _depths(size: int, tail: Ints, head: Ints) -> Ints:
    """Return the longest path to each vertex over these arcs, which have no cycle."""
    depth = np.zeros(size, np.int64)
    while True:
        lifted = depth.copy()
        np.maximum.at(lifted, head, depth[tail] + 1)
        if np.array_equal(lifted, depth):
            return depth
        depth = lifted


def _stay(
    tree: ResourceTable,
    vertices: Vertices,
    here: Ints,
    leaf: Ints,
    at: Ints,
    arcs: tuple[Ints, Ints, Ints],
) -> Ints:
    """Move running tasks along arcs that lead to where they run; return the tasks that were not moved."""
    tail, head, left = arcs
    running = here[leaf[here] != ABSENT]
    if not len(running):
        return here
    key = tail * vertices.used + head
    order = np.argsort(key, kind="stable")
    above = leaf[running]
    wish = np.full(len(running), ABSENT, np.int64)
    while (above != ABSENT).any():
        known = above != ABSENT
        wanted = at[running] * vertices.used + vertices.resources(np.where(known, above, 0))
        place = np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)
        hit = known & (wish == ABSENT) & (key[order][place] == wanted)
        wish[hit] = order[place[hit]]
        above = np.where(known, tree.parent[np.where(known, above, 0)], ABSENT)
    wishing = np.flatnonzero(wish != ABSENT)
    wishing = wishing[np.argsort(wish[wishing], kind="stable")]
    _, first, count = np.unique(wish[wishing], return_index=True, return_counts=True)
    rank = np.arange(len(wishing)) - np.repeat(first, count)
    granted = wishing[rank < left[wish[wishing]]]
    at[running[granted]] = head[wish[granted]]
    np.subtract.at(left, wish[granted], 1)
    return np.setdiff1d(here, running[granted])


def _move(rest: Ints, at: Ints, depth: Ints, level: int, arcs: tuple[Ints, Ints, Ints]) -> None:
    """Assign the remaining tasks at each vertex to the remaining units of its arcs, in order."""
    tail, head, left = arcs
    here = np.flatnonzero(depth[tail] == level)
    units = np.repeat(here, left[here])
    rest = rest[np.argsort(at[rest], kind="stable")]
    # Flow is conserved: at each vertex both columns have the same number of entries, in the same order.
    if not np.array_equal(tail[units], at[rest]):
        raise AssertionError("the flow into an aggregate is not the flow out of it")
    at[rest] = head[units]
