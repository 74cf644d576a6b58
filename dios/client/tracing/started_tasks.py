"""A traced task that this program has started: its span, and the contexts that it was given."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from dios import limits
from dios.client.tracing import active
from dios.client.tracing.contexts import SpanContext
from dios.client.tracing.recorder import OpenSpan
from dios.client.tracing.task_spans import TaskTimes, decode_spans, shown_label
from dios.wire.fields import TRACE_OUTPUT


class StartedTask:
    """A task with a span. ``blob`` is the number of the reference to the blob for its own spans."""

    __slots__ = ("_begun_ns", "_handed", "_label", "blob", "span")

    def __init__(self, span: OpenSpan, label: str, blob: int) -> None:
        self.blob: Final = blob
        self.span: Final = span
        self._label: Final = shown_label(label)
        self._handed: Final[OrderedDict[bytes, SpanContext]] = OrderedDict()
        self._begun_ns: Final = time.time_ns()

    @property
    def output_label(self) -> str:
        """The label under which the task gets the blob."""
        return TRACE_OUTPUT + self.span.context.traceparent

    def hand(self, context: SpanContext) -> None:
        """Note a further context that the task is given; the newest TASK_SPANS_MAX of them count."""
        self._handed[context.span] = context
        if len(self._handed) > limits.TASK_SPANS_MAX:
            self._handed.popitem(last=False)

    def end(self, data: bytes, node: str, *, failed: bool) -> None:
        """Record the span of a task that has ended on ``node``, and the spans in the bytes of its blob."""
        recorder = active.recorder
        if recorder is None:
            return
        place = f"{self._label} on {node}" if node else self._label
        window = TaskTimes(self._begun_ns, time.time_ns())
        recorder.end(self.span, failed=failed)
        recorder.add(decode_spans(data, place, self.span.context, self._handed, window))


def begin_span(label: str) -> OpenSpan | None:
    """Begin the span of a task that is about to start. Return None if it is not recorded."""
    return active.begin(f"task: {shown_label(label)}")
