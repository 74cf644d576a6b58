"""CoCo's cost vectors and how they become one number (§7.3.2).

For: the CoCo model and its tests. Not for: where a task fits (``coco_admission``) or how much neighbours
disturb each other (``coco_interference``).

A vector has eight dimensions, each in [0, Ω]. Seven are weighted and summed; the priority is multiplied by
a step that is larger than all that the others can add up to on a whole path, so that it always decides.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Floats, Ints
from dios.firmament.descriptors import Kind


class Dimension(IntEnum):
    """The rows of the cost vector, in the thesis' order."""

    PRIORITY = 0
    CPU = 1
    MEMORY = 2
    NETWORK = 3
    DISK_IO = 4
    MACHINE_TYPE = 5
    INTERFERENCE = 6
    LOCALITY = 7


DIMENSIONS: Final = len(Dimension)
"""d in the thesis."""
OMEGA: Final = 1_000
"""Ω, the largest value of a dimension: fine enough to tell 0.1 % of a machine."""

CAPACITY_DIMENSIONS: Final = (Dimension.CPU, Dimension.MEMORY, Dimension.DISK_IO, Dimension.NETWORK)
"""Where the columns of ``Resources`` stand in a cost vector, in their order."""

_ARCS_MAX: Final = 8
"""Arcs on a task's path that carry a vector: two from the task on, six levels of the tree."""
SMALL_MAX: Final = _ARCS_MAX * DIMENSIONS * OMEGA
"""More than a path can cost without its priority: d x Ω on each arc."""
PRIORITY_STEP: Final = 5 * SMALL_MAX
"""What one step of priority weighs. The thesis' d x Ω holds for one arc; here for whole paths, for the
growing cost of waiting and for the resistance of what runs, which are three more of that size."""

_LEVELS: Final = 256
PRIORITY_WORST: Final = 2 * _LEVELS - 1
"""The priority dimension of the least important batch task; 0 is the most important service task."""


def weights_of(given: tuple[float, ...]) -> Floats:
    """The weights w_1 .. w_7 as a vector of eight whose first is 0 (the priority has its step).

    Raises:
        InvalidError: not seven numbers, or one that is not in [0, 1].
    """
    if len(given) != DIMENSIONS - 1 or not all(0 <= each <= 1 for each in given):
        names = ", ".join(each.name.lower() for each in Dimension if each)
        raise InvalidError(f"weights are {given}; seven numbers from 0 to 1 are wanted: {names}")
    return np.array((0.0, *given))


def flatten(vectors: Floats, weights: Floats) -> Ints:
    """Cost vectors of shape (n, 8) as costs of shape (n,): the weighted sum, and the priority on top.

    The seven ordinary dimensions are cut to [0, Ω].
    """
    ordinary = np.clip(vectors[:, 1:], 0, OMEGA) @ weights[1:]
    return (np.rint(ordinary) + vectors[:, Dimension.PRIORITY] * PRIORITY_STEP).astype(np.int64)


def priority_dimension(kinds: Ints, priorities: Ints) -> Ints:
    """The value of the priority dimension, shape (n,): the lower the more important.

    Every service task stands before every batch task, which therefore never displaces it. Priorities
    beyond -128 .. 127 count as the nearest of these.
    """
    half = _LEVELS // 2
    level = np.clip(priorities, -half, half - 1) + half + np.where(kinds == Kind.SERVICE, _LEVELS, 0)
    return PRIORITY_WORST - level


def capacity_vector(shares: Floats) -> Floats:
    """Vectors, shape (n, 8), of shares of the four resources, shape (n, 4), each from 0 to 1."""
    vectors = np.zeros((len(shares), DIMENSIONS))
    vectors[:, list(CAPACITY_DIMENSIONS)] = shares * OMEGA
    return vectors


def unscheduled_vector() -> Floats:
    """The vector on an unscheduled arc, shape (1, 8): Ω where capacity is meant, one in two others."""
    vector = capacity_vector(np.ones((1, len(CAPACITY_DIMENSIONS))))
    vector[0, [Dimension.MACHINE_TYPE, Dimension.INTERFERENCE]] = 1
    return vector
