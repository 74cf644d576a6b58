"""The parts of traced calls: how they nest, what bounds them, and that nothing is left of answered ones."""

from __future__ import annotations

from typing import cast

import pytest

from dios import limits
from dios.host.loop.call_tracer import CallTracer
from dios.ids import NodeId, TaskId
from dios.wire import dcp
from dios.wire.fields import TraceSpan
from dios.wire.messages import Done, ReadOnce, Stat
from dios.wire.types import Brand

CONTEXT = bytes(range(25))
TASK = TaskId(1)
OTHER = NodeId(2)
CALLER = dcp.Caller(TASK, "uid:1", "", Brand.LIMBO)
ASK = dcp.Ask(7, 0, dcp.Forward(CALLER, ReadOnce(5)))


class Traced:
    """A tracer with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0
        self.tracer = CallTracer("n1", now=lambda: self.now)

    @property
    def is_busy(self) -> bool:
        """True while a step is one of a traced call."""
        return self.tracer.current is not None


@pytest.fixture
def traced() -> Traced:
    """One that traces."""
    return Traced()


def test_a_call_has_its_parts_in_order(traced: Traced) -> None:
    """The whole, the commit, the request to another node, and the parts there, in the middle of it."""
    tracer = traced.tracer
    traced.now = 100
    tracer.begin(TASK, 3, "Copy", CONTEXT)
    tracer.staged(50)
    sent = cast("dcp.Ask", tracer.outgoing(OTHER, ASK))
    assert sent == dcp.Ask(7, 0, ASK.body, trace=CONTEXT)
    tracer.current = None
    traced.now = 130
    tracer.durable(49)
    traced.now = 140
    tracer.durable(50)
    traced.now = 200
    there = (TraceSpan("ReadOnce", "n2", -1, 0, 60), TraceSpan("store: commit", "n2", 0, 10, 5))
    tracer.arrived(OTHER, dcp.PeerReply(7, Done(1), there))
    assert traced.is_busy, "what follows the answer belongs to the call"
    traced.now = 210
    assert tracer.end(TASK, 3) == (
        TraceSpan("Copy", "n1", -1, 0, 110),
        TraceSpan("store: commit", "n1", 0, 0, 40),
        TraceSpan("ask: ReadOnce", "n1", 0, 0, 100),
        TraceSpan("ReadOnce", "n2", 2, 20, 60),
        TraceSpan("store: commit", "n2", 3, 30, 5),
    )
    assert (tracer.is_on, traced.is_busy) == (False, False)
    assert tracer.end(TASK, 3) == ()


def test_a_served_request_is_answered_with_its_parts(traced: Traced) -> None:
    """They are in the answer and not in a report that it takes its time; a repeat begins nothing new."""
    tracer = traced.tracer
    asked = dcp.Ask(7, 0, ASK.body, trace=CONTEXT)
    tracer.arrived(OTHER, asked)
    traced.now = 10
    tracer.arrived(OTHER, asked)
    working = dcp.PeerReply(7, dcp.Working())
    assert tracer.outgoing(OTHER, working) == working
    answer = cast("dcp.PeerReply", tracer.outgoing(OTHER, dcp.PeerReply(7, Done(1))))
    assert answer.spans == (TraceSpan("ReadOnce", "n1", -1, 0, 10),)
    assert not tracer.is_on


def test_a_repeated_request_carries_the_same_context(traced: Traced) -> None:
    """Outside of the step of its call it is found by its number; other requests carry none."""
    tracer = traced.tracer
    tracer.begin(TASK, 3, "Stat", CONTEXT)
    tracer.outgoing(OTHER, ASK)
    tracer.current = None
    assert cast("dcp.Ask", tracer.outgoing(OTHER, ASK)).trace == CONTEXT
    untraced = dcp.Ask(8, 0, dcp.Forward(CALLER, Stat(5)))
    assert tracer.outgoing(OTHER, untraced) is untraced


def test_parts_and_calls_are_bounded(traced: Traced) -> None:
    """A call has at most 32 parts, also if another node sends as many, and the oldest call gives way."""
    tracer = traced.tracer
    hostile = tuple(TraceSpan("x", "y", 31, 2**60, 2**60) for _ in range(limits.TRACE_SPANS_MAX))
    tracer.begin(TASK, 2, "Vector", CONTEXT)
    tracer.outgoing(OTHER, ASK)
    traced.now = 20
    tracer.arrived(OTHER, dcp.PeerReply(7, Done(1), hostile))
    spans = tracer.end(TASK, 2)
    assert len(spans) == limits.TRACE_SPANS_MAX
    assert all(span.parent < place for place, span in enumerate(spans))
    assert max(span.start_ns + span.length_ns for span in spans) <= 40
    tracer.begin(TASK, 3, "Vector", CONTEXT)
    for number in range(limits.TRACE_SPANS_MAX * 2):
        tracer.outgoing(OTHER, dcp.Ask(number + 1, 0, ASK.body))
    assert len(tracer.end(TASK, 3)) == limits.TRACE_SPANS_MAX
    for seq in range(limits.TRACED_CALLS_MAX + 1):
        tracer.begin(TASK, seq, "Stat", CONTEXT)
    assert tracer.end(TASK, 0) == ()
    assert tracer.end(TASK, 1)
    tracer.forget(TASK)
    assert not tracer.is_on


def test_a_node_that_answers_no_traces_keeps_nothing() -> None:
    """Whatever a client or another node sends with a call, it is an ordinary call."""
    tracer = CallTracer("n1", enabled=False)
    tracer.begin(TASK, 3, "Stat", CONTEXT)
    tracer.arrived(OTHER, dcp.Ask(7, 0, ASK.body, trace=CONTEXT))
    tracer.staged(1)
    assert (tracer.is_on, tracer.current, tracer.end(TASK, 3)) == (False, None, ())
