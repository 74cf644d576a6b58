"""Simulation of a whole trace under SDRF or DRF: the start time of each task, and the order of starts.

The capacity is one pool; there are no machines and no placement. ``dios.fairness.stateful.scheduler`` makes
the same decisions event by event.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.allocation import Floats, Ints, as_number_array, checked_numbers, raise_first_invalid
from dios.fairness.stateful.input_checks import (
    Population,
    User,
    checked_capacity,
    checked_population,
    checked_rule,
)
from dios.fairness.stateful.kernels import (
    PLAIN,
    UserTable,
    activate,
    advance_clock,
    deactivate,
    empty_user_table,
    finish_task,
    new_clock,
    set_first_task,
    start_next,
    update_all_lines,
)
from dios.kernels import inlined_kernel, no_refcount_kernel

TIME_US_MAX: Final = 2**53
"""All times stay below this (about 285 years), so that floats hold them exactly."""
MICRO: Final = 1e6


class SimulatedTasks(NamedTuple):
    """The tasks (T) by row; ``arrival`` holds the rows in order of submission."""

    arrival: Ints
    submit: Ints
    duration: Ints
    user: Ints
    demand: Floats


class SimulationState(NamedTuple):
    """The state of the tasks: start times, the heap of running rows and the queues of waiting ones."""

    start: Ints
    """(T,) microseconds, or -1."""
    order: Ints
    """(T,) rows as they started."""
    finish: Ints
    """(T,) microseconds."""
    start_index: Ints
    """(T,) the index of a row in ``order``."""
    heap: Ints
    """(T,) running rows as a heap; the first to finish is on top."""
    following: Ints
    """(T,) the next row in its user's queue, or -1."""
    first: Ints
    """(U,) the first row in a user's queue, or -1."""
    last: Ints
    """(U,) the last row in a user's queue."""
    counts: Ints
    """Numbers of rows that have arrived, have started and are running, and of users seen and active."""


class SimulationArguments(NamedTuple):
    """The arguments of ``run_simulation``, in order."""

    trace: SimulatedTasks
    state: SimulationState
    table: UserTable
    clock: Floats
    population: int
    tau: float
    mode: int


ARRIVED, STARTED, RUNNING, SEEN, ACTIVE = range(5)


@inlined_kernel
def finishes_before(state: SimulationState, a: int, b: int) -> bool:
    """Return True if row ``a`` finishes before ``b``; at the same time, the one that started first."""
    if state.finish[a] != state.finish[b]:
        return bool(state.finish[a] < state.finish[b])
    return bool(state.start_index[a] < state.start_index[b])


@inlined_kernel
def push(state: SimulationState, row: int) -> None:
    """Add a running row to the heap."""
    place = state.counts[RUNNING]
    state.counts[RUNNING] += 1
    while place > 0:
        above = (place - 1) >> 1
        if not finishes_before(state, row, state.heap[above]):
            break
        state.heap[place] = state.heap[above]
        place = above
    state.heap[place] = row


