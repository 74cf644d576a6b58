"""Runs programs next to the cells of a session, on the side of the session.

One thread moves bytes between the streams of the owner's handles and the programs. It keeps at most one piece
of input for each program and no output: what nobody reads stays in the pipe of the program, which then waits.
Another thread receives orders (``listen``).
"""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import os
import selectors
import struct
import subprocess
import sys
import termios
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from dios.client.ops.batches import Pending, together
from dios.client.ops.status import Delegated
from dios.client.plain_text import plain
from dios.client.sync.node import Node, Stream
from dios.errors import ClosedError, DiosError, EndOfStreamError
from dios.lib.executor import frames
from dios.lib.sandbox.bounds import MESSAGE_CHARS_MAX, TYPE_CHARS_MAX
from dios.lib.sandbox.processes.records import (
    ORDER_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    PROGRAM_CHARS_MAX,
    RECORD,
    STATUS_MAX,
    STATUS_MIN,
    AttachProgram,
    ConnectPort,
    Detached,
    Ended,
    EndInput,
    Failed,
    ListPrograms,
    Order,
    ProgramRow,
    Programs,
    Record,
    ResizeTerminal,
    SendSignal,
    Started,
    StartProgram,
    Streams,
    TerminalSize,
    WatchFiles,
    controls,
    orders,
)
from dios.lib.sandbox.processes.watcher import Watcher
from dios.lib.sandbox.programs import end_of
from dios.lib.sandbox.protocol import STDERR, STDOUT
from dios.limits import KIB, SANDBOX_PROGRAMS_MAX
from dios.transport.rings.waiting import RingEnd, RingReader, RingWriter, wait_any
from dios.wire.types import ObjectType

if TYPE_CHECKING:
    from dios.client.session import Operation
    from dios.client.sync.connection import Connection

_HEAD: Final = len(frames.frame(STDOUT))
_TURN_BYTES: Final = 4 * OUTPUT_BYTES_MAX
"""The bytes that one program moves before the next one has its turn."""
_CONTROL_BYTES_MAX: Final = KIB
_STREAMS_MAX: Final = 16 * SANDBOX_PROGRAMS_MAX
"""The streams that were delegated and are in no order yet."""
_END_OF_TRANSMISSION: Final = b"\x04"
_TERM: Final = "xterm-256color"
_CONNECT_S: Final = 5.0
_LOOPBACK: Final = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))


class Ends(NamedTuple):
    """The ends of the four streams of a channel."""

    control: RingReader
    status: RingWriter
    input: RingReader
    output: RingWriter


class _Channel:
    """The streams of one handle of the owner."""

    def __init__(self, ends: Ends, release: Callable[[], None]) -> None:
        self.ends: Final = ends
        self._release: Final = release
        self._buffer: Final = frames.FrameBuffer(_CONTROL_BYTES_MAX)

    def tell(self, record: Record) -> None:
        """Send a record. Raise DiosError if the owner has left, or does not read."""
        self.ends.status.write(frames.frame(RECORD, msgspec.msgpack.encode(record)), 0)

    def controls(self) -> list[SendSignal | ResizeTerminal | EndInput]:
        """Return the orders that have come. Raise EndOfStreamError if the owner has left."""
        received: list[SendSignal | ResizeTerminal | EndInput] = []
        while self.ends.control.readable():
            try:
                data = self.ends.control.read(0, 0)
            except EndOfStreamError:
                if received:
                    break
                raise
            received += [controls.decode(body) for _, body in self._buffer.feed(data)]
        return received

    def close(self) -> None:
        """Close the streams; the owner can still read everything that was sent."""
        for end in self.ends:
            end.close()
        with contextlib.suppress(DiosError):
            self._release()


