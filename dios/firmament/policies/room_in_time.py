"""Room in time: when tasks fit on machines, by the expected ends of the tasks that run there.

Rows of amounts are (1 + DIMENSIONS,): slots, then resources. A resource of which a machine does not report
its capacity is infinity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.models.runtimes import Runtimes
from dios.limits import RESERVATION_UNKNOWN_S
from dios.wire.types import Affinity

TOLERANCE: Final = 1e-9
"""Relative. Demands that fill a capacity exactly may exceed it by rounding."""
_MANY: Final = 2.0**31


def amounts(state: ClusterState, tasks: Ints) -> Floats:
    """Return the demands of tasks with their slots, (n, 1 + DIMENSIONS)."""
    demand = np.ones((len(tasks), 1 + state.tasks.demand.shape[1]))
    demand[:, 1:] = state.tasks.demand[tasks]
    return demand


def free_amounts(state: ClusterState, machines: Ints) -> Floats:
    """Return what is free on machines now, (n, 1 + DIMENSIONS)."""
    tree = state.resources
    capacity = tree.capacity[machines]
    free = np.empty((len(machines), 1 + capacity.shape[1]))
    free[:, 0] = tree.slots[machines] - tree.running[machines]
    free[:, 1:] = np.where(capacity > 0, capacity * (1 + TOLERANCE) - tree.reserved[machines], np.inf)
    return free


class RoomInTime(NamedTuple):
    """The room of machines (M,), now and after the ends of the running tasks (N,), in their order."""

    machines: Ints
    free: Floats
    at: Ints
    """(N,) the place in ``machines`` of each running task."""
    end: Floats
    """(N,) when it is expected to end, ascending; see ``expected_ends``."""
    demand: Floats
    """(N, 1 + DIMENSIONS)"""
    is_known: Flags
    """(N,) False for an end that is a guess."""

    def free_after(self, ends: int) -> Floats:
        """Return what is free on each machine when the first ``ends`` tasks have ended."""
        free = self.free.copy()
        np.add.at(free, self.at[:ends], self.demand[:ends])
        return free

    def earliest(self, demand: Floats, count: int, allowed: Flags, affinity: int, racks: Ints) -> int | None:
        """Return after how many ends ``count`` tasks of ``demand`` fit together; None for never.

        ``allowed`` (M,) are the machines for them, ``racks`` (M,) their racks.
        """
        low, high = 0, len(self.end)
        if not self._fits(high, demand, count, allowed, affinity, racks):
            return None
        while low < high:
            middle = (low + high) // 2
            if self._fits(middle, demand, count, allowed, affinity, racks):
                high = middle
            else:
                low = middle + 1
        return low

    def earliest_at(self, places: list[int], demand: Floats) -> int | None:
        """Return after how many ends tasks of ``demand`` fit at these places; None for never.

        A place occurs as often as tasks are to run there.
        """
        wanted = np.bincount(places, minlength=len(self.machines))
        low, high = 0, len(self.end)

        def fits(ends: int) -> bool:
            return bool((fitting(self.free_after(ends), demand, wanted > 0) >= wanted).all())

        if not fits(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return low

    def not_before(self, places: Iterable[int], demand: Floats, now: float) -> float:
        """Return until when tasks of ``demand`` cannot start together at these places, by the known ends.

        Tasks of unknown run time may end at any moment.
        """
        wanted = np.bincount(list(places), minlength=len(self.machines))
        here = np.flatnonzero(wanted[self.at] > 0)
        free, guessed = self.free.copy(), here[~self.is_known[here]]
        np.add.at(free, self.at[guessed], self.demand[guessed])
        for row in here[self.is_known[here]].tolist():
            if (fitting(free, demand, wanted > 0) >= wanted).all():
                return now
            free[self.at[row]] += self.demand[row]
            now = float(self.end[row])
        return now

    def _fits(
        self, ends: int, demand: Floats, count: int, allowed: Flags, affinity: int, racks: Ints
    ) -> bool:
        places = fitting(self.free_after(ends), demand, allowed)
        return len(spread_out(places, count, affinity, racks)) == count


def room_in_time(state: ClusterState, machines: Ints, runtimes: Runtimes) -> RoomInTime:
    """Return the room of these machines, as resource rows."""
    table = state.tasks
    at = np.full(len(state.resources.alive), ABSENT)
    at[machines] = np.arange(len(machines))
    running = np.flatnonzero(table.alive & (table.status == RUNNING))
    running = running[at[table.machine[running]] != ABSENT]
    end, is_known = expected_ends(state, running, runtimes)
    order = np.lexsort((table.id[running], end))
    running = running[order]
    return RoomInTime(
        machines,
        free_amounts(state, machines),
        at[table.machine[running]],
        end[order],
        amounts(state, running),
        is_known[order],
    )


def expected_ends(state: ClusterState, running: Ints, runtimes: Runtimes) -> tuple[Floats, Flags]:
    """Return the expected ends of running tasks, (n,), and flags of those that are certain, (n,).

    A run time that was stated, or that the same program had before, decides. A task that has none, or has
    exceeded it, is expected to run as long again as it has run, RESERVATION_UNKNOWN_S at least.
    """
    grows = state.now + np.maximum(state.now - state.tasks.since[running], RESERVATION_UNKNOWN_S)
    known = known_ends(state, running, runtimes)
    is_known = np.isfinite(known)
    return np.where(is_known, known, grows), is_known


def known_ends(state: ClusterState, running: Ints, runtimes: Runtimes) -> Floats:
    """Return when running tasks end by their run times, (n,); NaN if it is not known, or was exceeded."""
    end = state.tasks.since[running] + runtimes.expected(state, running)
    return np.where(end > state.now, end, np.nan)


def fitting(free: Floats, demand: Floats, allowed: Flags) -> Ints:
    """Return how many tasks of ``demand`` fit into ``free`` (M, 1 + DIMENSIONS), (M,)."""
    wanted = demand > 0
    count = np.floor(np.minimum(free[:, wanted] / demand[wanted] + TOLERANCE, _MANY).min(axis=1))
    return np.where(allowed, np.maximum(count, 0), 0).astype(np.int64)


def spread_out(places: Ints, count: int, affinity: int, racks: Ints) -> list[int]:
    """Return the indices in ``places`` (M,), how many fit, of up to ``count`` tasks; fewer without room.

    They are on as few machines as possible, except where the affinity spreads them.
    """
    order = np.lexsort((np.arange(len(places)), -places))
    if affinity in {Affinity.SPREAD_NODES, Affinity.SPREAD_RACKS}:
        order = order[places[order] > 0]
        if affinity == Affinity.SPREAD_RACKS:
            order = order[np.sort(np.unique(racks[order], return_index=True)[1])]
        return [int(place) for place in order[:count]]
    if affinity == Affinity.SAME_NODE:
        order = order[:1]
    elif affinity == Affinity.SAME_RACK and len(order):
        sums = np.bincount(racks, weights=places)
        order = order[racks[order] == int(np.argmax(sums))]
    ends = np.cumsum(places[order])
    used = order[: int(np.searchsorted(ends, count)) + 1]
    return [int(place) for place in np.repeat(used, places[used])[:count]]
