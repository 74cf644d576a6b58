"""The result of a run as a table."""

from __future__ import annotations

import os
import statistics
import textwrap
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from labs.benchmarks.neighbours.innocent import Times
from labs.benchmarks.neighbours.kinds import KINDS

NONE: Final = "none"
TOGETHER: Final = "together"
_TIMES: Final = "median | 99th percentile | longest"


class KindResult(Struct, frozen=True):
    """The calls of the innocent client next to one kind, in milliseconds."""

    kind: str
    calls: int
    median: float
    late: float
    """The 99th percentile."""
    longest: float
    runs: int
    run_median: float
    run_longest: float
    refused: dict[str, int]
    load: float

    @classmethod
    def of(cls, kind: str, times: Times, load: float) -> Self:
        """Summarise times."""
        calls, runs = sorted(times.calls), sorted(times.runs)
        return cls(
            kind,
            len(calls),
            statistics.median(calls or [0.0]),
            calls[len(calls) * 99 // 100] if calls else 0.0,
            max(calls, default=0.0),
            len(runs),
            statistics.median(runs or [0.0]),
            max(runs, default=0.0),
            dict(times.refused),
            load,
        )

    def line(self) -> str:
        """Return a line for a terminal."""
        return (
            f"{self.kind:22} {self.calls:5} calls "
            f"{self.median:8.1f} {self.late:8.1f} {self.longest:8.1f} ms  "
            f"{self.runs:3} runs {self.run_median:7.0f} {self.run_longest:7.0f} ms"
            f"{'  refused: ' + str(self.refused) if self.refused else ''}"
        )

    def row(self) -> str:
        """Return a row of the table."""
        text = {NONE: "none", TOGETHER: "one client of each kind, all together"}.get(self.kind, "")
        text = text or KINDS[self.kind].text
        return (
            f"| {text} | {self.calls} | {self.median:.1f} | {self.late:.1f} | {self.longest:.1f} "
            f"| {self.runs} | {self.run_median:.0f} | {self.run_longest:.0f} "
            f"| {sum(self.refused.values()) or '-'} | {self.load:.1f} |"
        )


class Circumstances(Struct, frozen=True):
    """The conditions of a run that its table names."""

    date: str
    machine: str
    seconds: float
    clients: int
    other_user: bool
    limits: str


def save(rows: list[KindResult], troubles: list[str], about: Circumstances, path: Path) -> None:
    """Write the table."""
    who = "another user" if about.other_user else "the same user"
    text = (
        f"`make neighbours SECONDS={about.seconds:g}`, {about.date}: {about.machine}.\n\n"
        "A client of the node's own user makes short calls one after the other, with pauses of 5 ms: "
        "`stat`, and now and then an object is created, written, read and deleted. Once a second it runs "
        "a task that ends at once, and waits for its end. Meanwhile "
        f"{about.clients} clients of one kind, of {who} of the machine, take as much of the node as they "
        "can; in the row of all kinds together it is one client of each. Each row has a node of its own "
        f"and lasts {about.seconds:g} s. Times are in milliseconds. The load is that of the machine over a "
        "minute: with the work of these neighbours, of those before, and of any other programs. The rows "
        f"without neighbours show how busy the machine was with other work (load {rows[0].load:.1f} at the "
        f"beginning, on {os.cpu_count()} processors). Limits of each user: `{about.limits}`."
    )
    lines = [
        "# An innocent client next to greedy neighbours",
        "",
        *(textwrap.fill(part, 100, break_on_hyphens=False) for part in text.split("\n")),
        "",
        f"| neighbours | calls | {_TIMES} | runs | median | longest | refused | load |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(row.row() for row in rows),
        "",
    ]
    refused = [(row.kind, text, count) for row in rows for text, count in row.refused.items()]
    if refused:
        lines += ["Refused calls of the innocent client:", ""]
        lines += [f"- {kind}: {count} times `{text}`" for kind, text, count in refused]
        lines.append("")
    lines += (
        ["Findings:", "", *(f"- {text}" for text in troubles), ""]
        if troubles
        else [
            "After each kind, its sessions, waiting calls and buffers were gone.",
            "",
        ]
    )
    path.write_text("\n".join(lines))
