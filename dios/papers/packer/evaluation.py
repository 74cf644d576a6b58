"""Packer's evaluation (section III) on made-up jobs: which figures there are, and making them.

For: ``dios repro packer`` and tests. Not for: what is in a figure (``admitted``, ``knowledge``,
``decisions``, ``one_server``), or playing jobs (``fields``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.papers.figures import Figure, Made, Told, make
from dios.papers.packer import admitted, decisions, knowledge, one_server, runs

FIGURES: Final = {
    "3": "tasks that are admitted",
    "4": "utilisation of the five resources",
    "5": "revenue",
    "6": "what a decision costs",
    "7": "a task's rate and guarantee over time, on one server",
    "8": "all rates of that server's link",
    "time": "what is due to knowing demands over time, and what to the score",
    "bandwidth": "tasks that are admitted, by what edges need",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, told: Told, *, seeds: int | None, quick: bool
) -> Iterator[Made]:
    """Make figures and write them, each as soon as it is there.

    ``numbers``: from ``dios.papers.figures.chosen``; ``out``: the directory, which is made; ``seed``: the
    first of
    ``seeds`` (None: as many as ``fields`` says); ``told`` takes lines about what is being done; ``quick``:
    small and short, whether it works.

    Raises ``InvalidError`` for a seed below 0, ``OSError`` where the directory cannot be written.
    """
    scope = runs.QUICK if quick else runs.FULL
    played = runs.Fields(seed, told, scope if seeds is None else scope._replace(seeds=seeds))
    servers = one_server.Watch(played)
    makers: dict[str, Callable[[], Figure]] = {
        "3": lambda: admitted.figure_3(played),
        "4": lambda: admitted.figure_4(played),
        "5": lambda: admitted.figure_5(played),
        "6": lambda: decisions.figure_6(played),
        "7": lambda: one_server.figure_7(servers),
        "8": lambda: one_server.figure_8(servers),
        "time": lambda: knowledge.figure_time(played),
        "bandwidth": lambda: knowledge.figure_bandwidth(played),
    }
    return make(numbers, makers, out, seed)
