"""Aggregation along the tree of resources with whole columns, one level at a time.

Models use it to gather statistics from the leaves and to find subtrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Floats, Ints
from dios.firmament.cluster.state import ClusterState


@dataclass(frozen=True, slots=True)
class Steps:
    """The arcs into one level of the tree, sorted by parent."""

    parents: Ints
    """Each parent once, shape (p,)."""
    starts: Ints
    """The position in ``children`` of each parent's first child, shape (p,)."""
    children: Ints
    """Rows, shape (c,)."""
    above: Ints
    """The parent of each child, shape (c,)."""


def steps_of(parents: Ints, children: Ints) -> Steps:
    """Return the arcs ``parents[i] -> children[i]``, given in any order; at least one."""
    order = np.argsort(parents, kind="stable")
    above = parents[order]
    starts = np.flatnonzero(np.concatenate(([True], above[1:] != above[:-1])))
    return Steps(above[starts], starts, children[order], above)


def all_steps(state: ClusterState) -> list[Steps]:
    """Return the arcs of the whole tree, the deepest level first."""
    table = state.resources
    rows = table.all()
    rows = rows[table.parent[rows] != ABSENT]
    steps = []
    for level in np.unique(table.level[rows])[::-1]:
        children = rows[table.level[rows] == level]
        steps.append(steps_of(table.parent[children], children))
    return steps


def sum_up(steps: list[Steps], values: Floats) -> None:
    """Set each parent to the sum of its children, in place; ``values`` may have a second axis."""
    for step in steps:
        values[step.parents] = np.add.reduceat(values[step.children], step.starts, axis=0)


def mean_up(steps: list[Steps], values: Floats) -> None:
    """Set each parent to the mean of its children, in place; ``values`` may have a second axis."""
    for step in steps:
        counts = np.diff(np.append(step.starts, len(step.children)))
        shape = (-1,) + (1,) * (values.ndim - 1)
        sums = np.add.reduceat(values[step.children], step.starts, axis=0)
        values[step.parents] = sums / counts.reshape(shape)


def least_up(steps: list[Steps], values: Floats) -> None:
    """Set each parent to the least of its children, column by column, in place."""
    for step in steps:
        values[step.parents] = np.minimum.reduceat(values[step.children], step.starts, axis=0)


def most_up(steps: list[Steps], values: Floats) -> None:
    """Set each parent to the greatest of its children, column by column, in place."""
    for step in steps:
        values[step.parents] = np.maximum.reduceat(values[step.children], step.starts, axis=0)
