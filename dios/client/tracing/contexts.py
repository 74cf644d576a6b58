"""The context of a span: its trace, its id, and if it is recorded (W3C Trace Context)."""

from __future__ import annotations

import contextvars
import re
from typing import Final, NamedTuple

from dios.wire.fields import TRACE_OUTPUT

_TEXT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


class SpanContext(NamedTuple):
    """The ids of a span and its trace, 8 and 16 bytes, and True if spans of the trace are recorded."""

    trace: bytes
    span: bytes
    sampled: bool

    @property
    def packed(self) -> bytes:
        """The context as it goes with a call."""
        return self.trace + self.span + bytes([self.sampled])

    @property
    def traceparent(self) -> str:
        """The context as the text of ``traceparent``, version 00."""
        return f"00-{self.trace.hex()}-{self.span.hex()}-{self.sampled:02x}"


def read_traceparent(text: str) -> SpanContext | None:
    """Return the context in a ``traceparent``, or None for a text that must be ignored."""
    match = _TEXT.fullmatch(text.strip()) if len(text) <= 512 else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, span = bytes.fromhex(match[2]), bytes.fromhex(match[3])
    if not any(trace) or not any(span):
        return None
    return SpanContext(trace, span, bool(int(match[4], 16) & _SAMPLED))


def context_in(label: str) -> SpanContext | None:
    """Return the context in the label of an output, or None if it is an ordinary output."""
    return read_traceparent(label.removeprefix(TRACE_OUTPUT)) if label.startswith(TRACE_OUTPUT) else None


current: Final[contextvars.ContextVar[SpanContext | None]] = contextvars.ContextVar(
    "dios_trace_span", default=None
)
"""The span that new ones are a part of."""
