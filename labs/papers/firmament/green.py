"""Energy-aware scheduling (§8.2.2): Figures 8.5 and 8.6 and Table 8.5.

The machines and the work are in ``green_lab``, the cost model in ``dios.firmament.models.green``.
"""

from __future__ import annotations

from math import inf
from typing import Final

import numpy as np

from dios.firmament.cluster.columns import Floats
from dios.firmament.models.green import GreenModel
from dios.firmament.models.protocol import CostModel
from dios.firmament.models.random_fit import RandomFitModel
from labs.papers.figures import Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.papers.firmament.green_lab import GreenRun, GreenSetup, batch_jobs, run
from labs.papers.judgements import OURS, about, judged, judged_count
from labs.plotting import Lines

STEPS: Final = 800
"""The length of the experiment in seconds (§8.2.2)."""
QUICK_STEPS: Final = 60
STEPS_MAX: Final = 4_000
"""The last batch job must have ended by then."""
DAY_STEPS: Final = 1_440
"""Figure 8.6: the load of a day, compressed into this number of seconds."""
REQUESTS: Final = 53_000.0
"""Average requests per second, as served in Table 8.5."""
WEB_TASKS: Final = 4
"""Tasks of the service on the x86 machines without scaling (Figure 8.6)."""
WEB_TASKS_MIXED: Final = 8
"""Tasks without scaling next to batch jobs: enough for the load wherever most of them run."""
AVERAGED: Final = 10
"""Seconds of the moving average in plots."""

HOMOGENEOUS: Final = "random, x86 only"
HETEROGENEOUS: Final = "random, all machines"
PERFORMANCE: Final = "maximum performance"
GREEN: Final = "Green"
FIXED: Final = "four tasks on x86"
SCALED: Final = "Green, scaled"

TABLE_8_5: Final = {
    HOMOGENEOUS: (52_553, 0),
    HETEROGENEOUS: (51_049, 5),
    PERFORMANCE: (53_324, 0),
    GREEN: (52_871, 0),
}
"""The thesis' average requests per second, and missed deadlines."""

_NOTES: Final = (
    "Watts and cores are those of Tables 8.3 and 8.4. The work of a core per second is estimated: "
    "see `dios.firmament.models.green_power`."
)
_BATCH_NOTES: Final = (
    "The unit of work is a core; a batch job is one task on one core, and a stopped job starts again.",
    "Deadlines are up to twenty run times away, and Green lets batch jobs wait for frugal machines (§7.4.1).",
    "So its last jobs end later than those of the others. The work is the same in all four.",
)


def setups(seed: int) -> list[GreenSetup]:
    """Return the four approaches of §8.2.2, (i) to (iv)."""

    def random() -> CostModel:
        return RandomFitModel(seed=seed)

    fixed = (WEB_TASKS_MIXED, WEB_TASKS_MIXED)
    return [
        GreenSetup(HOMOGENEOUS, random, x86_only=True, web_tasks=fixed),
        GreenSetup(HETEROGENEOUS, random, web_tasks=fixed),
        GreenSetup(PERFORMANCE, lambda: GreenModel(objective="performance"), web_tasks=fixed),
        GreenSetup(GREEN, GreenModel, web_tasks=(1, 12)),
    ]


def varying_load(seed: int, steps: int) -> Floats:
    """Return requests per second that vary by a few per cent around the average."""
    random = np.random.default_rng([seed, 6])
    wave = 0.03 * np.sin(2 * np.pi * np.arange(steps) / 200)
    return REQUESTS * (1 + wave + random.normal(0, 0.01, steps))


def daily_load(steps: int) -> Floats:
    """Return the load of a day: low at night, high by day, a second peak in the evening, as in [BCH13]."""
    hour = np.arange(steps) * 24 / steps
    shape = 0.55 - 0.35 * np.cos(2 * np.pi * (hour - 3) / 24) + 0.1 * np.sin(4 * np.pi * (hour - 9) / 24)
    return 0.8 * REQUESTS * np.clip(shape, 0.05, 1.0)


