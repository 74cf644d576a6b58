"""The async client: ``open_node``, and handles whose methods are coroutines that many tasks can call.

``dios.client.ops`` has the operations, which both clients share.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

from dios.client import user_keys
from dios.client.aio import rings
from dios.client.aio.channel import AsyncChannel
from dios.client.aio.connection import AsyncConnection
from dios.client.aio.handles import (
    AsyncReadRequest,
    AsyncReference,
    AsyncStreamEnds,
    AsyncWriteRequest,
    awaited,
    drive,
    loop_of,
)
from dios.client.aio.network import AsyncAcceptor, AsyncDatagrams, AsyncTcpConnection
from dios.client.aio.running_loop import running_loop
from dios.client.keyring import presented_groups
from dios.client.ops.arrays import ArrayMakers
from dios.client.ops.attributes import HasLink
from dios.client.ops.batches import BatchOps, Pending, operation_of
from dios.client.ops.handles import ConsoleOps, Data, GroupOps, TaskOps
from dios.client.ops.logs import Entry, LogMakers, LogOps
from dios.client.ops.network import NetworkOps
from dios.client.ops.nodes import NodeOps, mode_of, select_op
from dios.client.ops.streams import ends_op
from dios.client.sync.connection import Connection
from dios.client.sync.node import ambient, open_socket, renew_mandate
from dios.errors import DiosError, EndOfStreamError, UnreachableError
from dios.transport.rings.waiting import RingEnd
from dios.wire import messages
from dios.wire.types import Mode, ObjectType

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = [
    "AsyncAcceptor",
    "AsyncBatch",
    "AsyncConsole",
    "AsyncDatagrams",
    "AsyncGroup",
    "AsyncLog",
    "AsyncNode",
    "AsyncReadRequest",
    "AsyncReference",
    "AsyncStream",
    "AsyncTask",
    "AsyncTcpConnection",
    "AsyncWriteRequest",
    "open_node",
]

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=HasLink)


class AsyncLog(LogOps, AsyncReference):
    """A log; iterating yields its present entries, from the first one on."""

    __slots__ = ()

    append = awaited(LogOps.append_op)
    append_all = awaited(LogOps.append_all_op)

    async def read_entries(
        self,
        position: int = 0,
        *,
        wait: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - the blocking client's argument
    ) -> list[Entry]:
        """Return the entries from ``position`` on that fit one message; an empty list at the end.

        With ``wait`` it waits at the end for the next entry; TimeLimitError after ``timeout`` seconds.
        """
        if wait and timeout is not None:
            return await drive(self, self.next_op(position, timeout))
        return await drive(self, self.read_op(position, wait=wait))

    async def entries(self, position: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield the entries from ``position`` to the end at the time it is reached."""
        while entries := await self.read_entries(position):
            for entry in entries:
                yield entry
            position = entries[-1].next

    async def follow(self, position: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield the entries from ``position`` on, for ever: at the end it waits for the next entry."""
        while True:
            entries = await self.read_entries(position, wait=True)
            for entry in entries:
                yield entry
            position = entries[-1].next

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.entries()


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
    """A reference to a task's console; iterating yields its output, until the task has ended."""

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


class AsyncStream(AsyncStreamEnds):
    """A reference to a stream; its first use makes it the writing or the reading end.

    Iterating yields messages until the writer is closed.
    """

    __slots__ = ()

    async def send(self, data: Data, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the blocking client's argument
        """Send one message; wait while there is no room. ClosedError if the reader is closed."""
        await rings.send(loop_of(self), await self.writer(), data, timeout)

    async def receive(self, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the blocking client's argument
        """Wait for the next message and return it; EndOfStreamError after the last one."""
        return await rings.receive(loop_of(self), await self.reader(), timeout)

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
    ObjectType.TCP_STREAM: AsyncTcpConnection,
    ObjectType.TCP_ACCEPT_STREAM: AsyncAcceptor,
    ObjectType.DURABLE_STREAM: AsyncLog,
    ObjectType.UDP_STREAM: AsyncDatagrams,
}

_Ops = NodeOps["AsyncReference", "AsyncTask", "AsyncGroup", "AsyncStream", "AsyncConsole"]


_Network = NetworkOps["AsyncReference", "AsyncTcpConnection", "AsyncAcceptor", "AsyncDatagrams"]


class AsyncNode(
    NodeOps["AsyncReference", "AsyncTask", "AsyncGroup", "AsyncStream", "AsyncConsole"],
    NetworkOps["AsyncReference", "AsyncTcpConnection", "AsyncAcceptor", "AsyncDatagrams"],
    LogMakers["AsyncLog"],
    ArrayMakers["AsyncReference"],
):
    """The node, as this task sees it."""

    create = awaited(_Ops.create_op)
    create_group = awaited(_Ops.create_group_op)
    create_stream = awaited(_Ops.create_stream_op)
    declassifier = awaited(_Ops.declassifier_op)
    create_timer = awaited(_Ops.create_timer_op)
    network = awaited(_Network.network_op)
    connect_tcp = awaited(_Network.connect_tcp_op)
    record_request = awaited(_Network.record_request_op)
    listen_tcp = awaited(_Network.listen_tcp_op)
    bind_udp = awaited(_Network.bind_udp_op)
    create_log = awaited(LogMakers["AsyncLog"].create_log_op)
    create_array = awaited(ArrayMakers["AsyncReference"].create_array_op)
    create_table = awaited(ArrayMakers["AsyncReference"].create_table_op)
    create_program = awaited(_Ops.create_program_op)
    group = awaited(_Ops.group_op)
    present_all = awaited(_Ops.present_all_op)
    share_group = awaited(_Ops.share_group_op)
    accept_share = awaited(_Ops.accept_share_op)
    issue_token = awaited(_Ops.issue_token_op)
    redeem_token = awaited(_Ops.redeem_token_op)
    lookup = awaited(_Ops.lookup_op)
    find = awaited(_Ops.find_op)
    run = awaited(_Ops.run_op)
    next_event = awaited(_Ops.next_event_op)
    vector = awaited(_Ops.vector_op)
    finish_writes = awaited(_Ops.finish_writes_op)
    tasks = awaited(_Ops.tasks_op)
    info = awaited(_Ops.info_op)
    nodes = awaited(_Ops.nodes_op)
    changed_nodes = awaited(_Ops.changed_nodes_op)
    set_node = awaited(_Ops.set_node_op)
    label_node = awaited(_Ops.label_node_op)
    read_state = awaited(_Ops.read_state_op)
    read_table = awaited(_Ops.read_table_op)
    prune_environments = awaited(_Ops.prune_environments_op)
    read_register = awaited(_Ops.read_register_op)
    enrol = awaited(_Ops.enrol_op)
    mandate_terms = awaited(_Ops.mandate_terms_op)
    vouch = awaited(_Ops.vouch_op)
    ask_scheduler = awaited(_Ops.ask_scheduler_op)
    board = awaited(_Ops.board_op)
    place = awaited(_Ops.place_op)
    keep_rooms = awaited(_Ops.keep_rooms_op)
    govern = awaited(_Ops.govern_op)
    set_admission = awaited(_Ops.set_admission_op)
    advise = awaited(_Ops.advise_op)
    report = awaited(_Ops.report_op)
    describe = awaited(_Ops.describe_op)
    limits = awaited(_Ops.limits_op)
    set_limits = awaited(_Ops.set_limits_op)
    shutdown = awaited(_Ops.shutdown_op)
    pause = awaited(_Ops.pause_op)
    wait_move = awaited(_Ops.wait_move_op)
    progress = awaited(_Ops.progress_op)
    leave = awaited(_Ops.leave_op)

    def handle(self, info: messages.Reference, name: bytes | None = None) -> AsyncReference:
        return _KINDS.get(info.type, AsyncReference)(self, info, name)

    def batch(self) -> AsyncBatch:
        """Return a batch, for operations that are sent in few messages."""
        return AsyncBatch(self.link)

    async def select(
        self,
        references: Iterable[AsyncReference],
        mode: str | Mode = Mode.READ,
        timeout: float | None = None,  # noqa: ASYNC109 - select's own limit (B.1.13), which the node keeps
    ) -> AsyncReference | None:
        """Wait until one of ``references`` can be read ("write": written) without waiting, and return it.

        Returns None after ``timeout`` seconds (B.1.13).
        """
        direction = mode_of(mode)
        ends, others = await drive(self, ends_op(list(references), direction))
        ready: list[AsyncReference] = []
        failed: list[DiosError] = []
        loop = loop_of(self)

        async def watch(end: RingEnd) -> None:
            try:
                await rings.wait_ready(loop, end)
                ready.append(ends[end])
            except DiosError as error:
                failed.append(error)

        async def ask() -> None:
            try:
                index = await drive(self, select_op(others, direction, timeout))
                ready.extend([] if index < 0 else [others[index]])
            except DiosError as error:
                failed.append(error)

        functions = [partial(watch, end) for end in ends]
        # The node keeps the time limit of its own part.
        await loop.first_of([*functions, ask] if others else functions, None if others else timeout)
        if failed and not ready:
            raise failed[0]
        return ready[0] if ready else None

    async def close(self) -> None:
        """Close the connection; in a task this does nothing, because the task ends with its connection."""
        if not self.ambient:
            self.close_ends()
            cast("AsyncConnection", self.link).close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncBatch(BatchOps):
    """Operations that are sent together: collected in an ``async with`` body, run at its end."""

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
    node: str | Path | None = None,
    *,
    groups: Iterable[str | bytes] | None = None,
    label: str = "",
    node_user: str | int | None = None,
    start: bool = True,
) -> AsyncIterator[AsyncNode]:
    """Open the node for an ``async with`` body; arguments and errors are those of ``dios.connect``.

    A private node that it starts is that of the program, which ends with the program and not with the body.
    In a task it is the task's own node, and the blocking client must not be used meanwhile.
    """
    loop = running_loop()  # refuses other loops before a socket is open
    inside = ambient() if node is None else None
    if inside is not None:
        async with _borrowed(*inside) as borrowed:
            yield borrowed
        return
    presented = presented_groups(groups)
    try:
        sock = open_socket(node, node_user, 0)
    except UnreachableError:
        if not start:
            raise
        # A private node needs some time to start.
        pool_size = len(os.sched_getaffinity(0))
        sock = await loop.in_thread(partial(open_socket, node, node_user, pool_size))
    connection = AsyncConnection(AsyncChannel(sock))
    try:
        welcome = await connection.hello(presented.first, label)
        opened = AsyncNode(connection, welcome)
        if welcome.mandate is not None:
            mandate = user_keys.mandate_for(welcome.mandate)
            if mandate:
                await connection.call(messages.Vouch(mandate))
            user_keys.renew_while_open(sock, user_keys.Renewal(renew_mandate, node, node_user))
        opened.present_later = presented.later
        try:
            yield opened
        finally:
            opened.close_ends()
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def open_session(sock: socket.socket, *, label: str = "") -> AsyncIterator[AsyncNode]:
    """Open the node at the other end of a connected socket, which is closed at the end of the body."""
    connection = AsyncConnection(AsyncChannel(sock))
    try:
        opened = AsyncNode(connection, await connection.hello((), label))
        try:
            yield opened
        finally:
            opened.close_ends()
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def _borrowed(own: Connection, welcome: messages.Welcome) -> AsyncIterator[AsyncNode]:
    """Yield the task's own connection on the event loop; the blocking client can use it afterwards."""
    channel = AsyncChannel(socket.socket(fileno=os.dup(own.fileno())))
    connection = AsyncConnection(channel, own.session)
    connection.page = own.page
    borrowed = AsyncNode(connection, welcome, ambient=True)
    try:
        yield borrowed
    finally:
        borrowed.close_ends()
        # Both descriptors are one open socket, with one flag for blocking.
        connection.hand_back()
