"""Admitted tasks, utilisation and revenue: Figures 3 to 5 of the Packer paper."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import numpy as np

from dios.packer.job.ti_mra import Floats
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim, median
from labs.papers.judgements import about, judged
from labs.papers.packer.runs import (
    CALM,
    FAMILY,
    NAMES,
    NOTES,
    PAPER,
    PRESSURE,
    PackerRuns,
    SeedRun,
    percent,
    revenue,
    tasks,
)
from labs.plotting import Boxes, Lines, Picture
from labs.simulate.packing.simulate import PolicySummary

RESOURCES: Final = ("CPU", "memory", "disk write", "disk read", "bandwidth")
OTHERS: Final = (("tetris", "Tetris"), ("slots", "slots"))


def by_seed(runs: PackerRuns, mbps: float, of: Callable[[PolicySummary], float], title: str) -> FigureTable:
    """Return the table of every policy and every seed, in percent."""
    rows: list[tuple[Cell, ...]] = []
    for name in NAMES:
        percents = [100.0 * value for value in runs.over_seeds(mbps, name, of)]
        rows.append((name, median(percents), *percents))
    seeds = tuple(f"seed {seed}" for seed in runs.seeds())
    return FigureTable(f"{title}, %, median edge of {mbps:g} Mbit/s", ("policy", "median", *seeds), rows)


def as_published(
    runs: PackerRuns,
    of: Callable[[PolicySummary], float],
    subject: str,
    passage: str,
    published: tuple[float, float],
) -> list[PublishedClaim]:
    """Return the claims about Packer compared with Tetris and slots, with scarce and plentiful bandwidth."""
    claims = []
    for (name, called), claimed in zip(OTHERS, published, strict=True):
        for mbps in (PRESSURE, CALM):
            gains = runs.relative_gains(mbps, "literal", name, of)
            claims.append(
                PublishedClaim(
                    passage,
                    f"{subject} than {called}, {mbps:g} Mbit/s",
                    f"about {claimed:+.0%}",
                    percent(gains),
                    judged(gains, *about(claimed), none=0.0),
                )
            )
    return claims


def figure_3(runs: PackerRuns) -> Figure:
    """Return Figure 3: the admitted fraction of all tasks."""
    first = runs.seed_run(runs.seed, PRESSURE)
    return Figure(
        number="3",
        title="Figure 3: acceptance ratio of application tasks",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=tuple(by_seed(runs, mbps, tasks, "Admitted tasks") for mbps in (PRESSURE, CALM)),
        claims=(
            *as_published(runs, tasks, "more tasks", "section III-B, Figure 3", (0.30, 0.67)),
            _steady(runs),
        ),
        pictures=(_gains_over_time(runs.seed, first), _parts_over_time(runs.seed, first)),
        notes=NOTES,
        family=FAMILY,
        source=PAPER,
        options=runs.options,
    )


def _accepted(seed_run: SeedRun, name: str) -> Floats:
    """Return the admitted fraction of the tasks that arrived up to each instant."""
    admitted = np.cumsum(seed_run.policies[name].admitted.tasks)
    return np.asarray(admitted / np.maximum(np.cumsum(seed_run.arrivals.tasks), 1))


def _gained(seed_run: SeedRun, other: str) -> Floats:
    """Return the percentage by which literal admitted more than another policy so far, or nan."""
    ours, theirs = _accepted(seed_run, "literal"), _accepted(seed_run, other)
    return 100 * (np.divide(ours, theirs, out=np.full_like(ours, np.nan), where=theirs > 0) - 1)


def _gains_over_time(seed: int, seed_run: SeedRun) -> Lines:
    instants = np.arange(len(seed_run.arrivals.tasks), dtype=np.float64)
    series = {f"over {called}": (instants, _gained(seed_run, name)) for name, called in OTHERS}
    return Lines("3", f"Tasks admitted so far by literal, seed {seed}", "instant", "% more", series)


def _parts_over_time(seed: int, seed_run: SeedRun) -> Lines:
    instants = np.arange(len(seed_run.arrivals.tasks), dtype=np.float64)
    series = {name: (instants, 100 * _accepted(seed_run, name)) for name in ("literal", "fixed", "ahead")}
    series |= {
        name: (instants, 100 * _accepted(seed_run, name)) for name in ("tetris", "tetris-time", "slots")
    }
    return Lines("3-all", f"Tasks admitted so far, seed {seed}", "instant", "%", series)


def _steady(runs: PackerRuns) -> PublishedClaim:
    """Return the claim that gains settle: compare the gain at the end with that at half of the time."""
    middle = (runs.begin + runs.scope.instants) // 2 - 1
    moved = []
    for seed in runs.seeds():
        gains = _gained(runs.seed_run(seed, PRESSURE), "tetris")
        moved.append(float(abs(gains[-1] / gains[middle] - 1)))
    return PublishedClaim(
        "section III-B, Figure 3",
        f"the gain over Tetris settles: after {runs.scope.instants} instants compared with {middle + 1}",
        "settles around time 1,000",
        f"differs by {median(moved):.0%} of it in the median seed, at most {max(moved):.0%}",
        judged(moved, 0, 0.1, every=True),
    )


def figure_4(runs: PackerRuns) -> Figure:
    """Return Figure 4: the utilisation of the five resources."""
    rows: list[tuple[Cell, ...]] = []
    for seed in runs.seeds():
        policies = runs.seed_run(seed, PRESSURE).policies
        for name in NAMES:
            summary = policies[name].summary
            set_aside = (100 * summary.booked[0], 100 * summary.booked[4])
            rows.append((seed, name, *(100 * part for part in summary.used), *set_aside))
    return Figure(
        number="4",
        title="Figure 4: utilisation of CPU, memory, disk and bandwidth",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable(
                f"Demand of tasks, mean of instants, %, {PRESSURE:g} Mbit/s; and reserved amounts",
                ("seed", "policy", *RESOURCES, "CPU reserved", "bandwidth reserved"),
                rows,
            ),
        ),
        claims=tuple(_claims_4(runs)),
        pictures=tuple(_differences(runs, which) for which in range(5)),
        notes=(
            *NOTES,
            (
                "The utilisation is the demand of admitted tasks at each instant, and that of their edges on "
                "every link of their paths; a policy that knows only peaks, or slots, reserves more."
            ),
        ),
        family=FAMILY,
        source=PAPER,
        options=runs.options,
    )


def _over(runs: PackerRuns, seed: int, name: str, which: int) -> Floats:
    """Return (T,) the relative excess of literal's use of a resource over that of another policy."""
    policies = runs.seed_run(seed, PRESSURE).policies
    ours, theirs = (policies[policy].used[runs.begin :, which] for policy in ("literal", name))
    return ours / np.maximum(theirs, 1e-9) - 1.0


