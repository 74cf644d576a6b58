"""The spans of a task, as it returns them to the program that started it.

A traced program gives each task that it starts a blob, as the last output. The label of this output has the
context of the task's span; the task writes its own spans into the blob when it ends. They are bytes of a
task, and so hostile: everything is bounded here, and no id, trace or time in them is believed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.client.tracing.contexts import SpanContext
from dios.client.tracing.recorder import CLIENT, TASK, SpanRecord
from dios.wire.fields import Counter, Label

FORMAT: Final = 1

_NAME_CHARS: Final = limits.NODE_NAME_BYTES_MAX


class TaskSpan(Struct, frozen=True, array_like=True):
    """A span of a task, or of a node that worked on a call of the task.

    ``parent`` is the place of an earlier span in the list. It is -1 for a part of the whole task, or of the
    span outside of the task with the id ``above``. ``node`` is empty for a span of the task itself, and
    ``start_ns`` counts from the start of its recording.
    """

    name: Label
    node: Label
    parent: Annotated[int, Meta(ge=-1, lt=limits.TASK_SPANS_MAX)]
    above: Annotated[bytes, Meta(max_length=8)]
    start_ns: Counter
    length_ns: Counter
    failed: bool


class TaskSpans(Struct, frozen=True, array_like=True):
    """The spans of a task, which began to record ``begun_ns`` after 1970 by the clock of its machine."""

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)]
    begun_ns: Counter
    spans: Annotated[tuple[TaskSpan, ...], Meta(max_length=limits.TASK_SPANS_MAX)]


_decoder: Final = msgspec.msgpack.Decoder(TaskSpans)


class TaskTimes:
    """The time in which the starter knows that the task ran, in nanoseconds since 1970."""

    __slots__ = ("end_ns", "start_ns")

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns: Final = start_ns
        self.end_ns: Final = max(start_ns, end_ns)

    def begin(self, begun_ns: int, length_ns: int) -> int:
        """Return the start of a task's recording: as it says, or moved so that the whole fits."""
        return max(self.start_ns, min(begun_ns, self.end_ns - length_ns))


def encode_spans(records: Sequence[SpanRecord], own: bytes, begun_ns: int) -> bytes:
    """Return the bytes that a task returns: the spans that began first. ``own`` is the id of its span."""
    ordered = sorted(records, key=lambda span: (span.start_ns, -span.length_ns))[: limits.TASK_SPANS_MAX]
    places: dict[str, int] = {}
    rows = []
    for span in ordered:
        # A part that seems to begin before its whole, by the clocks, is a part of what that belongs to.
        parent = places.get(span.parent, -1)
        above = b"" if parent >= 0 or span.parent == own.hex() else bytes.fromhex(span.parent)
        rows.append(
            TaskSpan(
                span.name[:_NAME_CHARS],
                "" if span.place == CLIENT else span.place[:_NAME_CHARS],
                parent,
                above,
                max(span.start_ns - begun_ns, 0),
                span.length_ns,
                span.failed,
            )
        )
        places[span.span] = len(rows) - 1
    return msgspec.msgpack.encode(TaskSpans(FORMAT, begun_ns, tuple(rows)))


def decode_spans(
    data: bytes, place: str, own: SpanContext, handed: Mapping[bytes, SpanContext], window: TaskTimes
) -> list[SpanRecord]:
    """Return the spans that a task has returned; none for bytes that are not valid.

    Each gets a new id, the trace of the span that it is a part of, and a time within the window. ``own`` is
    the span of the task, and ``handed`` has the contexts that the task was given later, by the ids of their
    spans. ``place`` is shown as the place of the task.
    """
    if len(data) > limits.TASK_SPANS_BYTES_MAX:
        return []
    try:
        decoded = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        return []
    length_ns = max((span.start_ns + span.length_ns for span in decoded.spans), default=0)
    begin_ns = window.begin(decoded.begun_ns, length_ns)
    records: list[SpanRecord] = []
    for number, span in enumerate(decoded.spans):
        above = handed.get(span.above, own)
        inner = 0 <= span.parent < number
        start_ns = min(begin_ns + span.start_ns, window.end_ns)
        records.append(
            SpanRecord(
                _shown(span.name),
                f"{TASK}{place}" + (f": node {_shown(span.node)}" if span.node else ""),
                records[span.parent].trace if inner else above.trace.hex(),
                os.urandom(8).hex(),
                records[span.parent].span if inner else above.span.hex(),
                start_ns,
                min(span.length_ns, window.end_ns - start_ns),
                span.failed,
                os.getpid(),
                0,
            )
        )
    return records


def shown_label(label: str) -> str:
    """Return the label of a task as it is shown in the names of spans and places."""
    return _shown(label[:_NAME_CHARS]) or "without a label"


def _shown(text: str) -> str:
    """Return text of others with at most its number of characters, none of which controls anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
