"""The results of a run, as Markdown and as JSON.

A missing figure is shown as missing, with its reason.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import msgspec

PACKAGES: Final = (
    *("dios-space", "trio", "msgspec", "msgpack", "lmdb"),
    *("ray", "redis", "distributed", "loky", "duckdb", "polars", "numpy", "pyarrow", "pyzmq"),
)


class Goal(msgspec.Struct, frozen=True):
    """A goal; ``met`` is None if it could not be judged in this run."""

    text: str
    met: bool | None = None


class Row(msgspec.Struct, frozen=True):
    """One row of the table: our result, the usual alternative, and their ratio.

    ``ratio_text`` explains the ratio.
    """

    subject: str = msgspec.field(name="what")
    ours: str
    peer: str
    ratio: str = ""
    least: Goal = Goal("")
    wanted: Goal = Goal("")
    note: str = ""


class Figure(msgspec.Struct, frozen=True):
    """One measured number, for the complete list and for programs."""

    name: str
    value: float
    unit: str


class Section(msgspec.Struct):
    """The results of one section; ``trouble`` lists the measurements that failed, with reasons."""

    name: str
    rows: list[Row] = []
    figures: list[Figure] = []
    trouble: list[str] = []
    seconds: float = 0.0
    date: str = ""

    def figure(self, name: str, value: float, unit: str) -> float:
        """Record a number and return it; a missing number is not recorded."""
        if value == value:  # noqa: PLR0124 - NaN
            self.figures.append(Figure(name, value, unit))
        return value


class Report(msgspec.Struct):
    """One run."""

    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    sections: list[Section] = []
    format: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1


def begin() -> Report:
    """Return an empty report with a description of the machine, without host name and paths."""
    return Report(now(), _machine(), _versions())


def now() -> str:
    """Return the current time, to the minute."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _machine() -> dict[str, str]:
    model = "unknown"
    memory = 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory = int(line.split()[1])
    return {
        "kernel": platform.release(),
        "processor": model,
        "processors": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**20:.0f} GiB",
        "python": platform.python_version(),
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "user": "root" if os.geteuid() == 0 else "ordinary",
    }


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def save(report: Report, markdown: Path, json: Path) -> None:
    """Write both formats."""
    markdown.parent.mkdir(parents=True, exist_ok=True)
    markdown.write_text(as_markdown(report))
    json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def load(path: Path) -> Report | None:
    """Return an earlier report, or None if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def as_markdown(report: Report) -> str:
    """Return the whole report as a page."""
    machine = ", ".join(f"{key} {value}" for key, value in report.machine.items())
    versions = ", ".join(f"{key} {value}" for key, value in report.versions.items())
    lines = [
        "# Benchmark results",
        "",
        f"{report.date}. {machine}.",
        "",
        f"{versions}.",
        "",
        "Written by `make bench`; the methods, and a link to the reasons of missed goals, are on the page",
        "[Benchmarks](../../../docs/benchmarks.md).",
        "Both sides of a row were measured in this run. A dash means that there is no goal.",
        "",
    ]
    rows = [row for section in report.sections for row in section.rows]
    lines += _table(
        ("what", "DIOS", "instead", "ratio", "at least", "met", "wanted", "met"),
        [
            (
                row.subject,
                row.ours,
                row.peer,
                row.ratio,
                row.least.text,
                _met(row.least),
                row.wanted.text,
                _met(row.wanted),
            )
            for row in rows
        ],
    )
    notes = [f"- {row.subject}: {row.note}" for row in rows if row.note]
    if notes:
        lines += ["", "## Notes", "", *notes]
    trouble = [f"- {section.name}: {text}" for section in report.sections for text in section.trouble]
    if trouble:
        lines += ["", "## Not measured", "", *trouble]
    slopes = [f for section in report.sections for f in section.figures if ": exponent" in f.name]
    if slopes:
        lines += ["", "## Exponents", "", "The cost grows with n to the power of the exponent.", ""]
        lines += _table(
            ("cost", "exponent of n"), [(f.name.partition(": exponent")[0], number(f.value)) for f in slopes]
        )
    for section in report.sections:
        lines += ["", f"## All figures: {section.name} ({section.date}, {section.seconds:.0f} s)", ""]
        lines += _table(
            ("figure", "value", "unit"), [(f.name, number(f.value), f.unit) for f in section.figures]
        )
    return "\n".join(lines) + "\n"


def _met(goal: Goal) -> str:
    if not goal.text:
        return ""
    return {True: "yes", False: "**no**", None: "not judged"}[goal.met]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell or "–" for cell in row) + " |" for row in rows),  # noqa: RUF001 - a dash
    ]


def number(value: float) -> str:
    """Format a number with three significant digits."""
    if value != value:  # noqa: PLR0124 - NaN
        return "not measured"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def times(value: float) -> str:
    """A ratio."""
    return f"{number(value)} x" if value == value else "not measured"  # noqa: PLR0124 - NaN


def judge(text: str, value: float, limit: float, *, below: bool = True) -> Goal:
    """Return a goal: ``value`` is at most ``limit`` (``below``) or at least ``limit``."""
    if value != value or limit != limit:  # noqa: PLR0124 - NaN
        return Goal(text)
    return Goal(text, value <= limit if below else value >= limit)
