"""A comparison of scheduling policies: the same workload under each model, in one table (thesis §9.2).

``dios lab compare`` shows it. Each model gets a workload of its own from the same options and seed, so all
of them see the same machines, jobs and tasks. Jobs that a workload submits again when they end (``mix-srg``)
come earlier under a faster model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypedDict

import numpy as np

from dios.errors import DiosError, InvalidError
from dios.firmament.models.catalogue import MODELS
from labs.plotting import Boxes, Lines, distribution, draw
from labs.simulate.scheduling.command import SimulationOptions, config_of, run_config
from labs.simulate.scheduling.outcome import SimulationOutcome
from labs.simulate.scheduling.report import OutcomeSummary, summarise
from labs.simulate.scheduling.run import SimulationProgress
from labs.simulate.scheduling.schedulers import QUEUE, QUEUE_LOAD

COMPARED_MAX: Final = 64
"""The most models of a comparison."""
PLOTTED: Final = 8
"""The models of one picture."""
_LEAST_S: Final = 0.01
"""Shorter waits are drawn as this long, because the axis is logarithmic."""
COLUMNS: Final = (
    "model",
    "finished",
    "waiting",
    "wait 50 %, s",
    "wait 99 %, s",
    "run time, s",
    "job, s",
    "times ideal",
    "stopped",
    "moved",
    "wasted, s",
    "in use, %",
    "decision 50 %, ms",
    "decision 99 %, ms",
)


class ComparedModelRow(TypedDict):
    """A model, and its results; ``times_ideal`` is relative to the best possible."""

    model: str
    summary: OutcomeSummary | None
    times_ideal: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """The result of one model."""

    model: str
    summary: OutcomeSummary | None
    """None if it failed."""
    times_ideal: float | None
    """The mean over programs of the median run time relative to an idle machine; None without programs."""
    waits: tuple[float, ...] = ()
    """The waiting time of each task that ran, in seconds."""
    normalised: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By program: the run time of each task relative to that on the best idle machine."""
    failure: str = ""
    interrupted: bool = False

    def as_json(self) -> ComparedModelRow:
        """Return the fields for JSON; the summary is a dataclass."""
        return {
            "model": self.model,
            "summary": self.summary,
            "times_ideal": self.times_ideal,
            "failure": self.failure,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the cells under ``COLUMNS``."""
        summary = self.summary
        if summary is None:
            return (self.model, self.failure, *("" for _ in COLUMNS[2:]))
        return (
            self.model,
            str(summary.finished),
            str(summary.waiting),
            _number(summary.wait.p50),
            _number(summary.wait.p99),
            _number(summary.runtime.mean),
            _number(summary.makespan.mean),
            _number(self.times_ideal),
            str(summary.preempted),
            str(summary.migrated),
            f"{summary.wasted_seconds:.0f}",
            f"{100 * summary.utilisation:.1f}",
            _number(summary.decision.p50, 1000),
            _number(summary.decision.p99, 1000),
        )


def models_of(wanted: Sequence[str]) -> list[str]:
    """Return the models to compare: those that are wanted, or the two queues and the whole catalogue.

    Raises:
        InvalidError: too many models, or one of them twice.
    """
    models = list(wanted) or [QUEUE, QUEUE_LOAD, *MODELS]
    if len(models) > COMPARED_MAX or len(set(models)) < len(models):
        raise InvalidError(f"give each model once, and at most {COMPARED_MAX} of them")
    return models


def compare(
    options: SimulationOptions,
    models: Sequence[str],
    begin: Callable[[str, int], None],
    progress: Callable[[SimulationProgress], None] | None,
) -> Iterator[ComparedModel]:
    """Yield the result of each model as soon as it has run; a model that fails does not end the others.

    Args:
        options: the workload, and everything but the model.
        models: from ``models_of``.
        begin: called before each model, with its name and number from 0.
        progress: receives the progress within a model.

    Raises:
        InvalidError: an option is invalid; see ``config_of``.
        BadModelError: a model does not exist.
    """
    # A mistake in the options ends the command at once, not after the first models.
    for model in models:
        config_of(replace(options, model=model))
    for number, model in enumerate(models):
        begin(model, number)
        try:
            outcome = run_config(config_of(replace(options, model=model)), progress)
        except DiosError as error:
            yield ComparedModel(model, None, None, failure=error.message)
            continue
        yield _compared(model, outcome)
        if outcome.interrupted:
            return


def _compared(model: str, outcome: SimulationOutcome) -> ComparedModel:
    summary = summarise(outcome)
    medians = [spread.p50 for spread in summary.normalised.values() if spread.p50 is not None]
    records = [*outcome.ended, *outcome.unfinished]
    waits = tuple(float(record.waited) for record in records if record.placements)
    ideal = float(np.mean(medians)) if medians else None
    failure = ""
    if summary.faults:
        failure = f"{summary.faults} faults: {'; '.join(summary.fault_texts[:1])}"
    normalised = {name: [record.normalised for record in outcome.of(name)] for name in summary.normalised}
    return ComparedModel(model, summary, ideal, waits, normalised, failure, outcome.interrupted)


def as_markdown(compared: Sequence[ComparedModel], title: str, command: str) -> str:
    """Return the table as Markdown, with the command that makes it."""
    lines = [f"# {title}", "", f"`{command}`", "", f"| {' | '.join(COLUMNS)} |"]
    lines.append("| --- |" + " --: |" * (len(COLUMNS) - 1))
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in model.cells())} |" for model in compared]
    return "\n".join(lines) + "\n"


def write_comparison_plots(compared: Sequence[ComparedModel], directory: Path) -> list[Path]:
    """Write compare-waits-N.png, and compare-runtimes-N.png if tasks had programs, for eight models each.

    Raises:
        OSError: the directory cannot be written.
    """
    good = [model for model in compared if model.waits]
    written = []
    for at in range(0, len(good), PLOTTED):
        some, number = good[at : at + PLOTTED], at // PLOTTED + 1
        waits = {model.model: distribution(np.maximum(model.waits, _LEAST_S)) for model in some}
        title = "Share of tasks by the seconds waited"
        pictures: list[Boxes | Lines] = [
            Lines(f"compare-waits-{number}", title, "seconds waited", "share of tasks", waits, log_x=True)
        ]
        programs = sorted({name for model in some for name in model.normalised})
        if programs:
            runs = {
                name: {model.model: model.normalised[name] for model in some if name in model.normalised}
                for name in programs
            }
            name, title = f"compare-runtimes-{number}", "Run time relative to the best idle machine"
            pictures.append(Boxes(name, title, "times ideal", runs))
        for picture in pictures:
            written.append(directory / f"{picture.name}.png")
            draw(picture, written[-1])
    return written


def _number(value: float | None, times: float = 1.0) -> str:
    return "" if value is None else f"{value * times:.2f}"
