"""The SDRF paper's evaluation (section VII) on made-up months: which figures there are, and making them.

For: ``dios repro sdrf`` and tests. Not for: what is in a figure (``waits``, ``events``,
``spike``, ``tree_cost``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.papers.figures import Figure, Made, Told, make
from dios.papers.sdrf import events, months, spike, tree_cost, waits

FIGURES: Final = {
    "4": "a spike beside somebody who is always there, with Figure 1",
    "5": "waiting of every user, by discount factor and load",
    "6": "tasks that users complete",
    "7": "events of the live tree, by discount factor and load",
    "tree": "what a decision costs: the live tree, a heap made anew, compiled",
}


def reproduce(numbers: list[str], out: Path, seed: int, told: Told, *, quick: bool) -> Iterator[Made]:
    """Make figures and write them, each as soon as it is there.

    ``numbers``: from ``dios.papers.figures.chosen``; ``out``: the directory, which is made; ``seed``: the
    first of
    several; ``told`` takes lines about what is being done; ``quick``: small and short, whether it works.

    Raises ``InvalidError`` for a seed below 0, ``OSError`` where the directory cannot be written.
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
