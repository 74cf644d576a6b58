"""From a round's network to a checked answer, whatever it takes: solvers one after the other.

For: the scheduler. Not for: the solvers (``solvers``), and not for places (``network_trace``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dios.firmament.columns import Ints
from dios.firmament.network import RoundNetwork
from dios.firmament.rounds import Fault
from dios.firmament.solvers import FlowSolution, algorithms, certificate, solve


@dataclass(frozen=True, eq=False)
class Solved:
    """An optimal answer, or the reason why there is none."""

    optimal: bool
    algorithm: str
    chosen: Ints
    """The index of the arc that each task uses, in the rows' arcs, (n,)."""
    flow: Ints
    """Of the upper arcs."""
    prices: Ints
    """Of the upper vertices; the reduced cost of v -> w is cost + prices[v] - prices[w]."""
    cost: int
    seconds: float
    certified: bool
    reason: str = ""


class NoSolverError(Exception):
    """Every solver failed; the text has the last failure."""


class SolverChain:
    """Tries the wanted algorithm, then the others, and reports each that failed."""

    def __init__(self, wanted: str, certify_every: int) -> None:
        self._wanted = wanted
        self._certify_every = certify_every
        self._solved = 0

    def solve(self, network: RoundNetwork, faults: list[Fault]) -> Solved:
        """The cheapest flow, or that there is none; :class:`NoSolverError` when no solver answers."""
        problem = network.problem()
        check = self._certify_every > 0 and self._solved % self._certify_every == 0
        self._solved += 1
        last = "no algorithm is left"
        for name in [self._wanted, *(each for each in algorithms() if each != self._wanted)]:
            started = time.perf_counter()
            try:
                solution = solve(problem, name)
                # After a failure nothing is trusted unchecked.
                if check or faults or solution.status != "optimal":
                    certificate(problem, solution)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one solver, another one may answer
                last = f"{type(error).__name__}: {error}"
                faults.append(Fault(f"solver {name}", last))
                continue
            seconds = time.perf_counter() - started
            return _solved(network, solution, seconds, certified=check or bool(faults))
        raise NoSolverError(last)


def _solved(network: RoundNetwork, solution: FlowSolution, seconds: float, *, certified: bool) -> Solved:
    arcs = len(network.rows.target)
    chosen = np.flatnonzero(solution.flow[:arcs])
    optimal = solution.status == "optimal"
    if optimal and len(chosen) != len(network.rows.tasks):
        raise NoSolverError(f"{solution.algorithm}: {len(chosen)} arcs carry {len(network.rows.tasks)} tasks")
    return Solved(
        optimal,
        solution.algorithm,
        chosen,
        solution.flow[arcs:],
        solution.prices[: network.vertices],
        solution.cost,
        seconds,
        certified,
        "" if optimal else f"{solution.status}: {solution.reason}",
    )
