"""A parser for the tables of the 2011 Google cluster trace, as published: CSV in parts, gzipped or not.

``trace`` makes a workload of the rows.

The format is that of "Google cluster-usage traces: format + schema" (Reiss, Wilkes and Hellerstein,
version 2). Each table is a folder of files ``part-NNNNN-of-NNNNN.csv.gz`` in order of time. The files have no
header line; an empty field is an unknown value.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from dios.errors import InvalidError
from labs import limits

BEFORE: Final = 0
"""The time of events before the trace's window."""
AFTER: Final = 2**63 - 1
"""The time of events after the trace's window; the largest integer that the trace allows."""
WINDOW_US: Final = 600_000_000
"""The start of the window: ten minutes after the trace's time 0."""


class TraceError(InvalidError):
    """A trace that does not exist or violates its format; the message names the place."""


class TaskEvent(IntEnum):
    """The kinds of task events."""

    SUBMIT = 0
    SCHEDULE = 1
    EVICT = 2
    FAIL = 3
    FINISH = 4
    KILL = 5
    LOST = 6
    UPDATE_PENDING = 7
    UPDATE_RUNNING = 8


class MachineEvent(IntEnum):
    """The kinds of machine events."""

    ADD = 0
    REMOVE = 1
    UPDATE = 2


MACHINE_COLUMNS: Final = ("time", "machine ID", "event type", "platform ID", "CPUs", "memory")
TASK_COLUMNS: Final = (
    "time",
    "missing info",
    "job ID",
    "task index",
    "machine ID",
    "event type",
    "user",
    "scheduling class",
    "priority",
    "CPU request",
    "memory request",
    "disk space request",
    "different machines restriction",
)
USAGE_COLUMNS: Final = (
    "start time",
    "end time",
    "job ID",
    "task index",
    "machine ID",
    "CPU rate",
    "canonical memory usage",
    "assigned memory usage",
    "unmapped page cache",
    "total page cache",
    "maximum memory usage",
    "disk I/O time",
    "local disk space usage",
    "maximum CPU rate",
    "maximum disk IO time",
    "cycles per instruction",
    "memory accesses per instruction",
    "sample portion",
    "aggregation type",
)
SAMPLED: Final = "sampled CPU usage"
"""The twentieth column of task usage, which exists only in the second release of the trace."""


class MachineRow(NamedTuple):
    """One row of machine_events; times in microseconds, capacities normalised to 0 .. 1."""

    time: int
    machine: int
    event: MachineEvent
    platform: str
    cpus: float | None
    memory: float | None


class TraceTaskRow(NamedTuple):
    """One row of task_events, without the fields that a simulation does not need."""

    time: int
    job: int
    number: int
    """The task's index in its job."""
    event: TaskEvent
    user: str
    priority: int
    cpus: float | None
    memory: float | None
    spread: bool
    """True if no two tasks of the job may share a machine."""


class UsageRow(NamedTuple):
    """One row of task_usage, without the fields that a simulation does not need."""

    start: int
    end: int
    job: int
    number: int
    """The task's index in its job."""
    cpus: float | None
    memory: float | None


