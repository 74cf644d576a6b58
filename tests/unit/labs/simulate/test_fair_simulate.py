"""Whole traces: as the scheduler decides event by event, and as plain DRF decides."""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from dios.fairness.stateful.scheduler import SdrfScheduler
from labs.simulate.fairness.simulate import simulate

Ints = NDArray[np.int64]
Trace = tuple[Ints, Ints, Ints, Ints, Ints]


def trace(seed: int, tasks: int = 60) -> Trace:
    """(submit, duration, user, demands, capacity), with many at one instant and some of no duration."""
    rng = np.random.default_rng(seed)
    resources = int(rng.integers(1, 4))
    return (
        rng.integers(0, 40, tasks) * 500_000,
        rng.integers(0, 30, tasks) * 700_000,
        rng.integers(-3, 4, tasks),
        rng.integers(0, 6, (tasks, resources)),
        rng.integers(5, 12, resources),
    )


def by_events(
    given: Trace, users: int | None, delta: float | None, priority: str
) -> tuple[list[int], list[int]]:
    """Drive the scheduler through a trace: finishes, then arrivals, then scheduling."""
    submit, duration, user, demands, capacity = given
    scheduler = SdrfScheduler(capacity, users=users, delta=delta, priority=priority)
    arrivals = deque(sorted(range(submit.size), key=lambda row: (submit[row], row)))
    running: list[tuple[int, int, int]] = []
    start, order = [-1] * submit.size, list[int]()
    while arrivals or running:
        t = min([int(submit[row]) for row in list(arrivals)[:1]] + [finish for finish, _, _ in running[:1]])
        while running and running[0][0] == t:
            scheduler.finish(heapq.heappop(running)[2], t / 1e6)
        while arrivals and submit[arrivals[0]] == t:
            row = arrivals.popleft()
            scheduler.submit(int(user[row]), demands[row], row, t / 1e6)
        for tag in scheduler.schedule(t / 1e6):
            assert isinstance(tag, int)
            row = tag
            start[row] = t
            heapq.heappush(running, (t + int(duration[row]), len(order), row))
            order.append(row)
    return start, order


def by_drf(given: Trace) -> list[int]:
    """Plain DRF in whole numbers: the share is compared as a product, so that ties are exact."""
    submit, duration, user, demands, capacity = given
    queues: dict[int, deque[int]] = {}
    start, running = [-1] * submit.size, list[int]()
    held: dict[int, Ints] = {}
    scale = np.prod(capacity) // capacity
    instants = {int(t) for t in submit}
    while instants:
        t = min(instants)
        instants.remove(t)
        for row in [row for row in running if start[row] + duration[row] == t]:
            running.remove(row)
            held[int(user[row])] = held[int(user[row])] - demands[row]
        for row in np.flatnonzero(submit == t).tolist():
            queues.setdefault(int(user[row]), deque()).append(row)
            held.setdefault(int(user[row]), np.zeros_like(capacity))
        while active := [who for who, queue in queues.items() if queue]:
            who = min(active, key=lambda name: int((held[name] * scale).max()))
            row = queues[who][0]
            if (sum(held.values()) + demands[row] > capacity).any():
                break
            start[queues[who].popleft()] = t
            running.append(row)
            held[who] = held[who] + demands[row]
            instants.add(t + int(duration[row]))
    return start


@pytest.mark.long
@pytest.mark.extended(keep=2)
@pytest.mark.parametrize("priority", ["dominant", "sum"])
@pytest.mark.parametrize("users", [None, 9])
@pytest.mark.parametrize("delta", [0.5, 0.97, 1 - 1e-6, None])
def test_a_trace_starts_as_the_scheduler_starts_it(
    delta: float | None, users: int | None, priority: str
) -> None:
    """Starts and their order are those of the scheduler driven event by event."""
    for seed in range(12):
        given = trace(seed)
        start, order = simulate(*given, users=users, delta=delta, priority=priority)
        expected = by_events(given, users, delta, priority)
        assert (start.tolist(), order.tolist()) == expected, seed
        assert start.dtype == np.int64, seed


def test_without_discount_it_is_drf() -> None:
    """With no delta the starts are those of DRF in whole numbers."""
    for seed in range(40):
        submit, duration, user, demands, capacity = trace(seed)
        given = (submit, duration + 1, user, demands, capacity)
        assert simulate(*given, delta=None)[0].tolist() == by_drf(given), seed


