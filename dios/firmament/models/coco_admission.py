"""Where tasks of a class certainly fit: CoCo's maximally aggregated subtrees (§7.3.1, Listing 7.1).

For: the CoCo model and its tests. Not for: what a place costs (``coco_vectors``, ``coco_interference``).

Each vertex of the tree knows the least and the greatest room below it, in five columns: the four resources
of the machine, and the places for tasks at the leaf. The traversal goes level by level with whole columns
instead of vertex by vertex; it visits and ends where the listing does.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import DIMENSIONS, Level
from dios.firmament.models.resource_tree import Steps, least_up, most_up

ROOM: Final = DIMENSIONS + 1
"""Columns of room: the four resources, then places."""
PLACES: Final = DIMENSIONS
"""The column of places for tasks."""

Verdicts = npt.NDArray[np.int8]


class Fit(IntEnum):
    """The listing's TaskFitIndication_t."""

    NEVER = 0
    SOMETIMES = 1
    ALWAYS = 2


class Room(NamedTuple):
    """What is free below each row, both of shape (rows, ROOM); nothing is known as infinity."""

    least: Floats
    most: Floats


def gathered(steps: list[Steps], ends: Ints, free: Floats) -> Room:
    """Least and greatest room of every row from that at ``ends``, the rows where admission stops.

    Rows without any end below them have a greatest room of minus infinity: nothing fits there.
    """
    least = np.full((len(free), ROOM), np.inf)
    most = np.full((len(free), ROOM), -np.inf)
    least[ends] = most[ends] = free[ends]
    least_up(steps, least)
    most_up(steps, most)
    return Room(least, most)


def verdicts(room: Room, request: Floats) -> Verdicts:
    """TaskFitsUnderResourceAggregate for all rows at once; ``request`` has shape (ROOM,)."""
    never = (request > room.most).any(axis=1)
    always = (request <= room.least).all(axis=1)
    return np.where(never, Fit.NEVER, np.where(always, Fit.ALWAYS, Fit.SOMETIMES)).astype(np.int8)


def maximal_subtrees(steps: list[Steps], root: int, fits: Verdicts) -> Ints:
    """The heads of the largest subtrees in which a task fits everywhere (Listing 7.1), ascending.

    Where it always fits the head is taken and nothing below is looked at; where it never fits nothing
    below is looked at either; else the children are.
    """
    visited = np.zeros(len(fits), np.bool_)
    visited[root] = True
    for step in reversed(steps):
        opened = visited[step.above] & (fits[step.above] == Fit.SOMETIMES)
        visited[step.children[opened]] = True
    return np.flatnonzero(visited & (fits == Fit.ALWAYS))


def below(steps: list[Steps], heads: Ints, rows: int) -> Flags:
    """Which rows are one of ``heads`` or below one, shape (rows,)."""
    covered = np.zeros(rows, np.bool_)
    covered[heads] = True
    for step in reversed(steps):
        covered[step.children] |= covered[step.above]
    return covered


def selected(state: ClusterState, heads: Ints, costs: Ints, wanted: int, room: Room, request: Floats) -> Ints:
    """Which of ``heads`` get an arc, as indices into it, the cheapest first (§7.3.1, §7.3.3).

    No more than ``wanted``, for so many tasks come in. Inside of one machine only as many as the machine
    has room for together, because each arc may bring a task.
    """
    order = np.lexsort((heads, costs))
    table = state.resources
    inside = table.level[heads[order]] > Level.MACHINE
    machine = np.where(inside, table.machine[heads[order]], -1 - np.arange(len(order)))
    together = (1 + _earlier(machine))[:, None] * request[:DIMENSIONS]
    fits = (together <= room.least[heads[order], :DIMENSIONS]).all(axis=1)
    chosen: Ints = order[fits | ~inside][:wanted]
    return chosen


def promised(state: ClusterState, ends: Ints, covered: Flags, heads: Ints, demand: Floats) -> Floats:
    """What arcs to ``heads`` may take from each end, shape (rows, ROOM): one task over each arc.

    The resources are the machine's, so that an arc into a machine takes from all its leaves. Places are
    not promised: a leaf's arc to the sink holds those.
    """
    table = state.resources
    rows = len(covered)
    arcs_into = np.zeros(rows)
    inside = heads[table.level[heads] > Level.MACHINE]
    np.add.at(arcs_into, table.machine[inside], 1.0)
    # A machine that stands below an aggregate, or is one, gets one task over the arc to it.
    machines = table.machine[ends]
    taken = np.zeros((rows, ROOM))
    taken[ends, :DIMENSIONS] = (arcs_into[machines] + covered[machines])[:, None] * demand
    return taken


def _earlier(groups: Ints) -> Ints:
    """For each element how many before it are of the same group, shape (n,)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(groups) else np.zeros(0, np.bool_)
    begins = np.flatnonzero(first)
    counts = np.arange(len(groups)) - np.repeat(begins, np.diff(np.append(begins, len(groups))))
    found = np.zeros(len(groups), np.int64)
    found[order] = counts
    return found
