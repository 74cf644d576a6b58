"""The result of a run as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from labs.benchmarks.load.phases import Burst, percentile
from labs.benchmarks.load.watch import ProcessorTime

_COLUMNS: Final = (
    *("burst", "machine", "done", "lost", "refused", "twice", "seconds", "per second"),
    *("median", "99th percentile", "longest"),
    *("neighbour: median", "99th percentile", "longest"),
    *("echo: 99th percentile", "longest", "ratio at the 99th percentile"),
    *("clients", "daemons", "zygotes", "tasks", "coordinator"),
)
_RUNS_PER_S: Final = 300.0
_COORDINATOR_MS: Final = 0.3
_FIRST_MS: Final = 1000.0
_NEIGHBOUR_MS: Final = 20.0


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
    echo: tuple[float, float]
    """The 99th percentile and the longest of its echoes: a byte to another process and back."""
    used: ProcessorTime
    """Milliseconds of processor for each, by kind of process."""
    is_first: bool = False
    """True for the burst in which the first runs of a long queue count."""
    is_runs: bool = False
    """True for the burst of trivial runs."""

    @classmethod
    def of(cls, burst: Burst, machine: str) -> BurstResult:
        """Summarise a burst."""
        calls, echoes = burst.neighbour.calls, burst.neighbour.echoes
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
            (percentile(echoes, 0.99), max(echoes, default=0.0)),
            ProcessorTime(*(seconds * 1000 / max(1, burst.wanted) for seconds in burst.used)),
            is_first=burst.name.startswith("first"),
            is_runs=burst.name == "trivial runs",
        )

    def line(self) -> str:
        """Return a row of the table."""
        median, late, longest = self.neighbour
        rate = self.done / max(self.seconds, 1e-9)
        used = [f"{amount:.2f}" for amount in self.used]
        if self.is_runs:
            used[-1] = _judged(self.used.coordinator, _COORDINATOR_MS, digits=2)
        cells = (
            self.name,
            self.machine,
            f"{self.done} of {self.wanted}",
            *(_judged(count, 0) for count in (self.lost, self.refused, self.twice)),
            f"{self.seconds:.1f}",
            _judged(rate, _RUNS_PER_S, below=False) if self.is_runs else f"{rate:.0f}",
            f"{self.median:.0f}",
            f"{self.late:.0f}",
            _judged(self.longest, _FIRST_MS) if self.is_first else f"{self.longest:.0f}",
            f"{median:.1f}",
            _judged(late, _NEIGHBOUR_MS, digits=1),
            _judged(longest, _NEIGHBOUR_MS, digits=1),
            *(f"{delay:.1f}" for delay in self.echo),
            f"{late / self.echo[0]:.1f}",
            *used,
        )
        return f"| {' | '.join(cells)} |"


def _judged(value: float, goal: float, *, digits: int = 0, below: bool = True) -> str:
    """Return a figure with its goal, and if it meets the goal."""
    is_met = value <= goal if below else value >= goal
    sign = "" if not goal else "at most " if below else "at least "
    return f"{value:.{digits}f} (goal {sign}{goal:g}: {'met' if is_met else '**missed**'})"


def save(rows: Sequence[BurstResult], troubles: Sequence[str], about: str, path: Path) -> None:
    """Write the table."""
    text = (
        f"{about}. Three nodes on this machine, with one scheduler. All calls of a burst are "
        "made at once. Every trivial run writes its number to a file, in which each number must stand once. "
        "Each object is read back. In the rows with a busy machine, every processor has a program that only "
        "computes. A neighbour, a process of its own, makes short calls on the second node meanwhile. After "
        "each call and a pause of 10 ms it sends one byte to another process and back. This echo has nothing "
        "to do with a node: it shows how late the machine itself is. Times are in milliseconds. The last "
        "five columns are processor time for each run, client or object, by kind of process. A figure with a "
        "goal says if the goal is met, which is meant for a machine with nothing else to do. "
        "[Processor time of a trivial run](load-costs.md) has profiles of bursts."
    )
    lines = [
        "# Bursts on a cluster of three nodes",
        "",
        *textwrap.wrap(text, 100),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|" + "---:|" * 20,
        *(row.line() for row in rows),
        "",
        *(troubles or ["Nothing was lost, refused, or done twice."]),
        "",
    ]
    path.write_text("\n".join(lines).replace("\n\n\n", "\n\n"), encoding="utf-8")


def circumstances(command: str, date: str, machine: str) -> str:
    """Return the conditions of a run as text."""
    return f"`{command}`, {date}: {machine}"
