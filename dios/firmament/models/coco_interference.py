"""How much co-runners disturb each other in CoCo: penalties at leaves, and how they go up (§7.3.2).

For: the CoCo model and its tests. Not for: what really happens on a machine, which is measured or
simulated elsewhere.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.descriptors import Interference
from dios.firmament.models.resource_tree import Steps, mean_up, sum_up

CLASSES: Final = len(Interference)

PENALTIES: Final[Floats] = np.array(
    [
        # beside a turtle, a sheep, a rabbit, a devil
        [0.00, 0.00, 0.05, 0.10],  # a turtle
        [0.00, 0.10, 0.20, 0.80],  # a sheep
        [0.05, 0.20, 0.40, 1.00],  # a rabbit
        [0.10, 0.80, 1.00, 0.50],  # a devil
    ]
)
"""How bad a neighbour (column) is for one that comes (row), 0 to 1. A devil stands badly beside rabbits and
sheep, and middling beside another devil; it is symmetric, because who comes also disturbs."""


def leaf_penalties(leaves: Ints, slots: Ints, at: Ints, classes: Ints, rows: int) -> Floats:
    """The penalty of each leaf for each interference class, shape (rows, 4), 0 to 1; 0 beside leaves.

    Args:
        leaves: rows of the leaves, shape (n,).
        slots: how many tasks each leaf takes, shape (n,).
        at: for each running task the row of its leaf, shape (m,).
        classes: its interference class, shape (m,).
        rows: the length of the table of resources.
    """
    found = np.zeros((rows, CLASSES))
    for mine in range(CLASSES):
        found[:, mine] = np.bincount(at, weights=PENALTIES[mine, classes], minlength=rows)
    scores = np.zeros((rows, CLASSES))
    scores[leaves] = np.minimum(1.0, found[leaves] / np.maximum(slots, 1)[:, None])
    return scores


def decayed(steps: list[Steps], scores: Floats, idle: Floats, total: Floats) -> Floats:
    """cost(u, w) for each row w: e^((t - i) / t) times the mean of its children's, shape (rows,).

    Args:
        steps: the tree, deepest level first.
        scores: the leaves' own costs, shape (rows,); rows that have children are overwritten.
        idle: i, idle places at or below each row.
        total: t, all places at or below each row.
    """
    costs = scores.copy()
    for step in steps:
        mean_up([step], costs)
        above = step.parents
        busy = (total[above] - idle[above]) / np.maximum(total[above], 1)
        costs[above] *= np.exp(busy)
    return costs


def normalised(steps: list[Steps], costs: Floats) -> Floats:
    """The costs of ``decayed`` divided by the largest factor possible at their height: [0, 1] again.

    This is what lets a single leaf's score count for less the further up it is felt.
    """
    height = np.zeros(len(costs))
    for step in steps:
        height[step.parents] = np.maximum(
            height[step.parents], 1 + np.maximum.reduceat(height[step.children], step.starts)
        )
    return costs / np.power(math.e, height)


def places(steps: list[Steps], leaves: Ints, slots: Ints, running: Ints) -> tuple[Floats, Floats]:
    """Idle and all places at or below each row, both shape (rows,).

    ``slots`` and ``running`` are those of the leaves; a leaf without slots has no place.
    """
    rows = len(running)
    idle, total = np.zeros(rows), np.zeros(rows)
    total[leaves] = slots
    idle[leaves] = np.maximum(slots - running[leaves], 0)
    sum_up(steps, idle)
    sum_up(steps, total)
    return idle, total
