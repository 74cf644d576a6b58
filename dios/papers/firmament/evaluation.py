"""Which figures there are, and making them one after the other (thesis ch. 8).

For: ``dios repro firmament`` and tests. Not for: what is in a figure (``mix``, ``green``, ``solver``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.papers.figures import Figure, Made, Told, make
from dios.papers.firmament import green, mix, solver

FIGURES: Final = {
    "8.1": "runtimes in the cluster mix: two queues, Whare-Map, CoCo",
    "8.2": "Whare-Map learning good mappings",
    "8.3": "waiting times in the cluster mix",
    "8.4": "cycles for each instruction in the cluster mix",
    "8.5": "energy of four approaches, with Table 8.5",
    "8.6": "a service that scales with its load",
    "8.7": "solver run time over an hour of a Google-like workload",
}


def reproduce(numbers: list[str], out: Path, seed: int, told: Told, *, quick: bool) -> Iterator[Made]:
    """Make figures and write them, each as soon as it is there.

    Args:
        numbers: from ``chosen``.
        out: the directory; it is made.
        seed: of all that is random.
        told: takes lines about what is being done.
        quick: small clusters and short times: whether everything works, not what comes out.

    Raises:
        InvalidError: a seed below 0.
        OSError: the directory cannot be written.
    """
    runs = mix.MixRuns(seed, told, mix.QUICK_S if quick else mix.HOUR_S)
    makers: dict[str, Callable[[], Figure]] = {
        "8.1": lambda: mix.figure_8_1(runs),
        "8.2": lambda: mix.figure_8_2(runs),
        "8.3": lambda: mix.figure_8_3(runs),
        "8.4": lambda: mix.figure_8_4(runs),
        "8.5": lambda: green.figure_8_5(seed, told, quick=quick),
        "8.6": lambda: green.figure_8_6(seed, told, quick=quick),
        "8.7": lambda: solver.figure_8_7(seed, told, quick=quick),
    }
    return make(numbers, makers, out, seed)
