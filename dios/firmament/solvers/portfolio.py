"""Several algorithms on one problem at once: whichever is first to answer wins (thesis §6.4.3).

For: networks of which nobody knows beforehand how contended they are; relaxation is quick on most and slow on
some, cost scaling is always much the same. Not for: a scheduler's rounds, which go on from the last answer.

Each racer has a thread of its own; kernels let go of Python's lock. A loser is asked to stop, and looks now
and then whether it was. At most ``FLOW_RACERS_MAX`` racers run at a time, those of decided races too; beyond
them a race has fewer, or waits for its first.
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
"""An algorithm that may be stopped: it ends soon, somehow, once the (1,) array that it is given is not 0."""

SURE_AFTER: Final = 5
"""An algorithm that won so many races of one size in a row is taken without a race."""

DOUBT_EVERY: Final = 20
"""Every so many problems of one size are a race all the same: workloads change."""


class RaceLostError(DiosError):
    """No algorithm of a race answered; the message has what each of them said."""


@dataclass(frozen=True)
class Timing:
    """One answer: the size of its problem, which racer gave it, among how many, and in how many seconds."""

    vertices: int
    arcs: int
    algorithm: str
    racers: int
    seconds: float


@dataclass(frozen=True)
class _Finish:
    name: str
    solution: FlowSolution | None
    error: BaseException | None


_places = threading.BoundedSemaphore(FLOW_RACERS_MAX)


RACERS: Final[Mapping[str, Racer]] = {
    "relaxation": relaxation.run,
    "cost_scaling": cost_scaling.run,
}
"""Who races by default: the pair of §6.4.3."""


def _run(name: str, racer: Racer, problem: FlowProblem, stop: Ints, line: queue.SimpleQueue[_Finish]) -> None:
    """A racer's thread: whatever it comes to is put on the finishing line."""
    try:
        finish = _Finish(name, racer(problem, stop), None)
    except BaseException as error:  # noqa: BLE001 - also a defect must end the wait; race() raises it
        finish = _Finish(name, None, error)
    _places.release()
    line.put(finish)


def _start(
    racers: Mapping[str, Racer], problem: FlowProblem, stop: Ints, line: queue.SimpleQueue[_Finish]
) -> int:
    """Start a thread for each racer that finds a place, at least for one; how many."""
    started = 0
    for name, racer in racers.items():
        # Every place is left again: the first racer may wait for one, the others need not take part.
        if not _places.acquire(blocking=not started):
            continue
        started += 1
        threading.Thread(
            target=_run, args=(name, racer, problem, stop, line), name=f"race {name}", daemon=True
        ).start()
    return started


def _race(problem: FlowProblem, racers: Mapping[str, Racer]) -> tuple[str, FlowSolution]:
    """The first answer, and which racer gave it."""
    if not racers:
        raise RaceLostError("a race without algorithms has no winner: name at least one")
    began = time.perf_counter()
    stop = np.zeros(1, np.int64)
    line: queue.SimpleQueue[_Finish] = queue.SimpleQueue()
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
    """The answer of whoever is first; ``algorithm`` says who, ``seconds`` how long the race took.

    An algorithm that fails does not lose the race for the others. :class:`RaceLostError` when all do, with
    what each said; the error of a single one, and a broken invariant, is raised as it is.

    Also a race of one is of use: Ctrl-C ends the wait for it, where it would not end a kernel.
    """
    return _race(problem, racers)[1]


def run(problem: FlowProblem) -> FlowSolution:
    """The solution by a race of relaxation and cost scaling."""
    return race(problem)


@dataclass
class _Form:
    """How the races of one size went: who won the last, how often in a row, and how many problems ago."""

    winner: str = ""
    wins: int = 0
    since: int = 0


class Portfolio:
    """A race that learns: where one algorithm always wins it soon runs alone.

    Problems of a size are those whose numbers of arcs have the same number of bits. ``timings`` are the last
    answers, oldest first. Not for several threads at once.
    """

    def __init__(self, racers: Mapping[str, Racer] = RACERS) -> None:
        self.timings: Final[deque[Timing]] = deque(maxlen=FLOW_TIMINGS_KEPT)
        self._racers = dict(racers)
        self._forms: dict[int, _Form] = {}

    def solve(self, problem: FlowProblem) -> FlowSolution:
        """The solution by a race, or by the favourite of that size; errors as those of :func:`race`."""
        form = self._forms.setdefault(problem.arcs.bit_length(), _Form())
        form.since += 1
        if form.wins >= SURE_AFTER and form.since < DOUBT_EVERY:
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
