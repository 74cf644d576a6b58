"""Fair shares of resources that replace each other, such as processors and GPUs (000, section 5.1).

DRF knows one way to do a user's work. Here a user has several, each with its own demands: a unit of work on
a GPU, or the same unit on four processors. An extension of DRF that is ours: each user's share is its work as
a fraction of what it could do with all resources alone, and the smallest shares are raised first. With one
way for each user, this share is the dominant share, and the result is DRF.

docs/fairness.md states which properties of DRF remain. The linear programs are solved by GLOP of OR-Tools
(the extra ``ortools``).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from dios.fairness.allocation import Floats, check_positive, checked_numbers
from dios.installation import extra_command

SLACK: Final = 1e-9
"""The relative error of shares."""
_OPTIMAL: Final = 0


class _Variable(Protocol):
    def solution_value(self) -> float: ...


class _Row(Protocol):
    def SetCoefficient(self, variable: _Variable, value: float) -> None: ...  # noqa: N802 - OR-Tools' name
    def dual_value(self) -> float: ...


class _Objective(Protocol):
    def SetCoefficient(self, variable: _Variable, value: float) -> None: ...  # noqa: N802 - OR-Tools' name
    def SetMaximization(self) -> None: ...  # noqa: N802 - OR-Tools' name
    def SetMinimization(self) -> None: ...  # noqa: N802 - OR-Tools' name


class _Solver(Protocol):
    """The methods of OR-Tools' linear solver that are used here."""

    def NumVar(self, low: float, high: float, name: str) -> _Variable: ...  # noqa: N802 - OR-Tools' name
    def Constraint(self, low: float, high: float) -> _Row: ...  # noqa: N802 - OR-Tools' name
    def Objective(self) -> _Objective: ...  # noqa: N802 - OR-Tools' name
    def Solve(self) -> int: ...  # noqa: N802 - OR-Tools' name


@dataclass(frozen=True, eq=False)
class SubstituteAllocation:
    """The amounts and the work of n users with several ways to work."""

    work: tuple[Floats, ...]
    """For each user the units of work in each of its ways."""
    amounts: Floats
    """(n, m): fractions of each resource's total."""
    share: Floats
    """(n,): the work of a user as a fraction of the work that it could do alone."""
    alone: Floats
    """(n,): the units of work that each user could do with all resources."""


def drf_with_substitutes(
    ways: Sequence[npt.ArrayLike],
    *,
    weights: npt.ArrayLike | None = None,
    wanted: npt.ArrayLike | None = None,
) -> SubstituteAllocation:
    """Raise the smallest shares first, then the next, among users with several ways to do their work.

    ``ways`` has an array (k, m) for each user: in row a, the fractions of each resource's total that a unit
    of its work needs in way a. Work is divisible, and its units are the user's own. ``weights`` (n,) must be
    more than 0; shares rise in proportion to them. No user does more than ``wanted`` (n,) units of work.
    Of several allocations with the same shares, the result is one that uses the least in all.

    Raises:
        ValueError: numbers that are negative or not finite, wrong shapes, weights of zero, or a way that
            needs nothing; with the index at fault.
        ModuleNotFoundError: OR-Tools is missing.
    """
    needs = _checked_ways(ways)
    users = len(needs)
    heavy = np.ones(users) if weights is None else checked_numbers("weights", weights, (users,))
    check_positive("weights", heavy)
    most = np.full(users, np.inf) if wanted is None else checked_numbers("wanted", wanted, (users,))
    alone = np.array([_Program([demands]).most_work() for demands in needs])
    share = np.zeros(users)
    rising = most > 0.0
    while rising.any():
        program = _Program(needs, most)
        level, stopped = program.raise_level(alone, heavy, share, rising)
        share[stopped] = np.minimum(level * heavy[stopped], most[stopped] / alone[stopped])
        rising &= ~stopped
    work = _Program(needs, most).least_use(alone, share)
    amounts = np.array([done @ demands for done, demands in zip(work, needs, strict=True)])
    reached = np.array([float(done.sum()) for done in work]) / alone
    return SubstituteAllocation(work, amounts.reshape(users, needs[0].shape[1]), reached, alone)