@inlined_kernel
def pop(state: SimulationState) -> int:
    """Remove and return the row that finishes first."""
    top = state.heap[0]
    state.counts[RUNNING] -= 1
    size = state.counts[RUNNING]
    row = state.heap[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and finishes_before(state, state.heap[below + 1], state.heap[below]):
            below += 1
        if not finishes_before(state, state.heap[below], row):
            break
        state.heap[place] = state.heap[below]
        place = below
    state.heap[place] = row
    return int(top)


@inlined_kernel
def arrive(
    trace: SimulatedTasks,
    state: SimulationState,
    table: UserTable,
    row: int,
    population: int,
    g: float,
    mode: int,
) -> None:
    """Add a row to its user's queue; the user may be new."""
    user = trace.user[row]
    if user == state.counts[SEEN]:
        state.counts[SEEN] += 1
        if population == 0:
            update_all_lines(table, user, 1.0 / state.counts[SEEN], g, mode)
    if state.first[user] < 0:
        state.first[user] = row
        state.counts[ACTIVE] = activate(table, state.counts[ACTIVE], user, trace.demand[row], g)
    else:
        state.following[state.last[user]] = row
    state.last[user] = row


@inlined_kernel
def start_first_task(
    trace: SimulatedTasks, state: SimulationState, table: UserTable, t: int, user: int, g: float
) -> None:
    """Start the first row in a user's queue; the user table already includes it."""
    row = state.first[user]
    state.start[row] = t
    state.finish[row] = t + trace.duration[row]
    state.start_index[row] = state.counts[STARTED]
    state.order[state.counts[STARTED]] = row
    state.counts[STARTED] += 1
    push(state, row)
    behind = state.following[row]
    state.first[user] = behind
    if behind < 0:
        state.counts[ACTIVE] = deactivate(table, state.counts[ACTIVE], user, g)
    else:
        set_first_task(table, user, trace.demand[behind])


@inlined_kernel
def next_instant(trace: SimulatedTasks, state: SimulationState) -> int:
    """Return the time of the next finish or arrival; there must be one."""
    count = state.counts
    if count[ARRIVED] == trace.arrival.size:
        return int(state.finish[state.heap[0]])
    t = trace.submit[trace.arrival[count[ARRIVED]]]
    return int(min(t, state.finish[state.heap[0]]) if count[RUNNING] else t)


@no_refcount_kernel
def run_simulation(
    trace: SimulatedTasks,
    state: SimulationState,
    table: UserTable,
    clock: Floats,
    population: int,
    tau: float,
    mode: int,
) -> None:
    """Step from one time to the next: first all finishes, then all arrivals, then scheduling."""
    count = state.counts
    rows = trace.arrival.size
    while count[ARRIVED] < rows or count[RUNNING]:
        t = next_instant(trace, state)
        if mode != PLAIN:
            advance_clock(table, count[SEEN], clock, t / MICRO, tau)
        fair = 1.0 / max(population or count[SEEN], 1)
        while count[RUNNING] and state.finish[state.heap[0]] <= t:
            row = pop(state)
            finish_task(table, trace.user[row], trace.demand[row], fair, clock[1], mode)
        while count[ARRIVED] < rows and trace.submit[trace.arrival[count[ARRIVED]]] <= t:
            arrive(trace, state, table, trace.arrival[count[ARRIVED]], population, clock[1], mode)
            count[ARRIVED] += 1
        fair = 1.0 / max(population or count[SEEN], 1)
        while count[ACTIVE]:
            user = start_next(table, count[ACTIVE], fair, clock[1], mode)
            if user < 0:
                break
            start_first_task(trace, state, table, t, user, clock[1])


def simulate(
    submit_us: ArrayLike,
    duration_us: ArrayLike,
    user: ArrayLike,
    demands: ArrayLike,
    capacity: ArrayLike,
    *,
    users: int | Collection[Hashable] | None = None,
    weights: Mapping[User, float] | None = None,
    delta: float | None = 1 - 1e-6,
    priority: str = "dominant",
) -> tuple[Ints, Ints]:
    """Simulate a trace under SDRF (SDRF paper, Algorithm 1 and equation 12), or DRF if ``delta`` is None.

    ``submit_us`` and ``duration_us`` (T,) are whole microseconds, ``user`` (T,) is the submitting user, and
    ``demands`` (T, m) and ``capacity`` (m,) have the same units. Rows may be in any order; rows of the same
    time arrive in the order of the arrays. ``users`` is the population that shares the capacity, 1/n each:
    a number or the users themselves; None means all users seen so far. ``weights`` are those of
    ``SdrfScheduler``. ``delta`` is the discount factor for each second.

    Returns ``start_us`` (T,) int64, -1 for a task that never starts, and ``order``, the rows as they started.
    Each user's tasks start in order; if the next user's first task does not fit, all users wait.
    Raises ``ValueError`` with the row at fault.
    """
    arguments = prepare_simulation(
        submit_us, duration_us, user, demands, capacity, users, weights, delta, priority
    )
    run_simulation(*arguments)
    return simulation_result(arguments.state)


def simulation_result(state: SimulationState) -> tuple[Ints, Ints]:
    """Return the result of :func:`simulate` from the state at the end."""
    return state.start, state.order[: state.counts[STARTED]].copy()


def prepare_simulation(
    submit_us: ArrayLike,
    duration_us: ArrayLike,
    user: ArrayLike,
    demands: ArrayLike,
    capacity: ArrayLike,
    users: int | Collection[Hashable] | None,
    weights: Mapping[User, float] | None,
    delta: float | None,
    priority: str,
) -> SimulationArguments:
    """Return the checked arguments and the initial state; ``ValueError`` names the argument at fault."""
    pool = checked_capacity(capacity)
    mode, tau = checked_rule(delta, 1.0, priority)
    population = checked_population(users, weights)
    submit, duration = _times(submit_us, "submit_us"), _times(duration_us, "duration_us")
    _check_length(duration.shape, submit.size, "duration_us")
    asked = as_number_array("demands", demands)
    if not submit.size and not asked.size:
        # An empty list does not have the number of resources.
        asked = asked.reshape(0, pool.size)
    demand = checked_numbers("demands", asked, (submit.size, pool.size))
    if submit.size and int(submit.max()) + float(duration.sum(dtype=np.float64)) >= TIME_US_MAX:
        message = "submit_us and the sum of duration_us exceed 285 years"
        raise ValueError(message)
    arrival = np.argsort(submit, kind="stable").astype(np.int64)
    index, names = _index_users(user, arrival, population)
    seen = len(names)
    rows = submit.size
    trace = SimulatedTasks(arrival, submit, duration, index, demand)
    state = SimulationState(
        start=np.full(rows, -1, np.int64),
        order=np.zeros(rows, np.int64),
        finish=np.zeros(rows, np.int64),
        start_index=np.zeros(rows, np.int64),
        heap=np.zeros(rows, np.int64),
        following=np.full(rows, -1, np.int64),
        first=np.full(seen, -1, np.int64),
        last=np.zeros(seen, np.int64),
        counts=np.zeros(5, np.int64),
    )
    clock = new_clock(submit[arrival[0]] / MICRO if rows else 0.0)
    table = empty_user_table(pool, seen)
    table.scale[:] = [population.scale(name) for name in names]
    return SimulationArguments(trace, state, table, clock, population.size, tau, mode)


def _times(given: ArrayLike, name: str) -> Ints:
    """Return whole microseconds (T,) as a copy."""
    times = checked_numbers(name, given, (None,))
    good = (times < TIME_US_MAX) & (np.floor(times) == times)
    if not good.all():
        raise_first_invalid(name, times, good, "it must be whole microseconds from 0 to 2^53")
    return times.astype(np.int64)


def _check_length(shape: tuple[int, ...], rows: int, name: str) -> None:
    if shape != (rows,):
        message = f"{name} has the shape {shape}; it must have one entry for each of the {rows} tasks"
        raise ValueError(message)


def _index_users(given: ArrayLike, arrival: Ints, population: Population) -> tuple[Ints, list[Hashable]]:
    """Return (each row's user, numbered by first submission; the users in this order)."""
    labels: Ints = np.asarray(given)  # names are possible too; they are only compared
    _check_length(labels.shape, arrival.size, "user")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        message = f"user[{row}] is {labels[row]}; it must be finite"
        raise ValueError(message)
    who, first, inverse = np.unique(labels[arrival], return_index=True, return_inverse=True)
    if population.names is not None:
        for place, name in zip(first.tolist(), who.tolist(), strict=True):
            if name not in population.names:
                message = f"user[{arrival[place]}] is {name!r}, which is not in users"
                raise ValueError(message)
    if population.size and who.size > population.size:
        message = f"user holds {who.size} users; users allows {population.size}"
        raise ValueError(message)
    rank = np.empty(who.size, np.int64)
    order = np.argsort(first)
    rank[order] = np.arange(who.size)
    index = np.empty(arrival.size, np.int64)
    index[arrival] = rank[inverse]
    return index, who[order].tolist()
