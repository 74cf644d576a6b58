"""The messages at a border: answers of a foreign node are taken in their order alone (ADR 0101)."""

from __future__ import annotations

import pytest

from dios.errors import ProtocolError
from dios.wire import border
from dios.wire.border import (
    AnswerCheck,
    AskCluster,
    CheckedToken,
    CheckToken,
    ClusterIdentity,
    FileHead,
    FileList,
    FilePart,
    FileRow,
    ListFiles,
    ReadFile,
    Refusal,
    WriteFile,
    WriteReady,
    WrittenFile,
)

ROW = FileRow("a", 5, 1, bytes(32))
READ, WRITE = ReadFile(b"t", "a"), WriteFile(b"t", "a", 5, bytes(32))
GOOD: tuple[tuple[border.BorderCall, tuple[border.BorderAnswer, ...]], ...] = (
    (AskCluster(), (ClusterIdentity(bytes(32)),)),
    (CheckToken(b"t"), (CheckedToken(1, 7, ("a",)),)),
    (ListFiles(b"t"), (FileList((ROW,), more=False),)),
    (READ, (FileHead(ROW), FilePart(b"12"), FilePart(b"345"))),
    (READ, (FileHead(ROW, unchanged=True),)),
    (READ, (FileHead(FileRow("a", 0, 1, b"")),)),
    (READ, (FileHead(ROW), FilePart(b"12"), Refusal(116, "revoked"))),
    (WRITE, (WriteReady(), WrittenFile(ROW))),
    (WRITE, (Refusal(1, "no"),)),
)  # fmt: skip
ANSWERS = tuple({type(answer): answer for _, answers in GOOD for answer in answers}.values())


@pytest.mark.parametrize(("call", "answers"), GOOD)
def test_the_answers_of_a_call_come_back_and_end(
    call: border.BorderCall, answers: tuple[border.BorderAnswer, ...]
) -> None:
    """Each is decoded as it was, and the call is complete with the last and not before."""
    assert border.decode_call(border.encode_frame(call)[4:]) == call
    check = AnswerCheck(call)
    for answer in answers:
        assert not check.is_complete
        check.take(border.decode_answer(border.encode_frame(answer)[4:]))
    assert check.is_complete


@pytest.mark.parametrize("call", [AskCluster(), CheckToken(b"t"), ListFiles(b"t"), READ, WRITE])
def test_answers_of_other_calls_are_refused(call: border.BorderCall) -> None:
    """At the beginning a call has only its own first answer, or a refusal."""
    first = {type(answers[0]) for other, answers in GOOD if type(other) is type(call)} | {Refusal}
    for answer in ANSWERS:
        if type(answer) not in first:
            with pytest.raises(ProtocolError):
                AnswerCheck(call).take(answer)


@pytest.mark.parametrize("then", [FilePart(b"123456"), FileHead(ROW), WrittenFile(ROW), WriteReady()])
def test_a_file_has_no_more_bytes_than_announced(then: border.BorderAnswer) -> None:
    """A part that is too long is refused, and so is everything that is no part."""
    check = AnswerCheck(READ)
    check.take(FileHead(ROW))
    with pytest.raises(ProtocolError):
        check.take(then)


def test_the_bytes_of_a_file_are_no_call() -> None:
    """Parts that come after a refusal end the connection; they are never taken for a call."""
    body = border.encode_frame(FilePart(b"data"))[4:]
    for decode in (border.decode_call, border.decode_forwarded):
        with pytest.raises(ProtocolError, match="malformed"):
            decode(body)
