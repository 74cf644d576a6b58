"""The async client against a node that answers as told, on both event loops."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from dios.client.aio.channel import AsyncChannel
from dios.client.aio.connection import AsyncConnection
from dios.client.aio.node import AsyncNode, AsyncReference, AsyncStream, AsyncTask
from dios.errors import ClosedError, Code, Conflict, NotPermittedError
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Flag, ObjectType, Semantics, Traffic
from tests.support.client.fake_node import FakeNode, in_turn, reference
from tests.support.client.loops import on_both_loops
from tests.support.host.rings import Rings

DONE = messages.Done(1)
BYTES = messages.Buffer(5, 3, 1, 2, data=b"abc")


@asynccontextmanager
async def connected(fake: FakeNode) -> AsyncIterator[AsyncNode]:
    """A client's node on the other end."""
    connection = AsyncConnection(AsyncChannel(fake.peer))
    try:
        yield AsyncNode(connection, await connection.hello((), "test"))
    finally:
        connection.close()


def blob(node: AsyncNode) -> AsyncReference:
    """A handle of a blob."""
    return node.handle(reference())


@on_both_loops
async def test_methods_are_the_same_as_coroutines() -> None:
    """Creating, reading and writing work as in the blocking face, awaited."""
    script = in_turn(messages.Created(None, reference()), BYTES, DONE, BYTES, messages.Committed(1, 2))
    with FakeNode(script) as fake:
        async with connected(fake) as node:
            handle = await node.create(ObjectType.SHMEM_BLOB, data=b"abc")
            async with handle.read(Semantics.MRSW) as request:
                assert bytes(request.view) == b"abc"
            assert await handle.read_bytes() == b"abc"
            assert await handle.write_bytes(b"x") == 2
            assert type(node.self) is AsyncTask
    assert [type(call).__name__ for call in fake.calls] == [
        "Create",
        "AcquireRead",
        "ReleaseRead",
        "ReadOnce",
        "WriteOnce",
    ]


@on_both_loops
async def test_write_commits_at_the_end() -> None:
    """``async with`` a write commits and releases in one message; awaiting it leaves both to the caller."""
    results = messages.Results((messages.Committed(1, 2), DONE))
    script = in_turn(BYTES, results, BYTES, messages.Committed(1, 3), DONE)
    with FakeNode(script) as fake:
        async with connected(fake) as node:
            async with blob(node).write(3, Semantics.EXCL) as request:
                request.view[:1] = b"X"
            request = await blob(node).write(3)
            await request.commit()
            await request.release()
    assert fake.calls[1] == messages.Vector(
        (messages.CommitWrite(7, 5, data=b"Xbc"), messages.ReleaseWrite(7, 5))
    )


@on_both_loops
async def test_refusals_are_exceptions() -> None:
    """A Failure is raised where it was awaited, and the connection goes on."""
    script = in_turn(
        messages.Failure(int(Code.EPERM), "no"), messages.Failure(int(Code.ECANCELED), "no"), BYTES
    )
    with FakeNode(script) as fake:
        async with connected(fake) as node:
            with pytest.raises(NotPermittedError):
                await blob(node).read_bytes()
            with pytest.raises(Conflict):
                await blob(node).stat()
            assert await blob(node).read_bytes() == b"abc"


@on_both_loops
async def test_many_tasks_call_at_once() -> None:
    """Answers reach the task whose call they answer, in whatever order they come."""
    waiting: list[int] = []

    def script(call: AnyCall) -> AnyResult | None:
        if isinstance(call, messages.ReadOnce):
            waiting.append(call.ref)
            if len(waiting) == 10:
                for seq in range(11, 1, -1):
                    fake.send(seq, messages.Buffer(0, 1, 0, 0, data=b"%d" % (seq - 2)))
        return None

    contents: dict[int, bytes] = {}

    async def read(node: AsyncNode, number: int) -> None:
        contents[number] = await blob(node).read_bytes()

    with FakeNode(script) as fake:
        async with connected(fake) as node, anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(read, node, number)
                await anyio.wait_all_tasks_blocked()
    assert contents == {number: b"%d" % number for number in range(10)}


@on_both_loops
async def test_cancelled_call_is_given_up_at_the_node() -> None:
    """Cancelling a waiting call cancels it at the node, and what it granted all the same goes back."""
    undone = threading.Event()

    def script(call: AnyCall) -> AnyResult | None:
        if isinstance(call, messages.AcquireRead):
            return None
        if isinstance(call, messages.Cancel):
            fake.send(call.seq, BYTES)
            return messages.Done(0)
        if isinstance(call, messages.ReleaseRead):
            undone.set()
        return DONE

    with FakeNode(script) as fake:
        async with connected(fake) as node:
            with anyio.move_on_after(0.01) as scope:
                await blob(node).read()
            assert scope.cancelled_caught
            with anyio.fail_after(10):
                assert await anyio.to_thread.run_sync(undone.wait, 10)
            await blob(node).close()
    assert messages.ReleaseRead(7, 5) in fake.calls


