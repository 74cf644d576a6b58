"""Checks that a flow cannot express: several dimensions, and rules between a job's tasks (thesis §C.4).

Placements of a solution that do not fit together are held back. They wait for the next round, which knows the
reservations of this one (reactive multi-round scheduling, §6.3.1).
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster import changes as tables
from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level, Resources
from dios.firmament.policies.job_bounds import needed_for_minimum
from dios.firmament.policies.reservations import Reservation, Reservations
from dios.kernels import kernel
from dios.wire.types import Affinity

_TOLERANCE = 1e-9
"""Relative. Demands that fill a capacity exactly may exceed it by rounding."""

_DEVICES = Resources._fields.index("devices")

_MANY = 2.0**31
"""A number of tasks above all that can occur."""


@kernel
def _accept(
    machine: Ints, demand: Floats, free: Floats, slots: Ints, left: Floats, bound: Flags, accepted: Flags
) -> None:
    """In order, accept tasks that fit into ``free`` (machines, dimensions) and ``slots`` (machines,).

    ``bound`` ones also have to fit into what reservations leave, ``left`` (machines, 1 + dimensions).
    """
    for at in range(len(machine)):
        if not accepted[at]:
            continue
        place = machine[at]
        fits = slots[place] > 0
        for dimension in range(demand.shape[1]):
            fits &= demand[at, dimension] <= free[place, dimension]
        if bound[at]:
            fits &= left[place, 0] >= 1
            for dimension in range(demand.shape[1]):
                fits &= demand[at, dimension] <= left[place, 1 + dimension]
        if not fits:
            accepted[at] = False
            continue
        slots[place] -= 1
        for dimension in range(demand.shape[1]):
            free[place, dimension] -= demand[at, dimension]
        if bound[at]:
            left[place, 0] -= 1
            for dimension in range(demand.shape[1]):
                left[place, 1 + dimension] -= demand[at, dimension]


def room_of(state: ClusterState, machines: Ints, *, left: bool = False) -> Floats:
    """Return the sum of machines' resources, or with ``left`` of the free part, (1 + DIMENSIONS,).

    A dimension is infinity if some machine does not report its capacity. Devices are always known: a machine
    without a number has none.
    """
    tree = state.resources
    slots, capacity = tree.slots[machines], tree.capacity[machines]
    known = np.all(capacity > 0, axis=0) & (len(machines) > 0)
    known[_DEVICES] = bool(capacity[:, _DEVICES].any())
    if left:
        slots = np.maximum(slots - tree.running[machines], 0)
        capacity = np.maximum(capacity * (1 + _TOLERANCE) - tree.reserved[machines], 0)
    return np.concatenate([[float(slots.sum())], np.where(known, capacity.sum(axis=0), np.inf)])


def hold_back(
    state: ClusterState, tasks: Ints, leaf: Ints, reservations: Reservations, *, check_fit: bool
) -> Flags:
    """Return which arrivals are held back, (n,). ``leaf`` (n,) is the place of each task in the solution.

    They leave the room of reservations to the owners.
    Tasks that E_j of their jobs needs are accepted first, then higher priorities, then longer waits. A
    migration that is held back needs its old place again, so this repeats until nothing more is held back.
    """
    table, tree = state.tasks, state.resources
    source = table.machine[tasks]
    target = np.where(leaf != ABSENT, tree.machine[leaf], ABSENT)
    arrives = np.flatnonzero((target != ABSENT) & (target != source))
    held = np.zeros(len(tasks), np.bool_)
    rank = np.lexsort(
        (
            tasks[arrives],
            table.submitted[tasks[arrives]],
            -table.priority[tasks[arrives]],
            ~needed_for_minimum(state, tasks[arrives]),
        )
    )
    arrives = arrives[rank]
    while len(arrives):
        now = np.where(held, source, target)
        more = _crowded(state, tasks, now, arrives)
        if check_fit:
            more |= _overflowing(state, tasks, source, now, arrives, reservations)
        if not more.any():
            break
        held[arrives[more]] = True
        moved_back = source[arrives[more]] != ABSENT
        arrives = arrives[~more]
        if not moved_back.any():
            break
    return held


def _overflowing(
    state: ClusterState, tasks: Ints, source: Ints, now: Ints, arrives: Ints, reservations: Reservations
) -> Flags:
    """Return which arrivals find no room in slots and in all dimensions."""
    table, tree = state.tasks, state.resources
    known = tree.capacity > 0
    free = np.where(known, tree.capacity * (1 + _TOLERANCE) - tree.reserved, np.inf)
    slots = tree.slots - tree.running
    leaves = np.flatnonzero((source != ABSENT) & (now != source))
    np.add.at(free, source[leaves], table.demand[tasks[leaves]])
    np.add.at(slots, source[leaves], 1)
    accepted = np.ones(len(arrives), np.bool_)
    left = reservations.left_to_others(len(tree.alive))
    bound = ~reservations.may_fill(state, tasks[arrives], now[arrives])
    if left is None:
        left = np.zeros((1, 1 + free.shape[1]))
    _accept(now[arrives], table.demand[tasks[arrives]], free, slots, left, bound, accepted)
    return ~accepted


def _crowded(state: ClusterState, tasks: Ints, now: Ints, arrives: Ints) -> Flags:
    """Return which arrivals meet another task of a job whose tasks have to stay apart."""
    table, tree = state.tasks, state.resources
    more = np.zeros(len(arrives), np.bool_)
    affinity = state.jobs.affinity[table.job[tasks]]
    for kind, place_of in (
        (Affinity.SPREAD_NODES, tree.machine),
        (Affinity.SPREAD_RACKS, tree.rack),
    ):
        concerned = arrives[affinity[arrives] == kind]
        if not len(concerned):
            continue
        stays = np.ones(len(tasks), np.bool_)
        stays[arrives] = False
        others = np.flatnonzero((affinity == kind) & (now != ABSENT) & stays)
        both = np.concatenate([others, concerned])
        key = table.job[tasks[both]] * np.int64(len(tree.alive)) + place_of[now[both]]
        first = np.unique(key, return_index=True)[1]
        late = np.ones(len(both), np.bool_)
        late[first] = False
        more[np.isin(arrives, concerned[late[len(others) :]])] = True
    return more


def room_left(state: ClusterState, tasks: Ints, leaf: Ints, held: Flags, machine: int) -> tuple[Floats, int]:
    """Return the free room of a machine, (DIMENSIONS,) and slots, after the moves that are not held."""
    table, tree = state.tasks, state.resources
    source = table.machine[tasks]
    target = np.where(held, source, np.where(leaf != ABSENT, tree.machine[leaf], ABSENT))
    comes = np.flatnonzero((target == machine) & (source != machine))
    goes = np.flatnonzero((source == machine) & (target != machine))
    capacity = tree.capacity[machine]
    used = tree.reserved[machine] + table.demand[tasks[comes]].sum(axis=0)
    used = used - table.demand[tasks[goes]].sum(axis=0)
    free = np.where(capacity > 0, capacity * (1 + _TOLERANCE) - used, np.inf)
    return free, int(tree.slots[machine] - tree.running[machine] - len(comes) + len(goes))


def place_reserved(
    state: ClusterState, tasks: Ints, leaf: Ints, held: Flags, reservation: Reservation
) -> bool:
    """Place tasks on their reserved machines if the solution left some out; changes ``leaf`` and ``held``.

    Return True if all of them have a place then.
    """
    rows = np.array([state.tasks.find(task) for task in reservation.tasks])
    at = np.searchsorted(tasks, rows)
    if (at == len(tasks)).any() or (tasks[np.minimum(at, len(tasks) - 1)] != rows).any():
        return False  # they do not take part in this round
    if not ((leaf[at] == ABSENT) | held[at]).any():
        return True
    before = leaf[at], held[at]
    leaf[at], held[at] = ABSENT, False
    for machine in set(reservation.machines):
        mine = np.flatnonzero(np.array(reservation.machines) == machine)
        free, slots = room_left(state, tasks, leaf, held, machine)
        if slots < len(mine) or (state.tasks.demand[rows[mine]].sum(axis=0) > free).any():
            leaf[at], held[at] = before
            return False
        leaf[at[mine]] = tables.emptiest_leaf(state, machine)
    return True


def fitting_tasks(
    state: ClusterState, demand: Floats, priority: int, *, preemption: bool, left: Floats | None = None
) -> Ints:
    """Return, by resource row, how often a machine has ``demand`` (DIMENSIONS,) if lower priorities stop.

    ``left`` is what reservations have left, for tasks that have to leave them room.
    """
    table, tree = state.tasks, state.resources
    machines = tree.at(Level.MACHINE)
    free = np.zeros(tree.capacity.shape)
    free[machines] = state.available(machines) * (1 + _TOLERANCE)
    if left is not None:
        free = np.minimum(free, left[:, 1:])
    if preemption:
        weak = table.alive & (table.machine != ABSENT) & (table.priority < priority) & table.restartable
        weak[weak] &= (state.jobs.gang + state.jobs.minimum)[table.job[weak]] == 0
        np.add.at(free, table.machine[weak], table.demand[weak])
    count = np.zeros(len(tree.alive), np.int64)
    wanted = demand > 0
    parts = np.minimum(free[machines][:, wanted] / demand[wanted], _MANY)
    count[machines] = np.floor(parts.min(axis=1, initial=_MANY))
    return count if left is None else np.minimum(count, np.minimum(left[:, 0], _MANY).astype(np.int64))
