"""A race: several algorithms work on one problem at once, and the first solution counts (thesis §6.4.3).

It serves networks of unknown contention: relaxation is fast on most of them and slow on some, and cost
scaling always takes about the same time. The scheduler's rounds continue from the last solution instead.

Each algorithm has its own thread; kernels release the interpreter's lock. The losers are asked to stop,
which they check now and then. At most ``FLOW_RACERS_MAX`` algorithms run at a time, those of decided races
included; beyond that a race has fewer of them, or waits for its first one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dios.errors import DiosError
from dios.firmament.solvers import cost_scaling, relaxation
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from dios.limits import FLOW_RACERS_MAX, FLOW_TIMINGS_KEPT

Racer = Callable[[FlowProblem, Ints], FlowSolution]
"""An algorithm that can be stopped: it ends soon after its second argument, a (1,) array, is not 0."""

WINS_TRUSTED: Final = 5
"""An algorithm that won this many races of one size in a row is used without a race."""

RACE_EVERY: Final = 20
"""Every this many problems of one size there is a race all the same, because workloads change."""


class RaceLostError(DiosError):
    """No algorithm of a race found a solution; the message has the error of each."""


@dataclass(frozen=True)
class Timing:
    """A finished race: the size of the problem, the winner, the number of racers, and the seconds."""

    vertices: int
    arcs: int
    algorithm: str
    racers: int
    seconds: float


@dataclass(frozen=True)
class _RaceResult:
    name: str
    solution: FlowSolution | None
    error: BaseException | None


_racer_slots = threading.BoundedSemaphore(FLOW_RACERS_MAX)


RACERS: Final[Mapping[str, Racer]] = {
    "relaxation": relaxation.run,
    "cost_scaling": cost_scaling.run,
}
"""The algorithms that race by default: those of §6.4.3."""


def _run(
    name: str, racer: Racer, problem: FlowProblem, stop: Ints, line: queue.SimpleQueue[_RaceResult]
) -> None:
    """Run one algorithm in its thread, and put its result into the queue."""
    try:
        finish = _RaceResult(name, racer(problem, stop), None)
    except BaseException as error:  # noqa: BLE001 - also a defect must end the wait; race() raises it
        finish = _RaceResult(name, None, error)
    _racer_slots.release()
    line.put(finish)


def _start(
    racers: Mapping[str, Racer], problem: FlowProblem, stop: Ints, line: queue.SimpleQueue[_RaceResult]
) -> int:
    """Start a thread for each algorithm that finds a place, at least for one; return their number."""
    started = 0
    for name, racer in racers.items():
        # Every place becomes free again: the first algorithm may wait for one, the others need not take part.
        if not _racer_slots.acquire(blocking=not started):
            continue
        started += 1
        threading.Thread(
            target=_run, args=(name, racer, problem, stop, line), name=f"race {name}", daemon=True
        ).start()
    return started


def _race(problem: FlowProblem, racers: Mapping[str, Racer]) -> tuple[str, FlowSolution]:
    """Return the first solution and the name of its algorithm."""
    if not racers:
        raise RaceLostError("a race without algorithms has no winner: name at least one")
    began = time.perf_counter()
    stop = np.zeros(1, np.int64)
    line: queue.SimpleQueue[_RaceResult] = queue.SimpleQueue()
    failures: list[str] = []
    try:
        for _ in range(_start(racers, problem, stop, line)):
            finish = line.get()
            if finish.solution is not None:
                return finish.name, replace(finish.solution, seconds=time.perf_counter() - began)
            if finish.error is not None and (len(racers) == 1 or not isinstance(finish.error, Exception)):
                raise finish.error
            failures.append(f"{finish.name}: {finish.error}")
    finally:
        stop[0] = 1
    raise RaceLostError("no algorithm answered; " + "; ".join(failures))


def race(problem: FlowProblem, racers: Mapping[str, Racer] = RACERS) -> FlowSolution:
    """Return the first solution; ``algorithm`` names the winner, ``seconds`` is the time of the race.

    An algorithm that fails does not end the race for the others. A race of one is also of use: Ctrl-C ends
    the wait for it, but would not end a kernel.

    Raises:
        RaceLostError: all algorithms failed. The error of a single algorithm is raised as it is, and so is a
            broken invariant.
    """
    return _race(problem, racers)[1]


def run(problem: FlowProblem) -> FlowSolution:
    """Return the solution by a race of relaxation and cost scaling."""
    return race(problem)


@dataclass
class _RaceHistory:
    """The history of the races of one size: the last winner, its wins in a row, and the problems since."""

    winner: str = ""
    wins: int = 0
    since: int = 0


class Portfolio:
    """Races that learn: an algorithm that always wins for a size soon runs alone.

    Problems have the same size if their numbers of arcs have the same number of bits. ``timings`` are the
    last races, oldest first. Not safe for threads.
    """

    def __init__(self, racers: Mapping[str, Racer] = RACERS) -> None:
        self.timings: Final[deque[Timing]] = deque(maxlen=FLOW_TIMINGS_KEPT)
        self._racers = dict(racers)
        self._forms: dict[int, _RaceHistory] = {}

    def solve(self, problem: FlowProblem) -> FlowSolution:
        """Return the solution by a race, or by the favourite of that size; errors as in :func:`race`."""
        form = self._forms.setdefault(problem.arcs.bit_length(), _RaceHistory())
        form.since += 1
        if form.wins >= WINS_TRUSTED and form.since < RACE_EVERY:
            try:
                return self._answer(problem, {form.winner: self._racers[form.winner]})
            except DiosError:
                form.wins = 0
        solution = self._answer(problem, self._racers)
        winner = self.timings[-1].algorithm
        form.wins = form.wins + 1 if winner == form.winner else 1
        form.winner, form.since = winner, 0
        return solution

    def _answer(self, problem: FlowProblem, racers: Mapping[str, Racer]) -> FlowSolution:
        name, solution = _race(problem, racers)
        self.timings.append(Timing(problem.vertices, problem.arcs, name, len(racers), solution.seconds))
        return solution
