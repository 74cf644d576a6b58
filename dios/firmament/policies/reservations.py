"""Reservations: the machines that large tasks get, and when (EASY backfilling, in several dimensions).

Turns compare the needs of tasks with the sum of what is free (``policies.fair_queue``). A task whose turn it
is, and that fits on no machine, gets machines reserved on which it will fit when tasks there have ended.
Others may start on these machines if they end before that, or leave it its room. So it starts as soon as what
ran there has ended, under every cost model. The same holds for the first tasks of a gang.

A reservation stays on its machines while these exist and may be used, so that no estimate can move it for
ever; the tasks start elsewhere if they fit elsewhere before. A machine has one reservation at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import Level, Resources
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.policies.room_in_time import (
    RoomInTime,
    amounts,
    expected_ends,
    fitting,
    free_amounts,
    room_in_time,
    spread_out,
)
from dios.limits import PRIORITY_AGE_S, RESERVATIONS_MAX


class Head(NamedTuple):
    """Tasks that start together and whose turn it is: a task, or what a gang needs; as rows."""

    tasks: Ints
    affinity: int


@dataclass(slots=True, eq=False)
class Reservation:
    """The machines of tasks, and when the tasks are expected to fit there."""

    tasks: tuple[int, ...]
    """Their identifiers."""
    machines: tuple[int, ...]
    """The machine of each task, as a resource row."""
    start: float
    """The present time if they fit now: then they start, whatever the cost model prefers."""


class RemoteReservation(NamedTuple):
    """Room that another coordinator keeps for a task which only it places."""

    task: int
    machine: int
    """Its identifier; an unknown machine is skipped."""
    demand: Resources
    submitted: float
    start: float


@dataclass(eq=False)
class Reservations:
    """The reservations of a cluster. ``spare`` and ``until`` are by machine, as resource row."""

    present: dict[int, Reservation] = field(default_factory=dict)
    """By the identifier of each task."""
    spare: dict[int, Floats] = field(default_factory=dict)
    """The slots and resources of a machine that other tasks may take, (1 + DIMENSIONS,)."""
    until: dict[int, float] = field(default_factory=dict)
    """Until when owners cannot start on a machine; tasks that end before that may take all that is free."""
    elsewhere: Sequence[RemoteReservation] = ()
    """The reservations of other coordinators. On one machine the task that waits longest counts."""
    _runtimes: Runtimes = field(default_factory=lambda: Runtimes(math.nan))

    def refresh(self, state: ClusterState, allowed: Callable[[int], Flags]) -> None:
        """Change the reservations to the present state; those of tasks that do not wait any more end.

        ``allowed`` returns the machines where a task may run, by resource row.
        """
        former = self.present
        self.present, self.spare, self.until = {}, {}, {}
        if self.elsewhere:
            self._leave_to_others(state, former)
        if former:
            self._make(state, _waiting(state, dict.fromkeys(former.values())), allowed, former)

    def recall(self, reservation: Reservation) -> None:
        """Continue a reservation that another coordinator made; the next ``refresh`` checks it."""
        if not any(task in self.present for task in reservation.tasks):
            self.present.update(dict.fromkeys(reservation.tasks, reservation))

    def _leave_to_others(self, state: ClusterState, former: dict[int, Reservation]) -> None:
        """Keep room for the tasks of other coordinators, except where an own task has waited longer."""
        room = room_in_time(state, _usable(state), self._runtimes)
        places = {int(machine): place for place, machine in enumerate(room.machines)}
        own: dict[int, tuple[float, int]] = {}
        for task, reservation in former.items():
            row = state.tasks.find(task)
            for machine in () if row == ABSENT else reservation.machines:
                age = float(state.tasks.submitted[row]), task
                own[machine] = min(age, own.get(machine, age))
        for claim in sorted(self.elsewhere, key=lambda other: (other.submitted, other.task)):
            machine = state.machine_row(claim.machine)
            first = own.get(machine, (math.inf, 0))
            if machine in places and (claim.submitted, claim.task) < first:
                ends = int(np.searchsorted(room.end, claim.start, side="right"))
                demand = np.array((1.0, *claim.demand))
                until = room.not_before([places[machine]], demand, state.now)
                self._keep_room(room, ends, [places[machine]], demand, until)

    def add(self, state: ClusterState, heads: Iterable[Head], allowed: Callable[[int], Flags]) -> None:
        """Make reservations for these heads, except for single tasks that fit on a machine.

        A cost model may let such a task wait for a better place. If the task has no deadline, it starts after
        PRIORITY_AGE_S, so that none is left out for ever. No model lets a gang wait by choice: the network
        had no solution with it.
        """
        new = [head for head in heads if int(state.tasks.id[head.tasks[0]]) not in self.present]
        machines = _usable(state)
        free = free_amounts(state, machines)
        free[np.isin(machines, list(self.spare))] = 0
        new = [
            head
            for head in new
            if len(head.tasks) > 1
            or _is_left_out(state, int(head.tasks[0]))
            or not _fits(state, head.tasks, free, allowed(int(head.tasks[0]))[machines])
        ]
        if new:
            self._make(state, new, allowed, {})

    def _make(
        self,
        state: ClusterState,
        heads: Iterable[Head],
        allowed: Callable[[int], Flags],
        former: dict[int, Reservation],
    ) -> None:
        room = room_in_time(state, _usable(state), self._runtimes)
        free = ~np.isin(room.machines, list(self.spare))
        for head in heads:
            if len(self.present) >= RESERVATIONS_MAX:
                break
            may = allowed(int(head.tasks[0]))[room.machines] & free
            may &= ~np.isin(room.machines, self._kept_for_others(state, head, former))
            reservation = self._reservation(state, head, room, may, former)
            if reservation is not None:
                free &= ~np.isin(room.machines, reservation.machines)
                self.present.update(dict.fromkeys(reservation.tasks, reservation))

    def _kept_for_others(self, state: ClusterState, head: Head, former: dict[int, Reservation]) -> list[int]:
        """Return the machines of the other reservations that were not looked at in this round so far."""
        own = former.get(int(state.tasks.id[head.tasks[0]]))
        others = (
            reservation
            for reservation in former.values()
            if reservation is not own and reservation.tasks[0] not in self.present
        )
        return [machine for reservation in others for machine in reservation.machines]

    def _reservation(
        self, state: ClusterState, head: Head, room: RoomInTime, may: Flags, former: dict[int, Reservation]
    ) -> Reservation | None:
        """Return the reservation of a head, or None if it fits nowhere even later."""
        tasks, count = head.tasks, len(head.tasks)
        demand = amounts(state, tasks).max(axis=0)
        racks = state.resources.rack[room.machines]
        ids = tuple(state.tasks.id[tasks].tolist())
        known = former.get(ids[0])
        places, ends = spread_out(fitting(room.free, demand, may), count, head.affinity, racks), 0
        if len(places) < count:
            places = self._kept_places(known, ids, room, may)
            after = room.earliest_at(places, demand) if places else None
            if after is None:
                after = room.earliest(demand, count, may, head.affinity, racks)
                if after is None:
                    return None
                free = room.free_after(after)
                places = spread_out(fitting(free, demand, may), count, head.affinity, racks)
            ends = after
        start = max(float(room.end[ends - 1]), state.now) if ends else state.now
        self._keep_room(room, ends, places, demand, room.not_before(places, demand, state.now))
        return Reservation(ids, tuple(room.machines[places].tolist()), start)

    @staticmethod
    def _kept_places(
        known: Reservation | None, ids: tuple[int, ...], room: RoomInTime, may: Flags
    ) -> list[int]:
        """Return the places of the machines that a reservation has; empty if they cannot be used any more."""
        if known is None or known.tasks != ids:
            return []
        places = np.searchsorted(room.machines, known.machines)
        inside = places < len(room.machines)
        if not inside.all() or (room.machines[places] != known.machines).any() or not may[places].all():
            return []
        return [int(place) for place in places]

    def _keep_room(
        self, room: RoomInTime, ends: int, places: Iterable[int], demand: Floats, until: float
    ) -> None:
        """Note the room of the machines that other tasks may take: the rest of it when the owners begin."""
        later = room.free_after(ends)
        for place in places:
            machine = int(room.machines[place])
            left = self.spare.get(machine)
            self.spare[machine] = (later[place] if left is None else left) - demand
            self.until[machine] = until

    def drop_others(self, tasks: Container[int]) -> None:
        """End the reservations of tasks that are not among these: they may not start now."""
        for reservation in [
            candidate for candidate in dict.fromkeys(self.present.values()) if candidate.tasks[0] not in tasks
        ]:
            for task in reservation.tasks:
                del self.present[task]
            for machine in set(reservation.machines):
                del self.spare[machine], self.until[machine]

    # -- rounds -------------------------------------------------------------------------------------
    def machine_of(self, task: int) -> int:
        """Return the reserved machine of a task, by its identifier, as a resource row; or ABSENT."""
        reservation = self.present.get(task)
        return ABSENT if reservation is None else reservation.machines[reservation.tasks.index(task)]

    def waiting(self, state: ClusterState) -> list[Reservation]:
        """Return the reservations whose tasks still wait, each once."""
        return [
            reservation
            for reservation in dict.fromkeys(self.present.values())
            if _rows(state, reservation) is not None
        ]

    def awaited(self, state: ClusterState, task: int) -> Ints:
        """Return the rows of the tasks that end on a task's machines before it starts, in their order.

        Only tasks count that hold a resource which it lacks now.
        """
        reservation = self.present.get(task)
        rows = None if reservation is None else _rows(state, reservation)
        if reservation is None or rows is None or reservation.start <= state.now:
            return np.zeros(0, np.int64)
        machines, count = np.unique(reservation.machines, return_counts=True)
        wanted = count[:, np.newaxis] * amounts(state, rows).max(axis=0)
        lacks = wanted > free_amounts(state, machines)
        table = state.tasks
        there = np.isin(table.machine, machines) & table.alive & (table.status == RUNNING)
        running = np.flatnonzero(there)
        holds = amounts(state, running) > 0
        running = running[(holds & lacks[np.searchsorted(machines, table.machine[running])]).any(axis=1)]
        ends, _ = expected_ends(state, running, self._runtimes)
        before = np.flatnonzero(ends <= reservation.start)
        awaited: Ints = running[before[np.argsort(ends[before], kind="stable")]]
        return awaited

    def due(self, state: ClusterState) -> list[Reservation]:
        """Return those whose tasks fit now."""
        return [reservation for reservation in self.waiting(state) if reservation.start <= state.now]

    def later(self, state: ClusterState) -> list[Reservation]:
        """Return those whose tasks have to wait for ends of others."""
        return [reservation for reservation in self.waiting(state) if reservation.start > state.now]

    def may_fill(self, state: ClusterState, tasks: Ints, machine: Ints) -> Flags:
        """Return which tasks (n,) may take all that is free on their machines (n,), kept for others or not.

        Those are the owners, and tasks that are expected to end before these can begin.
        """
        allowed = np.ones(len(tasks), np.bool_)
        if not self.spare:
            return allowed
        kept = np.flatnonzero(np.isin(machine, list(self.spare)))
        ends = state.now + self._runtimes.expected(state, tasks[kept])
        for at, end in zip(kept.tolist(), ends.tolist(), strict=True):
            place = int(machine[at])
            is_owner = self.machine_of(int(state.tasks.id[tasks[at]])) == place
            allowed[at] = is_owner or end <= self.until[place]
        return allowed

    def kept_from(self, state: ClusterState, row: int) -> frozenset[int]:
        """Return the machines, as resource rows, where a task has to leave room to others."""
        kept = np.array(list(self.spare), np.int64)
        bound = ~self.may_fill(state, np.full(len(kept), row), kept)
        return frozenset(kept[bound].tolist())

    def left_to_others(self, machines: int) -> Floats | None:
        """Return what tasks without a reservation may take, (machines, 1 + DIMENSIONS); None for all.

        Infinity means all that is free; ``machines`` is the number of resource rows.
        """
        if not self.spare:
            return None
        width = len(next(iter(self.spare.values())))
        left = np.full((machines, width), np.inf)
        for machine, amount in self.spare.items():
            left[machine] = np.maximum(amount, 0)
        return left


def _usable(state: ClusterState) -> Ints:
    """Return the machines that take new tasks, as resource rows."""
    machines = state.resources.at(Level.MACHINE)
    return machines[state.resources.usable[machines]]


def _is_left_out(state: ClusterState, row: int) -> bool:
    """Return True if a task has waited for so long that it starts where it fits."""
    waited = state.now - state.tasks.submitted[row]
    return bool(waited >= PRIORITY_AGE_S and np.isinf(state.tasks.deadline[row]))


def _fits(state: ClusterState, task: Ints, free: Floats, may: Flags) -> bool:
    """Return True if a task (1,) fits into ``free`` (M, 1 + DIMENSIONS) now, where it may run."""
    return bool(fitting(free, amounts(state, task)[0], may).any())


def _waiting(state: ClusterState, reservations: Iterable[Reservation]) -> Iterable[Head]:
    """Yield the tasks of reservations that still wait for them, all together."""
    for reservation in reservations:
        rows = _rows(state, reservation)
        if rows is not None:
            yield Head(rows, int(state.jobs.affinity[state.tasks.job[rows[0]]]))


def _rows(state: ClusterState, reservation: Reservation) -> Ints | None:
    """Return the rows of the tasks of a reservation; None if one of them does not wait any more."""
    rows = np.array([state.tasks.find(task) for task in reservation.tasks])
    if (rows == ABSENT).any() or (state.tasks.status[rows] != WAITING).any():
        return None
    return rows
