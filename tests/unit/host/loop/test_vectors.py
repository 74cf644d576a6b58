"""The reply to a vector has a bound that counts everything in it, not only the bytes of objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios import limits
from dios.core.effects import Answer, AnswerBytes, AnswerVector
from dios.errors import Code
from dios.host.loop.vectors import VectorPart
from dios.wire.codec import encode_reply
from dios.wire.messages import Buffer, Created, Done, Failure, PlainResult, Reference, References, Results
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity
from tests.support.host.harness import TASK, rig


def reference(label: str = "", number: int = 1) -> Reference:
    """A reference with this label."""
    return Reference(
        ref=number,
        object=number,
        type=ObjectType.SHMEM_BLOB,
        permissions=31,
        persistence=Persistence.VOLATILE,
        proximity=Proximity.PROCESS,
        deletion=Deletion.IMMEDIATE,
        buffering=Buffering.DOUBLE,
        slot=0,
        size=0,
        v_r=0,
        v_w=0,
        a_r=0,
        a_w=0,
        fingerprint="f" * 16,
        label=label,
    )


LABEL = "l" * limits.TEXT_BYTES_MAX
SHOWN = References((reference(LABEL),))
FOUND = References((reference(LABEL),) * limits.LOOKUP_REFERENCES_MAX)
FAILED = Failure(int(Code.EINVAL), "\U0001f600" * 1_000)
MADE = Created(b"n" * 32, reference("c" * 200))


def answered(result: PlainResult) -> VectorPart:
    """An answer of the core."""
    return Answer(TASK, 1, result)


@pytest.mark.parametrize(
    "results",
    [(SHOWN,), (FOUND,), (FAILED,), (SHOWN, FOUND, FAILED, MADE), (FOUND, Done(3), MADE)],
    ids=["labels", "lists", "messages", "all", "few"],
)
async def test_a_reply_to_a_vector_fits_its_frame(tmp_path: Path, results: tuple[PlainResult, ...]) -> None:
    """Answers that fit arrive, each further one is a failure of its own, and none is lost."""
    calls = [results[place % len(results)] for place in range(limits.VECTOR_CALLS_MAX)]
    async with rig(tmp_path) as host:
        host.do(AnswerVector(TASK, 1, tuple(map(answered, calls))))
        reply = host.replies[0][1]
    assert isinstance(reply, Results), reply
    assert len(encode_reply(1, reply)) <= limits.REPLY_BYTES_MAX
    assert len(reply.results) == len(calls)
    whole = [got == expected for got, expected in zip(reply.results, calls, strict=True)]
    assert whole[0]
    for got, expected in zip(reply.results, calls, strict=True):
        if isinstance(expected, Created | Done):
            assert got == expected
        elif got != expected:
            assert isinstance(got, Failure)
            assert got.code == (expected.code if isinstance(expected, Failure) else Code.EFBIG)
    assert not all(whole)


async def test_produced_bytes_count_as_well(tmp_path: Path) -> None:
    """Bytes that the core produced, such as a clock's, count next to labels."""
    data = b"d" * (32 * limits.KIB)
    part = AnswerBytes(TASK, 1, Buffer(0, len(data), 0, 0), data)
    count = limits.REPLY_BYTES_MAX // len(data) + 1
    async with rig(tmp_path) as host:
        host.do(AnswerVector(TASK, 1, (answered(FOUND), *[part] * count, answered(MADE))))
        reply = host.replies[0][1]
    assert isinstance(reply, Results), reply
    assert len(encode_reply(1, reply)) <= limits.REPLY_BYTES_MAX
    kinds = [type(answer) for answer in reply.results]
    assert kinds[:2] == [References, Buffer]
    assert kinds[-2:] == [Failure, Created]
