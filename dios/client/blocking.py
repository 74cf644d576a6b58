"""The blocking face: handles whose methods return when the node has answered, and ``connect``.

Not for: what the methods do, which both faces share (``dios.client.handles``, ``dios.client.nodes``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar, cast

from dios.client.attributes import HasLink
from dios.client.batches import BatchOps, Pending, operation_of
from dios.client.connection import Connection
from dios.client.handles import ConsoleOps, Data, GroupOps, ReferenceOps, TaskOps
from dios.client.nodes import NodeOps, mode_of
from dios.client.requests import ReadOps, RequestOps, WriteOps
from dios.client.selecting import select
from dios.client.session import Operation
from dios.client.streams import StreamOps
from dios.errors import DiosError, EndOfStreamError
from dios.transport.rings import RingReader, RingWriter
from dios.transport.unix_client import ClientChannel
from dios.transport.unix_client import connect as connect_socket
from dios.wire import messages
from dios.wire.types import Mode, ObjectType, Semantics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=HasLink)


def drive(owner: HasLink, operation: Operation[T]) -> T:
    """Drive an operation over its owner's connection."""
    return cast("Connection", owner.link).run(operation)


def blocking(op: Callable[Concatenate[H, P], Operation[T]]) -> Callable[Concatenate[H, P], T]:
    """The blocking method for an operation, under its name without ``_op``."""

    @functools.wraps(op)
    def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("Connection", self.link).run(op(self, *args, **kwargs))

    method.__name__ = op.__name__.removesuffix("_op")
    method.__qualname__ = op.__qualname__.removesuffix("_op")
    return method


# -- I/O requests -----------------------------------------------------------------------------------
class Request(RequestOps):
    """An I/O request as a ``with`` body: committed on a normal exit, and released on every one."""

    __slots__ = ()

    release = blocking(RequestOps.release_op)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            drive(self, self.finish_op())
            return
        # The body's own error is the one to be told; a node that is gone has released everything.
        with contextlib.suppress(DiosError):
            drive(self, self.release_op())


class ReadRequest(Request, ReadOps):
    """A read: look at ``view``, then ``commit`` says whether it was valid."""

    __slots__ = ()

    commit = blocking(ReadOps.commit_op)
    reacquire = blocking(ReadOps.reacquire_op)
    finish = blocking(ReadOps.finish_op)


class WriteRequest(Request, WriteOps):
    """A write: fill ``view``, then ``commit`` makes it the object's bytes if nothing came between."""

    __slots__ = ()

    commit = blocking(WriteOps.commit_op)
    reacquire = blocking(WriteOps.reacquire_op)
    finish = blocking(WriteOps.finish_op)


# -- handles ----------------------------------------------------------------------------------------
class Reference(ReferenceOps["Reference"]):
    """A reference to an object; a ``with`` body closes the handle at its end."""

    __slots__ = ()

    def read(self, semantics: Semantics = Semantics.ANY, *, size: int = 0, offset: int = 0) -> ReadRequest:
        """Acquire a request to read ``size`` bytes (0: all) from ``offset`` on; Busy when not admitted."""
        request = ReadRequest(self, size, offset, semantics)
        drive(self, request.acquire_op())
        return request

    def write(
        self,
        size: int = 0,
        semantics: Semantics = Semantics.MRSW,
        *,
        offset: int = 0,
        blank: bool = False,
        replace: bool = False,
    ) -> WriteRequest:
        """Acquire a request to write ``size`` bytes (0: as many as there are) from ``offset`` on.

        The buffer holds the object's bytes unless it is ``blank``. With ``replace`` the object ends where
        the written range ends. Busy when not admitted.
        """
        request = WriteRequest(self, size, offset, semantics, blank=blank, replace=replace)
        drive(self, request.acquire_op())
        return request

    read_bytes = blocking(ReferenceOps["Reference"].read_bytes_op)
    write_bytes = blocking(ReferenceOps["Reference"].write_bytes_op)
    stat = blocking(ReferenceOps["Reference"].stat_op)
    close = blocking(ReferenceOps["Reference"].close_op)
    delete = blocking(ReferenceOps["Reference"].delete_op)
    destroy = blocking(ReferenceOps["Reference"].destroy_op)
    delegate = blocking(ReferenceOps["Reference"].delegate_op)
    retire = blocking(ReferenceOps["Reference"].retire_op)
    copy = blocking(ReferenceOps["Reference"].copy_op)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Task(TaskOps["Console"], Reference):
    """A reference to a task."""

    __slots__ = ()

    wait = blocking(TaskOps["Console"].wait_op)
    status = blocking(TaskOps["Console"].status_op)
    pause = blocking(TaskOps["Console"].pause_op)
    resume = blocking(TaskOps["Console"].resume_op)
    kill = blocking(TaskOps["Console"].kill_op)
    console = blocking(TaskOps["Console"].console_op)


class Console(ConsoleOps, Reference):
    """A reference to a task's console; iterating gives what is printed, until the task has ended."""

    __slots__ = ()

    receive = blocking(ConsoleOps.receive_op)
    send = blocking(ConsoleOps.send_op)

    def __iter__(self) -> Iterator[bytes]:
        try:
            while True:
                yield self.receive()
        except EndOfStreamError:
            return


class Group(GroupOps, Reference):
    """A reference to a group."""

    __slots__ = ()

    read_name = blocking(GroupOps.read_name_op)


