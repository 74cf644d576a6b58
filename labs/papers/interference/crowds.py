"""Crowds of workloads on all processors at once (Figure 2.7)."""

from __future__ import annotations

import random
import statistics
from typing import Final

from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.interference.measure import Load, run_together
from labs.papers.interference.pairs import APPLICATIONS
from labs.papers.interference.runs import InterferenceRuns, setting_text
from labs.papers.judgements import judged
from labs.plotting import Boxes

_BOUND, _SUFFERS = "bopm", "pagerank"
_PLACES: Final = "any processor"


def figure_7(runs: InterferenceRuns) -> Figure:
    """Return Figure 2.7: the run time of each workload in random crowds, compared with running alone."""
    scope, cpus = runs.scope, runs.processors
    names = APPLICATIONS[: scope.applications]
    rng = random.Random(runs.seed)  # noqa: S311 - draws that anybody can make again
    alone = {}
    for name in names:
        runs.progress(f"2.7: {name} alone")
        speeds = run_together(runs.bench, [Load(name, cpus)], scope.seconds, scope.rounds)[0]
        alone[name] = max(statistics.median(solo.per_cpu_second for solo in speeds), 1e-9)
    slow_downs: dict[int, dict[str, list[float]]] = {}
    for times in scope.crowds:
        size = times * len(cpus)
        slow_downs[size] = {name: [] for name in names}
        for draw in range(scope.crowd_draws):
            runs.progress(f"2.7: crowd {draw + 1} of {size}")
            # Each workload is in a crowd at least once in a round of draws.
            chosen = [names[(draw * size + at) % len(names)] for at in range(size)]
            rng.shuffle(chosen)
            loads = [Load(name, cpus) for name in chosen]
            for load, speeds in zip(loads, run_together(runs.bench, loads, scope.seconds), strict=True):
                speed = max(speeds[0].per_cpu_second, 1e-9)
                slow_downs[size][load.name].append(alone[load.name] / speed)
    rows: list[tuple[Cell, ...]] = [
        (name, size, len(values), statistics.mean(values), min(values), max(values))
        for size, crowd in slow_downs.items()
        for name, values in crowd.items()
        if values
    ]
    return runs.figure(
        "2.7",
        "Figure 2.7: workloads in random crowds, normalised run time",
        (
            FigureTable(
                "Processor time of a unit of work compared with running alone",
                ("workload", "crowd", "runs", "mean", "least", "most"),
                rows,
            ),
        ),
        _claims(slow_downs),
        (
            Boxes(
                "2.7",
                "Processor time compared with running alone",
                "times",
                {
                    name: {f"{size} at once": crowd[name] for size, crowd in slow_downs.items()}
                    for name in names
                },
            ),
        ),
        (
            (
                f"One machine with {len(cpus)} processors instead of 28 machines. Crowds are of 1, 2 and 4 "
                "workloads for each processor, on any processor, as a queue that looks at no load would "
                "place them."
            ),
            (
                "The run time is processor time: the time in which a workload waits for its turn is not "
                "counted, only what caches, memory and switches cost. Naiad's programs are replaced by "
                "those of Figure 2.6."
            ),
            setting_text(scope.seconds, scope.rounds),
        ),
    )


def _claims(slow_downs: dict[int, dict[str, list[float]]]) -> list[PublishedClaim]:
    largest = slow_downs[max(slow_downs)]
    means = {name: statistics.mean(values) for name, values in largest.items() if values}
    claims = []
    if means:
        worst = max(means, key=lambda name: means[name])
        claims.append(
            PublishedClaim(
                "section 2.1.3, Figure 2.7",
                f"the workload that suffers most, in crowds of {max(slow_downs)}",
                "up to 3 x",
                f"{worst}: {means[worst]:.2f} x",
                judged(means[worst], 2.0, 3.3, none=1.02),
            )
        )
    if _BOUND in means:
        claims.append(
            PublishedClaim(
                "section 2.1.3",
                "processor-bound work (image analysis there, option pricing here)",
                "about 20 % on average",
                f"{means[_BOUND] - 1:+.0%}",
                judged(means[_BOUND], 1.0, 1.3, none=float("inf")),
            )
        )
    return claims
