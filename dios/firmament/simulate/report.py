"""What a simulation found, in numbers: a summary for JSON and for people, and tables for other programs.

For: ``dios sched simulate``. Not for: pictures (``plots``), or for printing, which is the command line's.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dios.firmament.simulate.outcome import RoundLine, SimulationOutcome, UtilisationSample


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in a few numbers; all None where there is nothing."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of numbers; those that are not finite are left out."""
        kept = np.array([value for value in values if math.isfinite(value)], np.float64)
        if not len(kept):
            return cls(0, None, None, None, None, None)
        p50, p90, p99 = (float(each) for each in np.percentile(kept, (50, 90, 99)))
        return cls(len(kept), float(kept.mean()), p50, p90, p99, float(kept.max()))


@dataclass(frozen=True, slots=True)
class OutcomeSummary:
    """A simulation in numbers; seconds everywhere, simulated ones but for ``decision`` and below."""

    model: str
    algorithms: dict[str, int]
    """Rounds by what solved them."""
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
    """Of runs that were stopped, and whose work was lost."""
    utilisation: float
    """Share of all slots that was taken."""
    wait: Spread
    """From coming to running, all waiting of a task together; tasks that ran."""
    runtime: Spread
    """Of the runs that came to their end."""
    makespan: Spread
    """Of jobs, from the first task's coming to the last one's end."""
    normalised: dict[str, Spread]
    """By program: runtime beside that on the best idle machine (§8.2.1)."""
    rounds: int
    rounds_not_standing: int
    """Rounds after which the last good schedule stayed, because of a fault."""
    decision: Spread
    """Real seconds of whole rounds."""
    solve: Spread
    """Real seconds of the solver alone (Figure 8.7)."""
    vertices: int
    arcs: int
    """The network at its largest."""
    passed_over: dict[str, int]
    """Rows of a trace that change nothing here."""
    faults: int
    fault_texts: list[str]
    digest: str
    real_seconds: float

    def as_json(self) -> dict[str, object]:
        """For ``json.dumps``."""
        return asdict(self)


def summarise(outcome: SimulationOutcome) -> OutcomeSummary:
    """An outcome in numbers."""
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
    """Of the jobs all of whose tasks came to their end."""
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
    """Write tasks.csv, rounds.csv and levels.csv; a value that there is not is an empty field.

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
            (map(_field, each) for each in outcome.levels),
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