def figure_8_5(seed: int, progress: ProgressCallback, *, quick: bool) -> Figure:
    """Return Figure 8.5: energy, throughput and missed deadlines of four approaches on one workload."""
    steps = QUICK_STEPS if quick else STEPS
    jobs = batch_jobs(seed, steps)
    load = varying_load(seed, steps)
    labs: dict[str, GreenRun] = {}
    for setup in setups(seed):
        progress(f"{setup.name}: {len(jobs)} batch jobs and {REQUESTS:,.0f} requests a second")
        labs[setup.name] = run(setup, jobs, load, STEPS_MAX)
    averaged = {
        name: (np.arange(float(len(lab.joules))), _moving_average(lab.joules)) for name, lab in labs.items()
    }
    return Figure(
        "8.5",
        "Figure 8.5 and Table 8.5: energy, throughput and deadlines",
        seed,
        quick,
        (
            ("machines", "the five of Table 8.3"),
            ("batch", f"{len(jobs)} jobs, ten at any time, deadlines 2 to 20 times the fastest run time"),
            (
                "service",
                f"{REQUESTS:,.0f} requests/s on average; Green scales it (55 %, 15 %), the others do not",
            ),
            ("time", f"{steps} s, and until the last batch job has ended"),
            ("seed", str(seed)),
        ),
        (_sheet_8_5(labs, steps),),
        _claims_8_5(labs, steps),
        (Lines("8.5", "Figure 8.5: power above idle", "seconds", "W above idle", averaged),),
        (_NOTES, *_BATCH_NOTES),
    )


def _sheet_8_5(labs: dict[str, GreenRun], steps: int) -> FigureTable:
    rows: list[tuple[str | int | float, ...]] = []
    for name, lab in labs.items():
        throughput = float(np.mean(lab.served[:steps]))
        thesis = TABLE_8_5[name]
        rows.append(
            (
                name,
                sum(lab.joules),
                sum(lab.joules[:steps]),
                lab.idle_watts * steps + sum(lab.joules[:steps]),
                lab.batch_ended,
                throughput,
                thesis[0],
                lab.missed,
                thesis[1],
                lab.migrations,
                lab.preemptions,
            )
        )
    columns = (
        "approach",
        "J above idle, all work",
        f"J above idle, first {steps} s",
        f"J in total, first {steps} s",
        "last batch job, s",
        "requests/s",
        "thesis",
        "missed deadlines",
        "thesis ",
        "migrated",
        "stopped",
    )
    return FigureTable("Four approaches on the same work", columns, rows)


def _claims_8_5(labs: dict[str, GreenRun], steps: int) -> tuple[PublishedClaim, ...]:
    energy = {name: sum(lab.joules) for name, lab in labs.items()}
    first = {name: sum(lab.joules[:steps]) for name, lab in labs.items()}
    whole = {name: lab.idle_watts * steps + first[name] for name, lab in labs.items()}

    def saved(of: dict[str, float]) -> float:
        return 100 * (1 - of[GREEN] / of[HOMOGENEOUS])

    least = min(energy, key=energy.__getitem__)
    performance = energy[PERFORMANCE] / energy[HOMOGENEOUS]
    passage = "§8.2.2, Figure 8.5"
    saving = f"above-idle energy saved by Green over {steps} s, compared with random x86"
    slightly = "maximum performance compared with random x86"
    return (
        PublishedClaim(
            passage, "the least energy above idle", "Green's", least, judged_count(least == GREEN, 1)
        ),
        PublishedClaim(
            passage, saving, "45 %", f"{saved(first):.0f} %", judged(saved(first), *about(45), none=0.0)
        ),
        PublishedClaim(passage, "the same, to the end of the last job", "", f"{saved(energy):.0f} %", OURS),
        PublishedClaim(
            passage,
            "saved of all energy, including idle power",
            "6.2 %",
            f"{saved(whole):.1f} %",
            judged(saved(whole), *about(6.2), none=0.0),
        ),
        PublishedClaim(
            passage, slightly, "slightly more", f"{performance:.2f} x", judged(performance, 1, 1.1, none=1.0)
        ),
        *_claims_8_5_work(labs, steps),
    )


