"""The connection of the async client at the edges: full sockets, cancellations, the way back to a task."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import anyio
import anyio.lowlevel
import pytest
import trio

from dios.client.aio.channel import AsyncChannel
from dios.client.aio.connection import AsyncConnection
from dios.client.aio.futures import result
from dios.client.aio.node import AsyncNode
from dios.client.aio.running_loop import running_loop
from dios.client.session import Session
from dios.errors import ClosedError, InvalidError
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.codec import FrameSplitter, decode_request, encode_reply
from dios.wire.messages import AnyCall
from dios.wire.types import Semantics
from tests.support.client.fake_node import FakeNode, in_turn, reference
from tests.support.client.loops import on_both_loops

LARGE = messages.Vector((messages.WriteOnce(7, bytes(30_000)),) * 6)
BYTES = messages.Buffer(5, 3, 1, 2, data=b"abc")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection whose socket takes a part of a large frame."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    with ours, theirs:
        yield ours, theirs


def read_calls(sock: socket.socket) -> list[AnyCall]:
    """Return the calls that were sent, when the other end is closed."""
    splitter = FrameSplitter()
    calls: list[AnyCall] = []
    while data := sock.recv(1 << 20):
        calls += [decode_request(body).call for body in splitter.feed(data)]
    return calls


async def cancelled(function: Callable[[], Coroutine[object, object, object]]) -> None:
    """Start an async function, and cancel it as soon as it waits."""
    async with anyio.create_task_group() as group:
        group.start_soon(function)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


@on_both_loops
async def test_a_cancelled_call_never_cuts_a_frame(pair: tuple[socket.socket, socket.socket]) -> None:
    """A frame of which a part was sent goes out to its end; one that waits behind it is taken back.

    A call that gives something back is sent all the same.
    """
    ours, theirs = pair
    connection = AsyncConnection(AsyncChannel(ours))
    small = messages.Stat(8)
    drop = messages.Delete(9, 1)
    await cancelled(lambda: connection.call(LARGE))
    await cancelled(lambda: connection.call(small))
    await cancelled(lambda: connection.call(drop))
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read_calls, theirs)
        while connection._stop_writing is not None:
            await anyio.lowlevel.checkpoint()
        connection.close()
        assert await result(reading) == [LARGE, messages.Cancel(1), drop, messages.Cancel(4)]


@on_both_loops
async def test_an_operation_that_is_cancelled_gives_back_what_it_has(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A create of many bytes that is cancelled in its second call destroys the object of its first one."""
    blob = reference(21)

    def script(call: AnyCall) -> messages.AnyResult | None:
        return messages.Created(None, blob) if isinstance(call, messages.Create) else None

    with FakeNode(script) as fake:
        connection = AsyncConnection(AsyncChannel(fake.peer))
        node = AsyncNode(connection, await connection.hello((), "test"))

        async def create() -> None:
            await node.create(blob.type, data=bytes(2_000_000))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(create)
                while messages.AcquireWrite not in map(type, fake.calls):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            while messages.Delete not in map(type, fake.calls):
                await anyio.lowlevel.checkpoint()
        connection.close()
    assert [type(call).__name__ for call in fake.calls] == ["Create", "AcquireWrite", "Cancel", "Delete"]


def test_an_answer_that_comes_with_the_cancellation(pair: tuple[socket.socket, socket.socket]) -> None:
    """On asyncio a task can be cancelled after its answer came: what the answer granted is given back."""
    ours, theirs = pair

    async def main() -> None:
        connection = AsyncConnection(AsyncChannel(ours))
        task = asyncio.create_task(connection.call(messages.AcquireRead(7, 3, 0, Semantics.ANY)))
        await anyio.lowlevel.checkpoint()
        theirs.sendall(encode_reply(1, BYTES))
        connection._on_readable()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        connection.close()

    asyncio.run(main())
    assert read_calls(theirs)[1:] == [messages.ReleaseRead(7, 5)]


@on_both_loops
async def test_the_socket_goes_back_at_the_boundary_of_a_frame(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A connection that ends within a frame reads the rest before a blocking one uses the same socket."""
    ours, theirs = pair
    own = ClientChannel(ours)
    session = Session()
    connection = AsyncConnection(AsyncChannel(socket.socket(fileno=socket.dup(ours.fileno()))), session)
    await cancelled(lambda: connection.call(messages.ReadOnce(7, 3)))
    late = encode_reply(1, BYTES)
    theirs.sendall(late[:10])
    await anyio.wait_readable(ours)
    connection._on_readable()
    rest = threading.Timer(0.01, theirs.sendall, (late[10:],))
    rest.start()
    connection.hand_back()
    rest.join()
    theirs.sendall(encode_reply(3, messages.Done(1)))
    assert session.reply(*own.receive(10)) == (3, messages.Done(1))
    own.close()


@on_both_loops
async def test_one_task_waits_for_a_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    """Two tasks that wait at one end are refused on asyncio too, where one would wait for ever."""
    loop = running_loop()
    fd = pair[0].fileno()

    async def wait() -> None:
        await loop.wait_readable(fd)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises((InvalidError, trio.BusyResourceError)):
            await loop.wait_readable(fd)
        group.cancel_scope.cancel()
    assert not await loop.wait_readable_until(fd, loop.now() + 0.001)
    pair[1].send(b"x")
    assert await loop.wait_readable_until(fd, loop.now() + 10)


@on_both_loops
async def test_a_shielded_function_ends_before_its_cancelled_caller() -> None:
    """A cancellation waits for the end of a shielded function, and a failure of it is raised."""
    loop = running_loop()
    done: list[str] = []

    async def work() -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        done.append("work")

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise LookupError

    with anyio.CancelScope() as scope:
        scope.cancel()
        await loop.shielded(work)
        await anyio.lowlevel.checkpoint()
        done.append("never")
    assert done == ["work"]
    with pytest.raises(LookupError):
        await loop.shielded(fail)


@on_both_loops
async def test_the_first_of_several_ends_the_others() -> None:
    """The others are cancelled when one ends, when the time is over, and with the caller."""
    loop = running_loop()
    ended: list[int] = []

    async def wait(number: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(number)

    async def end() -> None:
        await anyio.lowlevel.checkpoint()

    await loop.first_of([lambda: wait(1), end, lambda: wait(2)], None)
    assert sorted(ended) == [1, 2]
    await loop.first_of([lambda: wait(3)], 0.001)
    await cancelled(lambda: loop.first_of([lambda: wait(4)], None))
    await loop.first_of([], 0)
    assert ended[2:] == [3, 4]


@on_both_loops
async def test_futures_of_an_executor_are_awaited() -> None:
    """``result`` gives the result or the exception of a future, and a cancelled caller cancels it."""
    with ThreadPoolExecutor(1) as threads:
        release = threading.Event()
        first = threads.submit(release.wait, 10)
        later: Future[str] = threads.submit(str, 5)
        wrong: Future[int] = threads.submit(int, "x")
        await cancelled(lambda: result(later))
        assert later.cancelled()
        release.set()
        assert await result(first)
        assert await result(first)
        with pytest.raises(ValueError, match="invalid literal"):
            await result(wrong)


@on_both_loops
async def test_a_closed_connection_refuses_calls() -> None:
    """After ``close`` every call is refused, and closing again does nothing."""
    with FakeNode(in_turn()) as fake:
        connection = AsyncConnection(AsyncChannel(fake.peer))
        await connection.hello((), "test")
        connection.close()
        connection.close()
        with pytest.raises(ClosedError):
            await connection.call(messages.Stat(7))
