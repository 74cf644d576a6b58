"""The solver's run time over an hour of a Google-like workload (§8.4): Figure 8.7.

The real scheduler runs with the Quincy model. In some rounds the same network is also given to solvers that
start from scratch, like Quincy's cs2. ``make bench`` measures the solvers on fixed networks.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np

from dios.errors import InvariantError
from dios.firmament.models.quincy import QuincyModel
from dios.firmament.rounds.results import Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.firmament.solvers import FlowProblem
from labs.papers.figures import Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.judgements import about, judged
from labs.plotting import Lines, distribution
from labs.simulate.scheduling.outcome import SimulationOutcome
from labs.simulate.scheduling.run import SimulationConfig, simulate
from labs.simulate.workloads.google_like import GoogleLike, GoogleWorkload
from labs.solvers import solve

_TINY: Final = FlowProblem(*(np.array(numbers, np.int64) for numbers in ([1, -1], [0], [1], [0], [1], [1])))

OURS: Final = "ours, in the round"
REFERENCES: Final = ("ortools", "cost_scaling")
"""Solvers that start from scratch: OR-Tools' and our own, both with cost scaling as in cs2."""
_FIRST_ROUNDS: Final = 10
"""The number of first rounds, which place the whole cluster and are not counted."""


class SolverScale(NamedTuple):
    """The size of one of the figure's two clusters."""

    machines: int
    seconds: float
    interval: float
    """Simulated seconds between rounds."""
    every: int
    """The references solve one of this number of rounds."""


MEDIUM: Final = SolverScale(3_000, 3_600.0, 10.0, 24)
WHOLE: Final = SolverScale(12_550, 3_600.0, 60.0, 12)
QUICK: Final = (SolverScale(40, 300.0, 10.0, 6), SolverScale(120, 300.0, 10.0, 6))

THESIS: Final[dict[int, dict[str, tuple[float, float, float | None]]]] = {
    3_000: {"incremental relaxation": (0.044, 0.250, None), "cs2": (0.515, 1.0, None)},
    12_550: {"incremental relaxation": (0.265, 0.345, 3.98), "cs2": (2.86, 4.98, 9.25)},
}
"""Seconds: average, 90th and 99th percentile, from the text of §8.4."""


class TimedScheduler(FlowScheduler):
    """A scheduler that lets reference solvers solve some of its rounds first."""

    def __init__(self, every: int) -> None:
        super().__init__(QuincyModel(), SchedulerSettings())
        self.every = every
        self.seconds: dict[str, list[float]] = {name: [] for name in REFERENCES}
        self.ours: list[float] = []
        """Times in the same rounds."""

    def round(self, now: float) -> Round:
        """Run a round; raise InvariantError if a reference finds another cost."""
        number = len(self.history)
        if number < _FIRST_ROUNDS or (number - _FIRST_ROUNDS) % self.every:
            return super().round(now)
        # The trial round must be for this time.
        self.state.now = now
        problem = self.problem().problem
        costs = {}
        for name in REFERENCES:
            began = time.perf_counter()
            costs[name] = solve(problem, name).cost
            self.seconds[name].append(time.perf_counter() - began)
        done = super().round(now)
        self.ours.append(done.solve_s)
        if any(cost != done.cost for cost in costs.values()):
            raise InvariantError(f"round {done.number}: cost {done.cost}, but references found {costs}")
        return done


class SolverTimes(NamedTuple):
    """The measurements of one scale."""

    scale: SolverScale
    outcome: SimulationOutcome
    seconds: dict[str, list[float]]
    """By solver; ours in all rounds, the references' in some."""
    together: list[float]
    """Ours in the rounds that the references also solved."""
    whole: list[float]
    """Whole rounds: events, costs, solver, deltas."""


def measure(scale: SolverScale, seed: int, progress: ProgressCallback) -> SolverTimes:
    """Simulate the time that the scale gives."""
    progress(f"{scale.machines:,} machines over {scale.seconds:.0f} simulated seconds")
    workload = GoogleWorkload(
        GoogleLike(scale.machines, seed=seed, load=0.5, seconds=scale.seconds, blocks=True)
    )
    scheduler = TimedScheduler(scale.every)
    for name in REFERENCES:
        # Load and compile before measuring.
        solve(_TINY, name)
    outcome = simulate(
        SimulationConfig(workload, scheduler, scale.seconds, round_interval=scale.interval),
        lambda at: progress(
            f"{scale.machines:,} machines: {at.now:.0f} of {at.seconds:.0f} s, {at.running} running tasks"
        ),
    )
    if outcome.interrupted:
        raise KeyboardInterrupt
    settled = outcome.rounds[_FIRST_ROUNDS:]
    return SolverTimes(
        scale,
        outcome,
        {OURS: [line.solve_s for line in settled], **scheduler.seconds},
        scheduler.ours,
        [line.total_s for line in settled],
    )


