"""Checks of the arguments of SDRF's scheduler and simulation."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.allocation import Floats, check_positive, checked_numbers
from dios.fairness.stateful.kernels import DOMINANT, PLAIN, SUM

MODES: Final = {"dominant": DOMINANT, "sum": SUM}


def checked_capacity(capacity: ArrayLike) -> Floats:
    """Return the capacity (m,) as a new array, positive and finite; ``ValueError`` names the resource."""
    made = checked_numbers("capacity", capacity, (None,)).copy()
    if not made.size:
        message = "capacity is empty; give one number for each resource"
        raise ValueError(message)
    check_positive("capacity", made)
    return made


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


def checked_population(users: int | Collection[Hashable] | None) -> tuple[int, frozenset[Hashable] | None]:
    """Return (number of users or 0 for all seen so far, the users or None if any user is allowed)."""
    if users is None:
        return 0, None
    if isinstance(users, int | np.integer):
        if users < 1:
            message = f"users is {users}; it must be at least 1"
            raise ValueError(message)
        return int(users), None
    try:
        named = frozenset(users.tolist() if isinstance(users, np.ndarray) else users)
    except TypeError as error:
        message = f"users is {users!r}; it must be a number or a collection of users"
        raise ValueError(message) from error
    if not named:
        message = "users is empty; give the users that share, or None for all users seen so far"
        raise ValueError(message)
    return len(named), named


def checked_demand(demand: ArrayLike, resources: int) -> Floats:
    """Return one task's demand (m,) as a new array; ``ValueError`` names the resource at fault."""
    return checked_numbers("demand", demand, (resources,)).copy()
