"""Messages for nodes of earlier releases, which refuse fields and words that they do not know."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped] # the package has no types
import pytest
from hypothesis import given, settings
from msgspec import Struct

from dios.wire import dcp, dcp_frames, messages
from dios.wire.earlier_forms import earlier_form
from dios.wire.messages import Occupant, Run, Submission, TaskRow, Work
from dios.wire.types import Brand, Cause, TaskState
from tests.support.wire import descriptions as described
from tests.unit.wire.test_dcp_format import ANSWERS, MESSAGES, REQUESTS, message_with

EARLIER = dcp.TIME_VERSION - 1
START_BEFORE = (
    "91962807039b079501a57569643a35a2616202a57368656c6c09c4206e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e"
    "6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e9e050390909090a5636f756e7400a09c000000000000000000000000"
    "0000dc001dcd01f40000000000a001c2c200000000909000a0c2c20000000090900000a26162a0909202dc00"
    "150304010500000000000101010000a26364a000a0a0a0909090c09090c0"
)
"""A request to start a task, as a node of version 5 sent it."""
START = (
    "919428070399079501a57569643a35a2616202a57368656c6c09c4206e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e"
    "6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e9d050390909090a5636f756e7400a0900000dc001dcd01f400000000"
    "00a001c2c200000000909000a0c2c20000000090900000a261629092029f0304010500000000000101010000"
    "a263649090"
)
"""The same as this release sends it to such a node."""


def sent(message: dcp.Message) -> dcp.Message | dcp_frames.Control:
    """The message as a node of the last earlier form gets it."""
    return dcp_frames.decode_frame(dcp_frames.encode_frame(message, version=EARLIER)[4:])[0]


def test_a_start_has_no_more_fields_than_an_earlier_release_knows() -> None:
    """Its bytes are frozen. The needs of the task have the same fields in both, without a time at the end."""
    message, _ = dcp_frames.decode_frame(bytes.fromhex(START_BEFORE))
    assert dcp_frames.encode_frame(message, version=EARLIER)[4:].hex() == START
    assert dcp_frames.decode_frame(bytes.fromhex(START)) == (message, None)
    work = msgpack.unpackb(bytes.fromhex(START))[0][3][4][12]
    assert work == msgpack.unpackb(bytes.fromhex(START_BEFORE))[0][3][4][12]


@pytest.mark.parametrize("kind", [*REQUESTS, *ANSWERS, *MESSAGES])
def test_the_earlier_form_of_a_message_means_the_same(kind: type[Struct]) -> None:
    """Except for bounds of times, whatever a message has is in both forms."""

    @settings(max_examples=15, deadline=None)
    @given(described.messages_of(kind))
    def holds(inside: object) -> None:
        message = message_with(inside)
        frame = dcp_frames.encode_frame(message, version=EARLIER)
        known, _ = dcp_frames.decode_frame(frame[4:])
        assert type(known) is type(message)
        assert earlier_form(known) == earlier_form(message)
        assert len(frame) <= len(dcp_frames.encode_frame(message))

    holds()


def test_rows_for_an_earlier_release_have_no_bound_of_time() -> None:
    """Its scheduler goes on, and it sees a task that was ended for its time as killed. Calls keep theirs."""
    row = TaskRow(
        None, "ab", "run", TaskState.ENDED, Brand.PURE, "uid:5", 1, 1, 2, Cause.TIME, 0, 9, "", "cd", ""
    )
    (known,) = known_rows(messages.Tasks((row,)))
    assert isinstance(known, TaskRow)
    assert known.cause is Cause.KILLED
    timed = Work(cpus_milli=5, time_ms=500)
    waiting = Submission(1, "ab", "run", "uid:5", 0, timed, "n1")
    running = Occupant(1, "ab", "run", "uid:5", TaskState.RUNNING, 1, 0, timed, 0, 0, completed=False)
    for sample in (waiting, running):
        fields = earlier_form(sample)
        assert isinstance(fields, list)
        assert [5] in fields
    call = earlier_form(Run(1, work=timed))
    assert isinstance(call, list)
    assert call[-1][-1] == 500


def known_rows(answer: messages.Tasks) -> tuple[object, ...]:
    """The rows of a list of tasks as a node of the last earlier form gets them."""
    reply = sent(dcp.PeerReply(7, answer))
    assert isinstance(reply, dcp.PeerReply)
    assert isinstance(reply.result, messages.Tasks)
    return reply.result.tasks
