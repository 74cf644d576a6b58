"""The face on trio: ``open_node``, and handles whose methods are coroutines, callable from many tasks.

Not for: what the methods do, which both faces share (``dios.client.handles``, ``dios.client.nodes``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar, cast

import trio

from dios.client.aio_connection import AsyncConnection
from dios.client.attributes import HasLink
from dios.client.batches import BatchOps, Pending, operation_of
from dios.client.blocking import ambient
from dios.client.connection import Connection
from dios.client.handles import ConsoleOps, Data, GroupOps, ReferenceOps, TaskOps
from dios.client.keyring import presented_groups
from dios.client.locate import resolve_node
from dios.client.nodes import NodeOps, mode_of, select_op
from dios.client.requests import ReadOps, RequestOps, WriteOps
from dios.client.session import Operation
from dios.client.streams import StreamOps, ends_op
from dios.errors import DiosError, EndOfStreamError
from dios.transport import rings_trio
from dios.transport.rings import RingEnd
from dios.transport.unix_client import connect as connect_socket
from dios.transport.unix_client_trio import AsyncClientChannel
from dios.wire import messages
from dios.wire.types import Mode, ObjectType, Semantics

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=HasLink)


async def drive(owner: HasLink, operation: Operation[T]) -> T:
    """Drive an operation over its owner's connection."""
    return await cast("AsyncConnection", owner.link).run(operation)


