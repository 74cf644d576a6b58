"""A task's or a person's end of the socket to the node: one blocking face, one that waits on trio.

Not for: what frames mean, or matching replies to requests (``dios.client.session``). Neither face is safe to
share between threads; trio's is safe for one sender and one receiver at a time.

Descriptors: a receiving call returns each frame's own. They close themselves on exec, and from then on belong
to the caller, who closes them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from array import array
from collections import deque
from pathlib import Path
from typing import Final, TypeAlias

from dios import limits
from dios.errors import (
    ClosedError,
    NotPermittedError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
)
from dios.transport.rings.adaptive_spin import AdaptiveSpin
from dios.transport.unix.path import socket_address

Received: TypeAlias = tuple[bytes, tuple[int, ...]]
"""One frame's body, and the descriptors that came beside it."""

_LENGTH: Final = struct.Struct("<I")
_unpack_length: Final = _LENGTH.unpack_from
_INT_BYTES: Final = array("i").itemsize
ANCILLARY_BYTES: Final = socket.CMSG_SPACE(limits.DESCRIPTORS_PER_FRAME_MAX * _INT_BYTES)
_Ancillary: TypeAlias = list[tuple[int, int, bytes]]


def descriptors_of(ancillary: _Ancillary) -> tuple[int, ...]:
    """The descriptors in what ``recvmsg`` gave beside the bytes."""
    found = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return tuple(found)


class FrameAssembler:
    """Cuts what was received into frames, each with its descriptors; no I/O of its own.

    A stream socket ends a ``recvmsg`` after the bytes that carried descriptors, so that those of one call
    belong to the frame which holds the last byte it returned.
    """

    def __init__(self, limit: int = limits.REPLY_BYTES_MAX) -> None:
        self._limit: Final = limit
        self._buffer = bytearray()
        self._fds: tuple[int, ...] = ()
        self.ready: Final[deque[Received]] = deque()

    @property
    def pending(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """Bytes by which the unfinished frame is known to be short; 0 when not even its length is known."""
        if len(self._buffer) < 4:
            return 0
        (length,) = _unpack_length(self._buffer)
        return int(length) + 4 - len(self._buffer)

    def feed(self, data: bytes, fds: tuple[int, ...]) -> None:
        """Take what one ``recvmsg`` returned; whole frames go to ``ready``. ProtocolError above the limit."""
        buffer = self._buffer
        if not buffer and len(data) >= 4:
            (length,) = _unpack_length(data)
            if length == len(data) - 4 and length <= self._limit:
                self.ready.append((data[4:], fds))
                return
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            (length,) = _unpack_length(buffer, start)
            if length > self._limit:
                self._fds += fds
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {self._limit}")
            end = start + 4 + length
            if len(buffer) < end:
                break
            # The new descriptors belong to the frame that holds the last byte.
            own = self._fds + fds if end == len(buffer) else self._fds
            if end == len(buffer):
                fds = ()
            self.ready.append((bytes(memoryview(buffer)[start + 4 : end]), own))
            self._fds = ()
            start = end
        if start:
            del buffer[:start]
        self._fds += fds

    def close(self) -> None:
        """Close every descriptor that nobody has taken."""
        for _, fds in self.ready:
            close_all(fds)
        self.ready.clear()
        close_all(self._fds)
        self._fds = ()

    def end_of_stream(self) -> ClosedError | ProtocolError:
        """The error that fits the peer's leaving now."""
        if self._buffer:
            return ProtocolError(
                f"truncated: the node left after {self.pending} bytes of an unfinished frame"
            )
        return ClosedError("the node closed the connection")


def close_all(fds: tuple[int, ...]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def connect(path: Path) -> socket.socket:
    """Connect to the node's socket at ``path``, which may be of any length.

    Raises UnreachableError when no node listens there, NotPermittedError when its file refuses this user.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            sock.connect(address)
    except PermissionError as error:
        sock.close()
        raise NotPermittedError(
            f"this user may not connect to the node at {path}; whoever runs it lets others in with "
            "its setting allowed_uids"
        ) from error
    except OSError as error:
        sock.close()
        raise UnreachableError(
            f"no node listens at {path} ({error.strerror}); start one with `dios-node start`"
        ) from error
    return sock


class ClientChannel:
    """Frames over a blocking socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock: Final = sock
        self._send: Final = sock.send
        self._recvmsg: Final = sock.recvmsg
        self._assembler: Final = FrameAssembler()
        self._poll: Final = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._look: Final = AdaptiveSpin().pays

    def fileno(self) -> int:
        """The socket's descriptor, to poll for ``receive``; -1 once closed."""
        return self._sock.fileno()

    @property
    def has_received(self) -> bool:
        """Whether a whole frame is here already, of which no poll would tell."""
        return bool(self._assembler.ready)

    def call(self, frame: bytes) -> Received:
        """Send one whole frame and wait for the next one from the node.

        With several requests outstanding that is not always this one's reply. Errors as of ``receive``.
        """
        self.send(frame)
        self._look(self._here)
        return self.receive()

    def _here(self) -> object:
        return self._poll.poll(0)

    def send(self, frame: bytes) -> None:
        """Send one whole frame, length included; waits while the node is slow.

        A node that is gone is not reported here but by the next ``receive``, after its last words.
        """
        try:
            sent = self._send(frame)
            if sent != len(frame):
                self._sock.sendall(memoryview(frame)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            pass
        except OSError as error:
            raise ClosedError(f"the connection to the node is closed ({error.strerror})") from error

    def receive(self, timeout_s: float | None = None) -> Received:
        """Wait for one frame: its body and its descriptors, which the caller owns from then on.

        Raises TimeLimitError after ``timeout_s`` seconds (None: never), ClosedError when the node is gone,
        ProtocolError when it sent what is no frame; after the last two the channel is of no more use.
        """
        ready = self._assembler.ready
        while not ready:
            if timeout_s is not None and not self._poll.poll(max(0.0, timeout_s * 1000)):
                raise TimeLimitError("the node did not answer in time")
            self._receive_some()
        return ready.popleft()

    def _receive_some(self) -> None:
        assembler = self._assembler
        size = max(limits.RECEIVE_BYTES, assembler.missing)
        try:
            data, ancillary, flags, _ = self._recvmsg(size, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            raise assembler.end_of_stream() from None
        except OSError as error:
            raise ClosedError(f"the connection to the node is closed ({error.strerror})") from error
        fds = descriptors_of(ancillary) if ancillary else ()
        take(assembler, data, fds, flags)

    def close(self) -> None:
        """Close the socket and every descriptor that nobody has taken."""
        self._assembler.close()
        self._sock.close()


def take(assembler: FrameAssembler, data: bytes, fds: tuple[int, ...], flags: int) -> None:
    """Give one ``recvmsg``'s outcome to ``assembler``, or raise what it means."""
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise ProtocolError(
            f"descriptors were lost: a frame had more than {limits.DESCRIPTORS_PER_FRAME_MAX}, "
            "or this process has no free ones; raise its limit of open files"
        )
    if not data:
        close_all(fds)
        raise assembler.end_of_stream()
    assembler.feed(data, fds)
