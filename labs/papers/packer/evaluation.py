"""The figures of the Packer paper's evaluation (section III), and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures, smaller_by
from labs.papers.packer import admitted, decisions, knowledge, one_server, runs

FIGURES: Final = {
    "3": "admitted tasks",
    "4": "utilisation of the five resources",
    "5": "revenue",
    "6": "cost of a decision",
    "7": "a task's rate and guarantee over time, on one server",
    "8": "all rates of that server's link",
    "time": "effect of knowing demands over time, and effect of the score",
    "bandwidth": "admitted tasks, by the bandwidth of edges",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, seeds: int | None, quick: bool
) -> Iterator[WrittenFigure]:
    """Make figures, and write each as soon as it is finished.

    ``numbers`` is the result of ``labs.papers.figures.select_figures``, ``out`` the directory, which is
    created, and ``seed`` the first of ``seeds`` seeds (None: the number in ``runs``). ``progress`` receives
    progress lines. ``quick`` makes small and short runs to check that everything works.

    Raises ``InvalidError`` for a seed below 0, and ``OSError`` if the directory cannot be written.
    """
    scope = runs.QUICK if quick else runs.FULL
    shared_runs = runs.PackerRuns(seed, progress, scope if seeds is None else scope._replace(seeds=seeds))
    servers = one_server.BusiestServers(shared_runs)
    makers: dict[str, Callable[[], Figure]] = {
        "3": lambda: admitted.figure_3(shared_runs),
        "4": lambda: admitted.figure_4(shared_runs),
        "5": lambda: admitted.figure_5(shared_runs),
        "6": lambda: decisions.figure_6(shared_runs),
        "7": lambda: one_server.figure_7(servers),
        "8": lambda: one_server.figure_8(servers),
        "time": lambda: knowledge.figure_time(shared_runs),
        "bandwidth": lambda: knowledge.figure_bandwidth(shared_runs),
    }
    smaller = smaller_by(runs.QUICK, runs.FULL) if quick else ""
    return make_figures(numbers, makers, out, seed, smaller=smaller)
