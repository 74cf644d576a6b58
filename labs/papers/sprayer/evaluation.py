"""The figures of the Sprayer evaluation (thesis, sections 3.4 and 3.5), and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labs.papers.figures import Figure, ProgressCallback, WrittenFigure, make_figures, smaller_by
from labs.papers.sprayer import connections, delays, quic, rates, runs
from labs.papers.sprayer.lab import quic as quic_lab
from labs.papers.sprayer.lab import tcp
from labs.papers.sprayer.lab.namespaces import NotHereError
from labs.papers.sprayer.lab.veth_pairs import VethPairs

FIGURES: Final = {
    "3.6a": "processed frames of one flow, by cycles per frame",
    "3.6b": "throughput of one TCP connection, by cycles per packet",
    "3.7a": "processed frames, by number of flows",
    "3.7b": "throughput of TCP connections, by their number",
    "3.8": "99th percentile of round trips at up to 70 % load",
    "3.9": "Jain's index of connections, by their number",
    "quic": "order and migration of one QUIC connection, sprayed behind its handshake",
}
_BY_TCP: Final = ("3.6b", "3.7b", "3.9")
_IN_MEMORY: Final = ("3.6a", "3.7a")


def missing_requirements() -> dict[str, str]:
    """Return why this machine cannot make some figures, by figure, or ``cables`` for namespaces."""
    try:
        VethPairs().close()
    except NotHereError as error:
        return {
            "cables": error.message,
            **{figure: error.message for figure in FIGURES if figure not in _IN_MEMORY},
        }
    lacks = dict.fromkeys(_BY_TCP, tcp.missing()) if tcp.missing() else {}
    return {**lacks, "quic": quic_lab.missing()} if quic_lab.missing() else lacks


def reproduce(
    numbers: list[str], out: Path, seed: int, progress: ProgressCallback, *, seeds: int | None, quick: bool
) -> Iterator[WrittenFigure]:
    """Make figures except those in ``missing_requirements``, and write each as soon as it is finished.

    ``numbers`` is the result of ``labs.papers.figures.select_figures``, ``out`` the directory, which is
    created, and ``seed`` the first of ``seeds`` seeds (None: the number in ``runs``) of addresses, ports,
    payload and the hash for steering. ``progress`` receives progress lines. ``quick`` makes small and short
    runs to check that everything works.

    Raises ``InvalidError`` for a seed below 0, ``NotHereError`` if no figure can be made, and ``OSError`` if
    the directory cannot be written.
    """
    lacks = missing_requirements()
    left = [number for number in numbers if number not in lacks]
    if not left:
        raise NotHereError(lacks[numbers[0]])
    scope = runs.QUICK if quick else runs.FULL
    scope = scope if seeds is None else scope._replace(seeds=seeds)
    veth_pairs = None if "cables" in lacks else VethPairs()
    try:
        progress("loading the kernels; the first time they are compiled, which takes a minute")
        shared_runs = runs.SprayerRuns(seed, progress, scope, veth_pairs)
        makers: dict[str, Callable[[], Figure]] = {
            "3.6a": lambda: rates.figure_6a(shared_runs),
            "3.6b": lambda: connections.figure_6b(shared_runs),
            "3.7a": lambda: rates.figure_7a(shared_runs),
            "3.7b": lambda: connections.figure_7b(shared_runs),
            "3.8": lambda: delays.figure_8(shared_runs),
            "3.9": lambda: connections.figure_9(shared_runs),
            "quic": lambda: quic.figure_quic(shared_runs),
        }
        smaller = smaller_by(runs.QUICK, runs.FULL) if quick else ""
        yield from make_figures(left, makers, out, seed, smaller=smaller)
    finally:
        if veth_pairs:
            veth_pairs.close()