def figure_8_7(seed: int, progress: ProgressCallback, *, quick: bool) -> Figure:
    """Return Figure 8.7: distributions of the solvers' time at both scales."""
    timings = [measure(scale, seed, progress) for scale in (QUICK if quick else (MEDIUM, WHOLE))]
    parts = list(zip(("a, b", "c, d"), timings, THESIS, strict=True))
    return Figure(
        "8.7",
        "Figure 8.7: solver run time over an hour of a Google-like workload",
        seed,
        quick,
        (
            ("model", "quincy, with blocks as in §8.4"),
            *(setting for timing in timings for setting in _setting(timing)),
            ("seed", str(seed)),
        ),
        tuple(_sheet(letters, timing, machines) for letters, timing, machines in parts),
        tuple(claim for letters, timing, machines in parts for claim in _claims(letters, timing, machines)),
        tuple(_picture(letters, timing) for letters, timing, _ in parts),
        (
            "Times are real times of one machine with other load; only ratios are meaningful.",
            "The thesis solved its hour with 66 inner vertices for each machine; here machines are leaves.",
            f"The first {_FIRST_ROUNDS} rounds, which place the whole cluster, are not counted.",
            "The references solve some of the rounds, and must find the same cost.",
        ),
        measured=True,
    )


def _setting(timing: SolverTimes) -> list[tuple[str, str]]:
    last = timing.outcome.rounds[-1]
    name = f"{timing.scale.machines:,} machines"
    return [
        (
            f"{name}, rounds",
            f"{len(timing.outcome.rounds)}, one every {timing.scale.interval:.0f} simulated s",
        ),
        (f"{name}, at the end", f"{last.running:,} tasks, {last.vertices:,} vertices, {last.arcs:,} arcs"),
    ]


def _title(letters: str, timing: SolverTimes) -> str:
    return f"({letters}) {timing.scale.machines:,} machines"


def _sheet(letters: str, timing: SolverTimes, machines: int) -> FigureTable:
    columns = ("solver", "rounds", "mean, ms", "median, ms", "90 %, ms", "99 %, ms", "max, ms")
    rows = [
        (name, *_line(values))
        for name, values in {**timing.seconds, "ours, whole round": timing.whole}.items()
    ]
    rows += [
        (
            f"thesis: {name}",
            "",
            *("" if seconds is None else 1000 * seconds for seconds in (mean, None, p90, p99, None)),
        )
        for name, (mean, p90, p99) in THESIS[machines].items()
    ]
    return FigureTable(_title(letters, timing), columns, rows)


def _picture(letters: str, timing: SolverTimes) -> Lines:
    curves = {name: distribution(1000 * np.array(values)) for name, values in timing.seconds.items()}
    title = f"Figure 8.7 {_title(letters, timing)}"
    return Lines(f"8.7{letters[0]}", title, "milliseconds", "fraction of rounds", curves, log_x=True)


def _claims(letters: str, timing: SolverTimes, machines: int) -> list[PublishedClaim]:
    passage = f"§8.4, Figure 8.7{letters}"
    ours = np.array(timing.seconds[OURS])
    cs2, relaxation = THESIS[machines]["cs2"], THESIS[machines]["incremental relaxation"]
    ratio = float(np.mean(timing.seconds["ortools"]) / np.mean(timing.together))
    under = 100 * float(np.mean(ours < 1.0))
    return [
        PublishedClaim(
            passage,
            "from scratch compared with incremental, on average",
            f"{cs2[0] / relaxation[0]:.0f} x (cs2)",
            f"{ratio:.0f} x (OR-Tools)",
            judged(ratio, *about(cs2[0] / relaxation[0]), none=1.0),
        ),
        PublishedClaim(
            passage,
            "decisions below a second",
            "97.4 %" if machines > 10_000 else "nearly all",
            f"{under:.1f} %",
            judged(under, *((97.35, 97.45) if machines > 10_000 else (97.4, 100.0)), none=0.0),
        ),
    ]


def _line(values: list[float]) -> tuple[str | int | float, ...]:
    if not values:
        return (0, "", "", "", "", "")
    values_ms = 1000 * np.array(values)
    return (
        len(values_ms),
        float(values_ms.mean()),
        *(float(at) for at in np.percentile(values_ms, (50, 90, 99))),
        float(values_ms.max()),
    )
