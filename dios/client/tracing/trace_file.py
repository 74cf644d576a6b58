"""Spans as lines of files, and as one file of trace events, which Perfetto and Chrome show.

The format is the JSON object format of Chrome's trace events: complete events (``X``) with microseconds, and
metadata (``M``) that names processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from dios import limits
from dios.client.tracing.recorder import CLIENT, TASK, Sink, SpanRecord
from dios.client.written_files import naming
from dios.errors import InvalidError

TraceEvent: TypeAlias = dict[str, "str | int | float | dict[str, str | bool]"]

_LINE_BYTES_MAX: Final = 4_096


def lines_sink(folder: Path) -> Sink:
    """Return a sink that appends spans to a file of this process in a folder."""

    def write(spans: Sequence[SpanRecord]) -> None:
        with (folder / f"{os.getpid()}.spans").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(span) + "\n" for span in spans)

    return write


def read_lines(folder: Path) -> Iterator[SpanRecord]:
    """Yield the spans in a folder, at most TRACE_SPANS_KEPT. Raise InvalidError for other contents."""
    count = 0
    for path in sorted(folder.glob("*.spans")):
        with path.open(encoding="utf-8") as file:
            while line := file.readline(_LINE_BYTES_MAX):
                count += 1
                if count > limits.TRACE_SPANS_KEPT:
                    return
                try:
                    yield SpanRecord(*json.loads(line))
                except (ValueError, TypeError):
                    raise InvalidError(f"{path}: a line is no span") from None


def trace_events(spans: Iterable[SpanRecord]) -> list[TraceEvent]:
    """Return trace events: a process for each process and node, and rows in which spans nest.

    Spans of one place that overlap without one being a part of the other are in different rows.
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.length_ns))
    first = ordered[0].start_ns if ordered else 0
    places: dict[str, int] = {}
    rows: dict[str, list[list[int]]] = {}
    events: list[TraceEvent] = []
    for span in ordered:
        place = _process_of(span)
        number = places.setdefault(place, len(places) + 1)
        end_ns = span.start_ns + span.length_ns
        row = _row_for(rows.setdefault(place, []), span.start_ns, end_ns)
        events.append(
            {
                "name": span.name,
                "cat": place.partition(" ")[0],
                "ph": "X",
                "ts": (span.start_ns - first) / 1_000,
                "dur": span.length_ns / 1_000,
                "pid": number,
                "tid": row,
                "args": {
                    "trace": span.trace,
                    "span": span.span,
                    "parent": span.parent,
                    "failed": span.failed,
                },
            }
        )
    named: list[TraceEvent] = [
        {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": place}}
        for place, number in places.items()
    ]
    return named + events


def _process_of(span: SpanRecord) -> str:
    """Return the name under which a span is shown: of a client's process, a task, or a node."""
    if span.place.startswith(TASK):
        return span.place
    return f"client {span.process}" if span.place == CLIENT else f"node {span.place}"


def _row_for(rows: list[list[int]], start_ns: int, end_ns: int) -> int:
    """Return the first row in which a span nests or follows; each row has the ends of its open spans."""
    for number, open_ends in enumerate(rows, 1):
        while open_ends and open_ends[-1] <= start_ns:
            open_ends.pop()
        if not open_ends or open_ends[-1] >= end_ns:
            open_ends.append(end_ns)
            return number
    rows.append([end_ns])
    return len(rows)


def write_trace(path: Path, spans: Iterable[SpanRecord]) -> int:
    """Write a file of trace events. Return the number of spans."""
    events = trace_events(spans)
    with naming(path):
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
    return sum(event["ph"] == "X" for event in events)
