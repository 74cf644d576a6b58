"""Numbers, late replies and vectors, with no socket."""

from __future__ import annotations

import contextlib
import os
import re
from typing import cast

import pytest

from dios import limits
from dios.client.session import Answer, Operation, Session, expect_buffer, split, undoing, vector
from dios.errors import Code, Conflict, DiosError, InvalidError, NotPermittedError, ProtocolError
from dios.wire import messages
from dios.wire.codec import decode_request, encode_reply
from dios.wire.messages import AnyCall, Mapping, PlainCall
from dios.wire.types import Flag, Mode, ObjectType
from tests.support.client.fake_node import reference


def fds(count: int) -> list[int]:
    """Descriptors to be sent about."""
    return [os.eventfd(0) for _ in range(count)]


def is_open(fd: int) -> bool:
    """Whether the descriptor is still one."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_requests_are_numbered() -> None:
    """Each request has its own number, which its reply brings back."""
    session = Session()
    seqs = []
    for _ in range(3):
        seq, frame = session.request(messages.Stat(1))
        assert decode_request(frame[4:]).seq == seq
        seqs.append(seq)
    assert len(set(seqs)) == 3
    assert session.reply(encode_reply(2, messages.Done(1))[4:], ()) == (2, messages.Done(1))


def test_a_node_that_turns_one_away_says_why() -> None:
    """A refusal that answers no request is about the connection, and is told as it is."""
    with pytest.raises(NotPermittedError, match="may not connect"):
        Session().late(0, messages.Failure(int(Code.EPERM), "user 7 may not connect"), ())


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (
            messages.Run(1, label="x" * 5000),
            r"^label has 5000 characters, and must have at most 4096\. Give less of it\.$",
        ),
        (
            messages.Run(1, arguments=("x", "x" * 5000)),
            r"^arguments\[1\] has 5000 characters, and must have at most 4096\. Store .* --input LABEL=FILE",
        ),
        (messages.Run(1, arguments=("x",) * 300), "^arguments has 300 entries, and must have at most 256"),
        (messages.Run(1, arguments=("x" * 1_500_000,)), r"^arguments: these are 1,500,00\d bytes, .*--input"),
        (
            messages.Run(1, limits=messages.Limits(memory_bytes=-5)),
            r"^limits\.memory_bytes is -5, and must be at least 0$",
        ),
        (
            messages.Run(1, work=messages.Work(job=cast("int", "x"))),
            r"^work\.job must be a whole number, and is 'x'$",
        ),
        (
            messages.Run(1, arguments=cast("tuple[str, ...]", (object,))),
            "^arguments is .*, which cannot be sent",
        ),
        (messages.Run(1, label="\udcff"), "not UTF-8 text"),
        (messages.Select((), Mode.READ), "^refs has 0 entries, and must have at least 1$"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(call: AnyCall, fault: str) -> None:
    """What the node would not take is refused before it is sent, and says which argument it was."""
    with pytest.raises(InvalidError) as refused:
        Session().request(call)
    assert re.search(fault, refused.value.message)
    assert refused.value.call in {"run", "select"}
    assert "Expected" not in refused.value.message, "that is the schema's language"


def test_malformed_reply_closes_its_descriptors() -> None:
    """A reply that is no message raises ProtocolError and leaks nothing."""
    (fd,) = fds(1)
    with pytest.raises(ProtocolError):
        Session().reply(b"\xc1", (fd,))
    assert not is_open(fd)


@pytest.mark.parametrize(
    ("call", "result", "undone"),
    [
        (
            messages.Create(ObjectType.GROUP),
            messages.Created(None, reference(9)),
            [messages.Delete(9, int(Flag.HANDLE_ONLY))],
        ),
        (
            messages.Lookup(bytes(32)),
            messages.References((reference(8), reference(9))),
            [messages.Delete(8, int(Flag.HANDLE_ONLY)), messages.Delete(9, int(Flag.HANDLE_ONLY))],
        ),
        (messages.Stat(8), messages.References((reference(8),)), []),
        (messages.AcquireRead(8), messages.Buffer(5, 1, 0, 0), [messages.ReleaseRead(8, 5)]),
        (messages.AcquireWrite(8), messages.Buffer(5, 1, 0, 0), [messages.ReleaseWrite(8, 5)]),
        (messages.ReadOnce(8), messages.Buffer(0, 1, 0, 0), []),
        (messages.Delete(8), messages.Done(1), []),
    ],
)
def test_late_grants_are_given_back(
    call: PlainCall, result: messages.PlainResult, undone: list[PlainCall]
) -> None:
    """What a call granted after it was given up is returned to the node, alone and inside a vector."""
    assert undoing(call, result) == undone
    session = Session()
    session.give_up(1, call)
    session.give_up(2, messages.Vector((messages.Stat(1), call)))
    (fd,) = fds(1)
    assert session.late(1, result, (fd,)) == undone
    assert not is_open(fd)
    assert session.late(2, messages.Results((messages.Done(1), result)), ()) == undone
    with pytest.raises(ProtocolError, match="request 1"):
        session.late(1, result, ())


def mapped(size: int) -> messages.Buffer:
    """A buffer with memory."""
    return messages.Buffer(size, size, 0, 0, Mapping.READ_ONLY, 0, size)


def test_descriptors_of_a_vector_go_to_their_parts() -> None:
    """Each part that brings memory has its own descriptor, in order; a refusal takes none."""
    calls = (messages.AcquireRead(1), messages.Stat(2), messages.AcquireRead(3), messages.AcquireRead(4))
    parts = (mapped(1), messages.Failure(125, "no"), messages.Buffer(3, 1, 0, 0, data=b"x"), mapped(4))
    first, two = fds(2)
    answers = split(calls, (messages.Results(parts), (first, two)))
    assert answers[0] == (parts[0], (first,))
    assert isinstance(answers[1], Conflict)
    assert answers[2] == (parts[2], ())
    assert answers[3] == (parts[3], (two,))
    os.close(first)
    os.close(two)


def test_wrong_number_of_descriptors_is_refused() -> None:
    """Too many or too few descriptors are the node's fault, and all are closed."""
    for count in (0, 2):
        given = tuple(fds(count))
        with pytest.raises(ProtocolError):
            parts_of(given)
        assert not any(is_open(fd) for fd in given)


