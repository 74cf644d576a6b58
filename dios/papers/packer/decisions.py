"""The cost of deciding about a job: Figure 6 of the Packer paper.

``make bench ONLY=packer`` measures larger data centres.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dios.packer.simulate import Summary
from dios.papers.figures import Cell, Claim, Figure, Sheet, median
from dios.papers.packer.runs import FAMILY, NAMES, NOTES, PAPER, PRESSURE, Fields, percent
from dios.plotting import Boxes

OTHERS = (("tetris", "Tetris", 0.53, 3.5), ("slots", "slots", 0.81, 0.3))


def figure_6(fields: Fields) -> Figure:
    """Return Figure 6: CPU time for a job, by policy."""
    rows: list[tuple[Cell, ...]] = [
        (name, *(median(fields.over_seeds(PRESSURE, name, of)) for of in (_mean, _median, _late)))
        for name in NAMES
    ]
    each: list[tuple[Cell, ...]] = [
        (seed, name, *fields.field(seed, PRESSURE).policies[name].summary.job_ms)
        for seed in fields.seeds()
        for name in NAMES
    ]
    columns = ("mean", "median", "95th percentile")
    machine = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the end; one thread"
    values = {name: {"seeds": fields.over_seeds(PRESSURE, name, _mean)} for name in NAMES if "," not in name}
    return Figure(
        number="6",
        title="Figure 6: time to allocate a job",
        seed=fields.seed,
        quick=fields.scope.quick,
        setting=(*fields.setting(), ("machine", machine)),
        sheets=(
            Sheet("CPU time for a job, ms, the median over the seeds", ("policy", *columns), rows),
            Sheet("Every seed, ms", ("seed", "policy", "median", "95th percentile", "mean"), each),
        ),
        claims=tuple(_claims(fields)),
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
        options=fields.options,
    )


def _mean(summary: Summary) -> float:
    return summary.job_ms[2]


def _median(summary: Summary) -> float:
    return summary.job_ms[0]


def _late(summary: Summary) -> float:
    return summary.job_ms[1]


def _claims(fields: Fields) -> list[Claim]:
    def told(name: str, of: Callable[[Summary], float] = _median) -> str:
        return f"{1e3 * median(fields.over_seeds(PRESSURE, name, of)):,.0f} microseconds"

    claims = []
    for name, called, longer, _ in OTHERS:
        found = fields.gains(PRESSURE, "literal", name, _mean)
        claims.append(
            Claim(
                "section III-B, Figure 6",
                f"more time than {called}, on average",
                f"about {longer:+.0%}",
                percent(found),
                min(found) > 0.0,
            )
        )
    ours = median(fields.over_seeds(PRESSURE, "literal", _median)) / 1e3
    claims.append(
        Claim("section III-B", "median time for a job", "15.4 s", told("literal"), ours <= 15.4),
    )
    for name, called, _, seconds in OTHERS:
        theirs = median(fields.over_seeds(PRESSURE, name, _median)) / 1e3
        claims.append(
            Claim(
                "section III-B",
                f"median time for a job, {called}",
                f"{seconds} s",
                told(name),
                theirs <= seconds,
            )
        )
    return claims