class _Activity:
    """A program or a connection, and the bytes on their way to it."""

    def __init__(
        self, number: int, name: str, arguments: int, writing: int | None, reading: dict[int, int]
    ) -> None:
        self.number: Final = number
        self.name: Final = name
        self.arguments: Final = arguments
        self.writing = writing
        self.reading: Final = reading
        """The numbers of output streams by the descriptors from which it comes."""
        self.channel: _Channel | None = None
        self.status: int | None = None
        self.unread: Final[dict[int, int]] = {}
        """After the end: the number of bytes that are still in each descriptor."""
        self.pending = memoryview(b"")
        self.input_ends = False
        for descriptor in {writing, *reading}:
            if descriptor is not None:
                os.set_blocking(descriptor, False)

    has_terminal = False
    is_silent = False
    """True for a terminal that no process has open. Closing it would send a signal to the program."""
    has_row = True
    stays = True
    """True if it goes on without a channel."""

    @property
    def end(self) -> int | None:
        """A descriptor that is readable when it has ended, until then."""
        return None

    def reap(self) -> None:
        """Set the status if it has ended."""

    def signal(self, number: int) -> None:
        """Send a signal."""

    def resize(self, size: TerminalSize) -> None:
        """Change the size of its terminal, if it has one."""

    def close_input(self) -> None:
        """End its input."""
        writing, self.writing = self.writing, None
        self.pending = memoryview(b"")
        if writing is not None:
            os.close(writing)

    def close_output(self, descriptor: int) -> None:
        """Read no more of a stream."""
        del self.reading[descriptor]
        os.close(descriptor)

    def count_unread(self) -> None:
        """Note what is to be read after the end: what a process that it has left writes later is not."""
        for descriptor in self.reading:
            self.unread[descriptor] = 0
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
                self.unread[descriptor] = int.from_bytes(answer, sys.byteorder)

    def close(self) -> None:
        """Close its descriptors."""
        self.close_input()
        for descriptor in list(self.reading):
            self.close_output(descriptor)


class _Program(_Activity):
    """A program of the image."""

    def __init__(self, order: StartProgram) -> None:
        master: int | None = None
        slave: int | None = None
        size = order.terminal
        variables = None if order.variables is None else os.environ | order.variables
        if size is not None:
            master, slave = os.openpty()
            variables = {"TERM": _TERM} | (variables or dict(os.environ))
            _set_size(master, size)
        stream = subprocess.PIPE if slave is None else slave
        try:
            with warnings.catch_warnings():
                # The function makes one system call.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process: Final = subprocess.Popen(
                    order.arguments,
                    stdin=stream,
                    stdout=stream,
                    stderr=stream,
                    cwd=order.folder or None,
                    env=variables,
                    process_group=0 if slave is None else None,
                    start_new_session=slave is not None,
                    preexec_fn=None if slave is None else _take_terminal,  # noqa: PLW1509 - see above
                )
        except BaseException:
            if master is not None:
                os.close(master)
            raise
        finally:
            if slave is not None:
                os.close(slave)
        process = self._process
        if master is not None:
            writing, reading = os.dup(master), {master: STDOUT}
        else:
            assert process.stdin and process.stdout and process.stderr, "they are pipes"  # noqa: S101, PT018 - for the types
            writing = os.dup(process.stdin.fileno())
            reading = {os.dup(process.stdout.fileno()): STDOUT, os.dup(process.stderr.fileno()): STDERR}
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()
        self.has_terminal = master is not None
        name = plain(order.arguments[0])[:PROGRAM_CHARS_MAX]
        super().__init__(order.number, name, len(order.arguments) - 1, writing, reading)
        self._end: int | None = end_of(process.pid)

    @property
    def end(self) -> int | None:
        return self._end

    def reap(self) -> None:
        code = self._process.poll()
        if code is None or self._end is None:
            return
        os.close(self._end)
        self._end = None
        self.status = min(STATUS_MAX, max(STATUS_MIN, code))
        self.count_unread()

    def signal(self, number: int) -> None:
        if self._end is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def resize(self, size: TerminalSize) -> None:
        for descriptor in self.reading if self.has_terminal else ():
            _set_size(descriptor, size)

    def close_input(self) -> None:
        if self.has_terminal and self.writing is not None:
            with contextlib.suppress(OSError):
                os.write(self.writing, _END_OF_TRANSMISSION)
        super().close_input()


class _Connection(_Activity):
    """A connection to a server on the loopback. It ends with its channel."""

    has_row = False
    stays = False

    def __init__(self, port: int) -> None:
        self._socket: Final = _connected(port)
        super().__init__(0, "", 0, self._socket.fileno(), {os.dup(self._socket.fileno()): STDOUT})

    def signal(self, number: int) -> None:
        """End the connection, whatever the signal."""
        del number
        with contextlib.suppress(OSError):
            self._socket.shutdown(_socket.SHUT_RDWR)

    def close_input(self) -> None:
        if self.writing is not None:
            self.writing = None
            with contextlib.suppress(OSError):
                self._socket.shutdown(_socket.SHUT_WR)

    def close_output(self, descriptor: int) -> None:
        super().close_output(descriptor)
        self.status = 0

    def close(self) -> None:
        super().close()
        self._socket.close()