def parts_of(given: tuple[int, ...]) -> None:
    """Take apart a vector's answer with one buffer, and these descriptors."""
    for part in split((messages.AcquireRead(1),), (messages.Results((mapped(1),)), given)):
        assert not isinstance(part, DiosError)
        expect_buffer(part)


def test_vectors_respect_every_limit() -> None:
    """No message of a vector has too many calls, too many bytes, or too many possible descriptors."""

    def answer(call: AnyCall) -> Answer:
        assert isinstance(call, messages.Vector)
        assert len(call.calls) <= limits.VECTOR_CALLS_MAX
        _, frame = session.request(call)
        assert len(frame) <= limits.FRAME_BYTES_MAX
        maps = [inner for inner in call.calls if isinstance(inner, messages.AcquireRead)]
        assert len(maps) <= limits.DESCRIPTORS_PER_FRAME_MAX
        return messages.Results(tuple(messages.Done(1) for _ in call.calls)), ()

    session = Session()
    calls: list[PlainCall] = [messages.Stat(1)] * 3000
    calls += [messages.WriteOnce(1, bytes(limits.INLINE_BYTES_MAX))] * 30
    calls += [messages.AcquireRead(1)] * 200
    outcomes: list[Answer | DiosError] = []

    def collect() -> Operation[None]:
        outcomes.extend((yield from vector(calls)))

    operation = collect()
    sent = 1
    call = next(operation)
    with contextlib.suppress(StopIteration):
        while True:
            call = operation.send(answer(call))
            sent += 1
    assert len(outcomes) == len(calls)
    assert sent > 8
