"""The figures of the Firmament evaluation (thesis, chapter 8), and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures
from labs.papers.firmament import green, mix, solver, whare

FIGURES: Final = {
    "8.1": "run times in the cluster mix: two queues, Whare-Map, CoCo",
    "8.1-variants": "variants of Whare-Map in the cluster mix, over three seeds",
    "8.2": "Whare-Map learning good mappings",
    "8.3": "waiting times in the cluster mix",
    "8.4": "cycles per instruction in the cluster mix",
    "8.5": "energy of four approaches, with Table 8.5",
    "8.6": "a service that scales with its load",
    "8.7": "solver run time over an hour of a Google-like workload",
}


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, quick: bool
) -> Iterator[WrittenFigure]:
    """Make figures, and write each as soon as it is finished.

    Args:
        numbers: the result of ``select_figures``.
        out: the directory; it is created.
        seed: the random seed.
        progress: receives progress lines.
        quick: small clusters and short times, to check that everything works.

    Raises:
        InvalidError: the seed is below 0.
        OSError: the directory cannot be written.
    """
    runs = mix.MixRuns(seed, progress, mix.QUICK_S if quick else mix.HOUR_S)
    makers: dict[str, Callable[[], Figure]] = {
        "8.1": lambda: mix.figure_8_1(runs),
        "8.1-variants": lambda: whare.figure_8_1_variants(seed, progress, quick=quick),
        "8.2": lambda: mix.figure_8_2(runs),
        "8.3": lambda: mix.figure_8_3(runs),
        "8.4": lambda: mix.figure_8_4(runs),
        "8.5": lambda: green.figure_8_5(seed, progress, quick=quick),
        "8.6": lambda: green.figure_8_6(seed, progress, quick=quick),
        "8.7": lambda: solver.figure_8_7(seed, progress, quick=quick),
    }
    smaller = (
        f"{mix.QUICK_S:g} s of the mix instead of {mix.HOUR_S:,g}, "
        f"{green.QUICK_STEPS} s of energy instead of {green.STEPS:,} and {green.DAY_STEPS:,}, "
        f"rounds on {solver.QUICK[-1].machines:,} machines instead of {solver.WHOLE.machines:,}"
    )
    return make_figures(numbers, makers, out, seed, smaller=smaller if quick else "")
