"""Summaries of a simulation for JSON and for the terminal, and CSV tables.

Pictures are in ``plots``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labs.simulate.scheduling.outcome import RoundLine, SimulationOutcome, UtilisationSample


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in a few numbers; all None if there are no values."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise numbers; infinities and NaN are ignored."""
        kept = np.array([value for value in values if math.isfinite(value)], np.float64)
        if not len(kept):
            return cls(0, None, None, None, None, None)
        p50, p90, p99 = (float(percentile) for percentile in np.percentile(kept, (50, 90, 99)))
        return cls(len(kept), float(kept.mean()), p50, p90, p99, float(kept.max()))


@dataclass(frozen=True, slots=True)
class OutcomeSummary:
    """A simulation in numbers. Times are simulated seconds, except those of ``decision`` and below."""

    model: str
    algorithms: dict[str, int]
    """Rounds by solver algorithm."""
    seconds: float
    interrupted: bool
    machines: int
    slots: int
    submitted: int
    finished: int
    failed: int
    withdrawn: int
    running: int
    waiting: int
    placed: int
    preempted: int
    migrated: int
    lost_with_machines: int
    wasted_seconds: float
    """Seconds of runs that were stopped and lost their work."""
    utilisation: float
    """The share of all slots that were occupied."""
    wait: Spread
    """Waiting time of each task that ran, summed over its waits."""
    runtime: Spread
    """Runtime of each run that completed."""
    makespan: Spread
    """Time of each finished job, from its first submission to the end of its last task."""
    normalised: dict[str, Spread]
    """By program: runtime relative to that on the best idle machine (§8.2.1)."""
    rounds: int
    rounds_not_standing: int
    """Rounds that kept the last good schedule because of a fault."""
    decision: Spread
    """Real seconds of complete rounds."""
    solve: Spread
    """Real seconds of the solver alone (Figure 8.7)."""
    vertices: int
    arcs: int
    """The largest numbers of vertices and arcs of the flow network."""
    passed_over: dict[str, int]
    """Counts of a trace's rows that change nothing here."""
    faults: int
    fault_texts: list[str]
    digest: str
    real_seconds: float

    def as_json(self) -> dict[str, object]:
        """Return plain values for ``json.dumps``."""
        return asdict(self)


def summarise(outcome: SimulationOutcome) -> OutcomeSummary:
    """Return the summary of an outcome."""
    ended, rounds = outcome.ended, outcome.rounds
    records = [*ended, *outcome.unfinished]
    completed = [record for record in ended if record.completed]
    programs = sorted({record.name for record in completed if record.instructions})
    last = max(outcome.levels, key=lambda level: level.machines, default=UtilisationSample(0.0, 0, 0, 0, 0))
    running = sum(record.running for record in outcome.unfinished)
    names = [line.algorithm for line in rounds]
    return OutcomeSummary(
        model=outcome.model,
        algorithms={name: names.count(name) for name in sorted(set(names))},
        seconds=outcome.seconds,
        interrupted=outcome.interrupted,
        machines=last.machines,
        slots=last.slots,
        submitted=outcome.submitted,
        finished=len(completed),
        failed=sum(not record.completed and not record.withdrawn for record in ended),
        withdrawn=sum(record.withdrawn for record in ended),
        running=running,
        waiting=len(outcome.unfinished) - running,
        placed=outcome.placed,
        preempted=outcome.preempted,
        migrated=outcome.migrated,
        lost_with_machines=sum(record.machine_losses for record in records),
        wasted_seconds=sum(record.wasted for record in records),
        utilisation=outcome.utilisation,
        wait=Spread.of(record.waited for record in records if record.placements),
        runtime=Spread.of(record.runtime for record in completed),
        makespan=Spread.of(_makespans(outcome)),
        normalised={name: Spread.of(record.normalised for record in outcome.of(name)) for name in programs},
        rounds=len(rounds),
        rounds_not_standing=sum(not line.stands for line in rounds),
        decision=Spread.of(line.total_s for line in rounds),
        solve=Spread.of(line.solve_s for line in rounds),
        vertices=max((line.vertices for line in rounds), default=0),
        arcs=max((line.arcs for line in rounds), default=0),
        passed_over=outcome.passed_over,
        faults=outcome.faults,
        fault_texts=outcome.fault_texts,
        digest=outcome.digest,
        real_seconds=outcome.real_s,
    )


def _makespans(outcome: SimulationOutcome) -> list[float]:
    """Return the makespan of each job whose tasks have all ended."""
    open_jobs = {record.job for record in outcome.unfinished}
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for record in outcome.ended:
        if record.job not in open_jobs:
            first[record.job] = min(record.submitted, first.get(record.job, math.inf))
            last[record.job] = max(record.ended, last.get(record.job, -math.inf))
    return [last[job] - first[job] for job in first]


TASK_COLUMNS: Final = (
    "task",
    "job",
    "name",
    "service",
    "submitted",
    "started",
    "ended",
    "completed",
    "withdrawn",
    "machine_name",
    "machine_type",
    "waited",
    "runtime",
    "ideal",
    "normalised",
    "placements",
    "preemptions",
    "migrations",
    "machine_losses",
    "wasted",
    "cycles_per_instruction",
)


def write_tables(outcome: SimulationOutcome, directory: Path) -> list[Path]:
    """Write tasks.csv, rounds.csv and levels.csv; a missing value is an empty field.

    Raises:
        OSError: the directory cannot be written.
    """
    records = [*outcome.ended, *outcome.unfinished]
    tasks = ([_field(getattr(record, name)) for name in TASK_COLUMNS] for record in records)
    return [
        _write(directory / "tasks.csv", TASK_COLUMNS, tasks),
        _write(directory / "rounds.csv", RoundLine._fields, (map(_field, line) for line in outcome.rounds)),
        _write(
            directory / "levels.csv",
            UtilisationSample._fields,
            (map(_field, level) for level in outcome.levels),
        ),
    ]


def _field(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.9g}" if math.isfinite(value) else ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path
