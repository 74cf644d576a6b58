"""The flow solver beside OR-Tools: from scratch, and after one per cent of the tasks changed.

Processor time of one thread, both in one run, costs equal and certificates checked. Networks are those of
``labs.benchmarks.networks``, and those of ``labs.benchmarks.flow_families`` for the choice among the
algorithms. OR-Tools' time is for its graph and its solution, ours for everything.

Not for: whole rounds of the scheduler.
"""

from __future__ import annotations

import importlib
import resource
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

import numpy as np

from dios.firmament.solvers import FlowProblem, certificate
from dios.firmament.solvers.columns import Ints, exact_sum
from labs.benchmarks import flow_families
from labs.benchmarks.measure import median
from labs.benchmarks.networks import SIZES, WarmCluster, Workload, next_round, quincy
from labs.benchmarks.report import Row, Section, judge, number, times
from labs.solvers import IncrementalSolver, solve
from labs.solvers.simplex_restart import FormerSolution, solve_from

SEED: Final = 20
TURNS: Final = 3
ROUNDS: Final = 6
"""Rounds of a warm start; OR-Tools solves every third of them."""

FROM_SCRATCH: Final = (
    *(("M", load, {}, 20, 40) for load in (50, 92)),
    *(("L", load, {}, 20, 40) for load in (50, 92)),
    *((size, 110, {}, 4, 15) for size in ("M", "L")),
    *(("M", load, {"aggregate": True}, 5, 15) for load in (50, 92, 110)),
    ("L", 50, {"inner": True}, 100, 300),
)
"""Size, load in per cent, variant, and the ratios: at least, and wanted."""

WARM: Final = (
    ("M", 50, 50, 100),
    ("L", 50, 50, 100),
    ("L", 92, 20, 40),
    ("M", 110, 4, 15),
    ("L", 110, 4, 15),
)


FAMILY_SIZES: Final = (1_000, 5_000, 20_000)
"""The numbers of vertices of each family's networks; assignments with many arcs have at most 2,500."""

CHANGES: Final = 200
CHANGED_VERTICES: Final = 5_000
"""The number of costs that change between two incremental solutions, and the size of these networks."""

GENERAL: Final = ("network_simplex", "cost_scaling")

CHOICE_MAX: Final = 1.3
"""The time of the choice, as a multiple of that of the best algorithm."""


class _Solver(Protocol):
    """What we call of OR-Tools' SimpleMinCostFlow."""

    OPTIMAL: object

    def add_arcs_with_capacity_and_unit_cost(
        self, tail: Ints, head: Ints, room: Ints, cost: Ints
    ) -> Ints: ...
    def set_nodes_supplies(self, vertices: Ints, supplies: Ints) -> None: ...
    def solve(self) -> object: ...
    def optimal_cost(self) -> int: ...


def cpu(work: Callable[[], object]) -> float:
    """The milliseconds of processor time that ``work`` takes."""
    before = time.process_time()
    work()
    return (time.process_time() - before) * 1e3


def reference(problem: FlowProblem) -> tuple[float, int]:
    """OR-Tools' milliseconds and cost, its graph from our columns and all."""
    module = importlib.import_module("ortools.graph.python.min_cost_flow")
    cost = 0
    # OR-Tools overflows with capacities of 2**62; no arc needs more than all supplies in these networks.
    most = exact_sum(np.maximum(problem.supply, 0)) + 1
    capacity = np.where(problem.unbounded_arcs, most, problem.capacity)

    def work() -> None:
        nonlocal cost
        solver = cast("_Solver", module.SimpleMinCostFlow())
        solver.add_arcs_with_capacity_and_unit_cost(problem.tail, problem.head, capacity, problem.cost)
        solver.set_nodes_supplies(np.arange(problem.vertices), problem.supply)
        assert solver.solve() == solver.OPTIMAL
        cost = solver.optimal_cost()

    return cpu(work), cost


def ours(problem: FlowProblem, expected: int | None = None) -> float:
    """Our milliseconds, the certificate checked."""
    before = time.process_time()
    solution = solve(problem, "auction")
    taken = (time.process_time() - before) * 1e3
    certificate(problem, solution)
    assert not solution.reason, solution.reason
    assert expected is None or solution.cost == expected
    return taken


