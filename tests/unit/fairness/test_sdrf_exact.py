"""SDRF against whole numbers: ties, and what is left of commitments after thousands of time constants."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from fractions import Fraction

import numpy as np
import pytest

from dios.fairness.stateful.exact_order import ExactOrder
from dios.fairness.stateful.exact_slopes import PARTS, add_part, compare_parts, halve_parts
from dios.fairness.stateful.scheduler import SdrfScheduler
from dios.limits import SDRF_CHANGES_MAX
from labs.simulate.fairness.simulate import simulate
from labs.simulate.fairness.simulate_by_tree import simulate_by_tree
from tests.support.fairness.exact_sdrf import ExactSdrf

SCHEDULES = 60


def compared(seed: int, delta: Fraction, priority: str, gaps: list[float], *, weighted: bool = False) -> int:
    """One random schedule in both; gaps are in time constants. Returns the number of tasks that started."""
    rng = random.Random(seed)  # noqa: S311 - a schedule, no secret
    resources = rng.randint(1, 3)
    capacity = [rng.randint(2, 12) for _ in range(resources)]
    users = 4 if weighted else rng.choice([None, 4, 8])
    # The mean of four powers of two is a binary fraction, so that no holding is rounded.
    weights = {user: rng.choice([1, 2, 4]) for user in range(4)} if weighted else None
    scheduler = SdrfScheduler(capacity, users=users, weights=weights, delta=float(delta), priority=priority)
    exact = ExactSdrf(capacity, users, delta, priority, weights)
    tau = -1 / math.log(delta)
    t, tag, total = 0, 0, 0
    for _ in range(14):
        t += rng.choice([0, 1, 2, round(rng.choice(gaps) * tau)])
        for done in rng.sample(sorted(exact.running), rng.randint(0, len(exact.running))):
            exact.finish(done, t)
            scheduler.finish(done, t)
        for _ in range(rng.randint(0, 5)):
            user, demand = rng.randint(0, 3), [rng.randint(0, 3) for _ in range(resources)]
            exact.submit(user, demand, tag, t)
            scheduler.submit(user, demand, tag, t)
            tag += 1
        expected = exact.schedule(t)
        assert scheduler.schedule(t) == expected, (seed, t)
        total += len(expected)
    return total


@pytest.mark.parametrize("priority", ["dominant", "sum"])
@pytest.mark.parametrize(
    ("delta", "gaps"),
    [
        (Fraction(3, 5), [30, 40, 300, 800, 5_000]),
        (Fraction(9, 10), [30, 40, 300, 800, 5_000]),
        (Fraction(99, 100), [1, 5, 40]),
    ],
    ids=["three fifths", "nine tenths", "short"],
)
def test_schedules_with_long_gaps_are_those_of_exact_arithmetic(
    delta: Fraction, gaps: list[float], priority: str
) -> None:
    """Every task starts as in whole numbers, with gaps of up to 5,000 time constants."""
    assert sum(compared(seed, delta, priority, gaps) for seed in range(SCHEDULES)) > 500


@pytest.mark.parametrize("priority", ["dominant", "sum"])
@pytest.mark.parametrize(
    ("delta", "gaps", "first"),
    [(Fraction(9, 10), [30, 40, 300, 800, 5_000], 10_100), (Fraction(1, 2), [0.5, 1, 5, 60], 10_060)],
    ids=["nine tenths", "a half"],
)
def test_remainders_decide_where_commitments_coincide(
    delta: Fraction, gaps: list[float], first: int, priority: str
) -> None:
    """Held-out schedules, some with large terms that cancel: sums of rounded terms decided them otherwise."""
    assert sum(compared(seed, delta, priority, gaps) for seed in range(first, first + 15)) > 100


def test_old_changes_are_folded_and_still_decide() -> None:
    """After 3,000 changes, each user has a bounded number of them, and who has one more comes later."""
    order = ExactOrder(np.array([4.0]), 0.999, 1.0, dominant=True)
    for _ in range(2):
        order.add_user(Fraction(1), 2)
    for t in range(1_500):
        for user in range(2):
            order.start(user, np.array([3.0]), 2.0 * t)
            order.finish(user, np.array([3.0]), 2.0 * t + 1)
    assert order.first([1, 0], 1e6) == 0
    order.start(0, np.array([3.0]), 1e6)
    order.finish(0, np.array([3.0]), 1e6 + 1)
    for past in (1e6 + 1, 3e6):
        assert order.first([0, 1], past) == 1
    assert all(len(user.changes[0]) <= SDRF_CHANGES_MAX for user in order._users)


@pytest.mark.parametrize("priority", ["dominant", "sum"])
def test_weighted_schedules_are_those_of_exact_arithmetic(priority: str) -> None:
    """Four users with different weights: every task starts as in whole numbers."""
    started = [
        compared(seed, Fraction(9, 10), priority, [0.1, 1, 30, 800], weighted=True)
        for seed in range(SCHEDULES)
    ]
    assert sum(started) > 500


@pytest.mark.parametrize("past", [1, 37, 60, 745, 800, 5_000, 40_000])
@pytest.mark.parametrize("priority", ["dominant", "sum"])
def test_who_owes_less_goes_first_however_long_ago_it_was(priority: str, past: int) -> None:
    """After any number of time constants without tasks, and with equal tasks since, the smaller debt wins."""
    scheduler = SdrfScheduler([8], users=2, delta=math.exp(-1), priority=priority)
    for user, amount in (("deep in debt", 8), ("in debt", 7)):
        t = 0 if amount == 8 else 1
        scheduler.submit(user, [amount], user, t)
        scheduler.schedule(t)
        scheduler.finish(user, t + 1)
    scheduler.submit("deep in debt", [8], "first", 2 + past)
    scheduler.submit("in debt", [8], "second", 2 + past)
    # The one of the day before yesterday owes e^-1 * 4 / 8, the other one 3 / 8.
    order = ["first", "second"] if 4 * math.exp(-1) < 3 else ["second", "first"]
    for at, tag in enumerate(order):
        t = 2 + past + at
        assert scheduler.schedule(t) == [tag]
        scheduler.finish(tag, t + 1)


def test_equal_debts_have_the_order_of_the_users() -> None:
    """The same holdings in other parts and another order leave the same debt: the first user is next."""
    for past in (1, 50, 2_000):
        scheduler = SdrfScheduler([27], users=3, delta=0.5)
        parts = {"a": [3, 5, 4], "b": [12], "c": []}
        for user, amounts in parts.items():
            for amount in amounts:
                scheduler.submit(user, [amount], (user, amount), 0.0)
        assert len(scheduler.schedule(0.0)) == 4
        for user, amount in (("b", 12), ("a", 4), ("a", 3), ("a", 5)):
            scheduler.finish((user, amount), 1.0)
        for user in "cba":
            scheduler.submit(user, [20], user, 1.0 + past)
        started = []
        for step in range(3):
            started += scheduler.schedule(1.0 + past)
            scheduler.finish(started[step], 1.0 + past)
        assert started == ["c", "a", "b"], past


@pytest.mark.parametrize("delta", [0.5, 0.9])
def test_the_tree_decides_as_the_scan_does_after_long_gaps(delta: float) -> None:
    """Whole traces with gaps of 5,000 time constants start alike with and without the live tree."""
    tau = -1 / math.log(delta)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tasks, resources = 100, int(rng.integers(1, 4))
        gaps = rng.choice([0.0, 0.0, 1.0, 40.0, 800.0, 5_000.0], tasks) * tau
        given = (
            np.cumsum(np.round(gaps)) * 1_000_000,
            rng.integers(0, 4, tasks) * 1_000_000,
            rng.integers(0, 6, tasks),
            rng.integers(0, 4, (tasks, resources)),
            rng.integers(3, 9, resources),
        )
        start, order = simulate(*given, delta=delta)
        starts, turns, _ = simulate_by_tree(*given, delta=delta)
        assert (starts.tolist(), turns.tolist()) == (start.tolist(), order.tolist()), seed


def test_slopes_are_exact_sums() -> None:
    """Random sums over 6,000 halvings compare as fractions do, and what was added can be taken away."""
    rng = random.Random(5)  # noqa: S311 - amounts, no secret
    slopes = []
    for _ in range(60):
        parts, powers, value = np.zeros(PARTS), np.zeros(PARTS, np.int64), Fraction(0)
        amounts = []
        for _ in range(rng.randint(1, 5)):
            halvings = rng.choice([0, 1, 30, 700, 3_000])
            halve_parts(parts, powers, halvings)
            amounts = [
                Fraction(rng.randint(-4, 4), 3) if rng.random() < 0.2 else Fraction(rng.randint(-4, 4))
            ]
            value = value / 2**halvings + sum(Fraction(float(amount)) for amount in amounts)
            for amount in amounts:
                add_part(parts, powers, float(amount))
            add_part(parts, powers, 0.1)
            add_part(parts, powers, -0.1)
        slopes.append((parts, powers, value))
    for a in slopes:
        for b in slopes:
            expected = (a[2] > b[2]) - (a[2] < b[2])
            assert compare_parts(a[0], a[1], b[0], b[1]) == expected, (a, b)


def test_whole_traces_have_the_weights_of_the_scheduler() -> None:
    """With and without the live tree, tasks start as event by event; other weights give other schedules."""
    rng = np.random.default_rng(7)
    differ = 0
    for _ in range(20):
        tasks = 60
        submit, duration = np.sort(rng.integers(0, 40, tasks)), rng.integers(1, 4, tasks)
        user, demand = rng.integers(0, 4, tasks), rng.integers(1, 4, (tasks, 2))
        weights: dict[Hashable, float] = {owner: float(rng.choice([1.0, 2.0, 4.0])) for owner in range(4)}
        given = (submit * 1_000_000, duration * 1_000_000, user, demand, [6, 7])
        start, order = simulate(*given, weights=weights, delta=0.9)
        again, turns, _ = simulate_by_tree(*given, weights=weights, delta=0.9)
        assert start.tolist() == again.tolist()
        assert order.tolist() == turns.tolist()
        scheduler = SdrfScheduler([6, 7], weights=weights, delta=0.9)
        began: list[Hashable] = []
        ends: dict[Hashable, int] = {}
        lasts: dict[Hashable, int] = dict(enumerate(duration.tolist()))
        t = 0
        while len(began) < tasks:
            for tag in [tag for tag, end in ends.items() if end == t]:
                scheduler.finish(tag, t)
            for row in np.flatnonzero(submit == t).tolist():
                scheduler.submit(int(user[row]), demand[row], row, t)
            for tag in scheduler.schedule(t):
                ends[tag] = t + lasts[tag]
                began.append(tag)
            t += 1
        assert order.tolist() == began
        differ += simulate(*given, users=4, delta=0.9)[1].tolist() != began
    assert differ > 10


def test_a_user_of_twice_the_weight_gets_twice_as_much() -> None:
    """Of eight places, with tasks waiting for all, the users get parts like their weights, also plain DRF."""
    for delta in (None, 0.9):
        scheduler = SdrfScheduler([8], weights={"a": 2, "b": 1, "c": 1}, delta=delta)
        for task in range(24):
            scheduler.submit("abc"[task % 3], [1], ("abc"[task % 3], task), 0.0)
        started = [str(tag) for tag in scheduler.schedule(0.0)]
        assert [sum(user in tag for tag in started) for user in "abc"] == [4, 2, 2]


def test_bad_weights_are_refused() -> None:
    """Weights are positive numbers for members of the population."""
    bad: list[tuple[dict[Hashable, float], str]] = [
        ({}, "weights is empty"),
        ({"a": 0}, r"weights\['a'\] is 0; it must be from 1e-06 to 1e\+06"),
        ({"a": math.nan}, "is nan"),
        ({"a": math.inf}, "is inf"),
        ({"a": 1, "b": 1}, "'b', which is not in users"),
    ]
    for weights, message in bad:
        with pytest.raises(ValueError, match=message):
            SdrfScheduler([1], users=["a"], weights=weights)
    with pytest.raises(ValueError, match="weights holds 2 users; users allows 1"):
        SdrfScheduler([1], users=1, weights={"a": 1, "b": 1})
    with pytest.raises(ValueError, match="'c' is not in users"):
        SdrfScheduler([1], weights={"a": 1, "b": 1}).submit("c", [1], "x", 0.0)
