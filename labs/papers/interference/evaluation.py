"""The figures of chapter 2 of the thesis that measure machines, and the function that makes them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.host.machine.topology import read_topology
from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures, smaller_by
from labs.papers.interference import crowds, machine, pairs, runs, system_calls
from labs.papers.interference.measure import WorkloadData
from labs.papers.interference.places import Sharing, lacks, last_level_bytes, places

FIGURES: Final = {
    "2.4": "speeds of this machine",
    "2.5": "caches and threads of this machine",
    "2.6": "pairs of workloads, by what they share",
    "2.7": "crowds of workloads",
    "2.8": "system calls of applications",
}
_CACHE_BYTES_MAX: Final = 64 << 20
"""Larger caches count as this, so that the data of a workload stay small and are ready soon."""


def missing_requirements() -> dict[str, str]:
    """Return why this machine cannot make some figures, by figure."""
    why = system_calls.missing()
    return {"2.8": why} if why else {}


def not_shown() -> list[str]:
    """Return a sentence for each kind of pair of Figure 2.6 that this machine does not have."""
    return lacks(places(read_topology().tree, os.sched_getaffinity(0)).keys())


@contextlib.contextmanager
def measured_here(
    seed: int, progress: ProgressCallback, scope: runs.InterferenceScope
) -> Iterator[runs.InterferenceRuns]:
    """Return the measurements of this machine, with a folder on its disk while the context lasts."""
    topology = read_topology()
    by_sharing = places(topology.tree, os.sched_getaffinity(0))
    cache = min(last_level_bytes(topology.tree) or 8 << 20, _CACHE_BYTES_MAX)
    with tempfile.TemporaryDirectory(prefix="dios-repro-") as folder:
        yield runs.InterferenceRuns(
            seed, progress, scope, topology, by_sharing, WorkloadData(seed, cache, Path(folder))
        )


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, quick: bool
) -> Iterator[WrittenFigure]:
    """Make figures except those in ``missing_requirements``, and write each as soon as it is finished.

    ``numbers`` is the result of ``labs.papers.figures.select_figures``, ``out`` the directory, which is
    created, and ``seed`` determines the data of workloads and the crowds. ``progress`` receives progress
    lines. ``quick`` makes small and short runs to check that everything works.

    Raises ``InvalidError`` for a seed below 0, ``DiosError`` if a workload fails, and ``OSError`` if the
    directory cannot be written.
    """
    absent = missing_requirements()
    scope = runs.QUICK if quick else runs.FULL
    with measured_here(seed, progress, scope) as measured:
        makers: dict[str, Callable[[], Figure]] = {
            "2.4": lambda: machine.figure_4(measured),
            "2.5": lambda: machine.figure_5(measured),
            "2.6": lambda: pairs.figure_6(measured),
            "2.7": lambda: crowds.figure_7(measured),
            "2.8": lambda: system_calls.figure_8(measured),
        }
        smaller = smaller_by(runs.QUICK, runs.FULL) if quick else ""
        left = [number for number in numbers if number not in absent]
        yield from make_figures(left, makers, out, seed, smaller=smaller)


def class_slow_downs(seed: int, progress: ProgressCallback, *, quick: bool) -> pairs.PairMatrix:
    """Return the matrix of the programs of CoCo's four classes, on the two processors that share the most.

    Rows and columns are in the order of ``Interference``. On a machine with one processor they share it.
    """
    scope = runs.QUICK if quick else runs.FULL
    with measured_here(seed, progress, scope) as measured:
        near = [kind for kind in measured.places if kind is not Sharing.THREAD]
        kind = near[-1] if near else Sharing.THREAD
        names = tuple(pairs.CLASS_PROGRAMS.values())
        place = measured.places[kind]
        return pairs.measure_pairs(measured.bench, kind, place, names, scope.seconds, scope.rounds, progress)
