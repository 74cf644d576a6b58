"""Two figures of our own: the effect of knowing demands over time, and of the bandwidth of edges.

The paper compares a policy that knows demands over time with others that know only peaks, and attributes the
difference to its score.
"""

from __future__ import annotations

from math import inf
from typing import Final

import numpy as np

from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim, median
from labs.papers.judgements import OURS, about, judged
from labs.papers.packer.runs import (
    CALM,
    FAMILY,
    FEW,
    NOTES,
    PAPER,
    PRESSURE,
    PackerRuns,
    gain,
    percent,
    tasks,
)
from labs.plotting import Lines

PAIRS: Final = (
    ("Tetris' score", "tetris", "tetris-time"),
    ("best fit", "best-fit", "best-fit-time"),
    ("literal", "literal, peaks", "literal"),
    ("fixed", "fixed, peaks", "fixed"),
    ("ahead", "ahead, peaks", "ahead"),
)
"""A score, its policy with peaks, and its policy with demands over time."""
KNOWING: Final = ("score", "peaks", "demands over time", "gain by knowing time")
ALIKE: Final = ("tetris-time", "best-fit-time")
CAUSES: Final = ("literal", "fixed", "aligned", "ahead", "tetris-time", "best-fit-time")
SCORES: Final = ("literal", "fixed", "aligned", "ahead", "best-fit-time")


def figure_time(runs: PackerRuns) -> Figure:
    """Return the figure of each score with each knowledge."""
    sheets = []
    for mbps in (PRESSURE, CALM):
        rows: list[tuple[Cell, ...]] = []
        for score, peaks, time in PAIRS:
            by_peaks, two = (runs.over_seeds(mbps, name, tasks) for name in (peaks, time))
            gains = runs.relative_gains(mbps, time, peaks, tasks)
            rows.append((score, 100 * median(by_peaks), 100 * median(two), percent(gains)))
        sheets.append(FigureTable(f"Admitted tasks, %, {mbps:g} Mbit/s, median seed", KNOWING, rows))
        comparisons: list[tuple[Cell, ...]] = [
            (score, *(percent(runs.relative_gains(mbps, score, other, tasks)) for other in ALIKE))
            for score in SCORES
        ]
        columns = ("score", *(f"compared with {other}" for other in ALIKE))
        sheets.append(
            FigureTable(f"Scores with the same knowledge of time, {mbps:g} Mbit/s", columns, comparisons)
        )
        sheets.append(_causes(runs, mbps))
    sheets.append(_without_links(runs))
    return Figure(
        number="time",
        title="Knowledge of time or score: the cause of the difference",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=tuple(sheets),
        claims=tuple(_claims(runs)),
        notes=(_in_short(runs), *NOTES),
        family=FAMILY,
        source=PAPER,
        options=runs.options,
    )


def _without_links(runs: PackerRuns) -> FigureTable:
    """Return the table of Tetris as published: it checks no path and guarantees no bandwidth."""
    rows: list[tuple[Cell, ...]] = []
    for seed in runs.seeds():
        literal = runs.seed_run(seed, PRESSURE).policies["literal"].summary.tasks
        parts = (part for shares in runs.without_links(seed) for part in shares)
        rows.append((seed, 100 * literal, *(100 * part for part in parts)))
    columns = (
        *("seed", "literal, admitted and supplied", "Tetris, peaks, admitted", "of those supplied"),
        *("Tetris, over time, admitted", "of those supplied"),
    )
    return FigureTable(
        f"Tasks if Tetris ignores links, % of all that arrive, {PRESSURE:g} Mbit/s", columns, rows
    )


def _causes(runs: PackerRuns, mbps: float) -> FigureTable:
    """Return the table of what a score leads to: paths, the fullest resource, and the reasons of refusals."""
    rows: list[tuple[Cell, ...]] = []
    for name in CAUSES:
        policy_runs = [runs.seed_run(seed, mbps).policies[name] for seed in runs.seeds()]
        refused = [sum(policy_run.summary.refused_for.values()) for policy_run in policy_runs]
        links = [policy_run.summary.refused_for["bandwidth"] for policy_run in policy_runs]
        rows.append(
            (
                name,
                median([policy_run.links for policy_run in policy_runs]),
                100 * median([max(policy_run.summary.used[:4]) for policy_run in policy_runs]),
                median(refused),
                100 * median([part / max(all_, 1) for part, all_ in zip(links, refused, strict=True)]),
            )
        )
    columns = (
        *("policy", "links of a path", "use of the scarcest server resource, %"),
        *("refused jobs", "of those for bandwidth, %"),
    )
    return FigureTable(f"Causes, {mbps:g} Mbit/s, median seed", columns, rows)