class Stream(StreamOps, Reference):
    """A reference to a stream, which is its writing or reading end from its first use as one on.

    Iterating gives messages until the writer is gone. ``writer`` and ``reader`` are the ends themselves,
    for loops that count nanoseconds and for views into the ring.
    """

    __slots__ = ()

    @property
    def writer(self) -> RingWriter:
        """The writing end, attached if it was not."""
        return self._writer if self._writer is not None else drive(self, self.writer_op())

    @property
    def reader(self) -> RingReader:
        """The reading end, attached if it was not."""
        return self._reader if self._reader is not None else drive(self, self.reader_op())

    def send(self, data: Data, timeout: float | None = None) -> None:
        """Send one message; waits while there is no room. ClosedError when the reader is gone."""
        self.writer.send(data, timeout)

    def receive(self, timeout: float | None = None) -> bytes:
        """Wait for the next message; EndOfStreamError when the writer is gone and everything was read."""
        return self.reader.receive(timeout)

    def __iter__(self) -> Iterator[bytes]:
        receive = self.reader.receive
        try:
            while True:
                yield receive()
        except EndOfStreamError:
            return


_KINDS: Final[dict[ObjectType, type[Reference]]] = {
    ObjectType.TASK: Task,
    ObjectType.CONSOLE_STREAM: Console,
    ObjectType.GROUP: Group,
    ObjectType.SHMEM_STREAM: Stream,
}

_Ops = NodeOps["Reference", "Task", "Group", "Stream", "Console"]


class Node(NodeOps["Reference", "Task", "Group", "Stream", "Console"]):
    """The node, as this task sees it; a ``with`` body closes a connection of one's own at its end."""

    _turn = 0

    create = blocking(_Ops.create_op)
    create_group = blocking(_Ops.create_group_op)
    create_stream = blocking(_Ops.create_stream_op)
    create_timer = blocking(_Ops.create_timer_op)
    create_program = blocking(_Ops.create_program_op)
    lookup = blocking(_Ops.lookup_op)
    find = blocking(_Ops.find_op)
    run = blocking(_Ops.run_op)
    next_event = blocking(_Ops.next_event_op)
    vector = blocking(_Ops.vector_op)
    tasks = blocking(_Ops.tasks_op)
    info = blocking(_Ops.info_op)
    nodes = blocking(_Ops.nodes_op)
    set_node = blocking(_Ops.set_node_op)
    describe = blocking(_Ops.describe_op)
    limits = blocking(_Ops.limits_op)
    set_limits = blocking(_Ops.set_limits_op)
    shutdown = blocking(_Ops.shutdown_op)
    pause = blocking(_Ops.pause_op)

    def handle(self, info: messages.Reference, name: bytes | None = None) -> Reference:
        """A handle for a reference that came in a message."""
        return _KINDS.get(info.type, Reference)(self, info, name)

    def select(
        self, references: Iterable[Reference], mode: str | Mode = Mode.READ, timeout: float | None = None
    ) -> Reference | None:
        """Wait until one of ``references`` can be read ("write": written) without waiting, and answer it;
        None after ``timeout`` seconds (B.1.13).

        Streams are looked at first and directly; only about other objects the node is asked.
        """
        self._turn += 1
        return select(cast("Connection", self.link), list(references), mode_of(mode), timeout, self._turn)

    def batch(self) -> Batch:
        """A batch, for operations that shall travel in few messages."""
        return Batch(self.link)

    def close(self) -> None:
        """Close the connection; in a task, whose connection is the task's life, nothing."""
        if not self.ambient:
            self.close_ends()
            cast("Connection", self.link).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Batch(BatchOps):
    """Operations that travel together: collected in a ``with`` body, run at its end."""

    def add(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        """Collect one call of a handle's or node's method, like ``batch.add(blob.read_bytes, 100)``.

        Its result is there after the body. The operations must not depend on each other, nor wait.
        """
        return cast("Pending[T]", self._collect(operation_of(method, *args, **kwargs)))

    run = blocking(BatchOps.run_op)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.run()


_ambient: Node | None = None
_welcome: messages.Welcome | None = None


def enter_task(connection: Connection, welcome: messages.Welcome) -> Node:
    """Make the node of a task's inherited socket what ``connect`` gives from now on."""
    global _ambient, _welcome
    _ambient, _welcome = Node(connection, welcome, ambient=True), welcome
    return _ambient


def ambient() -> tuple[Connection, messages.Welcome] | None:
    """The connection of the task that this process is, and what it was told; None outside tasks."""
    if _ambient is None or _welcome is None:
        return None
    return cast("Connection", _ambient.link), _welcome


def connect(
    node: str | Path | None = None,
    *,
    groups: Iterable[str | bytes] | None = None,
    label: str = "",
) -> Node:
    """The node: inside a task its own, outside the one that ``node`` or the configuration says.

    ``node`` is a data directory or socket; ``groups`` are names, as bytes or text, or aliases of the
    keyring, by default all that it has. Raises UnreachableError when no node listens there.
    """
    if _ambient is not None and node is None:
        return _ambient
    # A task needs neither a keyring nor to look for its node, and starts without loading how.
    from dios.client.keyring import presented_groups  # noqa: PLC0415 - see above
    from dios.client.locate import resolve_node  # noqa: PLC0415 - the same

    hello = presented_groups(groups)
    connection = Connection(ClientChannel(connect_socket(resolve_node(node))))
    try:
        return Node(connection, connection.hello(hello, label))
    except BaseException:
        connection.close()
        raise
