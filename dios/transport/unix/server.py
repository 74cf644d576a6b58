"""The node's end of Unix sockets: the listener for users' processes, and a channel for each peer.

A node never takes descriptors from a peer: it refuses them where the kernel can, and reads with plain
``recv``, so that the kernel drops them otherwise.

Each call of a task passes through here once, so the path is short: wait until readable, one ``recv``, the
bodies; and one ``send`` that does not wait. Only bytes that the peer's socket does not accept at once are
queued, within a bound, and sent by a trio task.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import termios
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ExistsError, InvalidError, ProtocolError, WouldBlockError
from dios.transport.batch import BATCH
from dios.transport.memory.memfd import close_all, copies_of
from dios.transport.unix.credentials import PeerCredentials, peer_of
from dios.transport.unix.descriptors import refuse_descriptors
from dios.transport.unix.path import socket_address
from dios.wire.codec import FrameSplitter

_BACKLOG: Final = 128
_RETRY_ACCEPT_S: Final = 0.05
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ESHUTDOWN})

_looking = 0
"""The number of channels of this process that spin; a process has one loop."""


def open_listener(path: Path, mode: int = 0o600) -> socket.socket:
    """Listen at ``path``, whose permission bits are ``mode`` from the first moment on.

    The path may have any length. A socket file without a listener is replaced. Raises ExistsError if
    somebody listens there, or the path is another kind of file.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        # The new file gets the permissions of the socket, less the umask, so that others can never connect in
        # between; the bits that the umask removed are added afterwards.
        os.fchmod(listener.fileno(), mode)
        with socket_address(path) as address:
            listener.bind(address)
            Path(address).chmod(mode)
        refuse_descriptors(listener)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot create a socket there: {error.strerror}", str(path)) from None
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ExistsError(f"{path} exists and is not a socket. Move it away, or choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, socket_address(path) as address:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass
    raise ExistsError(f"a node already listens at {path}. Stop that node first.")


async def accept(listener: socket.socket) -> tuple[socket.socket, PeerCredentials]:
    """Wait for the next peer of ``listener``; its socket does not block.

    Without free descriptors it waits and tries again. Raises trio.ClosedResourceError after
    ``close_listener``.
    """
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                await trio.sleep(_RETRY_ACCEPT_S)
                continue
            if error.errno == errno.ECONNABORTED:
                continue
            raise
        sock.setblocking(False)
        return sock, peer_of(sock)


def close_listener(listener: socket.socket, path: Path | None = None) -> None:
    """Stop listening, wake callers of ``accept``, and remove the socket's file."""
    if listener.fileno() >= 0:
        trio.lowlevel.notify_closing(listener)
        listener.close()
    if path is not None:
        path.unlink(missing_ok=True)


class ChannelState(NamedTuple):
    """A channel that another program continues: its socket, the beginning of a frame, and unsent frames.

    ``unread`` is the number of descriptors that the peer may not have received.
    """

    fd: int
    unfinished: bytes
    unsent: tuple[tuple[bytes, tuple[int, ...]], ...]
    unread: int


class UnreadDescriptors:
    """The descriptors that were sent over some channels and may not have been received, with a bound.

    The kernel counts them for the sending user, over all of its processes, and sends no more above the user's
    limit of open files (ETOOMANYREFS). So peers that do not read could keep the node from sending any. Each
    channel may have at most DESCRIPTORS_UNREAD_MAX; if all channels together would have more than ``most``,
    the one with the most is cut off. Copies of descriptors that wait in the node are bounded together, too.
    """

    def __init__(self, most: int) -> None:
        self.most: Final = max(most, limits.DESCRIPTORS_UNREAD_MAX)
        self._counts: Final[dict[TaskChannel, int]] = {}
        self.total = 0
        self.queued = 0

    def admit(self, channel: TaskChannel, count: int) -> bool:
        """Count descriptors that the channel is about to send; return False if its peer must read first."""
        # The kernel shows only whether a peer has read everything, and one with many threads seldom has. So
        # the node looks before the count is full.
        if self.of(channel) + count > limits.DESCRIPTORS_UNREAD_MAX // 2 and channel.has_peer_read_all():
            self.forget(channel)
        if self.of(channel) + count > limits.DESCRIPTORS_UNREAD_MAX:
            return False
        if self.total + count > self.most:
            self._make_room()
        self._counts[channel] = self.of(channel) + count
        self.total += count
        return True

    def count(self, channel: TaskChannel, count: int) -> None:
        """Count descriptors that a predecessor has sent on the channel."""
        if count:
            self._counts[channel] = self.of(channel) + count
            self.total += count

    def of(self, channel: TaskChannel) -> int:
        """Return the number of descriptors that the channel's peer may not have received."""
        return self._counts.get(channel, 0)

    def has_room_to_queue(self, count: int) -> bool:
        """Return True if the node may keep copies of ``count`` more descriptors that wait for their peers."""
        return self.queued + count <= max(self.most // 4, limits.DESCRIPTORS_QUEUED_MAX)

    def forget(self, channel: TaskChannel) -> None:
        """Stop counting the descriptors of a channel."""
        self.total -= self._counts.pop(channel, 0)

    def _make_room(self) -> None:
        for channel in [candidate for candidate in self._counts if candidate.has_peer_read_all()]:
            self.forget(channel)
        if self._counts and self.total > self.most // 2:
            largest = max(self._counts, key=self._counts.__getitem__)
            largest.cut_off(f"{self.of(largest)} descriptors wait for a peer that does not read them")
            self.forget(largest)


def hung_up(fd: int) -> bool:
    """Return True if the peer of a socket has closed its end, or this end is closed (``fd`` is -1)."""
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))