def run(section: Section) -> None:
    """Measure and judge."""
    _compile()
    workload = quincy(*SIZES["L"], 92, SEED)
    ours(workload.problem())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    section.rows.append(
        Row(
            "memory of a process that made and solved L at 92 %",
            f"{number(section.figure('memory, L92', peak, 'GB'))} GB",
            "",
            "",
            judge("1 GB", peak, 1),
            judge("0.4 GB", peak, 0.4),
        )
    )
    for size, load, variant, least, wanted in FROM_SCRATCH:
        _scratch(section, size, load, variant, least, wanted)
    for size, load, least, wanted in WARM:
        _warm(section, size, load, least, wanted)
    _families(section)
    for family in flow_families.FAMILIES:
        _incremental(section, family)


def _families(section: Section) -> None:
    """Networks of each family, three sizes: the choice among all algorithms, each of them, and OR-Tools."""
    for family in flow_families.FAMILIES:
        small = flow_families.drawn(family, 60, SEED)
        for algorithm in ("auto", *GENERAL):
            certificate(small, solve(small, algorithm))
        solve_from(small, FormerSolution(small.lower, small.supply))
        IncrementalSolver(small, scratch=None).solve()
    ratios: list[float] = []
    for family in flow_families.FAMILIES:
        for size in FAMILY_SIZES:
            vertices = min(size, 2_500) if family.endswith("dense") else size
            problem = flow_families.drawn(family, vertices, SEED)
            ratios.append(_family(section, f"{family}, {problem.vertices:,} vertices", problem))
    mean = float(np.exp(np.mean(np.log(ratios))))
    section.figure("families, geometric mean of OR-Tools' time by ours", mean, "times")
    section.rows.append(
        Row(
            f"geometric mean of the {len(ratios)} networks of all families",
            "",
            "",
            times(mean),
            judge("1.5 x", mean, 1.5, below=False),
            judge("1.5 x", mean, 1.5, below=False),
        )
    )


def _family(section: Section, name: str, problem: FlowProblem) -> float:
    """Measure one network in turns; return OR-Tools' time by that of the choice."""
    taken: dict[str, list[float]] = {}
    for _ in range(TURNS):
        peer, cost = reference(problem)
        taken.setdefault("OR-Tools", []).append(peer)
        for algorithm in ("auto", *GENERAL):
            before = time.process_time()
            solution = solve(problem, algorithm)
            taken.setdefault(algorithm, []).append((time.process_time() - before) * 1e3)
            assert solution.cost == cost, algorithm
            certificate(problem, solution)
    medians = {algorithm: median(spans) for algorithm, spans in taken.items()}
    for algorithm, span_ms in medians.items():
        section.figure(f"{name}, {algorithm}", span_ms, "ms")
    best = min(medians[algorithm] for algorithm in ("auto", *GENERAL))
    ratio = medians["OR-Tools"] / medians["auto"]
    section.rows.append(
        Row(
            name,
            f"{number(medians['auto'])} ms",
            f"OR-Tools {number(medians['OR-Tools'])} ms",
            times(ratio),
            judge(f"{CHOICE_MAX} x of the best algorithm", medians["auto"] / best, CHOICE_MAX),
            judge("1.5 x", ratio, 1.5, below=False),
            ", ".join(f"{algorithm} {number(medians[algorithm])} ms" for algorithm in GENERAL),
        )
    )
    return ratio