def _claims(runs: PackerRuns) -> list[PublishedClaim]:
    claims = []
    for mbps in (PRESSURE, CALM):
        for name, published in (
            ("literal", "because of its algorithm"),
            ("fixed", "the same; unused links count as free"),
            ("ahead", "not in the paper"),
        ):
            gains = runs.relative_gains(mbps, name, "tetris-time", tasks)
            claims.append(
                PublishedClaim(
                    "section III-B",
                    f"{name}: more tasks than Tetris that knows demands over time, {mbps:g} Mbit/s",
                    published,
                    percent(gains),
                    judged(gains, 0, inf, none=0.0) if name == "literal" else OURS,
                )
            )
    literal = runs.over_seeds(PRESSURE, "literal", tasks)
    ignoring = [runs.without_links(seed)[0] for seed in runs.seeds()]
    gains = [gain(own, other.admitted) for own, other in zip(literal, ignoring, strict=True)]
    supplied = median([other.supplied for other in ignoring])
    claims.append(
        PublishedClaim(
            "section III-B",
            f"literal: more tasks than Tetris that ignores links and guarantees none, {PRESSURE:g} Mbit/s",
            "about +30%",
            percent(gains),
            judged(gains, *about(0.30), none=0.0),
        )
    )
    claims.append(
        PublishedClaim(
            "not in the paper",
            "the same, if only tasks count whose jobs use no overloaded link",
            "-",
            f"{median(literal):.1%} of all tasks instead of {supplied:.1%}",
            OURS,
        )
    )
    for name in ("literal", "fixed"):
        gains = runs.relative_gains(PRESSURE, f"{name}, peaks", "tetris", tasks)
        claims.append(
            PublishedClaim(
                "not in the paper",
                f"{name} with peaks only: more tasks than Tetris, {PRESSURE:g} Mbit/s",
                "-",
                percent(gains),
                OURS,
            )
        )
    return claims


def _scores(runs: PackerRuns) -> str:
    """Return the rest of the sentence about causes."""
    score = runs.relative_gains(PRESSURE, "literal", "tetris-time", tasks)
    return "; the printed score loses a part of it" if max(score) < 0.0 else ", and to the printed score"


def _in_short(runs: PackerRuns) -> str:
    """Return the results in a sentence."""
    reference = "tetris-time"
    pairs = (("literal", "tetris"), (reference, "tetris"), ("literal", reference), ("ahead", reference))
    whole, known, score, ours = (percent(runs.relative_gains(PRESSURE, *pair, tasks)) for pair in pairs)
    return (
        f"In short, in admitted tasks at {PRESSURE:g} Mbit/s: literal compared with Tetris, as in the paper: "
        f"{whole}. Tetris with the demands over time and no other change: {known}. Literal compared with "
        f"that, which is the effect of its score: {score}. Ahead compared with that: {ours}. So the gain "
        f"is due to knowing demands over time{_scores(runs)}."
    )


def figure_bandwidth(runs: PackerRuns) -> Figure:
    """Return the figure of the admitted fraction of tasks, by the bandwidth of edges."""
    sweep = runs.scope.sweep
    rows: list[tuple[Cell, ...]] = []
    seed_rows: list[tuple[Cell, ...]] = []
    series = {}
    for name in FEW:
        admitted = [runs.over_seeds(mbps, name, tasks) for mbps in sweep]
        middle = [100 * median(values) for values in admitted]
        rows.append((name, *middle))
        series[name] = (np.array(sweep), np.array(middle))
        seed_rows += [
            (seed, name, *(100 * values[at] for values in admitted)) for at, seed in enumerate(runs.seeds())
        ]
    columns = tuple(f"{mbps:g} Mbit/s" for mbps in sweep)
    return Figure(
        number="bandwidth",
        title="Acceptance by the bandwidth of edges",
        seed=runs.seed,
        quick=runs.scope.quick,
        setting=runs.setting(),
        sheets=(
            FigureTable("Admitted tasks, %, median seed", ("policy", *columns), rows),
            FigureTable("Every seed, %", ("seed", "policy", *columns), seed_rows),
        ),
        claims=tuple(_claims_bandwidth(runs)),
        pictures=(
            Lines("bandwidth", "Admitted tasks, median seed", "median Mbit/s of an edge", "%", series),
        ),
        notes=NOTES,
        family=FAMILY,
        source=PAPER,
        options=runs.options,
    )


def _claims_bandwidth(runs: PackerRuns) -> list[PublishedClaim]:
    sweep = runs.scope.sweep
    claims = []
    for other, called, reference in (("tetris", "Tetris", 0.30), ("slots", "slots", 0.67)):
        gains = [median(runs.relative_gains(mbps, "literal", other, tasks)) for mbps in sweep]
        claims.append(
            PublishedClaim(
                "section III-B",
                f"literal: more tasks than {called}, at every bandwidth",
                f"about {reference:+.0%}",
                ", ".join(f"{value:+.0%} at {mbps:g}" for value, mbps in zip(gains, sweep, strict=True)),
                judged(gains, *about(reference), none=0.0, every=True),
            )
        )
    best = {
        mbps: max((median(runs.over_seeds(mbps, name, tasks)), name) for name in FEW)[1] for mbps in sweep
    }
    claims.append(
        PublishedClaim(
            "not in the paper",
            "ahead admits the most at every bandwidth",
            "-",
            ", ".join(f"{name} at {mbps:g}" for mbps, name in best.items()),
            OURS,
        )
    )
    return claims
