"""Synthetic months under DRF and SDRF, by seed, discount factor and load, for Figures 5 to 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from dios.fairness.allocation import Floats
from labs.papers.figures import ProgressCallback
from labs.simulate.fairness.google_like import GoogleLike, generate_trace
from labs.simulate.fairness.trace import FairTrace
from labs.simulate.fairness.trace_report import (
    Comparison,
    MechanismResult,
    compare,
    reductions,
    run_mechanism,
)

FAMILY: Final = "sdrf"
PAPER: Final = "the paper"
BEST: Final = 1 - 1e-6
"""The discount factor that the paper finds best."""
HALF: Final = 0.5
"""The heaviest load: a pool of half of the average use."""


class SdrfScope(NamedTuple):
    """The extent of the simulations."""

    parameters: GoogleLike
    seeds: int
    deltas: tuple[float, ...]
    levels: tuple[float, ...]
    """The sizes of the pool, as fractions of the tasks' average use (the paper's R)."""
    literal: tuple[tuple[float, float], ...]
    """Levels and discount factors whose events are also counted by equation 14, including false ones."""
    quick: bool


def _near_one(*powers: int) -> tuple[float, ...]:
    return tuple(1 - 10.0**-power for power in powers)


FULL: Final = SdrfScope(
    GoogleLike(),
    seeds=8,
    deltas=_near_one(1, 2, 3, 4, 5, 6, 7),
    levels=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    literal=tuple((level, delta) for level in (0.5, 1.0) for delta in _near_one(1, 3, 6)),
    quick=False,
)
QUICK: Final = SdrfScope(
    GoogleLike(users=60, tasks=3_000, days=3.0),
    seeds=2,
    deltas=_near_one(1, 4, 6),
    levels=(0.5, 1.0),
    literal=tuple((level, delta) for level in (0.5, 1.0) for delta in _near_one(1, 6)),
    quick=True,
)


def note_on_months(scope: SdrfScope) -> str:
    """Return the note about the months that are simulated, with their size."""
    parameters = scope.parameters
    return (
        f"The trace is synthetic ({parameters.tasks:,} tasks of {parameters.users} users in "
        f"{parameters.days:g} days); the "
        "paper's is Google's (32 million of 627 in a month). Users submit similar amounts at similar times; "
        "demands and run times of jobs are our choice."
    )


NOTES: Final = (
    (
        "A user's waiting is the mean over its tasks, from submission to start, even if they start after the "
        "month. A mean over users counts each user once. This was fixed before any measurement."
    ),
    (
        "The paper does not say if its 10 % is the reduction of the users' mean waiting or the mean of each "
        "user's own reduction, in which a user who waits for seconds counts as much as one who waits for "
        "days. Both are shown."
    ),
)


class MonthResult(NamedTuple):
    """The result of one mechanism in one month."""

    compared: Comparison
    per_user: Floats
    """Every user's reduction of waiting."""


@dataclass
class Months:
    """The simulations that the figures share; each is run at its first use."""

    seed: int
    progress: ProgressCallback
    scope: SdrfScope
    _cells: dict[tuple[int, float], dict[float, MonthResult]] = field(default_factory=dict)

    def seeds(self) -> range:
        """Return the seeds, from the first one on."""
        return range(self.seed, self.seed + self.scope.seeds)

    def trace(self, seed: int) -> FairTrace:
        """Return a new month; generating it is quick, so none is kept."""
        return generate_trace(replace(self.scope.parameters, seed=seed))

    def cells(self, seed: int, level: float) -> dict[float, MonthResult]:
        """Return the results of every discount factor, compared with DRF."""
        key = seed, level
        if key not in self._cells:
            trace = self.trace(seed)
            pool = trace.usage() * level
            self.progress(f"seed {seed}, {level:.0%} of R: DRF and {len(self.scope.deltas)} discount factors")
            plain = run_mechanism(trace, pool, None)
            results = {}
            for delta in self.scope.deltas:
                other = run_mechanism(trace, pool, delta)
                results[delta] = MonthResult(compare(trace, plain, other), reductions(plain, other))
            self._cells[key] = results
        return self._cells[key]

    def pair(
        self, seed: int, level: float, delta: float, rule: str = "dominant"
    ) -> tuple[FairTrace, MechanismResult, MechanismResult]:
        """Return a month with its complete results under DRF and under SDRF."""
        trace = self.trace(seed)
        pool = trace.usage() * level
        return trace, run_mechanism(trace, pool, None), run_mechanism(trace, pool, delta, rule)

    def over_seeds(self, level: float, delta: float, of: Callable[[Comparison], float]) -> list[float]:
        """Return a number for every seed."""
        return [of(self.cells(seed, level)[delta].compared) for seed in self.seeds()]

    def setting(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of the simulations."""
        parameters = self.scope.parameters
        return (
            (
                "trace",
                (
                    f"{parameters.tasks:,} tasks of {parameters.users} users in {parameters.days:g} days, "
                    "synthetic"
                ),
            ),
            ("seeds", ", ".join(map(str, self.seeds()))),
            ("priority", "dominant share plus dominant commitment (equation 10)"),
        )
