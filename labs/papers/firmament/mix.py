"""The cluster mix of §8.2.1 on simulated machines: Figures 8.1 to 8.4.

Five programs of Table 8.2 run for an hour on the clusters of Table 8.1. Two baselines place them (a queue
with random first fit, and one that considers load, in place of Mesos) and two cost models (Whare-MCs and
CoCo).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np

from dios.firmament.cluster.columns import Floats
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.parameters import Value
from dios.firmament.settings import SchedulerSettings
from labs.papers.figures import (
    PERCENTILE_COLUMNS,
    Figure,
    FigureTable,
    ProgressCallback,
    PublishedClaim,
    mean,
    median,
    percentile,
    percentile_cells,
)
from labs.papers.judgements import about, judged
from labs.plotting import Boxes, Lines, distribution
from labs.simulate.scheduling.outcome import SimulationOutcome
from labs.simulate.scheduling.run import SimulationConfig, simulate
from labs.simulate.scheduling.schedulers import scheduler_for
from labs.simulate.scheduling.world import TaskRecord
from labs.simulate.workloads.machines import MODEL_CLUSTER, SRG_CLUSTER, thesis_machines
from labs.simulate.workloads.mix import MEM_FIT, TABLE_8_2, MixWorkload

HOUR_S: Final = 3600.0
QUICK_S: Final = 120.0
ROUND_S: Final = 0.5
"""Simulated time between rounds; the thesis runs them back to back, and they take about as long there."""
SAMPLE_S: Final = 10.0
MINUTE_S: Final = 60.0

QUEUE: Final = "queue"
LOAD: Final = "queue, load-aware"
WHARE: Final = "Whare-MCs"
COCO: Final = "CoCo"
SCHEDULERS: Final[dict[str, tuple[str, dict[str, Value]]]] = {
    QUEUE: ("queue", {}),
    LOAD: ("queue-load", {}),
    WHARE: ("whare-mcs", {}),
    # One task for each class and aggregate in a round, as in §7.3.3.
    COCO: ("coco", {"wave": "aggregate"}),
}
PROGRAMS: Final = tuple(entry.program.name for entry in TABLE_8_2)
IO_PROGRAMS: Final = ("io_read", "io_write")

_NOTES: Final = (
    "Machines and programs are simulated. Cores, clocks, jobs and tasks are those of the thesis.",
    "Caches, bandwidths and the interference of programs, which the thesis does not give, are a model.",
    "The load-aware queue takes the place of Mesos: it offers machines with enough CPUs and memory.",
    "Running tasks are neither stopped nor moved; a task that moves would start again.",
)


@dataclass
class MixRuns:
    """The simulations that the four figures share; each is run at its first use."""

    seed: int
    progress: ProgressCallback
    seconds: float = HOUR_S
    """The simulated time."""
    _found: dict[tuple[bool, str], SimulationOutcome] = field(default_factory=dict)

    @property
    def quick(self) -> bool:
        """True if the simulated time is shorter than the thesis' hour."""
        return self.seconds < HOUR_S

    def outcome(self, name: str, *, large: bool) -> SimulationOutcome:
        """Return the outcome of a scheduler on the SRG cluster (Table 8.1a) or model data centre (8.1b)."""
        key = large, name
        if key not in self._found:
            place = "model data centre" if large else "SRG cluster"
            self.progress(f"{name} on the {place}, {self.seconds:.0f} simulated seconds")
            model, parameters = SCHEDULERS[name]
            self._found[key] = run_mix(model, parameters, self.seed, self.seconds, large=large)
            if self._found[key].interrupted:
                raise KeyboardInterrupt
        return self._found[key]

    def tasks(self, name: str, program: str, *, large: bool) -> list[TaskRecord]:
        """Return the tasks of a program that ended."""
        return self.outcome(name, large=large).of(program)

    def setting(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of the simulations."""
        return (
            ("simulated time", f"{self.seconds:.0f} s"),
            ("time between rounds", f"{ROUND_S} s"),
            ("cost models", "whare-mcs; coco with wave=aggregate"),
            ("seed", str(self.seed)),
        )


def run_mix(
    model: str, parameters: dict[str, Value], seed: int, seconds: float, *, large: bool
) -> SimulationOutcome:
    """Simulate the mix on the SRG cluster, or with ``large`` in the model data centre."""
    knowledge = KnowledgeBase("repro", 1)
    settings = SchedulerSettings(preemption=False, migration=False)
    scheduler = scheduler_for(model, parameters=parameters, settings=settings, knowledge=knowledge, seed=seed)
    machines = thesis_machines(MODEL_CLUSTER if large else SRG_CLUSTER)
    return simulate(
        SimulationConfig(
            MixWorkload(machines, seed, large=large),
            scheduler,
            seconds,
            round_interval=ROUND_S,
            sample_interval=SAMPLE_S,
            knowledge=knowledge,
        )
    )


def figure_8_1(runs: MixRuns) -> Figure:
    """Return Figure 8.1: normalised run times on both clusters."""
    sheets, pictures = [], []
    claims: list[PublishedClaim] = []
    for large in (False, True):
        letter, place = (
            ("b", "homogeneous model data centre") if large else ("a", "heterogeneous SRG cluster")
        )
        groups = {
            program: {
                name: [task.normalised for task in runs.tasks(name, program, large=large)]
                for name in SCHEDULERS
            }
            for program in PROGRAMS
        }
        rows = [
            (program, name, *percentile_cells(values))
            for program, series in groups.items()
            for name, values in series.items()
        ]
        title = f"({letter}) {place}: run time / ideal run time"
        sheets.append(FigureTable(title, ("workload", "scheduler", *PERCENTILE_COLUMNS), rows))
        pictures.append(Boxes(f"8.1{letter}", f"Figure 8.1{letter}: {place}", "run time / ideal", groups))
        claims += _claims_8_1(f"Figure 8.1{letter}", groups)
    near = [value for program in IO_PROGRAMS for value in pictures[1].groups[program][COCO]]
    claims.append(
        PublishedClaim(
            "§8.2.1, Figure 8.1b",
            "io_stream under CoCo: one on each machine, so its run time is close to the ideal",
            "close to 1",
            f"median {median(near):.2f}, 99 % {percentile(near, 99):.2f}",
            judged(percentile(near, 99), 0.9, 1.1),
        )
    )
    return Figure(
        "8.1",
        "Figure 8.1: run times in the cluster mix",
        runs.seed,
        runs.quick,
        runs.setting(),
        tuple(sheets),
        tuple(claims),
        tuple(pictures),
        _NOTES,
    )


def _claims_8_1(passage: str, groups: dict[str, dict[str, list[float]]]) -> list[PublishedClaim]:
    medians = {name: [median(groups[program][name]) for program in PROGRAMS] for name in SCHEDULERS}
    claims = []
    for name in (WHARE, COCO):
        over_queue = sum(ours <= base for ours, base in zip(medians[name], medians[QUEUE], strict=True))
        over_load = sum(ours <= 1.02 * base for ours, base in zip(medians[name], medians[LOAD], strict=True))
        claims += [
            PublishedClaim(
                passage,
                f"{name}: median no worse than the queue's",
                "almost all of 5 workloads",
                f"{over_queue} of 5",
                judged(over_queue, 4, 5, none=0.0),
            ),
            PublishedClaim(
                passage,
                f"{name}: matches (within 2 %) or beats the load-aware queue",
                "all 5 workloads",
                f"{over_load} of 5",
                judged(over_load, 5, 5, none=0.0),
            ),
        ]
    slowdowns = [
        (base - 1) / max(ours - 1, 0.01)
        for base, ours in zip(
            medians[QUEUE],
            (min(pair) for pair in zip(medians[WHARE], medians[COCO], strict=True)),
            strict=True,
        )
    ]
    claims.append(
        PublishedClaim(
            f"§8.5, {passage}",
            "the better model lowers the slow-down of the median by (best workload)",
            "2-4 x",
            f"{max(slowdowns):.1f} x",
            judged(max(slowdowns), 2, 4, none=1.0),
        )
    )
    return claims


def figure_8_2(runs: MixRuns) -> Figure:
    """Return Figure 8.2: the L3-fitting workload by minute, as a model learns."""
    names = (QUEUE, WHARE, COCO)
    minutes = int(runs.seconds // MINUTE_S)
    means: dict[str, Floats] = {}
    spreads: dict[str, Floats] = {}
    for name in names:
        tasks = runs.tasks(name, MEM_FIT.name, large=False)
        minute = np.array([int(task.ended // MINUTE_S) for task in tasks], np.int64)
        values = np.array([task.normalised for task in tasks])
        by_minute = [values[minute == at] for at in range(minutes)]
        means[name] = np.array([in_minute.mean() if len(in_minute) else np.nan for in_minute in by_minute])
        spreads[name] = np.array([in_minute.std() if len(in_minute) else np.nan for in_minute in by_minute])
    rows: list[tuple[str | int | float, ...]] = [
        (
            minute + 1,
            *(_or_empty(column[minute]) for name in names for column in (means[name], spreads[name])),
        )
        for minute in range(minutes)
    ]
    columns = ("minute", *(f"{name}, {statistic}" for name in names for statistic in ("mean", "deviation")))
    early = mean(means[WHARE][: max(3, minutes // 12)])
    late = mean(means[WHARE][minutes // 2 :])
    base = mean(means[QUEUE][minutes // 2 :])
    claims = (
        PublishedClaim(
            "Figure 8.2",
            "Whare-MCs improves as it learns: mean of the second half compared with the start",
            "a steep drop",
            f"{early:.2f} to {late:.2f}",
            judged(early - late, 0, inf, none=0.0),
        ),
        PublishedClaim(
            "Figure 8.2",
            "Whare-MCs compared with the queue, in the second half",
            "lower",
            f"{late:.2f} and {base:.2f}",
            judged(base - late, 0, inf, none=0.0),
        ),
    )
    curves = {name: (np.arange(1.0, minutes + 1), means[name]) for name in names}
    picture = Lines(
        "8.2", "Figure 8.2: mem_stream, L3-fit, SRG cluster", "minute", "run time / ideal", curves
    )
    return Figure(
        "8.2",
        "Figure 8.2: learning good mappings",
        runs.seed,
        runs.quick,
        runs.setting(),
        (FigureTable("Run time / ideal of mem_stream, L3-fit, by the minute of its end", columns, rows),),
        claims,
        (picture,),
        _NOTES,
    )


def figure_8_3(runs: MixRuns) -> Figure:
    """Return Figure 8.3: waiting times on the SRG cluster."""
    groups = {
        program: {
            name: [task.waited for task in runs.tasks(name, program, large=False)] for name in SCHEDULERS
        }
        for program in PROGRAMS
    }
    rows = [
        (program, name, *percentile_cells(values))
        for program, series in groups.items()
        for name, values in series.items()
    ]
    every = {name: [wait for program in PROGRAMS for wait in groups[program][name]] for name in SCHEDULERS}
    longer = median(every[COCO]) / median(every[WHARE])
    at_once = mean([float(wait <= ROUND_S) for wait in every[WHARE]])
    claims = (
        PublishedClaim(
            "§8.2.1, Figure 8.3",
            "direction: CoCo's median wait, compared with Whare-Map's",
            "longer",
            f"{longer:.1f} x",
            judged(longer, 1, inf, none=1.0),
        ),
        PublishedClaim(
            "§8.2.1, Figure 8.3",
            "size: CoCo's median wait over all workloads",
            "10-15 s",
            f"{median(every[COCO]):.1f} s",
            judged(median(every[COCO]), 10, 15, none=0.0),
        ),
        PublishedClaim(
            "§8.2.1, Figure 8.3",
            "direction: the fraction of tasks that Whare-Map places in their first round",
            "most",
            f"{at_once:.2f}",
            judged(at_once, 0.5, 1, none=0.0),
        ),
        PublishedClaim(
            "§8.2.1, Figure 8.3",
            "size: Whare-Map's median wait over all workloads",
            "within 0.2 s",
            f"{median(every[WHARE]):.2f} s (a round every {ROUND_S} s)",
            judged(median(every[WHARE]), 0, 0.2, none=inf),
        ),
    )
    return Figure(
        "8.3",
        "Figure 8.3: waiting times in the cluster mix",
        runs.seed,
        runs.quick,
        runs.setting(),
        (
            FigureTable(
                "Seconds of waiting, SRG cluster", ("workload", "scheduler", *PERCENTILE_COLUMNS), rows
            ),
        ),
        claims,
        (Boxes("8.3", "Figure 8.3: waiting, SRG cluster", "seconds", groups, log=True),),
        (*_NOTES, "Only tasks that ran to their end are counted."),
    )


def figure_8_4(runs: MixRuns) -> Figure:
    """Return Figure 8.4: cycles per instruction, over all tasks on the SRG cluster."""
    values = {
        name: np.array(
            [
                task.cycles_per_instruction
                for program in PROGRAMS
                for task in runs.tasks(name, program, large=False)
            ]
        )
        for name in SCHEDULERS
    }
    rows = [(name, *percentile_cells(samples)) for name, samples in values.items()]
    top = {name: percentile(samples, 99) for name, samples in values.items()}
    claims = (
        *(
            PublishedClaim(
                "Figure 8.4",
                f"{name}: cycles per instruction compared with the queue, at the median and at 75 %",
                "as good or better almost always",
                ", ".join(
                    f"{percentile(values[name], at):.2f} / {percentile(values[QUEUE], at):.2f}"
                    for at in (50, 75)
                ),
                judged(
                    [percentile(values[name], at) / percentile(values[QUEUE], at) for at in (50, 75)],
                    0,
                    1.02,
                    none=1.02,
                    every=True,
                ),
            )
            for name in (WHARE, COCO)
        ),
        PublishedClaim(
            "Appendix A.2",
            "99th percentile of the best model",
            "around 3",
            f"{min(top[WHARE], top[COCO]):.1f}",
            judged(min(top[WHARE], top[COCO]), *about(3), none=inf),
        ),
    )
    curves = {name: distribution(samples) for name, samples in values.items()}
    return Figure(
        "8.4",
        "Figure 8.4: cycles per instruction in the cluster mix",
        runs.seed,
        runs.quick,
        runs.setting(),
        (FigureTable("Cycles per instruction, SRG cluster", ("scheduler", *PERCENTILE_COLUMNS), rows),),
        claims,
        (Lines("8.4", "Figure 8.4: SRG cluster", "cycles per instruction", "fraction of tasks", curves),),
        _NOTES,
    )


def _or_empty(value: float) -> float | str:
    return "" if np.isnan(value) else float(value)
