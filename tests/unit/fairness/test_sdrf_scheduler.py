"""SDRF's scheduler against a slow one that follows the definitions, and its bounds."""

from __future__ import annotations

import math
import random
from collections import deque

import numpy as np
import pytest

from dios.fairness.stateful.scheduler import SdrfScheduler

Task = tuple[int, list[int]]
NEAR = 1e-11


class Direct:
    """Equations 7 and 12 at every step and for every user, and Algorithm 1 by looking at all of them."""

    def __init__(self, capacity: list[int], users: int | None, delta: float | None, priority: str) -> None:
        self.capacity, self.users, self.delta, self.priority = capacity, users, delta, priority
        self.now = 0.0
        self.queues: dict[int, deque[Task]] = {}
        self.held: dict[int, list[int]] = {}
        self.commitment: dict[int, list[float]] = {}
        self.running: dict[int, Task] = {}

    def shares(self, user: int) -> list[float]:
        """The share of each resource."""
        return [amount / room for amount, room in zip(self.held[user], self.capacity, strict=True)]

    def over(self, user: int) -> list[float]:
        """Equation 7."""
        return [max(share - 1 / (self.users or len(self.held)), 0.0) for share in self.shares(user)]

    def move(self, t: float) -> None:
        """Equation 12, for everybody."""
        fade = 1.0 if self.delta is None else self.delta ** (t - self.now)
        for user, before in self.commitment.items():
            pairs = zip(self.over(user), before, strict=True)
            self.commitment[user] = [(1 - fade) * over + fade * c for over, c in pairs]
        self.now = t

    def submit(self, user: int, demand: list[int], tag: int, t: float) -> None:
        """Queue a task."""
        self.move(t)
        if user not in self.queues:
            self.queues[user] = deque()
            self.held[user] = [0] * len(self.capacity)
            self.commitment[user] = [0.0] * len(self.capacity)
        self.queues[user].append((tag, demand))

    def finish(self, tag: int, t: float) -> None:
        """End a task."""
        self.move(t)
        user, demand = self.running.pop(tag)
        self.held[user] = [held - amount for held, amount in zip(self.held[user], demand, strict=True)]

    def key(self, user: int) -> tuple[float, float]:
        """Priority and its derivative, but for the factor 1 / tau."""
        share, c = self.shares(user), self.commitment[user]
        if self.delta is None:
            return max(share), 0.0
        values = c if self.priority == "dominant" else [a + b for a, b in zip(share, c, strict=True)]
        rates = [over - now for over, now in zip(self.over(user), c, strict=True)]
        top = max(values)
        rate = max(rate for rate, value in zip(rates, values, strict=True) if value > top - NEAR)
        return top + (max(share) if self.priority == "dominant" else 0.0), rate

    def schedule(self, t: float) -> list[int]:
        """Algorithm 1."""
        self.move(t)
        started = []
        while active := [user for user, queue in self.queues.items() if queue]:
            keys = {user: self.key(user) for user in active}
            least = min(value for value, _ in keys.values())
            tied = [user for user in active if keys[user][0] < least + NEAR]
            slowest = min(keys[user][1] for user in tied)
            user = next(user for user in self.queues if user in tied and keys[user][1] < slowest + NEAR)
            tag, demand = self.queues[user][0]
            used = [sum(column) for column in zip(*self.held.values(), strict=True)]
            if any(a + b > c for a, b, c in zip(used, demand, self.capacity, strict=True)):
                break
            self.queues[user].popleft()
            self.held[user] = [held + amount for held, amount in zip(self.held[user], demand, strict=True)]
            self.running[tag] = (user, demand)
            started.append(tag)
        return started


