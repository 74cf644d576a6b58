"""Pictures of a simulation: how full the cluster was, how long tasks waited, how long decisions took.

For: ``dios sched simulate --plots``. Not for: the thesis' figures (``repro``). Needs matplotlib, which is
in the extra ``plots``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from dios.errors import Code, DiosError
from dios.firmament.simulate.outcome import Outcome

_SIZE: Final = (7.0, 3.6)
"""Inches."""


class MissingPlotsError(DiosError):
    """Pictures were asked for and matplotlib is not installed."""

    code: ClassVar[Code] = Code.ENOSYS


def need_plots() -> None:
    """Raises MissingPlotsError where matplotlib is not installed: before hours of simulation, not after."""
    try:
        import_module("matplotlib")
    except ImportError:
        raise MissingPlotsError(
            "pictures need matplotlib, which is not installed: pip install 'dios[plots]'"
        ) from None


def write_plots(outcome: Outcome, directory: Path) -> list[Path]:
    """Write timeline.png, decisions.png, waiting.png, and with programs also runtimes.png.

    Raises:
        MissingPlotsError: matplotlib is not installed.
        OSError: the directory cannot be written.
    """
    need_plots()
    records = [*outcome.ended, *outcome.unfinished]
    written = [
        _timeline(outcome, directory / "timeline.png"),
        _cumulative(
            {
                "whole round": [line.total_s for line in outcome.rounds],
                "solver": [line.solve_s for line in outcome.rounds],
            },
            "seconds for a decision",
            directory / "decisions.png",
        ),
        _cumulative(
            {
                "batch": [each.waited for each in records if each.placements and not each.service],
                "service": [each.waited for each in records if each.placements and each.service],
            },
            "seconds waited",
            directory / "waiting.png",
        ),
    ]
    programs = sorted({record.name for record in outcome.ended if record.completed and record.instructions})
    if programs:
        runtimes = {name: [record.normalised for record in outcome.of(name)] for name in programs}
        written.append(_boxes(runtimes, directory / "runtimes.png"))
    return written


def _timeline(outcome: Outcome, path: Path) -> Path:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that only pictures need

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    hours = [level.at / 3600 for level in outcome.levels]
    axes.plot(hours, [level.slots for level in outcome.levels], color="0.6", label="slots")
    axes.plot(hours, [level.running for level in outcome.levels], label="running")
    axes.plot(hours, [level.waiting for level in outcome.levels], label="waiting")
    axes.set_xlabel("simulated hours")
    axes.set_ylabel("tasks")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)
    return path


def _cumulative(series: Mapping[str, Sequence[float]], label: str, path: Path) -> Path:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that only pictures need

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for name, values in series.items():
        if values:
            ordered = np.sort(np.array(values, np.float64))
            axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", label=name)
    axes.set_xlabel(label)
    axes.set_ylabel("share")
    axes.set_ylim(0, 1)
    if any(series.values()):
        axes.legend()
    figure.savefig(path)
    return path


def _boxes(runtimes: Mapping[str, Sequence[float]], path: Path) -> Path:
    """As Figure 8.1: boxes at the quartiles, whiskers at the 1st and 99th percentiles."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that only pictures need

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxes = [
        {**dict(zip(names, np.percentile(values, (1, 25, 50, 75, 99)), strict=True)), "label": program}
        for program, values in runtimes.items()
    ]
    axes.bxp(boxes, showfliers=False)
    axes.set_ylabel("normalised runtime")
    axes.set_ylim(bottom=0)
    figure.savefig(path)
    return path