def _incremental(section: Section, family: str) -> None:
    """Change 200 costs of a network in each round: the incremental solution, and our own from scratch."""
    vertices = 1_000 if family.endswith("dense") else CHANGED_VERTICES
    problem = flow_families.drawn(family, vertices, SEED)
    for name, drift in (("small changes", problem.cost.max() // 100), ("any cost", problem.cost.max())):
        live, rng = IncrementalSolver(problem), np.random.default_rng(SEED)
        live.solve()
        own: list[float] = []
        fresh: list[float] = []
        for _ in range(ROUNDS):
            arcs = rng.choice(problem.arcs, CHANGES, replace=False)
            cost = problem.cost[arcs] + rng.integers(-drift, drift + 1, CHANGES)
            live.change_arcs(arcs, cost=np.clip(cost, problem.cost.min(), problem.cost.max()))
            before = time.process_time()
            solution = live.solve()
            own.append((time.process_time() - before) * 1e3)
            before = time.process_time()
            expected = solve(live.problem())  # a changed problem is made, and checked, before it is solved
            fresh.append((time.process_time() - before) * 1e3)
            assert solution.cost == expected.cost, family
        taken, whole = median(own), median(fresh)
        subject = f"{family}, {problem.vertices:,} vertices, {CHANGES} costs changed, {name}"
        section.figure(f"{subject}, incremental", taken, "ms")
        section.figure(f"{subject}, from scratch", whole, "ms")
        section.rows.append(
            Row(
                subject,
                f"{number(taken)} ms",
                f"our own from scratch {number(whole)} ms",
                times(whole / taken),
                judge("its time", taken / whole, 1),
                judge("half of its time", taken / whole, 0.5),
                f"the slowest {number(max(own))} ms, from scratch {number(max(fresh))} ms",
            )
        )


def _compile() -> None:
    """Compile all kernels, or load them."""
    for load in (50, 110):
        for aggregate in (False, True):
            ours(quincy(60, 600, load, SEED, aggregate=aggregate, inner=aggregate).problem())
    workload = quincy(60, 600, 110, SEED)
    cluster, rng = WarmCluster(workload), np.random.default_rng(SEED)
    for _ in range(3):
        solution = cluster.warm.solve()
        step = next_round(workload, solution.choice[cluster.ids], rng, share=0.1)
        workload = step.after
        cluster.apply(step)


def _scratch(
    section: Section, size: str, load: int, variant: dict[str, bool], least: float, wanted: float
) -> None:
    """One network from scratch; oversubscribed, the worst of five seeds."""
    name = f"{size}{load}" + ("t" if variant.get("inner") else "")
    name += ", aggregate costs" if variant.get("aggregate") else ""
    trials: list[tuple[float, float, float]] = []
    for seed in range(SEED, SEED + (5 if load > 100 else 1)):
        problem = quincy(
            *SIZES[size],
            load,
            seed,
            aggregate=variant.get("aggregate", False),
            inner=variant.get("inner", False),
        ).problem()
        peer, cost = reference(problem)
        own = median([ours(problem, cost) for _ in range(TURNS)])
        trials.append((peer / own, own, peer))
    ratio, own, peer = min(trials)
    section.figure(f"{name}, from scratch, ours", own, "ms")
    section.figure(f"{name}, from scratch, OR-Tools", peer, "ms")
    _judged(section, f"{name} from scratch", (own, peer, ratio), least, wanted)


def _judged(
    section: Section,
    subject: str,
    figures: tuple[float, float, float],
    least: float,
    wanted: float,
    note: str = "",
) -> None:
    own, peer, ratio = figures
    section.rows.append(
        Row(
            subject,
            f"{number(own)} ms",
            f"OR-Tools {number(peer)} ms",
            times(ratio),
            judge(f"{least} x", ratio, least, below=False),
            judge(f"{wanted} x", ratio, wanted, below=False),
            note,
        )
    )


def _warm(section: Section, size: str, load: int, least: float, wanted: float) -> None:
    """Rounds in which one per cent of the tasks is replaced and all costs drift: telling and solving."""
    workload: Workload = quincy(*SIZES[size], load, SEED)
    cluster, rng = WarmCluster(workload), np.random.default_rng(SEED)
    solution = cluster.warm.solve()
    own: list[float] = []
    peers: list[float] = []
    anew: list[float] = []
    for turn in range(ROUNDS):
        step = next_round(workload, solution.choice[cluster.ids], rng)
        workload = step.after
        before = time.process_time()
        cluster.apply(step)
        solution = cluster.warm.solve()
        own.append((time.process_time() - before) * 1e3)
        assert solution.status == "optimal", solution.reason
        anew.append(ours(workload.problem(), solution.cost))
        if turn % 3 == 2:
            peer, cost = reference(workload.problem())
            assert cost == solution.cost
            peers.append(peer)
    taken, peer = median(own), median(peers)
    fresh = median(anew)
    section.figure(f"{size}{load}, 1 % changed, ours", taken, "ms")
    section.figure(f"{size}{load}, 1 % changed, the slowest of {ROUNDS}", max(own), "ms")
    note = f"slowest {number(max(own))} ms; our own from scratch {number(fresh)} ms"
    _judged(section, f"{size}{load}, 1 % changed", (taken, peer, peer / taken), least, wanted, note)
    ratio = taken / section.figure(f"{size}{load}, after the changes, from scratch, ours", fresh, "ms")
    section.rows.append(
        Row(
            f"{size}{load}, 1 % changed, next to our own from scratch",
            f"{number(taken)} ms",
            f"{number(fresh)} ms",
            times(1 / ratio),
            judge("its time", ratio, 1),
            judge("half of its time", ratio, 0.5),
        )
    )
