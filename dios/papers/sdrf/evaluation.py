"""The figures of the SDRF paper's evaluation (section VII), and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.papers.figures import Figure, Made, Told, make
from dios.papers.sdrf import events, months, spike, tree_cost, waits

FIGURES: Final = {
    "4": "a spike next to a user who is always active, with Figure 1",
    "5": "waiting of every user, by discount factor and load",
    "6": "tasks that users complete",
    "7": "events of the live tree, by discount factor and load",
    "tree": "cost of a decision: the live tree, a new heap, compiled code",
}


def reproduce(numbers: list[str], out: Path, seed: int, told: Told, *, quick: bool) -> Iterator[Made]:
    """Make figures, and write each as soon as it is finished.

    ``numbers`` is the result of ``dios.papers.figures.chosen``, ``out`` the directory, which is created, and
    ``seed`` the first of several seeds. ``told`` receives progress lines. ``quick`` makes small and short
    runs to check that everything works.

    Raises ``InvalidError`` for a seed below 0, and ``OSError`` if the directory cannot be written.
    """
    played = months.Months(seed, told, months.QUICK if quick else months.FULL)
    makers: dict[str, Callable[[], Figure]] = {
        "4": lambda: spike.figure_4(seed, told, quick=quick),
        "5": lambda: waits.figure_5(played),
        "6": lambda: waits.figure_6(played),
        "7": lambda: events.figure_7(played),
        "tree": lambda: tree_cost.figure_tree(seed, told, quick=quick),
    }
    return make(numbers, makers, out, seed)
