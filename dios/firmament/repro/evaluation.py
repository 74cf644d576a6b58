"""Which figures there are, and making them one after the other (thesis ch. 8).

For: ``dios repro firmament`` and tests. Not for: what is in a figure (``mix``, ``green``, ``solver``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dios import pictures
from dios.errors import InvalidError
from dios.figures import Figure, write
from dios.firmament.repro import green, mix, solver

Told = Callable[[str], None]

FIGURES: Final = {
    "8.1": "runtimes in the cluster mix: two queues, Whare-Map, CoCo",
    "8.2": "Whare-Map learning good mappings",
    "8.3": "waiting times in the cluster mix",
    "8.4": "cycles for each instruction in the cluster mix",
    "8.5": "energy of four approaches, with Table 8.5",
    "8.6": "a service that scales with its load",
    "8.7": "solver run time over an hour of a Google-like workload",
}
ALL: Final = "all"


class Made(NamedTuple):
    """A figure and its files."""

    figure: Figure
    written: list[Path]


def chosen(wanted: list[str]) -> list[str]:
    """The figures meant, in the thesis' order.

    Raises:
        InvalidError: there is no such figure; the message lists those that there are.
    """
    numbers = [each.lower().removeprefix("figure").strip() for each in wanted] or [ALL]
    for each in numbers:
        if each not in FIGURES and each != ALL:
            raise InvalidError(f"there is no figure {each!r}; there are {', '.join(FIGURES)} and {ALL}")
    return [each for each in FIGURES if ALL in numbers or each in numbers]


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
    if seed < 0:
        raise InvalidError(f"the seed is {seed}; it must be 0 or more")
    # Before hours of simulation, not after.
    out.mkdir(parents=True, exist_ok=True)
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
    for number in numbers:
        figure = makers[number]()
        drawn = []
        if pictures.can_draw():
            for picture in figure.pictures:
                drawn.append(f"figure-{picture.name}.png")
                pictures.draw(picture, out / drawn[-1])
        written = write(figure, out, drawn)
        yield Made(figure, [*written, *(out / name for name in drawn)])
