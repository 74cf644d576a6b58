"""Rows of the 2011 Google cluster trace's tables, as published: CSV in parts, gzipped or not.

For: ``trace``, which makes a workload of them. Not for: what the rows mean together.

The format is that of "Google cluster-usage traces: format + schema" (Reiss, Wilkes and Hellerstein,
version 2). Each table is a folder of files ``part-NNNNN-of-NNNNN.csv.gz`` in order of time. There is no
heading; a field that is empty is a value that nobody knows.
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

from dios import limits
from dios.errors import InvalidError

BEFORE: Final = 0
"""A time in the trace: before its window began."""
AFTER: Final = 2**63 - 1
"""A time in the trace: after its window ended; no larger number may stand anywhere."""
WINDOW_US: Final = 600_000_000
"""The window begins ten minutes after the trace's zero."""


class TraceError(InvalidError):
    """A trace is not there, or has something in it that its format does not know; the message says where."""


class TaskEvent(IntEnum):
    """What happened to a task."""

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
    """What happened to a machine."""

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
"""The twentieth column of task usage, which only the second release of the trace has."""


class MachineRow(NamedTuple):
    """One row of machine_events; times in microseconds, capacities normalised to 0 .. 1."""

    time: int
    machine: int
    event: MachineEvent
    platform: str
    cpus: float | None
    memory: float | None


class TraceTaskRow(NamedTuple):
    """One row of task_events, without what a simulation has no use for."""

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
    """No two tasks of the job on one machine."""


class UsageRow(NamedTuple):
    """One row of task_usage, without what a simulation has no use for."""

    start: int
    end: int
    job: int
    number: int
    """The task's index in its job."""
    cpus: float | None
    memory: float | None


class _Line:
    """One line of a table, whose fields are asked for by name."""

    def __init__(self, place: str, columns: tuple[str, ...], fields: list[str]) -> None:
        self._place = place
        self._columns = columns
        self._fields = fields

    def wrong(self, name: str, why: str) -> TraceError:
        """An error about a field."""
        value = self._fields[self._columns.index(name)]
        return TraceError(f"{self._place}, field {name!r}: {value!r} {why}")

    def text(self, name: str) -> str:
        """A field as it is."""
        return self._fields[self._columns.index(name)]

    def whole(self, name: str, most: int = AFTER) -> int:
        """A whole number from 0 to ``most`` that must be there."""
        text = self.text(name)
        if not text:
            raise self.wrong(name, "is empty; it must be there")
        try:
            value = int(text)
        except ValueError:
            raise self.wrong(name, "is not a whole number") from None
        if not 0 <= value <= most:
            raise self.wrong(name, f"is not in 0 .. {most}")
        return value

    def share(self, name: str, most: float) -> float | None:
        """A number from 0 to ``most``; None where the field is empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(name, "is not a number") from None
        if not (math.isfinite(value) and 0 <= value <= most):
            raise self.wrong(name, f"is not in 0 .. {most:g}")
        return value


def machine_rows(directory: Path, until_us: int) -> Iterator[MachineRow]:
    """The rows of machine_events up to a time.

    Raises:
        TraceError: the table is not there, or a line is not what it should be.
    """
    for line in _lines(directory, "machine_events", MACHINE_COLUMNS, until_us):
        yield MachineRow(
            line.whole("time"),
            line.whole("machine ID"),
            MachineEvent(line.whole("event type", max(MachineEvent))),
            line.text("platform ID"),
            line.share("CPUs", 1),
            line.share("memory", 1),
        )


def task_rows(directory: Path, until_us: int) -> Iterator[TraceTaskRow]:
    """The rows of task_events up to a time; errors as with machines."""
    for line in _lines(directory, "task_events", TASK_COLUMNS, until_us):
        yield TraceTaskRow(
            line.whole("time"),
            line.whole("job ID"),
            line.whole("task index"),
            TaskEvent(line.whole("event type", max(TaskEvent))),
            line.text("user"),
            line.whole("priority", 11),
            line.share("CPU request", 1),
            line.share("memory request", 1),
            _flag(line, "different machines restriction"),
        )


def usage_rows(directory: Path, until_us: int) -> Iterator[UsageRow]:
    """The rows of task_usage up to a time, none where the table is not there; errors as with machines."""
    if not _parts(directory, "task_usage"):
        return
    for line in _lines(directory, "task_usage", USAGE_COLUMNS, until_us, SAMPLED):
        yield UsageRow(
            line.whole("start time"),
            line.whole("end time"),
            line.whole("job ID"),
            line.whole("task index"),
            # Measured, not asked for: a task may use more than the largest machine is said to have.
            line.share("CPU rate", limits.TRACE_USAGE_MAX),
            line.share("canonical memory usage", limits.TRACE_USAGE_MAX),
        )


def _flag(line: _Line, name: str) -> bool:
    text = line.text(name).lower()
    if text not in {"", "0", "1", "true", "false"}:
        raise line.wrong(name, "is not true or false")
    return text in {"1", "true"}


def _parts(directory: Path, table: str) -> list[Path]:
    """The files of a table in order."""
    folder = directory / table
    return sorted(path for pattern in ("*.csv", "*.csv.gz") for path in folder.glob(pattern))


def _lines(
    directory: Path, table: str, columns: tuple[str, ...], until_us: int, optional: str | None = None
) -> Iterator[_Line]:
    """The lines of a table whose first field, a time, is not after ``until_us``."""
    parts = _parts(directory, table)
    if not parts:
        raise TraceError(
            f"{directory / table}: no part-*.csv or part-*.csv.gz there; --trace wants the folder that holds "
            "machine_events/ and task_events/ of the 2011 Google cluster trace"
        )
    for part in parts:
        place = f"{table}/{part.name}"
        early = late = 0
        for line in _file_lines(part, place, columns, optional):
            if line.whole(columns[0]) <= until_us:
                early += 1
                yield line
            else:
                late += 1
        if late and not early:
            # Parts follow each other in time: those behind this one are too late as well.
            return


def _file_lines(path: Path, place: str, columns: tuple[str, ...], optional: str | None) -> Iterator[_Line]:
    number = 0
    try:
        with _opened(path) as file:
            for number, fields in enumerate(csv.reader(file, strict=True), start=1):
                if len(fields) != len(columns) and not (optional and len(fields) == len(columns) + 1):
                    raise TraceError(f"{place} line {number}: {_miscounted(fields, columns)}")
                yield _Line(f"{place} line {number}", columns, fields)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"{place} after line {number}: the file is damaged ({error}); fetch it again"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{place} after line {number}: this is no text in columns ({error})") from None


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _miscounted(fields: list[str], columns: tuple[str, ...]) -> str:
    told = f"{len(fields)} columns instead of {len(columns)}"
    missing = columns[len(fields) :]
    return f"{told}; {', '.join(map(repr, missing))} is missing" if missing else told
