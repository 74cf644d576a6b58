"""Solves a round's network: tries solvers one after the other until one gives a checked solution."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.network.change_log import SolverInput
from dios.firmament.network.flow_network import FlowNetwork, RoundNetwork
from dios.firmament.rounds.results import Fault
from dios.firmament.solvers import FlowSolution, OutOfRangeError, algorithms, certificate, solve
from dios.firmament.solvers.warm_solver import WarmSolution


@dataclass(frozen=True, eq=False)
class SolverResult:
    """An optimal solution, or the reason why there is none."""

    optimal: bool
    algorithm: str
    target: Ints
    """The upper vertex that each task's unit goes to first, (n,)."""
    flow: Ints
    """The flow of the upper arcs."""
    cost: int
    seconds: float
    certified: bool
    reason: str = ""


class NoSolverError(Exception):
    """Every solver failed; the message is the last failure."""


class SolverChain:
    """Tries to continue from the last solution, then the chosen algorithm, then all others.

    Each failure is reported. After a failure, solutions are used only if their certificate holds.
    """

    def __init__(self, wanted: str, certify_every: int) -> None:
        self._wanted = wanted
        self._certify_every = certify_every
        self._solved = 0

    def solve(self, network: RoundNetwork, kept: FlowNetwork, faults: list[Fault]) -> SolverResult:
        """Return the cheapest flow, or a result that says why no flow exists.

        Raises:
            NoSolverError: every solver failed.
        """
        check = self._certify_every > 0 and self._solved % self._certify_every == 0
        self._solved += 1
        if network.solver_input is not None and kept.warm is not None:
            try:
                return self._solve_warm(network, network.solver_input, kept, check=check or bool(faults))
            except OutOfRangeError:
                kept.forget_warm(for_good=True)
            except Exception as error:  # noqa: BLE001 - whatever one solver's defect, another may succeed
                faults.append(Fault("solver warm", f"{type(error).__name__}: {error}"))
                kept.forget_warm()
        return self.from_scratch(network, faults, check=check)

    def from_scratch(self, network: RoundNetwork, faults: list[Fault], *, check: bool) -> SolverResult:
        """Return the cheapest flow without the last round's solution; errors as in :meth:`solve`."""
        problem = network.problem()
        last = "no algorithm is left"
        for name in [self._wanted, *(algorithm for algorithm in algorithms() if algorithm != self._wanted)]:
            started = time.perf_counter()
            try:
                solution = solve(problem, name)
                if check or faults:
                    certificate(problem, solution)
                return _result(network, solution, started, certified=check or bool(faults))
            except Exception as error:  # noqa: BLE001 - whatever one solver's defect, another may succeed
                last = f"{type(error).__name__}: {error}"
                faults.append(Fault(f"solver {name}", last))
        raise NoSolverError(last)

    @staticmethod
    def _solve_warm(
        network: RoundNetwork, solver_input: SolverInput, kept: FlowNetwork, *, check: bool
    ) -> SolverResult:
        started = time.perf_counter()
        assert kept.warm is not None  # noqa: S101 - for the type checker; the caller has checked
        warm, numbers, arcs = kept.warm.solve(solver_input)
        kept.changes_sent()
        seconds = time.perf_counter() - started
        optimal = warm.status == "optimal"
        target, flow = warm.target[numbers], warm.flow[arcs]
        if check and optimal:
            prices = warm.prices[: network.vertices]
            certificate(network.problem(), _full_solution(network, warm, numbers, flow, prices))
        return SolverResult(optimal, "warm", target, flow, warm.cost, seconds, check, warm.reason)


def _full_solution(
    network: RoundNetwork, warm: WarmSolution, numbers: Ints, upper_flow: Ints, prices: Ints
) -> FlowSolution:
    """Return a warm solution as a solution of the whole problem, for its certificate."""
    rows = network.rows
    flow = np.zeros(len(rows.target), np.int64)
    flow[rows.start[:-1] + warm.choice[numbers]] = 1
    own = np.full(len(rows.tasks), -(2**62), np.int64)
    np.maximum.at(own, rows.owner(), prices[rows.target] - rows.cost)
    return FlowSolution(
        np.concatenate([flow, upper_flow]), warm.cost, np.concatenate([prices, own]), "optimal", "warm", 0.0
    )


def _result(
    network: RoundNetwork, solution: FlowSolution, started: float, *, certified: bool
) -> SolverResult:
    arcs = len(network.rows.target)
    chosen = np.flatnonzero(solution.flow[:arcs])
    optimal = solution.status == "optimal"
    if optimal and len(chosen) != len(network.rows.tasks):
        raise AssertionError(f"{len(chosen)} arcs carry {len(network.rows.tasks)} tasks")
    return SolverResult(
        optimal,
        solution.algorithm,
        network.rows.target[chosen],
        solution.flow[arcs:],
        solution.cost,
        time.perf_counter() - started,
        certified,
        "" if optimal else f"{solution.status}: {solution.reason}",
    )