class _Unsent:
    """An unsent frame, or the rest of one, with the descriptors that its first byte will carry."""

    __slots__ = ("data", "fds")

    def __init__(self, data: memoryview, fds: Sequence[int]) -> None:
        self.data = data
        self.fds = copies_of(fds) if fds else []

    def close(self) -> None:
        close_all(self.fds)
        self.fds = []


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds).tobytes())]


class TaskChannel:
    """The node's end of one peer's stream of frames.

    A task in ``nursery`` sends the bytes that the peer did not accept at once; it runs only while bytes are
    queued. ``unread`` bounds the number of descriptors that all channels have sent and no peer has received.
    The creator of the channel closes it.
    """

    def __init__(
        self, sock: socket.socket, nursery: trio.Nursery, unread: UnreadDescriptors | None = None
    ) -> None:
        sock.setblocking(False)
        refuse_descriptors(sock)
        self._unread: Final = unread or UnreadDescriptors(limits.DESCRIPTORS_UNREAD_MAX)
        self._fault = ""
        self._sock: Final = sock
        self._recv: Final = sock.recv
        self._send: Final = sock.send
        self._nursery: Final = nursery
        self._splitter: Final = FrameSplitter(limits.FRAME_BYTES_MAX)
        self._feed: Final = self._splitter.feed
        self._queue: Final[deque[_Unsent]] = deque()
        self._held: list[bytes] = []  # small frames of this turn, see dios.transport.batch
        self._held_bytes = 0
        self._queued_bytes = 0
        self._queued_fds = 0
        self._drained = trio.Event()
        self._drained.set()
        self._gone = False
        self._closed = False
        self._spins = 1
        self._has_answered = True
        """True if a frame was sent since the last ones were received."""

    @property
    def queued_bytes(self) -> int:
        """Return the number of bytes that wait for the peer to read."""
        return self._queued_bytes

    def hand_over(self) -> ChannelState:
        """Describe the channel for the program that replaces the node's; nothing is sent from now on."""
        self.send_held()
        return ChannelState(
            self._sock.fileno(),
            self._splitter.unfinished,
            tuple((bytes(entry.data), tuple(entry.fds)) for entry in self._queue),
            self._unread.of(self),
        )

    @classmethod
    def taken_over(
        cls, state: ChannelState, nursery: trio.Nursery, unread: UnreadDescriptors | None = None
    ) -> TaskChannel:
        """Return the channel of a predecessor, and go on with what it received and did not send."""
        channel = cls(socket.socket(fileno=state.fd), nursery, unread)
        channel._feed(state.unfinished)
        channel._unread.count(channel, state.unread)
        for data, fds in state.unsent:
            try:
                channel._enqueue(memoryview(data), fds)
            finally:
                close_all(fds)
        return channel

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 after closing."""
        return self._sock.fileno()

    @property
    def abandoned(self) -> bool:
        """True if the peer has closed both directions, so that nobody can read an answer."""
        if self._closed or self._sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._sock, 0)
        return bool(poll.poll(0))

    async def receive(self) -> list[bytes]:
        """Wait for the next frames; return the bodies of all that are here, or an empty list at the end.

        The peer or this node may have closed. Raises ProtocolError for a frame over the limit, for a
        truncated frame, and after ``cut_off``; then the channel must be closed.
        """
        if self._queued_fds:
            # A peer with many requests on their way gets the replies that wait before it may make more.
            await self._drained.wait()
        try:
            data = await self._spin_and_receive()
            while True:
                if data is None:
                    await trio.lowlevel.wait_readable(self._sock)
                    data = self._try_receive()
                    continue
                if not data:
                    break
                bodies = self._feed(data)
                if bodies:
                    self._has_answered = False
                    return bodies
                data = None
        except (trio.ClosedResourceError, OSError, ValueError):
            return []
        if self._fault:
            raise ProtocolError(self._fault)
        if self._splitter.pending and not self._closed:
            pending = self._splitter.pending
            raise ProtocolError(f"truncated: the peer closed after {pending} bytes of an unfinished frame")
        return []

    async def _spin_and_receive(self) -> bytes | None:
        """Try to receive a few times, with a pass of the trio scheduler before each, and only then sleep.

        Other channels get their turn, and a fast answer finds this process awake. On two processors that
        saves a third of a round trip, because a sleeping processor is slow to wake. Only a peer that answered
        shortly after the last try gets more than one, and only while no other channel spins: an idle node
        sleeps, and a busy one does not waste time. No try is made for a peer that waits for its answer.
        """
        global _looking
        if not self._has_answered:
            await trio.lowlevel.wait_readable(self._sock)
            return self._try_receive()
        _looking += 1
        try:
            for _ in range(self._spins):
                await trio.lowlevel.checkpoint()
                data = self._try_receive()
                if data is not None:
                    return data
                if _looking > 1:
                    break
        finally:
            _looking -= 1
        asleep = monotonic_ns()
        await trio.lowlevel.wait_readable(self._sock)
        near = monotonic_ns() - asleep < limits.RECEIVE_SHORT_WAIT_NS
        self._spins = limits.RECEIVE_SPINS_MAX if near else 1
        return self._try_receive()

    def _try_receive(self) -> bytes | None:
        try:
            return self._recv(limits.RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def send_nowait(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Send one whole frame with its length and up to DESCRIPTORS_PER_FRAME_MAX descriptors.

        Never waits. The descriptors may be closed when it returns. A frame to a peer that is gone is
        dropped; ``receive`` reports the end. Descriptors wait while the peer has too many unread. Raises
        WouldBlockError if more than SEND_QUEUE_BYTES_MAX bytes (or DESCRIPTORS_QUEUED_MAX descriptors) would
        wait for the peer: then the channel must be closed. Raises InvalidError for too many descriptors.
        """
        self._has_answered = True
        if self._queue:
            self._enqueue(memoryview(frame), fds)
            return
        if BATCH.is_open and not fds and len(frame) < limits.BATCHED_BYTES_MAX:
            self._hold(frame)
            return
        if self._held:
            self.send_held()
            if self._queue:
                self._enqueue(memoryview(frame), fds)
                return
        try:
            if fds:
                if len(fds) > limits.DESCRIPTORS_PER_FRAME_MAX:
                    raise InvalidError(
                        f"cannot send {len(fds)} descriptors at once; {limits.DESCRIPTORS_PER_FRAME_MAX} fit"
                    )
                sent = self._send_with(frame, fds)
                if sent:
                    fds = ()
            else:
                sent = self._send(frame)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        if sent != len(frame):
            self._enqueue(memoryview(frame)[sent:], fds)

    def _hold(self, frame: bytes) -> None:
        """Hold a small frame back until the end of the batch; earlier if many bytes are held back."""
        if not self._held:
            BATCH.note(self)
        self._held.append(frame)
        self._held_bytes += len(frame)
        if self._held_bytes >= limits.BATCHED_BYTES_MAX:
            self.send_held()

    def send_held(self) -> None:
        """Send the frames that are held back. A peer that does not read loses its connection."""
        held, self._held, self._held_bytes = self._held, [], 0
        if not held or self._gone or self._closed:
            return
        frame = held[0] if len(held) == 1 else b"".join(held)
        try:
            sent = 0 if self._queue else self._send(frame)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            if error.errno in _GONE:
                self._lost(error)
            else:
                self.cut_off(f"the peer's socket accepts no more bytes: {error}")
            return
        if sent != len(frame):
            try:
                self._enqueue(memoryview(frame)[sent:], ())
            except WouldBlockError as error:
                self.cut_off(error.message)

    def _send_with(self, data: bytes | memoryview, fds: Sequence[int]) -> int:
        """Send bytes and descriptors; return the number of bytes sent, 0 if the descriptors must wait."""
        if not self._unread.admit(self, len(fds)):
            return 0
        try:
            return self._sock.sendmsg([data], _ancillary(fds))
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            return 0  # other processes of the user have too many on their way

    def has_peer_read_all(self) -> bool:
        """Return True if the peer has received everything that was sent, or this end is closed."""
        try:
            waiting = fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4))
        except (OSError, ValueError):
            return True
        return not any(waiting)

    async def wait_descriptors_read(self) -> None:
        """End the connection, and wait until the peer has received its descriptors or has closed its end.

        They stay counted until then, so that a peer gains nothing by connecting again and again.
        """
        self.cut_off("")
        while self._unread.of(self) and not self.has_peer_read_all():  # noqa: ASYNC110 - the kernel has no event
            await trio.sleep(limits.DESCRIPTORS_LINGER_MS / 1000)

    def cut_off(self, why: str) -> None:
        """End the connection: ``receive`` raises ProtocolError with ``why``."""
        self.send_held()
        self._fault = why
        self._gone = True
        self._drop_queue()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def _lost(self, error: OSError) -> None:
        if error.errno not in _GONE:
            raise WouldBlockError(f"the peer's socket accepts no more bytes: {error}") from None
        self._gone = True
        self._drop_queue()

    def _enqueue(self, data: memoryview, fds: Sequence[int]) -> None:
        if self._gone or self._closed:
            return
        if len(fds) > limits.DESCRIPTORS_PER_FRAME_MAX:
            raise InvalidError(
                f"cannot send {len(fds)} descriptors at once; {limits.DESCRIPTORS_PER_FRAME_MAX} fit"
            )
        # Every entry takes memory in addition to its bytes, so that tiny frames count more than their size.
        size = len(data) + limits.SEND_QUEUE_ENTRY_BYTES
        if (
            self._queued_bytes + size > limits.SEND_QUEUE_BYTES_MAX
            or self._queued_fds + len(fds) > limits.DESCRIPTORS_QUEUED_MAX
            or not self._unread.has_room_to_queue(len(fds))
        ):
            raise WouldBlockError(
                f"{self._queued_bytes} bytes wait for a peer that does not read its replies"
            )
        self._queue.append(_Unsent(data, fds))
        self._queued_bytes += size
        self._queued_fds += len(fds)
        self._unread.queued += len(fds)
        if self._drained.is_set():
            self._drained = trio.Event()
            self._nursery.start_soon(self._drain, name="send what waits for a peer")

    async def _drain(self) -> None:
        queue = self._queue
        try:
            while queue:
                await trio.lowlevel.wait_writable(self._sock)
                if queue and not self._send_first():
                    # The kernel does not report that a peer has received descriptors.
                    await trio.sleep(limits.DESCRIPTORS_RETRY_MS / 1000)
        except (trio.ClosedResourceError, OSError, ValueError):
            self._gone = True
        finally:
            self._drop_queue()

    def _send_first(self) -> bool:
        """Send bytes of the first entry; return False if its descriptors must wait."""
        entry = self._queue[0]
        try:
            sent = self._send_with(entry.data, entry.fds) if entry.fds else self._send(entry.data)
        except BlockingIOError:
            return True
        if not sent:
            return False
        # The first byte has carried the descriptors.
        self._queued_fds -= len(entry.fds)
        self._unread.queued -= len(entry.fds)
        entry.close()
        self._queued_bytes -= sent
        entry.data = entry.data[sent:]
        if not entry.data:
            self._queue.popleft()
            self._queued_bytes -= limits.SEND_QUEUE_ENTRY_BYTES
        return True

    def _drop_queue(self) -> None:
        self._held, self._held_bytes = [], 0
        while self._queue:
            self._queue.popleft().close()
        self._queued_bytes = 0
        self._unread.queued -= self._queued_fds
        self._queued_fds = 0
        self._drained.set()

    async def flush(self) -> None:
        """Wait until all queued bytes were sent to the peer, or the peer is gone."""
        await self._drained.wait()

    def close(self) -> None:
        """Close at once; queued bytes are lost, and ``receive`` returns the end."""
        if self._closed:
            return
        self.send_held()
        self._closed = True
        self._unread.forget(self)
        self._drop_queue()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()

    async def aclose(self) -> None:
        """Close at once, and let other tasks run."""
        self.close()
        await trio.lowlevel.checkpoint()