def _claims_8_5_work(labs: dict[str, GreenRun], steps: int) -> tuple[PublishedClaim, ...]:
    passage = "§8.2.2, Figure 8.5"
    ended = {name: lab.batch_ended / labs[HOMOGENEOUS].batch_ended for name, lab in labs.items()}
    within = sum(labs[GREEN].served[:steps]) / sum(labs[HOMOGENEOUS].served[:steps])
    missed = [labs[name].missed for name in TABLE_8_5]
    slow, late = ended[HETEROGENEOUS], ended[GREEN]
    only = [bool(misses) for misses in missed] == [False, True, False, False]
    return (
        PublishedClaim(
            passage,
            "random over all machines takes longer",
            "2 x",
            f"{slow:.1f} x",
            judged(slow, *about(2), none=1.0),
        ),
        PublishedClaim(
            passage,
            "Green ends when random x86 does",
            "within 1.5 %",
            f"{late:.2f} x",
            judged(late, 0.985, 1.015),
        ),
        PublishedClaim(
            "Table 8.5",
            "Green's throughput compared with it",
            "1.006 x",
            f"{within:.3f} x",
            judged(within, 0.996, 1.016, none=0.0),
        ),
        PublishedClaim(
            "Table 8.5",
            "missed deadlines",
            "0, 5, 0, 0",
            ", ".join(map(str, missed)),
            judged(missed[1] if only else -1, 5, 5, none=0.0),
        ),
    )


def figure_8_6(seed: int, progress: ProgressCallback, *, quick: bool) -> Figure:
    """Return Figure 8.6: a service under a day's load, scaled by Green and fixed on the x86 machines."""
    steps = QUICK_STEPS if quick else DAY_STEPS
    load = daily_load(steps)
    fixed = GreenSetup(
        FIXED, lambda: RandomFitModel(seed=seed), x86_only=True, web_tasks=(WEB_TASKS, WEB_TASKS)
    )
    labs: list[GreenRun] = []
    for setup in (fixed, GreenSetup(SCALED, GreenModel, web_tasks=(1, 8), web_first=1)):
        progress(f"{setup.name}: a day's load in {steps} s")
        labs.append(run(setup, (), load, steps))
    rows: list[tuple[str | int | float, ...]] = [
        (lab.setup.name, sum(lab.joules), float(np.mean(lab.served)), min(lab.web_tasks), max(lab.web_tasks))
        for lab in labs
    ]
    columns = ("approach", "J above idle", "requests/s", "fewest tasks", "most tasks")
    seconds = np.arange(float(steps))
    power = {lab.setup.name: (seconds, _moving_average(lab.joules)) for lab in labs}
    served = {lab.setup.name: (seconds, _moving_average(lab.served)) for lab in labs}
    return Figure(
        "8.6",
        "Figure 8.6: a service that scales with its load",
        seed,
        quick,
        (("load", f"a day in {steps} s, at most {load.max():,.0f} requests/s"), ("seed", str(seed))),
        (FigureTable("The service alone", columns, rows),),
        _claims_8_6(labs[0], labs[1], load),
        (
            Lines("8.6a", "Figure 8.6a: power above idle", "seconds", "W above idle", power),
            Lines(
                "8.6b", "Figure 8.6b: load", "seconds", "requests/s", {"offered": (seconds, load), **served}
            ),
        ),
        (_NOTES, "A task of the service has one core, so that it needs more of them than the thesis' four."),
    )


def _claims_8_6(fixed: GreenRun, scaled: GreenRun, load: Floats) -> tuple[PublishedClaim, ...]:
    saved = 100 * (1 - sum(scaled.joules) / sum(fixed.joules))
    share = 100 * sum(scaled.served) / sum(scaled.offered)
    night = np.argsort(load)[: len(load) // 4]
    at_night = 100 * (1 - np.array(scaled.joules)[night].sum() / np.array(fixed.joules)[night].sum())
    tasks = f"{min(scaled.web_tasks)} to {max(scaled.web_tasks)}"
    passage = "§8.2.2, Figure 8.6"
    thesis = "17.9 % (text), 12 % (caption)"
    quarter = "saved in the quarter with the least load"
    return (
        PublishedClaim(
            passage, "above-idle energy saved", thesis, f"{saved:.1f} %", judged(saved, 12, 17.9, none=0.0)
        ),
        PublishedClaim(
            passage,
            "fraction of the load that is served",
            "all",
            f"{share:.1f} %",
            judged(share, 99, 100, none=0.0),
        ),
        PublishedClaim(
            passage,
            quarter,
            "more than by day",
            f"{at_night:.0f} %",
            judged(at_night - saved, 0, inf, none=0.0),
        ),
        PublishedClaim(
            passage,
            "tasks of the service",
            "1 to 4",
            tasks,
            judged([min(scaled.web_tasks), max(scaled.web_tasks)], 1, 4, every=True),
        ),
    )


def _moving_average(values: list[float]) -> Floats:
    """Return the moving average."""
    smoothed: Floats = np.convolve(values, np.ones(AVERAGED) / AVERAGED, mode="same")
    return smoothed
