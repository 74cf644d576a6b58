"""The result of a run as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from benchmarks.load.phases import Burst, percentile
from benchmarks.load.watch import ProcessorTime

_COLUMNS: Final = (
    *("burst", "machine", "done", "lost", "refused", "twice", "seconds", "per second"),
    *("median", "99th percentile", "longest"),
    *("neighbour: median", "99th percentile", "longest"),
    *("clients", "daemons", "zygotes", "tasks", "coordinator"),
)


class BurstResult(Struct, frozen=True):
    """The figures of one burst; times in milliseconds."""

    name: str
    machine: str
    """Quiet, or busy: every processor has other work."""
    wanted: int
    done: int
    lost: int
    refused: int
    twice: int
    seconds: float
    median: float
    late: float
    longest: float
    neighbour: tuple[float, float, float]
    """The median, the 99th percentile and the longest of a neighbour's calls."""
    used: ProcessorTime
    """Milliseconds of processor for each, by kind of process."""

    @classmethod
    def of(cls, burst: Burst, machine: str) -> BurstResult:
        """Summarise a burst."""
        calls = burst.neighbour.calls
        return cls(
            burst.name,
            machine,
            burst.wanted,
            len(burst.times),
            burst.lost,
            sum(burst.refused.values()) + len(burst.neighbour.refused),
            burst.twice,
            burst.seconds,
            percentile(burst.times, 0.5),
            percentile(burst.times, 0.99),
            max(burst.times, default=0.0),
            (percentile(calls, 0.5), percentile(calls, 0.99), max(calls, default=0.0)),
            ProcessorTime(*(seconds * 1000 / max(1, burst.wanted) for seconds in burst.used)),
        )

    def line(self) -> str:
        """Return a row of the table."""
        median, late, longest = self.neighbour
        return (
            f"| {self.name} | {self.machine} | {self.done} | {self.lost} | {self.refused} | {self.twice} "
            f"| {self.seconds:.1f} | {self.done / max(self.seconds, 1e-9):.0f} | {self.median:.0f} "
            f"| {self.late:.0f} | {self.longest:.0f} | {median:.1f} | {late:.1f} | {longest:.1f} | "
            + " | ".join(f"{each:.2f}" for each in self.used)
            + " |"
        )


def save(rows: Sequence[BurstResult], troubles: Sequence[str], about: str, path: Path) -> None:
    """Write the table."""
    text = (
        f"`make load`, {about}. Three nodes on this machine, with one scheduler. All calls of a burst are "
        "made at once. Every trivial run writes its number to a file, in which each number must stand once. "
        "Each object is read back. In the rows with a busy machine, every processor has a program that only "
        "computes. A neighbour on the second node makes short calls with pauses of 10 ms meanwhile. Times "
        "are in milliseconds. The last five columns are processor time for each run, client or object, by "
        "kind of process."
    )
    lines = [
        "# Bursts on a cluster of three nodes",
        "",
        *textwrap.wrap(text, 100),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|" + "---:|" * 17,
        *(row.line() for row in rows),
        "",
        *(troubles or ["Nothing was lost, refused, or done twice."]),
        "",
    ]
    path.write_text("\n".join(lines).replace("\n\n\n", "\n\n"), encoding="utf-8")


def circumstances(date: str, machine: str) -> str:
    """Return the conditions of a run as text."""
    return f"{date}: {machine}"