def awaited(op: Callable[Concatenate[H, P], Operation[T]]) -> Callable[Concatenate[H, P], Awaitable[T]]:
    """The coroutine method for an operation, under its name without ``_op``."""

    @functools.wraps(op)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast("AsyncConnection", self.link).run(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


# -- I/O requests -----------------------------------------------------------------------------------
class AsyncRequest(RequestOps):
    """An I/O request: ``async with`` acquires it, commits it on a normal exit and releases it always.

    Awaiting it instead acquires it, and leaves the rest to the program.
    """

    __slots__ = ()

    release = awaited(RequestOps.release_op)

    async def _begin(self) -> Self:
        await drive(self, self.acquire_op())
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await drive(self, self.finish_op())
            return
        # The body's own error is the one to be told; the buffer goes back even when it was cancelled.
        with contextlib.suppress(DiosError), trio.CancelScope(shield=True):
            await drive(self, self.release_op())


class AsyncReadRequest(AsyncRequest, ReadOps):
    """A read: look at ``view``, then ``commit`` says whether it was valid."""

    __slots__ = ()

    commit = awaited(ReadOps.commit_op)
    reacquire = awaited(ReadOps.reacquire_op)
    finish = awaited(ReadOps.finish_op)


class AsyncWriteRequest(AsyncRequest, WriteOps):
    """A write: fill ``view``, then ``commit`` makes it the object's bytes if nothing came between."""

    __slots__ = ()

    commit = awaited(WriteOps.commit_op)
    reacquire = awaited(WriteOps.reacquire_op)
    finish = awaited(WriteOps.finish_op)


# -- handles ----------------------------------------------------------------------------------------
class AsyncReference(ReferenceOps["AsyncReference"]):
    """A reference to an object; an ``async with`` body closes the handle at its end."""

    __slots__ = ()

    def read(
        self, semantics: Semantics = Semantics.ANY, *, size: int = 0, offset: int = 0
    ) -> AsyncReadRequest:
        """A request to read ``size`` bytes (0: all) from ``offset`` on, for ``async with``."""
        return AsyncReadRequest(self, size, offset, semantics)

    def write(
        self,
        size: int = 0,
        semantics: Semantics = Semantics.MRSW,
        *,
        offset: int = 0,
        blank: bool = False,
        replace: bool = False,
    ) -> AsyncWriteRequest:
        """A request to write ``size`` bytes (0: as many as there are) from ``offset`` on, for
        ``async with``; ``blank`` and ``replace`` as in the blocking face.
        """
        return AsyncWriteRequest(self, size, offset, semantics, blank=blank, replace=replace)

    read_bytes = awaited(ReferenceOps["AsyncReference"].read_bytes_op)
    write_bytes = awaited(ReferenceOps["AsyncReference"].write_bytes_op)
    stat = awaited(ReferenceOps["AsyncReference"].stat_op)
    close = awaited(ReferenceOps["AsyncReference"].close_op)
    delete = awaited(ReferenceOps["AsyncReference"].delete_op)
    destroy = awaited(ReferenceOps["AsyncReference"].destroy_op)
    delegate = awaited(ReferenceOps["AsyncReference"].delegate_op)
    retire = awaited(ReferenceOps["AsyncReference"].retire_op)
    copy = awaited(ReferenceOps["AsyncReference"].copy_op)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.close()


class AsyncTask(TaskOps["AsyncConsole"], AsyncReference):
    """A reference to a task."""

    __slots__ = ()

    wait = awaited(TaskOps["AsyncConsole"].wait_op)
    status = awaited(TaskOps["AsyncConsole"].status_op)
    pause = awaited(TaskOps["AsyncConsole"].pause_op)
    resume = awaited(TaskOps["AsyncConsole"].resume_op)
    kill = awaited(TaskOps["AsyncConsole"].kill_op)
    console = awaited(TaskOps["AsyncConsole"].console_op)


class AsyncConsole(ConsoleOps, AsyncReference):
    """A reference to a task's console; iterating gives what is printed, until the task has ended."""

    __slots__ = ()

    receive = awaited(ConsoleOps.receive_op)
    send = awaited(ConsoleOps.send_op)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self.receive()
        except EndOfStreamError:
            return


class AsyncGroup(GroupOps, AsyncReference):
    """A reference to a group."""

    __slots__ = ()

    read_name = awaited(GroupOps.read_name_op)


class AsyncStream(StreamOps, AsyncReference):
    """A reference to a stream, which is its writing or reading end from its first use as one on.

    Iterating gives messages until the writer is gone.
    """

    __slots__ = ()

    writer = awaited(StreamOps.writer_op)
    reader = awaited(StreamOps.reader_op)

    async def send(self, data: Data) -> None:
        """Send one message; waits while there is no room. ClosedError when the reader is gone."""
        await rings_trio.send(await self.writer(), data)

    async def receive(self) -> bytes:
        """Wait for the next message; EndOfStreamError when the writer is gone and everything was read."""
        return await rings_trio.receive(await self.reader())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self.receive()
        except EndOfStreamError:
            return


_KINDS: Final[dict[ObjectType, type[AsyncReference]]] = {
    ObjectType.TASK: AsyncTask,
    ObjectType.CONSOLE_STREAM: AsyncConsole,
    ObjectType.GROUP: AsyncGroup,
    ObjectType.SHMEM_STREAM: AsyncStream,
}

_Ops = NodeOps["AsyncReference", "AsyncTask", "AsyncGroup", "AsyncStream", "AsyncConsole"]


class AsyncNode(NodeOps["AsyncReference", "AsyncTask", "AsyncGroup", "AsyncStream", "AsyncConsole"]):
    """The node, as this task sees it."""

    create = awaited(_Ops.create_op)
    create_group = awaited(_Ops.create_group_op)
    create_stream = awaited(_Ops.create_stream_op)
    create_timer = awaited(_Ops.create_timer_op)
    create_program = awaited(_Ops.create_program_op)
    lookup = awaited(_Ops.lookup_op)
    find = awaited(_Ops.find_op)
    run = awaited(_Ops.run_op)
    next_event = awaited(_Ops.next_event_op)
    vector = awaited(_Ops.vector_op)
    tasks = awaited(_Ops.tasks_op)
    info = awaited(_Ops.info_op)
    nodes = awaited(_Ops.nodes_op)
    set_node = awaited(_Ops.set_node_op)
    describe = awaited(_Ops.describe_op)
    limits = awaited(_Ops.limits_op)
    set_limits = awaited(_Ops.set_limits_op)
    shutdown = awaited(_Ops.shutdown_op)
    pause = awaited(_Ops.pause_op)

    def handle(self, info: messages.Reference, name: bytes | None = None) -> AsyncReference:
        """A handle for a reference that came in a message."""
        return _KINDS.get(info.type, AsyncReference)(self, info, name)

    def batch(self) -> AsyncBatch:
        """A batch, for operations that shall travel in few messages."""
        return AsyncBatch(self.link)

    async def select(
        self,
        references: Iterable[AsyncReference],
        mode: str | Mode = Mode.READ,
        timeout: float | None = None,  # noqa: ASYNC109 - select's own limit (B.1.13), which the node keeps
    ) -> AsyncReference | None:
        """Wait until one of ``references`` can be read ("write": written) without waiting, and answer it;
        None after ``timeout`` seconds (B.1.13).
        """
        direction = mode_of(mode)
        ends, others = await drive(self, ends_op(list(references), direction))
        found: list[AsyncReference] = []
        failed: list[DiosError] = []
        async with trio.open_nursery() as nursery:

            async def watch(end: RingEnd) -> None:
                try:
                    await rings_trio.wait_ready(end)
                    found.append(ends[end])
                except DiosError as error:
                    failed.append(error)
                nursery.cancel_scope.cancel()

            async def ask() -> None:
                try:
                    index = await drive(self, select_op(others, direction, timeout))
                    found.extend([] if index < 0 else [others[index]])
                except DiosError as error:
                    failed.append(error)
                nursery.cancel_scope.cancel()

            for end in ends:
                nursery.start_soon(watch, end)
            if others:
                nursery.start_soon(ask)
            elif timeout is not None:
                nursery.cancel_scope.deadline = trio.current_time() + timeout
        if failed and not found:
            raise failed[0]
        return found[0] if found else None


class AsyncBatch(BatchOps):
    """Operations that travel together: collected in an ``async with`` body, run at its end."""

    def add(self, method: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        """Collect one call of a method, not awaited, like ``batch.add(blob.read_bytes, 100)``."""
        return cast("Pending[T]", self._collect(operation_of(method, *args, **kwargs)))

    run = awaited(BatchOps.run_op)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.run()


@contextlib.asynccontextmanager
async def open_node(
    node: str | Path | None = None, *, groups: Iterable[str | bytes] | None = None, label: str = ""
) -> AsyncIterator[AsyncNode]:
    """The node for an ``async with`` body; arguments and errors as of ``dios.connect``.

    Inside a task it is the task's own, whose blocking face must rest meanwhile.
    """
    inside = ambient() if node is None else None
    if inside is not None:
        async with _borrowed(*inside) as borrowed:
            yield borrowed
        return
    hello = presented_groups(groups)
    connection = AsyncConnection(AsyncClientChannel(connect_socket(resolve_node(node))))
    try:
        opened = AsyncNode(connection, await connection.hello(hello, label))
        try:
            yield opened
        finally:
            opened.close_ends()
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _borrowed(own: Connection, welcome: messages.Welcome) -> AsyncIterator[AsyncNode]:
    """The task's own connection on trio, given back to the blocking face at the end."""
    channel = AsyncClientChannel(socket.socket(fileno=os.dup(own.fileno())))
    connection = AsyncConnection(channel, own.session)
    connection.page = own.page
    borrowed = AsyncNode(connection, welcome, ambient=True)
    try:
        yield borrowed
    finally:
        borrowed.close_ends()
        connection.page = None
        await connection.close()
        # Both descriptors are one open socket, and so is the flag that says whether it blocks.
        os.set_blocking(own.fileno(), True)
