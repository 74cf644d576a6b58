"""The figures of the DC-DRF paper's evaluation (section 5), and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labs.papers.dc_drf import changes, deadlines, demand_profiles, threads
from labs.papers.dc_drf.clouds import LARGE, MEDIUM, QUICK, Clouds
from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures, smaller_by

FIGURES: Final = {
    "3": "rounds and time of Algorithm 1, by profile and by size",
    "5": "time of an interval by number of threads",
    "6": "configurations of precision and threads",
    "7": "rounds and deviation, by profile",
    "8": "utilisation by deadline, with Figures 9 (fairness) and 10 (epsilon)",
    "11": "changing demands and deadlines",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, quick: bool, large: bool
) -> Iterator[WrittenFigure]:
    """Make figures, and write each as soon as it is finished.

    ``numbers`` is the result of ``labs.papers.figures.select_figures``, ``out`` the directory, which is
    created, ``seed`` the seed of the demands. ``progress`` receives progress lines. ``quick`` makes small and
    short runs to check that everything works; ``large`` uses the paper's sizes.

    Raises ``InvalidError`` for a seed below 0, and ``OSError`` if the directory cannot be written.
    """
    clouds = Clouds(seed, progress, QUICK if quick else LARGE if large else MEDIUM)
    makers: dict[str, Callable[[], Figure]] = {
        "3": lambda: demand_profiles.figure_3(clouds),
        "5": lambda: threads.figure_5(clouds),
        "6": lambda: threads.figure_6(clouds),
        "7": lambda: demand_profiles.figure_7(clouds),
        "8": lambda: deadlines.figure_8(clouds),
        "11": lambda: changes.figure_11(clouds),
    }
    smaller = smaller_by(QUICK, MEDIUM) if quick else ""
    return make_figures(numbers, makers, out, seed, smaller=smaller)
