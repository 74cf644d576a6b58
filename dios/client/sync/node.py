"""The blocking client: ``connect``, and handles whose methods return when the node has answered.

``dios.client.ops`` has the operations, which both clients share.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

from dios.client import program_node
from dios.client.ops.arrays import ArrayMakers
from dios.client.ops.attributes import HasLink
from dios.client.ops.batches import BatchOps, Pending, operation_of
from dios.client.ops.handles import ConsoleOps, Data, GroupOps, TaskOps
from dios.client.ops.logs import Entry, LogMakers, LogOps
from dios.client.ops.network import NetworkOps
from dios.client.ops.nodes import NodeOps, mode_of
from dios.client.sync.connection import Connection
from dios.client.sync.handles import ReadRequest, Reference, StreamEnds, WriteRequest, blocking, drive
from dios.client.sync.network import Acceptor, Datagrams, TcpConnection
from dios.client.sync.selecting import Selects
from dios.errors import EndOfStreamError, UnreachableError
from dios.forks import give_up_in_child
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.types import Mode, ObjectType

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from dios.client.page import Page

__all__ = [
    "Acceptor",
    "Batch",
    "Console",
    "Datagrams",
    "Group",
    "Log",
    "Node",
    "ReadRequest",
    "Reference",
    "Stream",
    "Task",
    "TcpConnection",
    "WriteRequest",
    "ambient",
    "connect",
    "enter_task",
    "enter_task_later",
]

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=HasLink)


class Log(LogOps, Reference):
    """A log; iterating yields its present entries, from the first one on."""

    __slots__ = ()

    append = blocking(LogOps.append_op)
    append_all = blocking(LogOps.append_all_op)

    def read_entries(
        self, position: int = 0, *, wait: bool = False, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries from ``position`` on that fit one message; an empty list at the end.

        With ``wait`` it waits at the end for the next entry; TimeLimitError after ``timeout`` seconds.
        """
        if wait and timeout is not None:
            return drive(self, self.next_op(position, timeout))
        return drive(self, self.read_op(position, wait=wait))

    def entries(self, position: int = 0) -> Iterator[Entry]:
        """Yield the entries from ``position`` to the end at the time it is reached."""
        while entries := self.read_entries(position):
            yield from entries
            position = entries[-1].next

    def follow(self, position: int = 0) -> Iterator[Entry]:
        """Yield the entries from ``position`` on, for ever: at the end it waits for the next entry."""
        while True:
            entries = self.read_entries(position, wait=True)
            yield from entries
            position = entries[-1].next

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()


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
    """A reference to a task's console; iterating yields its output, until the task has ended."""

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


class Stream(StreamEnds):
    """A reference to a stream; its first use makes it the writing or the reading end.

    Iterating yields messages until the writer is closed. ``writer`` and ``reader`` are the ends themselves,
    for loops that count nanoseconds and for views of the ring.
    """

    __slots__ = ()

    def send(self, data: Data, timeout: float | None = None) -> None:
        """Send one message; wait while there is no room. ClosedError if the reader is closed."""
        self.writer.send(data, timeout)

    def receive(self, timeout: float | None = None) -> bytes:
        """Wait for the next message and return it; EndOfStreamError after the last one."""
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
    ObjectType.TCP_STREAM: TcpConnection,
    ObjectType.TCP_ACCEPT_STREAM: Acceptor,
    ObjectType.DURABLE_STREAM: Log,
    ObjectType.UDP_STREAM: Datagrams,
}

_Ops = NodeOps["Reference", "Task", "Group", "Stream", "Console"]


_Network = NetworkOps["Reference", "TcpConnection", "Acceptor", "Datagrams"]


