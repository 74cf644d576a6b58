"""Made-up months under DRF and SDRF, by seed, discount factor and load.

For: Figures 5 to 7 of the SDRF paper (``waits``, ``events``). Not for: how users wait and what is counted
(``dios.fairness.trace_report``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from dios.fairness.allocation import Floats
from dios.fairness.google_like import GoogleLike, generate_trace
from dios.fairness.trace import FairTrace
from dios.fairness.trace_report import Compared, Played, compare, play, reductions
from dios.papers.figures import Told

FAMILY: Final = "sdrf"
PAPER: Final = "the paper"
BEST: Final = 1 - 1e-6
"""The discount factor that the paper finds best."""
HALF: Final = 0.5
"""The heaviest load: half of what is used on average."""


class Scope(NamedTuple):
    """How much is played."""

    made: GoogleLike
    seeds: int
    deltas: tuple[float, ...]
    levels: tuple[float, ...]
    """The pool, in parts of the tasks' average use (the paper's R)."""
    literal: tuple[tuple[float, float], ...]
    """Levels and discount factors whose events are counted by equation 14 too, false ones among them."""
    quick: bool


def _near_one(*powers: int) -> tuple[float, ...]:
    return tuple(1 - 10.0**-power for power in powers)


FULL: Final = Scope(
    GoogleLike(),
    seeds=8,
    deltas=_near_one(1, 2, 3, 4, 5, 6, 7),
    levels=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    literal=tuple((level, delta) for level in (0.5, 1.0) for delta in _near_one(1, 3, 6)),
    quick=False,
)
QUICK: Final = Scope(
    GoogleLike(users=60, tasks=3_000, days=3.0),
    seeds=2,
    deltas=_near_one(1, 4, 6),
    levels=(0.5, 1.0),
    literal=tuple((level, delta) for level in (0.5, 1.0) for delta in _near_one(1, 6)),
    quick=True,
)

NOTES: Final = (
    (
        "The month is made up (1,000,000 tasks of 600 users), the paper's is Google's (32 million of 627): "
        "who submits how much and when is like it, what jobs ask for and how long they run is our choice."
    ),
    (
        "A user's waiting is the mean over its tasks, from submission to start, also where they start after "
        "the month. A mean over users counts each once. All of this was fixed before anything was measured."
    ),
    (
        "The paper does not say whether its 10 % is of the mean waiting of users or the mean of each user's "
        "own reduction, in which who waits for seconds counts as much as who waits for days. "
        "Both stand here."
    ),
)


class Cell(NamedTuple):
    """One mechanism in one month."""

    compared: Compared
    each: Floats
    """Every user's reduction."""


@dataclass
class Months:
    """The simulations that the figures share, each made when it is first asked for."""

    seed: int
    told: Told
    scope: Scope
    _cells: dict[tuple[int, float], dict[float, Cell]] = field(default_factory=dict)

    def seeds(self) -> range:
        """From the given one on."""
        return range(self.seed, self.seed + self.scope.seeds)

    def trace(self, seed: int) -> FairTrace:
        """A month; it is made in a moment, and not kept."""
        return generate_trace(replace(self.scope.made, seed=seed))

    def cells(self, seed: int, level: float) -> dict[float, Cell]:
        """Every discount factor beside DRF."""
        key = seed, level
        if key not in self._cells:
            trace = self.trace(seed)
            pool = trace.usage() * level
            self.told(f"seed {seed}, {level:.0%} of R: DRF and {len(self.scope.deltas)} discount factors")
            plain = play(trace, pool, None)
            found = {}
            for delta in self.scope.deltas:
                other = play(trace, pool, delta)
                found[delta] = Cell(compare(trace, plain, other), reductions(plain, other))
            self._cells[key] = found
        return self._cells[key]

    def pair(
        self, seed: int, level: float, delta: float, rule: str = "dominant"
    ) -> tuple[FairTrace, Played, Played]:
        """A month under DRF and under SDRF, whole."""
        trace = self.trace(seed)
        pool = trace.usage() * level
        return trace, play(trace, pool, None), play(trace, pool, delta, rule)

    def over_seeds(self, level: float, delta: float, of: Callable[[Compared], float]) -> list[float]:
        """One number of every seed."""
        return [of(self.cells(seed, level)[delta].compared) for seed in self.seeds()]

    def setting(self) -> tuple[tuple[str, str], ...]:
        """What was played."""
        made = self.scope.made
        return (
            ("trace", f"{made.tasks:,} tasks of {made.users} users in {made.days:g} days, made up"),
            ("seeds", ", ".join(map(str, self.seeds()))),
            ("priority", "dominant share plus dominant commitment (equation 10)"),
        )
