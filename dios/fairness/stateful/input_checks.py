"""Checks of the arguments of SDRF's scheduler and simulation."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.allocation import Floats, check_positive, checked_numbers
from dios.fairness.stateful.kernels import DOMINANT, PLAIN, SUM

User = TypeVar("User", bound=Hashable)

MODES: Final = {"dominant": DOMINANT, "sum": SUM}
WEIGHT_MIN: Final = 1e-6
WEIGHT_MAX: Final = 1e6
"""The bounds of a user's weight."""


def checked_capacity(capacity: ArrayLike) -> Floats:
    """Return the capacity (m,) as a new array, positive and finite; ``ValueError`` names the resource."""
    checked = checked_numbers("capacity", capacity, (None,)).copy()
    if not checked.size:
        message = "capacity is empty; give one number for each resource"
        raise ValueError(message)
    check_positive("capacity", checked)
    return checked


def checked_rule(delta: float | None, interval_s: float, priority: str) -> tuple[int, float]:
    """Return (mode, tau in seconds) for a discount factor; None is plain DRF."""
    if priority not in MODES:
        message = f"priority is {priority!r}; choose one of {', '.join(sorted(MODES))}"
        raise ValueError(message)
    if not (math.isfinite(interval_s) and interval_s > 0):
        message = f"interval_s is {interval_s}; it must be positive and finite"
        raise ValueError(message)
    if delta is None:
        return PLAIN, math.inf
    if not 0.0 < delta < 1.0:
        message = f"delta is {delta}; it must be between 0 and 1, or None for plain DRF"
        raise ValueError(message)
    return MODES[priority], -interval_s / math.log(delta)


class Population(NamedTuple):
    """The users that share the capacity.

    ``size`` is their number, or 0 for all users seen so far; ``names`` are the users, or None if any user is
    allowed. ``weights`` are those of some users; the others have 1.
    """

    size: int
    names: frozenset[Hashable] | None
    weights: dict[Hashable, float]

    def scale(self, user: Hashable) -> float:
        """Return the factor by which a user's holdings count: the mean weight divided by the user's."""
        if not self.weights:
            return 1.0
        total = math.fsum(self.weights.values()) + (self.size - len(self.weights))
        return total / self.size / self.weights.get(user, 1.0)

    def exact_scale(self, user: Hashable) -> Fraction:
        """Return ``scale`` as a fraction."""
        if not self.weights:
            return Fraction(1)
        total = sum(map(Fraction, self.weights.values()), Fraction(self.size - len(self.weights)))
        return total / self.size / Fraction(self.weights.get(user, 1.0))


def checked_population(
    users: int | Collection[Hashable] | None, weights: Mapping[User, object] | None
) -> Population:
    """Return the population; without ``users`` it is that of the weights, if there are any."""
    if weights is not None and not weights:
        message = "weights is empty; give each user's weight, or None for equal weights"
        raise ValueError(message)
    if users is None and weights is not None:
        users = list(weights)
    population = _population(users)
    if weights is None:
        return population
    checked: dict[Hashable, float] = {}
    for user, weight in weights.items():
        if not (isinstance(weight, int | float | np.number) and WEIGHT_MIN <= weight <= WEIGHT_MAX):
            message = f"weights[{user!r}] is {weight!r}; it must be from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
            raise ValueError(message)
        if population.names is not None and user not in population.names:
            message = f"weights has {user!r}, which is not in users"
            raise ValueError(message)
        checked[user] = float(weight)
    if len(weights) > population.size:
        message = f"weights holds {len(weights)} users; users allows {population.size}"
        raise ValueError(message)
    return population._replace(weights=checked)


def _population(users: int | Collection[Hashable] | None) -> Population:
    if users is None:
        return Population(0, None, {})
    if isinstance(users, int | np.integer):
        if users < 1:
            message = f"users is {users}; it must be at least 1"
            raise ValueError(message)
        return Population(int(users), None, {})
    try:
        named = frozenset(users.tolist() if isinstance(users, np.ndarray) else users)
    except TypeError as error:
        message = f"users is {users!r}; it must be a number or a collection of users"
        raise ValueError(message) from error
    if not named:
        message = "users is empty; give the users that share, or None for all users seen so far"
        raise ValueError(message)
    return Population(len(named), named, {})


def checked_demand(demand: ArrayLike, resources: int) -> Floats:
    """Return one task's demand (m,) as a new array; ``ValueError`` names the resource at fault."""
    return checked_numbers("demand", demand, (resources,)).copy()