def test_the_past_counts() -> None:
    """Some random traces start differently under SDRF and DRF, and under its two priorities."""
    kinds = [
        [simulate(*trace(seed), delta=delta, priority=priority)[1].tolist() for seed in range(20)]
        for delta, priority in [(None, "dominant"), (0.97, "dominant"), (0.97, "sum")]
    ]
    assert kinds[0] != kinds[1] != kinds[2]


def test_the_capacity_is_never_exceeded_and_queues_keep_their_order() -> None:
    """At every start what runs fits, and each user's tasks start in the order of submission."""
    for seed in range(20):
        submit, duration, user, demands, capacity = trace(seed)
        duration = duration + 1
        start, order = simulate(submit, duration, user, demands, capacity, delta=0.9)
        for t in start[start >= 0].tolist():
            runs = (start >= 0) & (start <= t) & (t < start + duration)
            assert (demands[runs].sum(axis=0) <= capacity).all(), (seed, t)
        for who in set(user.tolist()):
            rows = [row for row in order.tolist() if user[row] == who]
            assert rows == sorted(rows, key=lambda row: (submit[row], row)), (seed, who)


def test_what_never_fits_never_starts() -> None:
    """A task beyond the capacity has start -1, and so has whoever waits behind it."""
    start, order = simulate([0, 0, 0], [1, 1, 1], [0, 0, 1], [[9], [1], [1]], [4])
    assert (start.tolist(), order.tolist()) == ([-1, -1, -1], [])


def test_no_tasks_start_nothing() -> None:
    """An empty trace is answered with empty arrays."""
    start, order = simulate([], [], [], [], [1.0])
    assert (start.size, order.size) == (0, 0)


@pytest.mark.parametrize(
    ("submit", "duration", "user", "demands", "capacity", "message"),
    [
        ([0, -1], [1, 1], [0, 0], [[1], [1]], [1], r"submit_us\[1\]"),
        ([0, math.nan], [1, 1], [0, 0], [[1], [1]], [1], r"submit_us\[1\]"),
        ([0, 0.5], [1, 1], [0, 0], [[1], [1]], [1], r"submit_us\[1\]"),
        ([0, 0], [1, -1], [0, 0], [[1], [1]], [1], r"duration_us\[1\]"),
        ([0, 0], [1, 2**60], [0, 0], [[1], [1]], [1], r"duration_us\[1\]"),
        ([0, 0], [1, 2**53 - 1], [0, 0], [[1], [1]], [1], "285 years"),
        ([0, 0], [1], [0, 0], [[1], [1]], [1], "duration_us has the shape"),
        ([0, 0], [1, 1], [0], [[1], [1]], [1], "user has the shape"),
        ([0, 0], [1, 1], [0, math.nan], [[1], [1]], [1], r"user\[1\]"),
        ([[0]], [1], [0], [[1]], [1], r"submit_us has the shape \(1, 1\)"),
        (["a"], [1], [0], [[1]], [1], "submit_us holds"),
        ([0, 2**53], [1, 1], [0, 0], [[1], [1]], [1], r"submit_us\[1\] .* whole microseconds"),
        ([0, 0], [1, 1], [0, 0], [[1], [1]], [1, 1], r"demands has the shape \(2, 1\)"),
        ([0, 0], [1, 1], [0, 0], [[1], [1, 2]], [1], "demands is not a rectangular array"),
        ([], [], [], [[1]], [1], r"demands has the shape \(1, 1\)"),
        ([0], [1], [0], [["a"]], [1], "demands holds"),
        ([0], [1], [0], [[1]], ["a"], "capacity holds"),
        ([0, 0], [1, 1], [0, 0], [[1], [-1]], [1], r"demands\[1, 0\]"),
        ([0, 0], [1, 1], [0, 0], [[1], [math.inf]], [1], r"demands\[1, 0\]"),
        ([0], [1], [0], [[1]], [0], r"capacity\[0\]"),
    ],
)
def test_bad_traces_are_refused_by_row(
    submit: ArrayLike,
    duration: ArrayLike,
    user: ArrayLike,
    demands: ArrayLike,
    capacity: ArrayLike,
    message: str,
) -> None:
    """Each bad argument is an error that says which and where."""
    with pytest.raises(ValueError, match=message):
        simulate(submit, duration, user, demands, capacity)


def test_strangers_to_the_population_are_refused() -> None:
    """A user outside of a named population, or one too many for a counted one, is an error."""
    with pytest.raises(ValueError, match=r"user\[1\] is 7"):
        simulate([0, 0], [1, 1], [3, 7], [[1], [1]], [1], users=[3, 4])
    with pytest.raises(ValueError, match="users allows 1"):
        simulate([0, 0], [1, 1], [3, 7], [[1], [1]], [1], users=1)