def compared(seed: int, delta: float | None, priority: str) -> int:
    """One random history in both; the number of tasks that started."""
    rng = random.Random(seed)  # noqa: S311 - a history, no secret
    resources = rng.randint(1, 3)
    capacity = [rng.randint(5, 20) for _ in range(resources)]
    users = rng.choice([None, 6])
    scheduler = SdrfScheduler(capacity, users=users, delta=delta, priority=priority)
    direct = Direct(capacity, users, delta, priority)
    t, tag, total = 0.0, 0, 0
    for _ in range(30):
        t += rng.choice([0.0, 0.5, 1.0, 7.0, 40.0]) + rng.random()
        for done in rng.sample(sorted(direct.running), rng.randint(0, len(direct.running))):
            direct.finish(done, t)
            scheduler.finish(done, t)
        for _ in range(rng.randint(0, 4)):
            user, demand = rng.randint(0, 5), [rng.randint(0, 5) for _ in range(resources)]
            direct.submit(user, demand, tag, t)
            scheduler.submit(user, demand, tag, t)
            tag += 1
        expected = direct.schedule(t)
        assert scheduler.schedule(t) == expected, (seed, t)
        total += len(expected)
        later = t + rng.random()
        fade = 1.0 if delta is None else delta ** (later - t)
        commitments = scheduler.commitments(later)
        for user, before in direct.commitment.items():
            want = [(1 - fade) * a + fade * b for a, b in zip(direct.over(user), before, strict=True)]
            np.testing.assert_allclose(commitments[user], want, atol=1e-12, err_msg=f"seed {seed} at {t}")
    return total


@pytest.mark.parametrize("priority", ["dominant", "sum"])
@pytest.mark.parametrize("delta", [0.97, 0.999, 1 - 1e-6, None])
def test_decisions_are_those_of_the_definitions(delta: float | None, priority: str) -> None:
    """Random histories start the same tasks in the same order, and commitments agree."""
    assert sum(compared(seed, delta, priority) for seed in range(25)) > 500


def test_a_long_history_loses_no_precision() -> None:
    """Commitments stay exact when hundreds of tau pass, in steps and at once."""
    scheduler = SdrfScheduler([10], users=2, delta=0.5)
    tau = -1 / math.log(0.5)
    scheduler.submit("a", [10], "task", 0.0)
    scheduler.schedule(0.0)
    np.testing.assert_allclose(scheduler.commitments(tau)["a"], 0.5 * (1 - math.exp(-1)), rtol=1e-12)
    for step in range(1, 400):
        scheduler.schedule(step * tau)
    scheduler.finish("task", 400 * tau)
    np.testing.assert_allclose(scheduler.commitments(401 * tau)["a"], 0.5 * math.exp(-1), rtol=1e-9)
    scheduler.schedule(1e9)
    assert scheduler.commitments(1e9)["a"] == 0.0


def test_who_used_less_goes_first() -> None:
    """After one user had everything, a newcomer is served first until it holds more than the debt."""
    scheduler = SdrfScheduler([8], users=2, delta=0.9)
    for tag in range(16):
        scheduler.submit("heavy", [1], ("heavy", tag), 0.0)
    assert len(scheduler.schedule(0.0)) == 8
    for tag in range(8):
        scheduler.submit("light", [1], ("light", tag), 100.0)
    for tag in range(8):
        scheduler.finish(("heavy", tag), 100.0)
    started = scheduler.schedule(100.0)
    assert sum(("light", tag) in started for tag in range(8)) == 6


def test_many_users_find_room() -> None:
    """A hundred users' first tasks start in the order of their arrival."""
    scheduler = SdrfScheduler([100.0], delta=None)
    for user in range(100):
        scheduler.submit(user, [1.0], user, 0.0)
    started = scheduler.schedule(0.0)
    assert started == list(range(100))