class _Watch(_Activity):
    """The changes of files. It ends with its channel."""

    has_row = False
    stays = False

    def __init__(self, path: str) -> None:
        self._watcher: Final = Watcher(path)
        super().__init__(0, "", 0, None, {self._watcher.reading: STDOUT})

    def close_output(self, descriptor: int) -> None:
        self._watcher.end()
        super().close_output(descriptor)
        self.status = 0


class Supervisor:
    """The programs of a session. One thread calls ``run``; any other gives orders by ``submit``."""

    def __init__(self) -> None:
        self._activities: Final[list[_Activity]] = []
        self._submitted: Final[deque[tuple[Order, _Channel]]] = deque()
        self._selector: Final = selectors.DefaultSelector()
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def submit(self, order: Order, ends: Ends, release: Callable[[], None] = lambda: None) -> None:
        """Give an order; ``release`` is called when its streams are not used any more."""
        self._submitted.append((order, _Channel(ends, release)))
        with contextlib.suppress(BlockingIOError):
            os.write(self._waking, b"\0")

    def run(self) -> None:
        """Move bytes for ever."""
        while True:
            self.step()

    def step(self, timeout_s: float | None = None) -> None:
        """Wait until something can be done, and do it."""
        try:
            wait_any(self._interests(), timeout_s, (self._selector.fileno(),), checked=True)
        except DiosError:
            # An owner breaks the rules of the streams, and it is unknown which one.
            for activity in list(self._activities):
                self._detach(activity)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, KIB)
        # First what has happened, which an order may ask for.
        for activity in list(self._activities):
            self._move(activity)
        while self._submitted:
            self._obey(*self._submitted.popleft())

    # -- orders -----------------------------------------------------------------------------------
    def _obey(self, order: Order, channel: _Channel) -> None:
        activity: _Activity | None = None
        try:
            if isinstance(order, ListPrograms):
                channel.tell(Programs([_row(row) for row in self._activities if row.has_row]))
                channel.close()
                return
            activity = self._begun(order)
            self._attach(activity, channel)
        except DiosError:
            self._leave(activity, channel)
        except Exception as error:  # noqa: BLE001 - the owner gets it
            text = plain(str(error))[:MESSAGE_CHARS_MAX]
            with contextlib.suppress(DiosError):
                channel.tell(Failed(type(error).__name__[:TYPE_CHARS_MAX], text))
            self._leave(activity, channel)

    def _leave(self, activity: _Activity | None, channel: _Channel) -> None:
        if activity is not None and activity.channel is channel:
            self._detach(activity)
        else:
            channel.close()

    def _begun(self, order: StartProgram | AttachProgram | ConnectPort | WatchFiles) -> _Activity:
        known = {row.number: row for row in self._activities if row.has_row}
        if isinstance(order, AttachProgram):
            if order.number not in known:
                raise LookupError("this sandbox has no such program: it has ended, and its output was read")
            return known[order.number]
        self._make_room()
        if isinstance(order, ConnectPort):
            activity: _Activity = _Connection(order.port)
        elif isinstance(order, WatchFiles):
            activity = _Watch(order.path)
        elif order.number in known:
            raise ValueError("the number of the program is that of another one")
        else:
            activity = _Program(order)
        self._activities.append(activity)
        return activity

    def _make_room(self) -> None:
        """Drop the first program that has ended and that nobody reads, if there are too many."""
        if len(self._activities) < SANDBOX_PROGRAMS_MAX:
            return
        for activity in self._activities:
            if activity.status is not None and activity.channel is None:
                self._remove(activity)
                return
        raise OSError(
            f"this sandbox has {len(self._activities)} programs and connections: end some, or read their "
            "output"
        )

    def _attach(self, activity: _Activity, channel: _Channel) -> None:
        former, activity.channel = activity.channel, channel
        if former is not None:
            with contextlib.suppress(DiosError):
                former.tell(Detached())
            former.close()
        channel.tell(Started(activity.has_terminal))
        if activity.status is not None:
            channel.tell(Ended(activity.status))

    def _detach(self, activity: _Activity) -> None:
        """End the channel of an activity, which goes on if it is a program."""
        channel, activity.channel = activity.channel, None
        if channel is not None:
            source = channel.ends.input
            # The owner may have sent orders and input before it left.
            with contextlib.suppress(DiosError, msgspec.DecodeError, ValueError):
                self._control(activity, channel)
            with contextlib.suppress(DiosError):
                if activity.writing is not None and not source.closed and source.readable():
                    activity.pending = memoryview(bytes(activity.pending) + source.read(0, 0))
            channel.close()
        if activity.stays:
            self._move_input(activity, None)
        else:
            self._remove(activity)

    def _remove(self, activity: _Activity) -> None:
        for descriptor in (activity.writing, activity.end, *activity.reading):
            self._unregister(descriptor)
        self._activities.remove(activity)
        activity.close()

    # -- bytes ------------------------------------------------------------------------------------
    def _interests(self) -> list[RingEnd]:
        """Set the descriptors to wait for, and return the ends of streams to wait for."""
        rings: list[RingEnd] = []
        for activity in self._activities:
            channel = activity.channel
            has_room = False
            if channel is not None:
                ends = channel.ends
                rings.append(ends.control)
                if activity.writing is not None and not activity.pending and not ends.input.closed:
                    rings.append(ends.input)
                if activity.reading and not activity.is_silent:
                    has_room = ends.output.room > _HEAD
                    if not has_room:
                        rings.append(ends.output)
            self._watch(activity.end, selectors.EVENT_READ)
            self._watch(activity.writing, selectors.EVENT_WRITE if activity.pending else 0)
            for descriptor in activity.reading:
                self._watch(descriptor, selectors.EVENT_READ if has_room else 0)
        return rings

    def _watch(self, descriptor: int | None, events: int) -> None:
        if descriptor is None:
            return
        key = self._selector.get_map().get(descriptor)
        if not events:
            self._unregister(descriptor)
        elif key is None:
            self._selector.register(descriptor, events)

    def _unregister(self, descriptor: int | None) -> None:
        if descriptor is not None and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _move(self, activity: _Activity) -> None:
        """Do what can be done for an activity without waiting."""
        channel = activity.channel
        try:
            if channel is not None:
                self._control(activity, channel)
                self._move_input(activity, channel.ends.input)
            else:
                self._move_input(activity, None)
            end = activity.end
            if end is not None:
                self._unregister(end)
                activity.reap()
                if activity.status is not None and channel is not None:
                    self._tell_end(activity, channel, activity.status)
            if channel is not None:
                self._move_output(activity, channel)
                self._end(activity, channel)
        except (DiosError, msgspec.DecodeError, ValueError):
            # The owner has left, or sends something else.
            self._detach(activity)

    @staticmethod
    def _tell_end(activity: _Activity, channel: _Channel, status: int) -> None:
        try:
            channel.tell(Ended(status))
        except ClosedError:
            # An owner that has all output leaves with this record, maybe before its sender returns.
            if activity.reading:
                raise

    @staticmethod
    def _control(activity: _Activity, channel: _Channel) -> None:
        for order in channel.controls():
            if isinstance(order, SendSignal):
                activity.signal(order.number)
            elif isinstance(order, ResizeTerminal):
                activity.resize(order.size)
            else:
                activity.input_ends = True

    def _move_input(self, activity: _Activity, source: RingReader | None) -> None:
        while activity.writing is not None:
            if activity.pending:
                try:
                    activity.pending = activity.pending[os.write(activity.writing, activity.pending) :]
                except BlockingIOError:
                    return
                except OSError:
                    # It reads no more.
                    self._unregister(activity.writing)
                    activity.close_input()
            elif source is not None and not source.closed and source.readable():
                try:
                    activity.pending = memoryview(source.read(OUTPUT_BYTES_MAX, 0))
                except EndOfStreamError:
                    if not activity.input_ends:
                        raise
                    self._unregister(activity.writing)
                    activity.close_input()
            elif activity.input_ends:
                self._unregister(activity.writing)
                activity.close_input()
            else:
                return
        if source is not None:
            source.close()

    def _move_output(self, activity: _Activity, channel: _Channel) -> None:
        target = channel.ends.output
        for descriptor, stream in list(activity.reading.items()):
            moved = 0
            while moved < _TURN_BYTES:
                if target.peer_closed:
                    raise ClosedError("the owner reads no more")
                size = min(target.room - _HEAD, OUTPUT_BYTES_MAX)
                if activity.status is not None and activity.unread:
                    size = min(size, activity.unread[descriptor])
                    if not activity.unread[descriptor]:
                        self._close_output(activity, descriptor)
                        break
                if size <= 0:
                    break
                try:
                    data = os.read(descriptor, size)
                except BlockingIOError:
                    break
                except OSError:
                    # The end of a terminal, or of a connection.
                    activity.is_silent = activity.has_terminal and activity.status is None
                    if activity.is_silent:
                        break
                    data = b""
                if not data:
                    self._close_output(activity, descriptor)
                    break
                moved += len(data)
                if descriptor in activity.unread:
                    activity.unread[descriptor] -= len(data)
                target.write(frames.frame(stream, data), 0)

    def _close_output(self, activity: _Activity, descriptor: int) -> None:
        self._unregister(descriptor)
        activity.close_output(descriptor)

    def _end(self, activity: _Activity, channel: _Channel) -> None:
        """End the channel of an activity that has ended and whose output was sent."""
        if activity.reading:
            return
        channel.ends.output.close()
        if activity.status is not None:
            if not activity.stays:
                channel.tell(Ended(activity.status))
            activity.channel = None
            channel.close()
            self._remove(activity)


