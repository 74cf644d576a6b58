"""Spans in the client: contexts, sampling, their places in time, and the file of trace events."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios import limits
from dios.client.tracing import active
from dios.client.tracing.contexts import SpanContext, current, read_traceparent
from dios.client.tracing.recorder import Recorder, SpanRecord
from dios.client.tracing.trace_file import lines_sink, read_lines, trace_events
from dios.errors import InvalidError
from dios.wire.fields import TraceSpan

TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_comes_back() -> None:
    """The text of a context is W3C's, and the packed form has the same 25 bytes."""
    context = read_traceparent(TEXT)
    assert context is not None
    assert context.traceparent == TEXT
    assert len(context.packed) == limits.TRACE_CONTEXT_BYTES
    assert read_traceparent("cc" + TEXT[2:] + "-of a later version") == context


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", TEXT[:-1], TEXT.upper(), TEXT + "-x", "ff" + TEXT[2:], TEXT * 99, TEXT + "\n-"),
        "00-" + "0" * 32 + TEXT[35:],
        TEXT[:36] + "0" * 16 + "-01",
    ],
)
def test_what_is_no_traceparent_is_ignored(text: str) -> None:
    """Wrong lengths, letters, versions and empty ids are no context."""
    assert read_traceparent(text) is None


def test_a_parent_decides_what_is_recorded() -> None:
    """A span without a parent decides by the ratio; others follow the span above them."""
    spans: list[SpanRecord] = []
    never = Recorder(spans.extend, ratio=0.0)
    assert never.begin("root") is None
    sampled = SpanContext(bytes(15) + b"\1", bytes(7) + b"\1", sampled=True)
    below = never.begin("child", sampled)
    assert below is not None
    assert (below.context.trace, below.parent) == (sampled.trace, sampled.span)
    assert Recorder(spans.extend).begin("child", sampled._replace(sampled=False)) is None
    token = current.set(sampled)
    try:
        assert Recorder(spans.extend, ratio=0.0).begin("in the span of a function") is not None
    finally:
        current.reset(token)


def test_parts_of_a_call_are_in_the_middle_of_it() -> None:
    """Their ids are new, their parents those that the node named, and a node's nonsense is below the call."""
    spans: list[SpanRecord] = []
    recorder = Recorder(spans.extend)
    opened = recorder.begin("Stat")
    assert opened is not None
    parts = (TraceSpan("Stat", "n1", -1, 0, 0), TraceSpan("a", "n1", 0, 0, 0), TraceSpan("b", "", 9, 0, 0))
    recorder.end(opened, parts=parts)
    recorder.flush()
    call, first, below, nonsense = spans
    assert (first.parent, below.parent, nonsense.parent) == (call.span, first.span, call.span)
    assert [part.place for part in spans] == ["client", "n1", "n1", "node"]
    assert call.start_ns <= first.start_ns <= call.start_ns + call.length_ns
    assert len({part.span for part in spans}) == 4


def test_spans_are_bounded_while_nobody_takes_them() -> None:
    """What is above the bound is counted and dropped."""

    def refuse(spans: object) -> None:
        raise AssertionError(spans)

    recorder = Recorder(refuse)
    recorder._ended = [None] * limits.TRACE_SPANS_KEPT  # type: ignore[list-item] # only their number counts
    opened = recorder.begin("x")
    assert opened is not None
    recorder.end(opened)
    assert recorder.dropped == 1


def test_nothing_is_recorded_unless_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span of a function is none then, and a folder must be named by its whole path."""
    monkeypatch.delenv(active.VARIABLE, raising=False)
    active.start_by_environment()
    assert active.recorder is None
    with active.span("x") as opened:
        assert opened is None
    monkeypatch.setenv(active.VARIABLE, "somewhere")
    monkeypatch.setattr(active, "_asked", False)
    with pytest.raises(InvalidError, match="DIOS_TRACE"):
        active.start_by_environment()


def span(name: str, place: str, start_ns: int, length_ns: int) -> SpanRecord:
    """A span of one trace."""
    return SpanRecord(name, place, "1" * 32, name * 16, "", 10**18 + start_ns, length_ns, False, 77, 1)


def test_trace_events_fit_the_format(tmp_path: Path) -> None:
    """Every event has what the format demands, and spans of one row nest or follow each other."""
    spans = [
        span("a", "client", 0, 10_000),
        span("b", "client", 2_000, 4_000),
        span("c", "client", 5_000, 9_000),
    ]
    spans += [span("d", "n1", 3_000, 1_000)]
    lines_sink(tmp_path)(spans)
    assert list(read_lines(tmp_path)) == spans
    events = trace_events(read_lines(tmp_path))
    names = {event["pid"]: event["args"] for event in events if event["ph"] == "M"}
    assert list(names.values()) == [{"name": "client 77"}, {"name": "node n1"}]
    events_by_name = {str(event["name"]): event for event in events if event["ph"] == "X"}
    for event in events_by_name.values():
        assert isinstance(event["ts"], float)
        assert isinstance(event["dur"], float)
        assert event["pid"] in names
    assert (events_by_name["a"]["ts"], events_by_name["a"]["dur"], events_by_name["c"]["ts"]) == (
        0.0,
        10.0,
        5.0,
    )
    assert events_by_name["a"]["tid"] == events_by_name["b"]["tid"] != events_by_name["c"]["tid"]
    (tmp_path / f"{os.getpid()}.spans").write_text("[1]\n")
    with pytest.raises(InvalidError, match="no span"):
        list(read_lines(tmp_path))