def _checked_ways(ways: Sequence[npt.ArrayLike]) -> list[Floats]:
    if not len(ways):
        raise ValueError("ways is empty; it must have an array of demands for each user")
    first = checked_numbers("ways[0]", ways[0], (None, None)).shape[1]
    needs = [checked_numbers(f"ways[{user}]", given, (None, first)) for user, given in enumerate(ways)]
    for user, demands in enumerate(needs):
        idle = np.flatnonzero(demands.max(axis=1, initial=0.0) == 0.0)
        if not len(demands) or len(idle):
            which = f"[{idle[0]}]" if len(idle) else ""
            raise ValueError(f"ways[{user}]{which} needs nothing; a way must need some resource")
    return needs


class _Program:
    """A linear program over the work of users in each of their ways, within the resources."""

    def __init__(self, needs: Sequence[Floats], most: Floats | None = None) -> None:
        self._solver = _new_solver()
        self._needs = needs
        self._work = [[self._solver.NumVar(0.0, np.inf, "") for _ in ways] for ways in needs]
        for resource in range(needs[0].shape[1]):
            row = self._solver.Constraint(-np.inf, 1.0)
            for variables, demands in zip(self._work, needs, strict=True):
                for variable, need in zip(variables, demands[:, resource].tolist(), strict=True):
                    row.SetCoefficient(variable, need)
        for user, bound in enumerate([] if most is None else most.tolist()):
            if np.isfinite(bound):
                self._count(self._solver.Constraint(-np.inf, bound), user)

    def _count(self, row: _Row | _Objective, user: int, scale: float = 1.0) -> None:
        for variable in self._work[user]:
            row.SetCoefficient(variable, scale)

    def _solve(self) -> None:
        status = self._solver.Solve()
        if status != _OPTIMAL:
            raise AssertionError(f"the linear solver ended with status {status}")

    def most_work(self) -> float:
        """Return the most work of the first user."""
        objective = self._solver.Objective()
        self._count(objective, 0)
        objective.SetMaximization()
        self._solve()
        return sum(variable.solution_value() for variable in self._work[0])

    def raise_level(
        self, alone: Floats, weights: Floats, share: Floats, rising: npt.NDArray[np.bool_]
    ) -> tuple[float, npt.NDArray[np.bool_]]:
        """Return the highest level, and the users that stop there; the others keep at least their share.

        A user whose row has a price above 0 is at the level in every best solution (complementary
        slackness), so that it cannot get more without a loss for a user who has no more.
        """
        level = self._solver.NumVar(0.0, np.inf, "level")
        rows = {}
        for user in range(len(alone)):
            floor = 0.0 if rising[user] else share[user] * (1.0 - SLACK)
            row = self._solver.Constraint(floor, np.inf)
            self._count(row, user, 1.0 / alone[user])
            if rising[user]:
                row.SetCoefficient(level, -float(weights[user]))
                rows[user] = row
        objective = self._solver.Objective()
        objective.SetCoefficient(level, 1.0)
        objective.SetMaximization()
        self._solve()
        prices = {user: abs(row.dual_value()) * float(weights[user]) for user, row in rows.items()}
        # The prices of a level add up to 1.
        stopped = np.zeros(len(alone), np.bool_)
        for user, price in prices.items():
            stopped[user] = price > SLACK or price == max(prices.values())
        return level.solution_value(), stopped

    def least_use(self, alone: Floats, share: Floats) -> tuple[Floats, ...]:
        """Return the work of each user with these shares that needs the least of all resources together."""
        objective = self._solver.Objective()
        for user, (variables, demands) in enumerate(zip(self._work, self._needs, strict=True)):
            row = self._solver.Constraint(share[user] * (1.0 - SLACK), np.inf)
            self._count(row, user, 1.0 / alone[user])
            for variable, need in zip(variables, demands.sum(axis=1).tolist(), strict=True):
                objective.SetCoefficient(variable, need)
        objective.SetMinimization()
        self._solve()
        return tuple(
            np.array([max(variable.solution_value(), 0.0) for variable in variables])
            for variables in self._work
        )


def _new_solver() -> _Solver:
    try:
        module = importlib.import_module("ortools.linear_solver.pywraplp")
    except ImportError:
        raise ModuleNotFoundError(f"substitutes need OR-Tools: {extra_command('ortools')}") from None
    return cast("_Solver", module.Solver.CreateSolver("GLOP"))