def _row(activity: _Activity) -> ProgramRow:
    return ProgramRow(
        activity.number,
        activity.name,
        activity.arguments,
        activity.status,
        activity.channel is not None,
        activity.has_terminal,
    )


def _take_terminal() -> None:
    """Make standard input the terminal of this session of processes."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _set_size(descriptor: int, size: TerminalSize) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def _connected(port: int) -> _socket.socket:
    """Return a connection to a server on the loopback. Raise OSError."""
    for family, address in _LOOPBACK[:-1]:
        with contextlib.suppress(ConnectionRefusedError):
            return _connected_to(family, address, port)
    return _connected_to(*_LOOPBACK[-1], port)


def _connected_to(family: int, address: str, port: int) -> _socket.socket:
    # In a session with a granted network the other module leads to the gateway.
    link = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        link.settimeout(_CONNECT_S)
        link.connect((address, port))
    except OSError:
        link.close()
        raise
    return link


# -- orders ---------------------------------------------------------------------------------------
def start(node: Node) -> None:
    """Start the threads that receive and obey orders."""
    supervisor = Supervisor()
    threading.Thread(target=supervisor.run, name="programs", daemon=True).start()
    threading.Thread(target=_listen, args=(node, supervisor), name="program orders", daemon=True).start()


def _listen(node: Node, supervisor: Supervisor) -> None:
    """Receive the streams and orders that are delegated to the task, until the connection ends."""
    streams: dict[str, Stream] = {}
    while True:
        try:
            event = node.next_event()
        except DiosError:
            return
        if not isinstance(event, Delegated):
            continue
        reference = event.reference
        try:
            if isinstance(reference, Stream):
                streams[reference.fingerprint] = reference
                if len(streams) > _STREAMS_MAX:
                    streams.pop(next(iter(streams))).close()
            elif reference.type is ObjectType.SHMEM_BLOB and reference.size <= ORDER_BYTES_MAX:
                data = bytes(reference.read_bytes())
                reference.close()
                order = orders.decode(data)
                _submit(node, supervisor, order, streams)
        except (DiosError, msgspec.DecodeError, ValueError):
            # It is no order, or its owner has left.
            continue


def _submit(node: Node, supervisor: Supervisor, order: Order, streams: dict[str, Stream]) -> None:
    names: Streams = order.streams
    own = [streams.pop(name, None) for name in (names.control, names.status, names.input, names.output)]
    present = [stream for stream in own if stream is not None]

    def release() -> None:
        for stream in present:
            with contextlib.suppress(DiosError):
                stream.close()

    try:
        if len(present) < len(own):
            raise ClosedError("streams of the order are missing")
        ends = _attached(node, present)
    except DiosError:
        release()
        raise
    supervisor.submit(order, ends, release)


def _attached(node: Node, streams: Sequence[Stream]) -> Ends:
    control, status, source, target = streams
    operations: list[Operation[RingReader] | Operation[RingWriter]] = [
        control.reader_op(),
        status.writer_op(),
        source.reader_op(),
        target.writer_op(),
    ]
    outcomes: list[Pending[object]] = [Pending() for _ in operations]
    cast("Connection", node.link).run(together(cast("Sequence[Operation[object]]", operations), outcomes))
    return Ends(*(cast("RingReader", outcome.result()) for outcome in outcomes))  # type: ignore[arg-type]  # by their order