def _claims_4(runs: PackerRuns) -> list[PublishedClaim]:
    claims = []
    for (name, called), claimed in zip(OTHERS, (0.76, 0.87), strict=True):
        gains = runs.relative_gains(PRESSURE, "literal", name, lambda summary: summary.used[4])
        lowest = min(float(_over(runs, seed, name, 4).min()) for seed in runs.seeds())
        claims += [
            PublishedClaim(
                "section III-B, Figure 4(e)",
                f"higher utilisation of bandwidth than {called}",
                f"about {claimed:+.0%}",
                percent(gains),
                judged(gains, *about(claimed), none=0.0),
            ),
            PublishedClaim(
                "section III-B, Figure 4(e)",
                f"utilisation of bandwidth is never below that of {called}",
                "never",
                f"{lowest:+.0%} at the worst instant of all seeds",
                judged(lowest, 0, inf),
            ),
        ]
        parts = [
            float(np.mean([_over(runs, seed, name, which) > 0 for which in range(4)]))
            for seed in runs.seeds()
        ]
        claims.append(
            PublishedClaim(
                "section III-B, Figure 4(a) to (d)",
                f"most of the time more CPU, memory and disk is used than by {called}, not always",
                "most of the time",
                f"{median(parts):.0%} of instants in the median seed, at least {min(parts):.0%}",
                judged(parts, 0.5, 1, none=0.0),
            )
        )
    return claims


def _differences(runs: PackerRuns, which: int) -> Lines:
    instants = np.arange(runs.begin, runs.scope.instants, dtype=np.float64)
    series = {
        f"over {called}": (instants, 100 * _over(runs, runs.seed, name, which)) for name, called in OTHERS
    }
    title = f"{RESOURCES[which]} used by literal, seed {runs.seed}"
    return Lines(f"4-{RESOURCES[which].replace(' ', '-').lower()}", title, "instant", "% more", series)


def figure_5(runs: PackerRuns) -> Figure:
    """Return Figure 5: the revenue of the admitted jobs."""
    drawn: tuple[Picture, ...] = (
        Boxes(
            *("5", f"Revenue, {PRESSURE:g} Mbit/s, every seed", "% of all jobs"),
            {
                name: {"seeds": [100 * part for part in runs.over_seeds(PRESSURE, name, revenue)]}
                for name in SHOWN
            },
        ),
    )
    return Figure(
        number="5",
        title="Figure 5: provider revenue",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=tuple(
            by_seed(runs, mbps, revenue, "Revenue of that of all jobs") for mbps in (PRESSURE, CALM)
        ),
        claims=tuple(as_published(runs, revenue, "more revenue", "section III-B, Figure 5", (0.29, 0.60))),
        pictures=drawn,
        notes=(
            *NOTES,
            (
                "A job pays for its demand at each instant: 1 for all of a server's amount of a resource, "
                "1 for edges that fill a server's link. The paper does not print its prices."
            ),
        ),
        family=FAMILY,
        source=PAPER,
        options=runs.options,
    )


SHOWN: Final = ("literal", "fixed", "ahead", "tetris", "tetris-time", "slots")
