"""The spans that a task returns: their form, and what becomes of hostile ones."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.client.tracing.contexts import SpanContext, context_in
from dios.client.tracing.recorder import CLIENT, SpanRecord
from dios.client.tracing.task_spans import TaskTimes, decode_spans, encode_spans, shown_label

OWN = SpanContext(b"t" * 16, b"s" * 8, sampled=True)
CALL = SpanContext(b"u" * 16, b"c" * 8, sampled=True)
TIMES = TaskTimes(1_000, 2_000)


def record(name: str, span: str, parent: str, start: int, length: int, place: str = CLIENT) -> SpanRecord:
    """A span as a task's recorder makes it."""
    return SpanRecord(name, place, "ff" * 16, span, parent, start, length, failed=False, process=1, thread=1)


def test_spans_keep_their_order_and_their_parents_and_get_new_ids() -> None:
    """A part follows its whole; the ids are those of the program that started the task."""
    outer, inner = (
        record("outer", "01" * 8, OWN.span.hex(), 1_200, 300),
        record("in", "02" * 8, "01" * 8, 1_250, 9),
    )
    far, call = (
        record("Run", "03" * 8, "02" * 8, 1_252, 3, "n2"),
        record("call", "04" * 8, CALL.span.hex(), 1_300, 1),
    )
    data = encode_spans([call, far, inner, outer], OWN.span, 1_100)
    spans = decode_spans(data, "x on n1", OWN, {CALL.span: CALL}, TIMES)
    assert [(span.name, span.place, span.start_ns, span.length_ns) for span in spans] == [
        ("outer", "task x on n1", 1_200, 300),
        ("in", "task x on n1", 1_250, 9),
        ("Run", "task x on n1: node n2", 1_252, 3),
        ("call", "task x on n1", 1_300, 1),
    ]
    assert [span.parent for span in spans] == [OWN.span.hex(), spans[0].span, spans[1].span, CALL.span.hex()]
    assert [span.trace for span in spans] == [OWN.trace.hex()] * 3 + [CALL.trace.hex()]
    assert not {span.span for span in spans} & {"01" * 8, "02" * 8, "03" * 8, "04" * 8}


def test_the_form_is_fixed() -> None:
    """These bytes are what a task of this release returns."""
    data = encode_spans([record("a", "01" * 8, OWN.span.hex(), 1_200, 3)], OWN.span, 1_100)
    assert data.hex() == "9301cd044c9197a161a0ffc4006403c2"
    assert [span.name for span in decode_spans(data, "x", OWN, {}, TIMES)] == ["a"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [2, 0, []],
        [1, -1, []],
        [1, 0, [["n" * 64, "", -1, b"", 0, 0, False]]],
        [1, 0, [["n", "", -2, b"", 0, 0, False]]],
        [1, 0, [["n", "", -1, b"9" * 9, 0, 0, False]]],
        [1, 0, [["n", "", -1, b"", 0, 2**63, False]]],
        [1, 0, [["n", "", -1, b"", 0, 0, False]] * (limits.TASK_SPANS_MAX + 1)],
    ],
)
def test_bytes_outside_of_the_form_are_no_spans(value: object) -> None:
    """Other versions, long names, too many spans, and places before the list have no spans."""
    assert decode_spans(msgspec.msgpack.encode(value), "x", OWN, {}, TIMES) == []


def test_too_many_bytes_and_broken_ones_are_no_spans() -> None:
    """The bound of bytes is checked first."""
    assert decode_spans(b"\xc1", "x", OWN, {}, TIMES) == []
    assert decode_spans(bytes(limits.TASK_SPANS_BYTES_MAX + 1), "x", OWN, {}, TIMES) == []


HOSTILE = st.tuples(
    st.text(max_size=8),
    st.sampled_from(["", "n2", "\u202enode"]),
    st.integers(-1, 5),
    st.sampled_from([b"", CALL.span, OWN.span, b"another!"]),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.booleans(),
)


@given(st.lists(HOSTILE, max_size=6), st.integers(0, 2**62))
def test_a_hostile_task_cannot_leave_its_trace_its_time_or_its_place(
    spans: list[tuple[object, ...]], begun: int
) -> None:
    """Spans are in the traces that the task was given, within its time, and never seem to be of a node."""
    data = msgspec.msgpack.encode((1, begun, spans))
    known = {OWN.span.hex(): OWN.trace.hex(), CALL.span.hex(): CALL.trace.hex()}
    for span in decode_spans(data, shown_label("a\nb"), OWN, {CALL.span: CALL}, TIMES):
        assert known[span.parent] == span.trace
        assert span.span not in known
        known[span.span] = span.trace
        assert TIMES.start_ns <= span.start_ns <= span.start_ns + span.length_ns <= TIMES.end_ns
        assert span.place.startswith("task a?b")
        assert (span.name + span.place).isprintable()


def test_only_an_output_with_a_context_is_for_spans() -> None:
    """The label of such an output has the context of the task."""
    assert context_in("traceparent " + OWN.traceparent) == OWN
    assert context_in("traceparent nonsense") is None
    assert context_in(OWN.traceparent) is None