class _Line:
    """One line of a table, with access to its fields by name."""

    def __init__(self, place: str, columns: tuple[str, ...], fields: list[str]) -> None:
        self._place = place
        self._columns = columns
        self._fields = fields

    def error(self, name: str, why: str) -> TraceError:
        """Return an error about a field."""
        value = self._fields[self._columns.index(name)]
        return TraceError(f"{self._place}, field {name!r}: {value!r} {why}")

    def text(self, name: str) -> str:
        """Return a field's text."""
        return self._fields[self._columns.index(name)]

    def integer(self, name: str, most: int = AFTER) -> int:
        """Return a mandatory integer field from 0 to ``most``."""
        text = self.text(name)
        if not text:
            raise self.error(name, "is empty; it must be an integer")
        try:
            value = int(text)
        except ValueError:
            raise self.error(name, "is not an integer") from None
        if not 0 <= value <= most:
            raise self.error(name, f"is not in 0 .. {most}")
        return value

    def share(self, name: str, most: float) -> float | None:
        """Return a number from 0 to ``most``, or None for an empty field."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, "is not a number") from None
        if not (math.isfinite(value) and 0 <= value <= most):
            raise self.error(name, f"is not in 0 .. {most:g}")
        return value


def machine_rows(directory: Path, until_us: int) -> Iterator[MachineRow]:
    """Yield the rows of machine_events up to a time in microseconds.

    Raises:
        TraceError: the table does not exist, or a line is invalid.
    """
    for line in _lines(directory, "machine_events", MACHINE_COLUMNS, until_us):
        yield MachineRow(
            line.integer("time"),
            line.integer("machine ID"),
            MachineEvent(line.integer("event type", max(MachineEvent))),
            line.text("platform ID"),
            line.share("CPUs", 1),
            line.share("memory", 1),
        )


def task_rows(directory: Path, until_us: int) -> Iterator[TraceTaskRow]:
    """Yield the rows of task_events up to a time; errors as in ``machine_rows``."""
    for line in _lines(directory, "task_events", TASK_COLUMNS, until_us):
        yield TraceTaskRow(
            line.integer("time"),
            line.integer("job ID"),
            line.integer("task index"),
            TaskEvent(line.integer("event type", max(TaskEvent))),
            line.text("user"),
            line.integer("priority", 11),
            line.share("CPU request", 1),
            line.share("memory request", 1),
            _flag(line, "different machines restriction"),
        )


def usage_rows(directory: Path, until_us: int) -> Iterator[UsageRow]:
    """Yield the rows of task_usage up to a time, or nothing if the table does not exist."""
    if not _parts(directory, "task_usage"):
        return
    for line in _lines(directory, "task_usage", USAGE_COLUMNS, until_us, SAMPLED):
        yield UsageRow(
            line.integer("start time"),
            line.integer("end time"),
            line.integer("job ID"),
            line.integer("task index"),
            # Measured values may exceed the capacity that the trace gives for the largest machine.
            line.share("CPU rate", limits.TRACE_USAGE_MAX),
            line.share("canonical memory usage", limits.TRACE_USAGE_MAX),
        )


def _flag(line: _Line, name: str) -> bool:
    text = line.text(name).lower()
    if text not in {"", "0", "1", "true", "false"}:
        raise line.error(name, "is not true or false")
    return text in {"1", "true"}


def _parts(directory: Path, table: str) -> list[Path]:
    """Return the files of a table in order."""
    folder = directory / table
    return sorted(path for pattern in ("*.csv", "*.csv.gz") for path in folder.glob(pattern))


def _lines(
    directory: Path, table: str, columns: tuple[str, ...], until_us: int, optional: str | None = None
) -> Iterator[_Line]:
    """Yield the lines of a table whose first field, a time, is at most ``until_us``."""
    parts = _parts(directory, table)
    if not parts:
        raise TraceError(
            f"{directory / table}: no part-*.csv or part-*.csv.gz found; --trace needs the folder that holds "
            "machine_events/ and task_events/ of the 2011 Google cluster trace"
        )
    for part in parts:
        place = f"{table}/{part.name}"
        early = late = 0
        for line in _file_lines(part, place, columns, optional):
            if line.integer(columns[0]) <= until_us:
                early += 1
                yield line
            else:
                late += 1
        if late and not early:
            # Parts are in order of time, so all further parts are too late as well.
            return


def _file_lines(path: Path, place: str, columns: tuple[str, ...], optional: str | None) -> Iterator[_Line]:
    number = 0
    try:
        with _opened(path) as file:
            for number, fields in enumerate(csv.reader(file, strict=True), start=1):
                if len(fields) != len(columns) and not (optional and len(fields) == len(columns) + 1):
                    raise TraceError(f"{place} line {number}: {_column_count_error(fields, columns)}")
                yield _Line(f"{place} line {number}", columns, fields)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"{place} after line {number}: the file is damaged ({error}); download it again"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{place} after line {number}: the file is not CSV text ({error})") from None


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _column_count_error(fields: list[str], columns: tuple[str, ...]) -> str:
    count = f"{len(fields)} columns instead of {len(columns)}"
    missing = columns[len(fields) :]
    return f"{count}; {', '.join(map(repr, missing))} is missing" if missing else count
