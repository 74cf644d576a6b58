"""A race: several algorithms work on one problem at once, and the first solution counts (thesis §6.4.3).

It serves networks of unknown contention: relaxation is fast on most of them and slow on some, and cost
scaling always takes about the same time. The scheduler's rounds continue from the last solution instead.

Each algorithm has its own thread; kernels release the interpreter's lock. The losers are asked to stop,
which they check now and then.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from dios.errors import DiosError
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.problem import FlowProblem, FlowSolution
from labs.solvers import cost_scaling, relaxation

Racer = Callable[[FlowProblem, Ints], FlowSolution]
"""An algorithm that can be stopped: it ends soon after its second argument, a (1,) array, is not 0."""

RACERS: Final[Mapping[str, Racer]] = {
    "relaxation": relaxation.run,
    "cost_scaling": cost_scaling.run,
}
"""The algorithms that race by default: those of §6.4.3."""

_Results = queue.SimpleQueue[tuple[str, FlowSolution | BaseException]]


class RaceLostError(DiosError):
    """No algorithm of a race found a solution; the message has the error of each."""


def _run(name: str, racer: Racer, problem: FlowProblem, stop: Ints, results: _Results) -> None:
    """Run one algorithm in its thread, and put its solution or its error into the queue."""
    try:
        results.put((name, racer(problem, stop)))
    except BaseException as error:  # noqa: BLE001 - also a defect must end the wait; race() raises it
        results.put((name, error))


def race(problem: FlowProblem, racers: Mapping[str, Racer] = RACERS) -> FlowSolution:
    """Return the first solution; ``algorithm`` names the winner, ``seconds`` is the time of the race.

    An algorithm that fails does not end the race for the others. A race of one is also of use: Ctrl-C ends
    the wait for it, but would not end a kernel.

    Raises:
        RaceLostError: all algorithms failed. The error of a single algorithm is raised as it is, and so is a
            broken invariant.
    """
    began = time.perf_counter()
    stop = np.zeros(1, np.int64)
    results: _Results = queue.SimpleQueue()
    for name, racer in racers.items():
        arguments = name, racer, problem, stop, results
        threading.Thread(target=_run, args=arguments, name=f"race {name}", daemon=True).start()
    failures: list[str] = []
    try:
        for _ in racers:
            name, result = results.get()
            if isinstance(result, FlowSolution):
                return replace(result, seconds=time.perf_counter() - began)
            if len(racers) == 1 or not isinstance(result, Exception):
                raise result
            failures.append(f"{name}: {result}")
    finally:
        stop[0] = 1
    raise RaceLostError("no algorithm answered; " + "; ".join(failures))


def run(problem: FlowProblem) -> FlowSolution:
    """Return the solution by a race of relaxation and cost scaling."""
    return race(problem)