def test_an_empty_system_is_wholly_free() -> None:
    """After tasks whose demands round have all ended, one that takes everything fits."""
    scheduler = SdrfScheduler([1.0], delta=None)
    for tag, demand in enumerate([0.1, 0.2, 0.3]):
        scheduler.submit("a", [demand], tag, 0.0)
    assert scheduler.schedule(0.0) == [0, 1, 2]
    for tag in range(3):
        scheduler.finish(tag, 1.0)
    scheduler.submit("b", [1.0], "all", 1.0)
    assert scheduler.schedule(1.0) == ["all"]


def test_a_task_that_does_not_fit_stops_everybody_until_it_is_withdrawn() -> None:
    """Nobody is let past the user who is next; without its task the others go on."""
    scheduler = SdrfScheduler([4], delta=None)
    scheduler.submit("a", [5], "too large", 0.0)
    scheduler.submit("b", [1], "small", 0.0)
    assert scheduler.schedule(0.0) == []
    scheduler.withdraw("too large", 1.0)
    assert scheduler.schedule(1.0) == ["small"]


@pytest.mark.parametrize("amount", [math.nan, -1.0, math.inf])
def test_bad_demands_are_refused_by_index_and_change_nothing(amount: float) -> None:
    """A demand that is no amount names its resource, and neither user nor tag nor time is remembered."""
    scheduler = SdrfScheduler([4, 4], users=["a"])
    with pytest.raises(ValueError, match=r"demand\[1\]"):
        scheduler.submit("a", [1, amount], "x", 9.0)
    scheduler.submit("a", [1, 1], "x", 3.0)
    assert scheduler.schedule(3.0) == ["x"]


def test_bad_use_is_refused_and_changes_nothing() -> None:
    """Wrong shapes, strangers, tags twice or unknown, and time running back are errors."""
    scheduler = SdrfScheduler([4, 4], users=1)
    scheduler.submit("a", [1, 1], "x", 3.0)
    for user, demand, tag, t, message in [
        ("a", [1], "y", 3.0, r"demand has the shape \(1,\); it must be \(2\)"),
        ("a", [1, 1], "x", 3.0, "already used"),
        ("a", [1, 1], "y", 2.0, "not before 3.0"),
        ("a", [1, 1], "y", math.nan, "must be finite"),
        ("b", [1, 1], "y", 3.0, "users allows only 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            scheduler.submit(user, demand, tag, t)
    with pytest.raises(ValueError, match="demand is not a rectangular array"):
        scheduler.submit("a", [[1], [1, 2]], "y", 3.0)
    with pytest.raises(ValueError, match="withdraw"):
        scheduler.finish("x", 3.0)
    with pytest.raises(ValueError, match="unknown"):
        scheduler.finish("y", 3.0)
    with pytest.raises(ValueError, match="no task with the tag 'y' waits"):
        scheduler.withdraw("y", 3.0)
    with pytest.raises(ValueError, match=r"not before 3\.0"):
        scheduler.schedule(1.0)
    assert scheduler.schedule(3.0) == ["x"]
    with pytest.raises(ValueError, match="'b' is not in users"):
        SdrfScheduler([4], users=["a"]).submit("b", [1], "x", 0.0)


def test_bad_rules_are_refused() -> None:
    """Capacities, populations, discount factors, intervals and priorities are checked at once."""
    for capacity in ([], [[1.0]], [1, 0], [1, -1], [1, math.nan], [1, math.inf]):
        with pytest.raises(ValueError, match="capacity"):
            SdrfScheduler(capacity)
    for delta in (0.0, 1.0, 1.5, -1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            SdrfScheduler([1], delta=delta)
    with pytest.raises(ValueError, match="interval_s"):
        SdrfScheduler([1], interval_s=0.0)
    with pytest.raises(ValueError, match="choose one of"):
        SdrfScheduler([1], priority="least")
    for users in (0, ()):
        with pytest.raises(ValueError, match="users is"):
            SdrfScheduler([1], users=users)
    with pytest.raises(ValueError, match=r"users is 2\.5"):
        SdrfScheduler([1], users=2.5)  # type: ignore[arg-type] # what people without a checker do
