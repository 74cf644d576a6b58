"""The DC-DRF paper's evaluation (section 5) at sizes of one's choice: which figures there are, making them.

For: ``dios repro dc-drf`` and tests. Not for: what is in a figure (``rounds``, ``deadlines``, ``changes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.papers.dc_drf import changes, deadlines, demand_profiles
from dios.papers.dc_drf.clouds import LARGE, MEDIUM, QUICK, Clouds
from dios.papers.figures import Figure, Made, Told, make

FIGURES: Final = {
    "3": "rounds and time of Algorithm 1, by profile and by size",
    "7": "rounds and deviation by profile",
    "8": "utilisation by deadline, with Figures 9 (fairness) and 10 (epsilon)",
    "11": "demands and deadlines that change",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, told: Told, *, quick: bool, large: bool
) -> Iterator[Made]:
    """Make figures and write them, each as soon as it is there.

    ``numbers``: from ``dios.papers.figures.chosen``; ``out``: the directory, which is made; ``seed``: of the
    demands; ``told`` takes lines about what is being done; ``quick``: small and short, whether it works;
    ``large``: the paper's sizes.

    Raises ``InvalidError`` for a seed below 0, ``OSError`` where the directory cannot be written.
    """
    clouds = Clouds(seed, told, QUICK if quick else LARGE if large else MEDIUM)
    makers: dict[str, Callable[[], Figure]] = {
        "3": lambda: demand_profiles.figure_3(clouds),
        "7": lambda: demand_profiles.figure_7(clouds),
        "8": lambda: deadlines.figure_8(clouds),
        "11": lambda: changes.figure_11(clouds),
    }
    return make(numbers, makers, out, seed)
