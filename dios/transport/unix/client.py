"""The client's end of the socket to the node, for blocking callers.

``dios.client.session`` matches replies to requests. A channel must not be shared between threads.

A receiving call returns the descriptors of each frame. They are closed on exec, and the caller owns them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Collection
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
from dios.transport.unix.credentials import require_server
from dios.transport.unix.path import socket_address

Received: TypeAlias = tuple[bytes, tuple[int, ...]]
"""The body of one frame, and the descriptors that were sent with it."""

_LENGTH: Final = struct.Struct("<I")
_unpack_length: Final = _LENGTH.unpack_from
_INT_BYTES: Final = array("i").itemsize
ANCILLARY_BYTES: Final = socket.CMSG_SPACE(limits.DESCRIPTORS_PER_FRAME_MAX * _INT_BYTES)
_Ancillary: TypeAlias = list[tuple[int, int, bytes]]


def descriptors_of(ancillary: _Ancillary) -> tuple[int, ...]:
    """Return the descriptors in the ancillary data of ``recvmsg``."""
    descriptors = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return tuple(descriptors)


class FrameAssembler:
    """Cuts received bytes into frames with their descriptors; does no I/O.

    On a stream socket, a ``recvmsg`` ends after the bytes that carried descriptors. So the descriptors of one
    call belong to the frame that contains its last byte.
    """

    def __init__(self, limit: int = limits.REPLY_BYTES_MAX) -> None:
        self._limit: Final = limit
        self._buffer = bytearray()
        self._fds: tuple[int, ...] = ()
        self.ready: Final[deque[Received]] = deque()

    @property
    def pending(self) -> int:
        """Return the number of bytes of the unfinished frame."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """Return the number of missing bytes of the unfinished frame; 0 if its length is not known yet."""
        if len(self._buffer) < 4:
            return 0
        (length,) = _unpack_length(self._buffer)
        return int(length) + 4 - len(self._buffer)

    def feed(self, data: bytes, fds: tuple[int, ...]) -> None:
        """Add the result of one ``recvmsg``; complete frames go to ``ready``. ProtocolError if too long."""
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
            # New descriptors belong to the frame with the last byte.
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
        """Close every descriptor that was not taken."""
        for _, fds in self.ready:
            close_all(fds)
        self.ready.clear()
        close_all(self._fds)
        self._fds = ()

    def end_of_stream(self) -> ClosedError | ProtocolError:
        """Return the error for the end of the connection at this point."""
        if self._buffer:
            return ProtocolError(
                f"truncated: the node closed after {self.pending} bytes of an unfinished frame"
            )
        return ClosedError("the node closed the connection")


def close_all(fds: tuple[int, ...]) -> None:
    """Close descriptors, ignoring errors."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def connect(path: Path, users: Callable[[], Collection[int]] = tuple) -> socket.socket:
    """Connect to the node's socket at ``path``, which may have any length.

    Raises UnreachableError if no node listens there, NotPermittedError if its file refuses this user, or if
    the node's process belongs to none of root, this process's own user, and ``users()``.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            sock.connect(address)
        require_server(sock, path, users)
    except NotPermittedError:
        sock.close()
        raise
    except PermissionError as error:
        sock.close()
        raise NotPermittedError(
            f"this user may not connect to the node at {path}. Ask its operator to add the user to the "
            "setting allowed_uids."
        ) from error
    except OSError as error:
        sock.close()
        raise UnreachableError(f"no node listens at {path} ({error.strerror})") from error
    return sock


class ClientChannel:
    """Frames over a blocking socket, which the channel owns."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock: Final = sock
        self._send: Final = sock.send
        self._recvmsg: Final = sock.recvmsg
        self._assembler: Final = FrameAssembler()
        self._poll: Final = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._spin: Final = AdaptiveSpin().spin

    def fileno(self) -> int:
        """Return the descriptor of the socket, to poll for ``receive``; -1 after closing."""
        return self._sock.fileno()

    @property
    def has_received(self) -> bool:
        """Return True if a complete frame has been received, which no poll would report."""
        return bool(self._assembler.ready)

    def call(self, frame: bytes) -> Received:
        """Send one whole frame and wait for the next one from the node.

        With several open requests that may be another one's reply. Raises the errors of ``receive``.
        """
        self.send(frame)
        self._spin(self._here)
        return self.receive()

    def _here(self) -> object:
        return self._poll.poll(0)

    def send(self, frame: bytes) -> None:
        """Send one whole frame with its length; wait while the node is slow.

        The end of the node is not reported here: the next ``receive`` reports it, after the last frames.
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
        """Wait for one frame; return its body and its descriptors, which the caller owns.

        Raises TimeLimitError after ``timeout_s`` seconds (None: never), ClosedError if the node is gone,
        ProtocolError if it sent bytes that are not a frame; after the last two the channel is unusable.
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
        """Close the socket and every descriptor that was not taken."""
        self._assembler.close()
        self._sock.close()


def take(assembler: FrameAssembler, data: bytes, fds: tuple[int, ...], flags: int) -> None:
    """Pass the result of one ``recvmsg`` to ``assembler``, or raise its error."""
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise ProtocolError(
            f"descriptors were lost: a frame had more than {limits.DESCRIPTORS_PER_FRAME_MAX}, "
            "or this process has no free descriptors. Raise its limit of open files."
        )
    if not data:
        close_all(fds)
        raise assembler.end_of_stream()
    assembler.feed(data, fds)
