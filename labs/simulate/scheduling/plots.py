"""Pictures of a simulation: utilisation, waiting times and decision times (`dios lab simulate --plots`).

The figures of the papers are in ``labs.papers``, and the drawing itself is in ``labs.plotting``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from labs.plotting import Boxes, Lines, Numbers, Picture, distribution, draw
from labs.simulate.scheduling.outcome import SimulationOutcome


def write_plots(outcome: SimulationOutcome, directory: Path) -> list[Path]:
    """Write timeline.png, decisions.png and waiting.png, and runtimes.png if tasks had programs.

    Raises:
        OSError: the directory cannot be written.
    """
    written: list[Path] = []
    for picture in _pictures(outcome):
        written.append(directory / f"{picture.name}.png")
        draw(picture, written[-1])
    return written


def _pictures(outcome: SimulationOutcome) -> Iterable[Picture]:
    levels, rounds = outcome.levels, outcome.rounds
    hours = np.array([level.at for level in levels]) / 3600
    full = {
        "slots": (hours, [level.slots for level in levels]),
        "running": (hours, [level.running for level in levels]),
        "waiting": (hours, [level.waiting for level in levels]),
    }
    yield Lines(
        "timeline", f"Slots and tasks of the cluster: {outcome.model}", "simulated hours", "tasks", full
    )
    seconds = {
        "whole round": [line.total_s for line in rounds],
        "solver": [line.solve_s for line in rounds],
    }
    yield _shares("decisions", "seconds for a decision", "rounds", seconds)
    ran = [record for record in (*outcome.ended, *outcome.unfinished) if record.placements]
    waited = {
        kind: [record.waited for record in ran if record.service is service]
        for kind, service in (("batch", False), ("service", True))
    }
    yield _shares("waiting", "seconds waited", "tasks", waited)
    programs = sorted({record.name for record in outcome.ended if record.completed and record.instructions})
    if programs:
        runtimes = {
            name: {outcome.model: [record.normalised for record in outcome.of(name)]} for name in programs
        }
        yield Boxes("runtimes", "Runtime relative to the best idle machine", "times ideal", runtimes)


def _shares(name: str, quantity: str, of: str, series: dict[str, list[float]]) -> Lines:
    """Return the cumulative distributions of all series that have values."""
    curves: dict[str, tuple[Numbers, Numbers]] = {
        label: distribution(values) for label, values in series.items() if values
    }
    return Lines(name, f"Share of {of} by {quantity}", quantity, f"share of {of}", curves)
