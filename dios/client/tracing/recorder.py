"""Begins and ends spans, and gives them to a sink."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dios import limits
from dios.client.tracing.contexts import SpanContext, current
from dios.wire.fields import TraceSpan

CLIENT: Final = "client"
"""The place of spans of this process, as a node's name is that of its own."""
TASK: Final = "task "
"""The beginning of the places of spans that a task has returned."""

_BATCH: Final = 512


class SpanRecord(NamedTuple):
    """A span that has ended. Ids are in hexadecimal digits, ``parent`` is empty for a root."""

    name: str
    place: str
    trace: str
    span: str
    parent: str
    start_ns: int
    """Nanoseconds since 1970, by the clock of this machine."""
    length_ns: int
    failed: bool
    process: int
    thread: int


Sink = Callable[[Sequence[SpanRecord]], None]


class OpenSpan:
    """A span that has not ended."""

    __slots__ = ("_begun", "_start_ns", "context", "name", "parent")

    def __init__(self, name: str, context: SpanContext, parent: bytes) -> None:
        self.name: Final = name
        self.context: Final = context
        self.parent: Final = parent
        self._start_ns: Final = time.time_ns()
        self._begun: Final = time.monotonic_ns()

    def ended(self, *, failed: bool) -> SpanRecord:
        """Return the span as one that ends now."""
        length_ns = time.monotonic_ns() - self._begun
        return SpanRecord(
            self.name,
            CLIENT,
            self.context.trace.hex(),
            self.context.span.hex(),
            self.parent.hex(),
            self._start_ns,
            length_ns,
            failed,
            os.getpid(),
            threading.get_native_id(),
        )


class Recorder:
    """The spans of this process. ``root`` is the context outside of it, ``ratio`` the part that is recorded.

    A trace that comes with a context is recorded if that says so; of other traces, each span without a
    parent decides by the ratio, 0 to 1. ``sink`` gets the spans in batches.
    """

    def __init__(self, sink: Sink, *, root: SpanContext | None = None, ratio: float = 1.0) -> None:
        self._sink: Final = sink
        self._root: Final = root
        self._bound: Final = round(ratio * 2**64)
        self._lock = threading.Lock()
        self._ended: list[SpanRecord] = []
        self.dropped = 0
        """The number of spans above TRACE_SPANS_KEPT, which the sink did not take in time."""

    def begin(self, name: str, parent: SpanContext | None = None) -> OpenSpan | None:
        """Begin a span, a part of ``parent`` or of the current one. Return None if it is not recorded."""
        above = parent or current.get() or self._root
        if above is None:
            trace = os.urandom(16)
            sampled = int.from_bytes(trace[8:], "big") < self._bound
            context = SpanContext(trace, os.urandom(8), sampled)
            return OpenSpan(name, context, b"") if sampled else None
        if not above.sampled:
            return None
        return OpenSpan(name, SpanContext(above.trace, os.urandom(8), sampled=True), above.span)

    def end(self, span: OpenSpan, *, failed: bool = False, parts: Sequence[TraceSpan] = ()) -> None:
        """End a span. ``parts`` are the parts of a call as the node measured them."""
        own = span.ended(failed=failed)
        records = [own]
        if parts:
            # The ways to the node and back are taken as equally long.
            start_ns = own.start_ns + max(own.length_ns - parts[0].length_ns, 0) // 2
            ids = [os.urandom(8).hex() for _ in parts]
            for place, (part, number) in enumerate(zip(parts, ids, strict=True)):
                parent = ids[part.parent] if 0 <= part.parent < place else own.span
                records.append(
                    own._replace(
                        name=part.name,
                        place=part.node or "node",
                        span=number,
                        parent=parent,
                        start_ns=start_ns + part.start_ns,
                        length_ns=part.length_ns,
                        failed=False,
                    )
                )
        self.add(records)

    def add(self, records: Sequence[SpanRecord]) -> None:
        """Add spans that have ended, such as those of a task of this process."""
        full: list[SpanRecord] = []
        with self._lock:
            if len(self._ended) + len(records) > limits.TRACE_SPANS_KEPT:
                self.dropped += len(records)
                return
            self._ended += records
            if len(self._ended) >= _BATCH:
                full, self._ended = self._ended, []
        if full:
            self._sink(full)

    def forget(self) -> None:
        """Drop all spans: in a process that was forked, they are those of its parent."""
        self._lock = threading.Lock()
        self._ended = []

    def flush(self) -> None:
        """Give the sink all spans that have ended."""
        with self._lock:
            ended, self._ended = self._ended, []
        if ended:
            self._sink(ended)
