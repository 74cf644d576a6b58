"""SDRF in whole numbers: Algorithm 1 without any rounding, after gaps of any length.

A discount factor is a fraction and times are whole seconds, so commitments are fractions with a common
denominator, which grows by a power with each second. The product shares no step with it.
"""

from __future__ import annotations

import math
from collections import deque
from fractions import Fraction

Task = tuple[int, list[int]]


class ExactSdrf:
    """The scheduler of ``SdrfScheduler``; all amounts are multiples of 1 / (unit * den^t)."""

    def __init__(
        self,
        capacity: list[int],
        users: int | None,
        delta: Fraction,
        priority: str,
        weights: dict[int, int] | None = None,
    ) -> None:
        self.capacity, self.users, self.delta, self.priority = capacity, users, delta, priority
        self.weights = weights or {}
        most = users or 8
        parts = [c * weight for c in capacity for weight in self.weights.values() or [1]]
        self.unit = math.lcm(*parts, *range(1, most + 1))
        self.mean = Fraction(sum(self.weights.values()), len(self.weights)) if self.weights else Fraction(1)
        self.unit *= self.mean.denominator
        self.now = 0
        self.power = 1
        """den^now."""
        self.queues: dict[int, deque[Task]] = {}
        self.held: dict[int, list[int]] = {}
        self.commitment: dict[int, list[int]] = {}
        self.running: dict[int, Task] = {}

    def shares(self, user: int) -> list[int]:
        """Each resource's share in units."""
        scale = self.mean / self.weights.get(user, 1)
        shares = [
            scale * held * self.unit / c for held, c in zip(self.held[user], self.capacity, strict=True)
        ]
        assert all(share.denominator == 1 for share in shares)
        return [int(share) for share in shares]

    def over(self, user: int) -> list[int]:
        """Equation 7 in units."""
        fair = self.unit // (self.users or len(self.held))
        return [max(share - fair, 0) for share in self.shares(user)]

    def move(self, t: int) -> None:
        """Equation 12, for all users."""
        if t == self.now:
            return
        num, den = self.delta.numerator ** (t - self.now), self.delta.denominator ** (t - self.now)
        for user, before in self.commitment.items():
            gain = [(den - num) * self.power * over if over else 0 for over in self.over(user)]
            self.commitment[user] = [a + num * c if c else a for a, c in zip(gain, before, strict=True)]
        self.now, self.power = t, self.power * den

    def submit(self, user: int, demand: list[int], tag: int, t: int) -> None:
        """Queue a task."""
        self.move(t)
        if user not in self.queues:
            self.queues[user] = deque()
            self.held[user] = [0] * len(self.capacity)
            self.commitment[user] = [0] * len(self.capacity)
        self.queues[user].append((tag, demand))

    def finish(self, tag: int, t: int) -> None:
        """End a task."""
        self.move(t)
        user, demand = self.running.pop(tag)
        self.held[user] = [held - amount for held, amount in zip(self.held[user], demand, strict=True)]

    def key(self, user: int) -> tuple[int, int, int]:
        """Priority, its derivative, and the order of first submission."""
        shares = [share * self.power for share in self.shares(user)]
        base = max(shares) if self.priority == "dominant" else 0
        lines = []
        for share, over, owed in zip(shares, self.over(user), self.commitment[user], strict=True):
            value = owed if self.priority == "dominant" else share + owed
            lines.append((value, over * self.power - owed))
        top, rate = max(lines)
        return base + top, rate, list(self.queues).index(user)

    def schedule(self, t: int) -> list[int]:
        """Algorithm 1."""
        self.move(t)
        started = []
        while active := [user for user, queue in self.queues.items() if queue]:
            user = min(active, key=self.key)
            tag, demand = self.queues[user][0]
            used = [sum(column) for column in zip(*self.held.values(), strict=True)]
            if any(a + b > c for a, b, c in zip(used, demand, self.capacity, strict=True)):
                break
            self.queues[user].popleft()
            self.held[user] = [held + amount for held, amount in zip(self.held[user], demand, strict=True)]
            self.running[tag] = (user, demand)
            started.append(tag)
        return started
