"""The sizes of the measurements of chapter 5, and the parts that all its figures share."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from dios.limits import KIB, MIB
from labs.papers.figures import Cell, Figure, FigureTable, ProgressCallback, PublishedClaim
from labs.plotting import Picture

FAMILY: Final = "dios"
clock = time.perf_counter_ns
"""CLOCK_MONOTONIC in nanoseconds, equal in all processes of the machine."""

TIME_COLUMNS: Final = ("1 %", "25 %", "median", "75 %", "99 %", "max")


class DiosScope(NamedTuple):
    """The extent of the measurements."""

    creations: int
    """The number of objects of each kind (Figure 5.1)."""
    starts: int
    """The number of tasks of DIOS (Figure 5.2)."""
    other_starts: int
    """The number of tasks of each other system."""
    spin_ms: int
    """The time for which each task runs."""
    message_sizes: tuple[int, ...]
    messages: int
    """The largest number of messages of one size (Figure 5.3)."""
    message_bytes: int
    """The largest number of bytes of one size."""
    repetitions: int
    read_sizes: tuple[int, ...]
    reads: int
    """The largest number of reads of one size (Figure 5.4)."""
    nodes: tuple[int, ...]
    """The sizes of clusters for calls and lookups."""
    lookups: int
    words: int
    """The number of words of the text (Figure 5.5)."""
    job_nodes: tuple[int, ...]
    job_repetitions: int
    quick: bool


FULL: Final = DiosScope(
    creations=1024,
    starts=5000,
    other_starts=500,
    spin_ms=10,
    message_sizes=(16, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB),
    messages=100_000,
    message_bytes=200_000_000,
    repetitions=3,
    read_sizes=(4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB),
    reads=500,
    nodes=(2, 4, 8, 16),
    lookups=40,
    words=5_000_000,
    job_nodes=(1, 2, 4),
    job_repetitions=3,
    quick=False,
)
QUICK: Final = DiosScope(
    creations=32,
    starts=8,
    other_starts=4,
    spin_ms=1,
    message_sizes=(64, 4 * KIB),
    messages=1000,
    message_bytes=4_000_000,
    repetitions=1,
    read_sizes=(4 * KIB, 2 * MIB),
    reads=10,
    nodes=(2,),
    lookups=4,
    words=50_000,
    job_nodes=(1,),
    job_repetitions=1,
    quick=True,
)


@dataclass(frozen=True)
class DiosRuns:
    """The seed and the extent of one run of the command."""

    seed: int
    progress: ProgressCallback
    scope: DiosScope

    @property
    def processors(self) -> int:
        """The number of processors that this process may use."""
        return len(os.sched_getaffinity(0))

    def figure(
        self,
        number: str,
        title: str,
        sheets: Sequence[FigureTable],
        claims: Sequence[PublishedClaim],
        pictures: Sequence[Picture] = (),
        notes: Sequence[str] = (),
    ) -> Figure:
        """Return a figure with the settings of this run."""
        return Figure(
            number=number,
            title=title,
            seed=self.seed,
            quick=self.scope.quick,
            setting=(
                (
                    "machine",
                    f"{self.processors} processors, load {os.getloadavg()[0]:.1f} when it was finished",
                ),
                ("thesis' machines", "28 with 12 threads at 2.4 GHz each, 10 Gbit/s between them"),
                ("seed", str(self.seed)),
            ),
            sheets=tuple(sheets),
            claims=tuple(claims),
            pictures=tuple(pictures),
            notes=tuple(notes),
            measured=True,
            family=FAMILY,
        )


def microseconds(work: Callable[[], object], count: int) -> list[float]:
    """Return the microseconds of each of ``count`` calls of ``work``."""
    taken = []
    for _ in range(count):
        before = clock()
        work()
        taken.append((clock() - before) / 1e3)
    return taken


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    before = clock()
    work()
    return (clock() - before) / 1e9


def time_cells(values: Sequence[float]) -> tuple[Cell, ...]:
    """Return the cells under ``TIME_COLUMNS``."""
    ordered = sorted(values)
    at = partial(_at, ordered)
    return (at(0.01), at(0.25), statistics.median(ordered), at(0.75), at(0.99), ordered[-1])


def _at(ordered: Sequence[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def size_text(size: int) -> str:
    """Return a number of bytes as text: ``64 B``, ``4 KiB``, ``2 MiB``."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
