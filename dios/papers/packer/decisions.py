"""The cost of deciding about a job: Figure 6 of the Packer paper.

``make bench ONLY=packer`` measures larger data centres.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf

from dios.packer.simulate import PolicySummary
from dios.papers.figures import Cell, Figure, FigureTable, PublishedClaim, median
from dios.papers.judgements import about, judged
from dios.papers.packer.runs import FAMILY, NAMES, NOTES, PAPER, PRESSURE, PackerRuns, percent
from dios.plotting import Boxes

OTHERS = (("tetris", "Tetris", 0.53, 3.5), ("slots", "slots", 0.81, 0.3))


def figure_6(runs: PackerRuns) -> Figure:
    """Return Figure 6: CPU time for a job, by policy."""
    rows: list[tuple[Cell, ...]] = [
        (name, *(median(runs.over_seeds(PRESSURE, name, of)) for of in (_mean, _median, _p95)))
        for name in NAMES
    ]
    each: list[tuple[Cell, ...]] = [
        (seed, name, *runs.seed_run(seed, PRESSURE).policies[name].summary.job_ms)
        for seed in runs.seeds()
        for name in NAMES
    ]
    columns = ("mean", "median", "95th percentile")
    machine = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the end; one thread"
    values = {name: {"seeds": runs.over_seeds(PRESSURE, name, _mean)} for name in NAMES if "," not in name}
    return Figure(
        number="6",
        title="Figure 6: time to allocate a job",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=(*runs.setting(), ("machine", machine)),
        sheets=(
            FigureTable("CPU time for a job, ms, the median over the seeds", ("policy", *columns), rows),
            FigureTable("Every seed, ms", ("seed", "policy", "median", "95th percentile", "mean"), each),
        ),
        claims=tuple(_claims(runs)),
        pictures=(Boxes("6", "CPU time for a job, mean of each seed", "ms", values),),
        notes=(
            *NOTES,
            (
                "All policies run the same compiled checks of servers and of whole paths. They differ in how "
                "they score a server and in the number of a job's tasks that are examined: a job is refused "
                "quickly, so a policy that refuses more looks faster."
            ),
        ),
        measured=True,
        family=FAMILY,
        source=PAPER,
        options=runs.options,
    )


def _mean(summary: PolicySummary) -> float:
    return summary.job_ms[2]


def _median(summary: PolicySummary) -> float:
    return summary.job_ms[0]


def _p95(summary: PolicySummary) -> float:
    return summary.job_ms[1]


def _claims(runs: PackerRuns) -> list[PublishedClaim]:
    def in_microseconds(name: str, of: Callable[[PolicySummary], float] = _median) -> str:
        return f"{1e3 * median(runs.over_seeds(PRESSURE, name, of)):,.0f} microseconds"

    claims = []
    for name, called, longer, _ in OTHERS:
        found = runs.relative_gains(PRESSURE, "literal", name, _mean)
        claims.append(
            PublishedClaim(
                "section III-B, Figure 6",
                f"more time than {called}, on average",
                f"about {longer:+.0%}",
                percent(found),
                judged(found, *about(longer), none=0.0),
            )
        )
    ours = median(runs.over_seeds(PRESSURE, "literal", _median)) / 1e3
    claims.append(
        PublishedClaim(
            "section III-B",
            "median time for a job",
            "15.4 s",
            in_microseconds("literal"),
            judged(ours, *about(15.4), none=inf),
        ),
    )
    for name, called, _, seconds in OTHERS:
        theirs = median(runs.over_seeds(PRESSURE, name, _median)) / 1e3
        claims.append(
            PublishedClaim(
                "section III-B",
                f"median time for a job, {called}",
                f"{seconds} s",
                in_microseconds(name),
                judged(theirs, *about(seconds), none=inf),
            )
        )
    return claims
