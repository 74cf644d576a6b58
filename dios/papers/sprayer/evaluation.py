"""Sprayer's evaluation (thesis section 3.4): which figures there are, and making them.

For: ``dios repro sprayer`` and tests. Not for: what is in a figure (``rates``, ``connections``, ``delays``),
or measuring (``dios.papers.sprayer.lab``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dios.papers.figures import Figure, Made, Told, make
from dios.papers.sprayer import connections, delays, rates, runs
from dios.papers.sprayer.lab import tcp
from dios.papers.sprayer.lab.cables import Cables
from dios.papers.sprayer.lab.spaces import NotHereError

FIGURES: Final = {
    "3.6a": "frames that are processed of one flow, by cycles for each",
    "3.6b": "what one connection of TCP carries, by cycles for each packet",
    "3.7a": "frames that are processed, by number of flows",
    "3.7b": "what connections of TCP carry, by their number",
    "3.8": "99th percentile of round trips at up to 70 % load",
    "3.9": "Jain's index of connections, by their number",
}
_BY_TCP: Final = ("3.6b", "3.7b", "3.9")
_IN_MEMORY: Final = ("3.6a", "3.7a")


def lacking() -> dict[str, str]:
    """What this machine cannot do, and why: by figure, or by ``cables`` for all that needs namespaces."""
    try:
        Cables().close()
    except NotHereError as error:
        return {
            "cables": error.message,
            **{figure: error.message for figure in FIGURES if figure not in _IN_MEMORY},
        }
    return dict.fromkeys(_BY_TCP, tcp.missing()) if tcp.missing() else {}


def reproduce(
    numbers: list[str], out: Path, seed: int, told: Told, *, seeds: int | None, quick: bool
) -> Iterator[Made]:
    """Make figures and write them, each as soon as it is there; those that ``lacking`` names are left out.

    ``numbers``: from ``dios.papers.figures.chosen``; ``out``: the directory, which is made; ``seed``: the
    first of
    ``seeds`` (None: as many as ``fields`` says), of addresses, ports, payload and the hash that steers;
    ``told`` takes lines about what is being done; ``quick``: small and short, whether it works.

    Raises ``InvalidError`` for a seed below 0, ``NotHereError`` if no figure is left, ``OSError`` where the
    directory cannot be written.
    """
    lacks = lacking()
    left = [number for number in numbers if number not in lacks]
    if not left:
        raise NotHereError(lacks[numbers[0]])
    scope = runs.QUICK if quick else runs.FULL
    scope = scope if seeds is None else scope._replace(seeds=seeds)
    cables = None if "cables" in lacks else Cables()
    try:
        told("loading the kernels; the first time they are compiled, which takes a minute")
        played = runs.Fields(seed, told, scope, cables)
        makers: dict[str, Callable[[], Figure]] = {
            "3.6a": lambda: rates.figure_6a(played),
            "3.6b": lambda: connections.figure_6b(played),
            "3.7a": lambda: rates.figure_7a(played),
            "3.7b": lambda: connections.figure_7b(played),
            "3.8": lambda: delays.figure_8(played),
            "3.9": lambda: connections.figure_9(played),
        }
        yield from make(left, makers, out, seed)
    finally:
        if cables:
            cables.close()
