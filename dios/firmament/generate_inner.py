"""The inside of drawn machines: sockets, caches, cores and threads as vertices (thesis §6.5.2, Figure 6.7).

Not for: real machines, whose trees come from sysfs (``dios.firmament.monitor.topology``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dios.firmament.solvers.columns import Ints

INNER_VERTICES: Final = 66
"""So many vertices stand below each machine in the thesis' networks (§8.4)."""


def _parents() -> Ints:
    """Two sockets, four caches in each, three cores in each of these, and threads for the rest."""
    parents = [-1, -1]
    parents += [socket for socket in range(2) for _ in range(4)]
    parents += [2 + cache for cache in range(8) for _ in range(3)]
    parents += [10 + thread % 24 for thread in range(INNER_VERTICES - len(parents))]
    return np.array(parents, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Arcs:
    """Arcs as columns of the same length; lower bounds are 0."""

    tail: Ints
    head: Ints
    capacity: Ints
    cost: Ints

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All arcs of the parts, in order."""
        return cls(
            np.concatenate([part.tail for part in parts]),
            np.concatenate([part.head for part in parts]),
            np.concatenate([part.capacity for part in parts]),
            np.concatenate([part.cost for part in parts]),
        )


def inner_arcs(slots: Ints, slot_cost: Ints, first: int, sink: int) -> Arcs:
    """The arcs inside each machine (M,): down its tree, and from the threads to the sink.

    A machine's slots are spread evenly over its threads, and each thread's slots cost ``slot_cost``.
    The inner vertices are numbered from ``first``, each machine's in one run.
    """
    parents = _parents()
    machines = len(slots)
    threads = np.setdiff1d(np.arange(INNER_VERTICES), parents)
    base = first + np.arange(machines, dtype=np.int64)[:, None] * INNER_VERTICES
    own = np.arange(machines, dtype=np.int64)[:, None]
    tail = np.where(parents < 0, own, base + np.maximum(parents, 0))
    head = base + np.arange(INNER_VERTICES)
    room = np.zeros((machines, INNER_VERTICES), np.int64)
    steps = np.arange(len(threads) + 1)
    room[:, threads] = np.diff(slots[:, None] * steps // len(threads), axis=1)
    for vertex in range(INNER_VERTICES - 1, -1, -1):
        if parents[vertex] >= 0:
            room[:, parents[vertex]] += room[:, vertex]
    leaf_tail = base + threads
    count = leaf_tail.size
    down = Arcs(tail.ravel(), head.ravel(), room.ravel(), np.zeros(room.size, np.int64))
    leaf_cost = np.repeat(slot_cost, len(threads))
    leaves = Arcs(leaf_tail.ravel(), np.full(count, sink), room[:, threads].ravel(), leaf_cost)
    return Arcs.joined([down, leaves])