@on_both_loops
async def test_cancelled_body_still_releases() -> None:
    """A request whose body is cancelled gives its buffer back."""
    with FakeNode(in_turn(BYTES, DONE)) as fake:
        async with connected(fake) as node:
            with anyio.move_on_after(0.01):
                async with blob(node).read():
                    await anyio.sleep_forever()
    assert fake.calls[1:] == [messages.ReleaseRead(7, 5)]


@on_both_loops
async def test_closed_connection_ends_every_wait() -> None:
    """When the node goes, every waiting task gets ClosedError, and so does every later call."""

    async def wait(node: AsyncNode) -> None:
        with pytest.raises(ClosedError):
            await blob(node).read_bytes()

    with FakeNode(lambda _: None) as fake:
        async with connected(fake) as node:
            async with anyio.create_task_group() as group:
                group.start_soon(wait, node)
                group.start_soon(wait, node)
                await anyio.wait_all_tasks_blocked()
                fake.hang_up()
            with pytest.raises(ClosedError):
                await blob(node).stat()


@on_both_loops
async def test_handles_close_at_the_end_of_a_body() -> None:
    """``async with`` on a handle drops it."""
    with FakeNode(lambda _: DONE) as fake:
        async with connected(fake) as node, blob(node):
            pass
    assert fake.calls == [messages.Delete(7, int(Flag.HANDLE_ONLY))]


def stream(node: AsyncNode, ref: int) -> AsyncStream:
    """A stream's handle."""
    handle = node.handle(reference(ref, ObjectType.SHMEM_STREAM))
    assert isinstance(handle, AsyncStream)
    return handle


@on_both_loops
async def test_streams_move_messages() -> None:
    """A stream sends, receives and iterates without a call beyond its attaching."""
    rings = Rings()
    with FakeNode(rings.script) as fake:
        async with connected(fake) as node:
            out, inlet = stream(node, 20), stream(node, 21)
            reader, writer = rings.reader(20), rings.writer(21)
            await out.send(b"one")
            assert reader.receive() == b"one"
            writer.send(b"two")
            writer.send(b"three")
            writer.close()
            assert [message async for message in inlet] == [b"two", b"three"]
            await out.close()
            await inlet.close()
    rings.close()


@on_both_loops
async def test_select_waits_for_the_first_of_all_kinds() -> None:
    """Whatever is ready first, a stream or another object, ends a select; so does its time limit."""
    rings = Rings()
    rings.select = None
    with FakeNode(rings.script) as fake:
        async with connected(fake) as node:
            inlet = stream(node, 20)
            writer = rings.writer(20)
            assert await node.select([inlet], timeout=0.01) is None
            async with anyio.create_task_group() as group:

                async def later() -> None:
                    await anyio.wait_all_tasks_blocked()
                    writer.send(b"x")

                group.start_soon(later)
                assert await node.select([node.self, inlet]) is inlet
            assert await inlet.receive() == b"x"
            rings.select = messages.Selected(0)
            assert await node.select([node.self, inlet]) is node.self
            rings.select = messages.Failure(int(Code.EPERM), "no")
            with pytest.raises(NotPermittedError):
                await node.select([node.self, inlet])
            await inlet.close()
    rings.close()


@on_both_loops
async def test_rates_are_told_in_one_call() -> None:
    """A node is told all of the rates at once, and its meters come back as they were told."""
    rates = (messages.Rate("uid:1", Traffic.OUT, 5), messages.Rate("uid:2", Traffic.STORE, 6))
    told = messages.Metered(7, (messages.Meter("uid:1", Traffic.OUT, 1, 2),), (3, 0, 4), 9, b"s")
    edge = messages.Guarantee("uid:1", 5, 6, 500, ((0, 7),))
    with FakeNode(in_turn(told, told, told)) as fake:
        async with connected(fake) as node:
            assert await node.govern("n2", iter(rates), lease_ms=3_000, shares_version=8, shares=b"t") == told
            await node.govern()
            await node.govern(guarantees=iter((edge,)), lease_ms=1)
    assert fake.calls == [
        messages.Govern("n2", rates, 3_000, 8, b"t"),
        messages.Govern(),
        messages.Govern(lease_ms=1, guarantees=(edge,)),
    ]
