"""Batches: operations of many handles in one message."""

from __future__ import annotations

import contextlib

import pytest
import trio

from dios import limits
from dios.client.aio.channel import AsyncChannel
from dios.client.aio.connection import AsyncConnection
from dios.client.aio.node import AsyncNode
from dios.errors import BadReferenceError, Code, InvalidError
from dios.transport.memory.memfd import create_memory
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult, Mapping, PlainCall, PlainResult
from dios.wire.types import ObjectType
from tests.support.client.fake_node import FakeNode, reference


def answer_to(call: PlainCall) -> PlainResult:
    """An answer to one call: bytes for a read, a refusal for reference 9."""
    if isinstance(call, messages.ReadOnce) and call.ref == 9:
        return messages.Failure(int(Code.EBADF), "no such reference")
    if isinstance(call, messages.ReadOnce):
        return messages.Buffer(0, 1, 1, 0, data=b"%d" % call.ref)
    if isinstance(call, messages.Create):
        return messages.Created(None, reference(30))
    if isinstance(call, messages.AcquireWrite):
        return messages.Buffer(5, call.size, 0, 0, Mapping.WRITABLE, 0, call.size)
    return messages.Committed(1, 2) if isinstance(call, messages.CommitWrite) else messages.Done(1)


def script(call: AnyCall) -> tuple[AnyResult, list[int]]:
    """Answers to a vector's calls, with memory for each acquired write."""
    assert isinstance(call, messages.Vector)
    acquired = [inner.size for inner in call.calls if isinstance(inner, messages.AcquireWrite)]
    results = messages.Results(tuple(answer_to(inner) for inner in call.calls))
    return results, [create_memory(size, "test") for size in acquired]


def test_operations_travel_in_one_message() -> None:
    """A batch of reads of many objects is one message, and each result is its own."""
    with FakeNode(script) as fake:
        node = fake.connect()
        with node.batch() as batch:
            reads = [batch.add(node.handle(reference(ref)).read_bytes, 1) for ref in (7, 8, 9)]
            creation = batch.add(node.create, ObjectType.SHMEM_BLOB, data=b"x")
            with pytest.raises(InvalidError, match="not been run yet"):
                creation.result()
        assert [reads[0].result(), reads[1].result()] == [b"7", b"8"]
        assert isinstance(reads[2].error, BadReferenceError)
        with pytest.raises(BadReferenceError):
            reads[2].result()
        assert creation.result().ref == 30
        assert len(fake.calls) == 1


def test_longer_operations_go_side_by_side() -> None:
    """Operations of several calls take as many rounds as the longest of them."""
    big = bytes(limits.INLINE_BYTES_MAX + 1)
    with FakeNode(script) as fake:
        node = fake.connect()
        with node.batch() as batch:
            creations = [batch.add(node.create, ObjectType.SHMEM_BLOB, data=big) for _ in range(3)]
            read = batch.add(node.handle(reference(8)).read_bytes)
        assert [item.result().ref for item in creations] == [30] * 3
        assert read.result() == b"8"
        # Creating and acquiring together, then each last commit with its release.
        first, second, *rest = fake.calls
        assert isinstance(first, messages.Vector)
        assert isinstance(second, messages.Vector)
        assert (len(first.calls), len(second.calls), len(rest)) == (4, 3, 3)


def test_failing_body_runs_nothing() -> None:
    """When the body raises, nothing of the batch was asked."""
    with FakeNode(script) as fake:
        node = fake.connect()
        with contextlib.suppress(ZeroDivisionError), node.batch() as batch:
            batch.add(node.create, ObjectType.GROUP)
            raise ZeroDivisionError
        assert fake.calls == []


def test_only_operations_are_taken() -> None:
    """Something that is no operation of a handle is refused when it is added."""
    with FakeNode(script) as fake:
        node = fake.connect()
        with node.batch() as batch, pytest.raises(InvalidError, match="methods of handles"):
            batch.add(len, b"x")


def test_batch_on_trio() -> None:
    """The face on trio has the same, awaited at the end."""

    async def main(fake: FakeNode) -> bytes:
        connection = AsyncConnection(AsyncChannel(fake.peer))
        node = AsyncNode(connection, await connection.hello((), ""))
        async with node.batch() as batch:
            reading = batch.add(node.handle(reference(8)).read_bytes)
        connection.close()
        return reading.result()

    with FakeNode(script) as fake:
        assert trio.run(main, fake) == b"8"
        assert len(fake.calls) == 1
