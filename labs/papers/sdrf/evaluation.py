"""The figures of the SDRF paper's evaluation (section VII), and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures, smaller_by
from labs.papers.sdrf import events, months, spike, tree_cost, waits

FIGURES: Final = {
    "4": "a spike next to a user who is always active, with Figure 1",
    "5": "waiting of every user, by discount factor and load",
    "6": "tasks that users complete",
    "7": "events of the live tree, by discount factor and load",
    "tree": "cost of a decision: the live tree, a new heap, compiled code",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, quick: bool
) -> Iterator[WrittenFigure]:
    """Make figures, and write each as soon as it is finished.

    ``numbers`` is the result of ``labs.papers.figures.select_figures``, ``out`` the directory, which is
    created, and ``seed`` the first of several seeds. ``progress`` receives progress lines. ``quick`` makes
    small and short runs to check that everything works.

    Raises ``InvalidError`` for a seed below 0, and ``OSError`` if the directory cannot be written.
    """
    shared_runs = months.Months(seed, progress, months.QUICK if quick else months.FULL)
    makers: dict[str, Callable[[], Figure]] = {
        "4": lambda: spike.figure_4(seed, progress, quick=quick),
        "5": lambda: waits.figure_5(shared_runs),
        "6": lambda: waits.figure_6(shared_runs),
        "7": lambda: events.figure_7(shared_runs),
        "tree": lambda: tree_cost.figure_tree(seed, progress, quick=quick),
    }
    smaller = smaller_by(months.QUICK, months.FULL) if quick else ""
    return make_figures(numbers, makers, out, seed, smaller=smaller)