class Node(
    NodeOps["Reference", "Task", "Group", "Stream", "Console"],
    NetworkOps["Reference", "TcpConnection", "Acceptor", "Datagrams"],
    LogMakers["Log"],
    ArrayMakers["Reference"],
):
    """The node, as this task sees it; a ``with`` body closes the connection at its end, except in tasks."""

    _selects: Selects[Reference] | None = None

    create = blocking(_Ops.create_op)
    create_group = blocking(_Ops.create_group_op)
    create_stream = blocking(_Ops.create_stream_op)
    declassifier = blocking(_Ops.declassifier_op)
    create_timer = blocking(_Ops.create_timer_op)
    network = blocking(_Network.network_op)
    connect_tcp = blocking(_Network.connect_tcp_op)
    record_request = blocking(_Network.record_request_op)
    listen_tcp = blocking(_Network.listen_tcp_op)
    bind_udp = blocking(_Network.bind_udp_op)
    create_log = blocking(LogMakers["Log"].create_log_op)
    create_array = blocking(ArrayMakers["Reference"].create_array_op)
    create_table = blocking(ArrayMakers["Reference"].create_table_op)
    create_program = blocking(_Ops.create_program_op)
    group = blocking(_Ops.group_op)
    present_all = blocking(_Ops.present_all_op)
    share_group = blocking(_Ops.share_group_op)
    accept_share = blocking(_Ops.accept_share_op)
    issue_token = blocking(_Ops.issue_token_op)
    redeem_token = blocking(_Ops.redeem_token_op)
    lookup = blocking(_Ops.lookup_op)
    find = blocking(_Ops.find_op)
    run = blocking(_Ops.run_op)
    next_event = blocking(_Ops.next_event_op)
    vector = blocking(_Ops.vector_op)
    finish_writes = blocking(_Ops.finish_writes_op)
    tasks = blocking(_Ops.tasks_op)
    info = blocking(_Ops.info_op)
    nodes = blocking(_Ops.nodes_op)
    changed_nodes = blocking(_Ops.changed_nodes_op)
    set_node = blocking(_Ops.set_node_op)
    label_node = blocking(_Ops.label_node_op)
    read_state = blocking(_Ops.read_state_op)
    read_table = blocking(_Ops.read_table_op)
    prune_environments = blocking(_Ops.prune_environments_op)
    read_register = blocking(_Ops.read_register_op)
    enrol = blocking(_Ops.enrol_op)
    mandate_terms = blocking(_Ops.mandate_terms_op)
    vouch = blocking(_Ops.vouch_op)
    ask_scheduler = blocking(_Ops.ask_scheduler_op)
    board = blocking(_Ops.board_op)
    place = blocking(_Ops.place_op)
    keep_rooms = blocking(_Ops.keep_rooms_op)
    govern = blocking(_Ops.govern_op)
    set_admission = blocking(_Ops.set_admission_op)
    advise = blocking(_Ops.advise_op)
    report = blocking(_Ops.report_op)
    describe = blocking(_Ops.describe_op)
    limits = blocking(_Ops.limits_op)
    set_limits = blocking(_Ops.set_limits_op)
    shutdown = blocking(_Ops.shutdown_op)
    pause = blocking(_Ops.pause_op)
    wait_move = blocking(_Ops.wait_move_op)
    progress = blocking(_Ops.progress_op)
    leave = blocking(_Ops.leave_op)

    def handle(self, info: messages.Reference, name: bytes | None = None) -> Reference:
        return _KINDS.get(info.type, Reference)(self, info, name)

    def select(
        self, references: Iterable[Reference], mode: str | Mode = Mode.READ, timeout: float | None = None
    ) -> Reference | None:
        """Wait until one of ``references`` can be read ("write": written) without waiting, and return it.

        Returns None after ``timeout`` seconds (B.1.13). Streams are checked directly; the node is asked about
        other objects only.
        """
        if self._selects is None:
            self._selects = Selects()
        return self._selects.select(cast("Connection", self.link), list(references), mode_of(mode), timeout)

    def batch(self) -> Batch:
        """Return a batch, for operations that are sent in few messages."""
        return Batch(self.link)

    def close(self) -> None:
        """Close the connection; in a task this does nothing, because the task ends with its connection."""
        connection = cast("Connection", self.link)
        if not self.ambient:
            if not connection.forked:
                self.close_ends()
            if self._selects is not None:
                self._selects.close()
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Batch(BatchOps):
    """Operations that are sent together: collected in a ``with`` body, run at its end."""

    def add(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        """Collect one call of a handle's or node's method, like ``batch.add(blob.read_bytes, 100)``.

        Its result is available after the body. The operations must not depend on each other, nor wait.
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
_inherited: tuple[ClientChannel, messages.Welcome, Page] | None = None
_entering = threading.Lock()


def enter_task(connection: Connection, welcome: messages.Welcome) -> Node:
    """Make the node of a task's inherited socket the result of ``connect`` from now on."""
    global _ambient, _welcome
    connection.session.answers_traces = welcome.traces
    program_node.enter_task()
    _ambient, _welcome = Node(connection, welcome, ambient=True), welcome
    return _ambient


def enter_task_later(channel: ClientChannel, welcome: messages.Welcome, page: Page) -> None:
    """Make the node of a task's inherited socket the result of ``connect``, which opens it the first time.

    Many programs never use it.
    """
    global _inherited
    program_node.enter_task()
    _inherited = channel, welcome, page


def _entered() -> Node | None:
    """Return the node of the task that this process is; None outside tasks."""
    global _inherited
    if _inherited is not None:
        with _entering:
            if _inherited is not None:
                channel, welcome, page = _inherited
                connection = Connection(channel)
                connection.page = page
                enter_task(connection, welcome)
                _inherited = None
    return _ambient


def _forget_inherited() -> None:
    """Leave the socket to the parent of this process, which is a fork and no task."""
    global _inherited, _entering
    _inherited, _entering = None, threading.Lock()


give_up_in_child(_forget_inherited)


def ambient() -> tuple[Connection, messages.Welcome] | None:
    """Return the connection and the Welcome of the task that this process is; None outside tasks."""
    node = _entered()
    if node is None or _welcome is None:
        return None
    return cast("Connection", node.link), _welcome


def connect(
    node: str | Path | None = None,
    *,
    groups: Iterable[str | bytes] | None = None,
    label: str = "",
    node_user: str | int | None = None,
    start: bool = True,
) -> Node:
    """Connect to the node: a task to its own, a user's process to ``node`` or the configured one.

    ``node`` is a data directory or socket; ``groups`` are names, as bytes or text, or aliases of the
    keyring, by default all of them. ``node_user`` is the name or number of the user who runs the node, by
    default the configured one; a node of root or of the caller's own user is always accepted.

    A program that names no node, nor its user, and finds none starts a private one, and a line on standard
    error says so. All its connections share that node, those of ``Executor`` and ``Sandbox`` too, and so do
    processes forked from it. The node lives until the program ends, and its data, durable objects included,
    are deleted with it. ``start=False`` uses a private node that the program has already, and starts none.

    Raises UnreachableError if no node listens there and none was to be started or could be, NotPermittedError
    if the listening process is of another user.
    """
    pool_size = len(os.sched_getaffinity(0)) if start else 0
    return connect_or_start(node, groups=groups, label=label, node_user=node_user, pool_size=pool_size)


def connect_or_start(
    node: str | Path | None,
    *,
    groups: Iterable[str | bytes] | None = None,
    label: str = "",
    node_user: str | int | None = None,
    pool_size: int,
) -> Node:
    """Connect as ``connect`` does; a private node keeps ``pool_size`` tasks ready, and 0 starts none."""
    inside = _entered() if node is None else None
    if inside is not None and not cast("Connection", inside.link).forked:
        return inside
    # A task needs neither a keyring nor a search for its node, and starts faster without these modules.
    from dios.client.keyring import presented_groups  # noqa: PLC0415 - see above

    presented = presented_groups(groups)
    sock = open_socket(node, node_user, pool_size)
    connection = Connection(ClientChannel(sock))
    try:
        welcome = connection.hello(presented.first, label)
        opened = Node(connection, welcome)
        if welcome.mandate is not None:
            from dios.client import user_keys  # noqa: PLC0415 - for enrolled users alone

            mandate = user_keys.mandate_for(welcome.mandate)
            if mandate:
                connection.call(messages.Vouch(mandate))
            user_keys.renew_while_open(sock, user_keys.Renewal(renew_mandate, node, node_user))
    except BaseException:
        connection.close()
        raise
    opened.present_later = presented.later
    return opened


def renew_mandate(node: str | Path | None, node_user: str | int | None) -> None:
    """Connect to the node of ``connect`` and disconnect, which renews the mandate that it has."""
    connect_or_start(node, groups=(), label="renewal", node_user=node_user, pool_size=0).close()


def open_socket(node: str | Path | None, node_user: str | int | None, pool_size: int) -> socket.socket:
    """Return a socket that is connected to the node of ``connect``; with 0 as ``pool_size`` start none."""
    from dios.client.locate import accepted_users, resolve_node  # noqa: PLC0415 - not for tasks
    from dios.client.node_socket import connect as connect_socket  # noqa: PLC0415 - the same

    accepted = partial(accepted_users, node_user)
    may_start = program_node.may_start(node, node_user)
    place = (may_start and program_node.private_socket()) or resolve_node(node)
    try:
        return connect_socket(place, accepted)
    except UnreachableError:
        if not may_start or not pool_size:
            raise
    return connect_socket(program_node.socket_after_start(pool_size, place), accepted)
