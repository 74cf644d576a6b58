"""Preemption for resources that a flow does not see.

A flow stops tasks only for slots. If a placement was held back because other resources are short, tasks of
strictly lower priority make room for it (§C.4.1, §C.4.2), and any task for one that E_j of its job needs. If
it stays held back, no task is stopped for it. Costs do not count here; ``policies.fit`` decides what fits.

Tasks also make room for a reservation (``policies.reservations``) that would begin only later.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.policies.fit import place_reserved, room_left
from dios.firmament.policies.reservations import Reservation, Reservations
from dios.limits import FAIR_QUEUE_TIMEOUT_S, SCHED_EVICTORS_MAX
from dios.wire.types import Affinity


def make_room(
    state: ClusterState, tasks: Ints, leaf: Ints, held: Flags, fixed: Flags, reservations: Reservations
) -> None:
    """Stop tasks that matter less where that lets a held placement in; changes ``leaf`` and ``held``.

    Tasks of any priority make room for those that E_j of a job needs. Tasks of gangs and of jobs with an E_j
    are not stopped. Placements that were held back for reasons other than room, those of jobs with affinity
    and migrations, stay held back, and so do those on machines that are reserved for others.
    """
    table, jobs = state.tasks, state.jobs
    job = table.job[tasks]
    alone = jobs.affinity[job] == Affinity.NONE
    waits = np.flatnonzero(held & (table.machine[tasks] == ABSENT) & alone)
    runs = np.where(held, table.leaf[tasks], leaf) != ABSENT
    running = np.bincount(job[runs], minlength=len(jobs.alive))
    short = running[job[waits]] < jobs.minimum[job[waits]]
    waits = waits[np.lexsort((table.submitted[tasks[waits]], -table.priority[tasks[waits]], ~short))]
    weak = ~fixed & ~held & (jobs.gang[job] == 0) & (jobs.minimum[job] == 0)
    for at in waits[:SCHED_EVICTORS_MAX].tolist():
        place = int(state.resources.machine[leaf[at]])
        if not reservations.may_fill(state, tasks[at : at + 1], np.array([place])).all():
            continue
        stays = (leaf != ABSENT) & (state.resources.machine[leaf] == place)
        stays &= table.machine[tasks] == place
        if running[job[at]] >= jobs.minimum[job[at]]:
            stays &= table.priority[tasks] < table.priority[tasks[at]]
        lower = np.flatnonzero(weak & stays)
        if not len(lower):
            continue
        # The least important first, and among equals the one that has run for the shortest time.
        order = np.lexsort((-table.since[tasks[lower]], table.priority[tasks[lower]]))
        free, slots = room_left(state, tasks, leaf, held, place)
        victims: list[int] = []
        for victim in lower[order].tolist():
            if slots > 0 and np.all(table.demand[tasks[at]] <= free):
                break
            victims.append(victim)
            free, slots = free + table.demand[tasks[victim]], slots + 1
        if slots > 0 and np.all(table.demand[tasks[at]] <= free):
            leaf[victims] = ABSENT
            held[at] = False
            running[job[at]] += 1


def make_room_reserved(
    state: ClusterState, tasks: Ints, leaf: Ints, held: Flags, fixed: Flags, reservation: Reservation
) -> None:
    """Stop tasks for a reservation that would begin only later; changes ``leaf`` and ``held``.

    Those of other principals are stopped at the same priority, too, unless they are ``fixed``: these
    principals have more than their share. Nothing is stopped unless the reserved tasks start for it, and
    nothing for a start within FAIR_QUEUE_TIMEOUT_S, which costs less than the work that would be lost.
    """
    if reservation.start <= state.now + FAIR_QUEUE_TIMEOUT_S:
        return
    table, jobs = state.tasks, state.jobs
    job, first = table.job[tasks], table.find(reservation.tasks[0])
    owner = jobs.principal[table.job[first]]
    weaker = table.priority[tasks] < table.priority[first]
    weaker |= (table.priority[tasks] == table.priority[first]) & (jobs.principal[job] != owner)
    weak = ~fixed & ~held & weaker & (jobs.gang[job] == 0) & (jobs.minimum[job] == 0)
    stays = (leaf != ABSENT) & (state.resources.machine[leaf] == table.machine[tasks])
    weak &= stays & np.isin(table.machine[tasks], reservation.machines)
    lower = np.flatnonzero(weak)
    order = np.lexsort((-table.since[tasks[lower]], table.priority[tasks[lower]]))
    before = leaf.copy()
    stopped: list[int] = []
    for at in lower[order].tolist():
        stopped.append(at)
        leaf[at] = ABSENT
        if place_reserved(state, tasks, leaf, held, reservation):
            break
    else:
        leaf[:] = before
        return
    # The order is over all machines, so some may have stopped for nothing, because another machine was short.
    for at in reversed(stopped):
        free, slots = room_left(state, tasks, leaf, held, int(table.machine[tasks[at]]))
        if slots > 0 and np.all(table.demand[tasks[at]] <= free):
            leaf[at] = before[at]


def spare(state: ClusterState, tasks: Ints, leaf: Ints, held: Flags, most: Ints) -> None:
    """Keep tasks that were to stop for placements which are held back now; changes ``leaf``.

    ``most`` is F_j by job row: a job that runs too many tasks still stops some.
    """
    table, tree = state.tasks, state.resources
    places = np.unique(tree.machine[leaf[held]])
    here = table.machine[tasks]
    stops = np.flatnonzero((leaf == ABSENT) & (here != ABSENT) & np.isin(here, places))
    job = table.job[tasks[stops]]
    stops = stops[(state.jobs.gang[job] == 0) & (state.jobs.affinity[job] == Affinity.NONE)]
    if not len(stops):
        return
    runs = np.where(held, table.leaf[tasks], leaf) != ABSENT
    running = np.bincount(table.job[tasks[runs]], minlength=len(most))
    order = np.lexsort((table.since[tasks[stops]], -table.priority[tasks[stops]]))
    for at in stops[order].tolist():
        row = int(tasks[at])
        free, slots = room_left(state, tasks, leaf, held, int(table.machine[row]))
        if running[table.job[row]] < most[table.job[row]] and slots > 0 and np.all(table.demand[row] <= free):
            leaf[at] = table.leaf[row]
            running[table.job[row]] += 1
