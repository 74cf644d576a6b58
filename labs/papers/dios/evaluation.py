"""The figures of chapter 5 of the thesis on DIOS, and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labs.papers.dios import creation, isolation, messages, remote_reads, runs, starts, word_count
from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures, smaller_by

FIGURES: Final = {
    "5.1": "creation of objects, by naming and by type",
    "5.2": "starts of tasks, here and on another node",
    "5.3": "messages between two processes, by size",
    "5.4": "reads of a remote object, by size",
    "nodes": "remote calls and lookups, by number of nodes",
    "5.5": "MapReduce, by workers and nodes",
    "table-5.1": "isolation of tasks, tried",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, quick: bool
) -> Iterator[WrittenFigure]:
    """Make figures on new nodes, and write each as soon as it is finished.

    ``numbers`` is the result of ``labs.papers.figures.select_figures``, ``out`` the directory, which is
    created, and ``seed`` determines the text of 5.5. ``progress`` receives progress lines. ``quick`` makes
    small and short runs to check that everything works.

    Raises ``InvalidError`` for a seed below 0, ``DiosError`` if a node or a task fails, and ``OSError`` if
    the directory cannot be written.
    """
    measured = runs.DiosRuns(seed, progress, runs.QUICK if quick else runs.FULL)
    makers: dict[str, Callable[[], Figure]] = {
        "5.1": lambda: creation.figure_1(measured),
        "5.2": lambda: starts.figure_2(measured),
        "5.3": lambda: messages.figure_3(measured),
        "5.4": lambda: remote_reads.figure_4(measured),
        "nodes": lambda: remote_reads.figure_nodes(measured),
        "5.5": lambda: word_count.figure_5(measured),
        "table-5.1": lambda: isolation.table_1(measured),
    }
    smaller = smaller_by(runs.QUICK, runs.FULL) if quick else ""
    yield from make_figures(numbers, makers, out, seed, smaller=smaller)
