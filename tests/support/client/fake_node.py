"""A node's end of a socket that answers as a test tells it to: real frames, real descriptors, no core."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

from msgspec.structs import replace

from dios import limits
from dios.client.sync.connection import Connection
from dios.client.sync.node import Node
from dios.transport.memory.memfd import create_memory
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, FrameSplitter, decode_request, encode_reply
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.page import PageWriter
from dios.wire.types import Brand, Buffering, Deletion, ObjectType, Permission, Persistence, Proximity

Scripted: TypeAlias = tuple[AnyResult, Sequence[int]]
Script: TypeAlias = Callable[[AnyCall], AnyResult | Scripted | None]


_REFERENCE = messages.Reference(
    ref=7,
    object=1007,
    type=ObjectType.SHMEM_BLOB,
    permissions=int(Permission.ALL),
    persistence=Persistence.VOLATILE,
    proximity=Proximity.NODE,
    deletion=Deletion.REFERENCE_COUNTED,
    buffering=Buffering.DOUBLE,
    slot=7,
    size=0,
    v_r=0,
    v_w=0,
    a_r=0,
    a_w=0,
    fingerprint="000000000007",
)


def reference(
    ref: int = 7, kind: ObjectType = ObjectType.SHMEM_BLOB, *, size: int = 0, label: str = ""
) -> messages.Reference:
    """A reference's public part."""
    return replace(
        _REFERENCE,
        ref=ref,
        object=ref + 1000,
        slot=ref,
        type=kind,
        size=size,
        label=label,
        fingerprint=f"{ref:012x}",
    )


_WELCOME = messages.Welcome(
    version=PROTOCOL_VERSION,
    name=b"n" * 32,
    brand=Brand.LEGACY,
    self_ref=reference(1, ObjectType.TASK),
    console=reference(2, ObjectType.CONSOLE_STREAM),
    groups=(reference(3, ObjectType.GROUP),),
    inputs=(),
    outputs=(),
    arguments=(),
    executable=None,
    label="test",
    home=reference(3, ObjectType.GROUP),
)


def welcome(**changes: object) -> messages.Welcome:
    """What a task learns first."""
    return replace(_WELCOME, **changes)


def in_turn(*answers: AnyResult | Scripted) -> Script:
    """A script that gives these answers one after the other, whatever is asked."""
    left = list(answers)
    return lambda _: left.pop(0)


class FakeNode:
    """Answers every request in a thread, and remembers the calls in ``calls``.

    ``script`` gives the result, alone or with descriptors that are closed once sent; None sends nothing.
    """

    def __init__(self, script: Script, hello: messages.Welcome | None = None) -> None:
        self.script = script
        self.hello = hello or welcome()
        self.calls: list[AnyCall] = []
        self.failure: BaseException | None = None
        self.peer, self._sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = create_memory(limits.PUBLIC_PAGE_BYTES, "page")
        self._page_map = mmap.mmap(fd, limits.PUBLIC_PAGE_BYTES)
        self._page_view = memoryview(self._page_map)
        self.page = PageWriter(self._page_view)
        self._page_fd = fd
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def connect(self) -> Node:
        """A client's node on the other end."""
        connection = Connection(ClientChannel(self.peer))
        return Node(connection, connection.hello((), "test"))

    def send(self, seq: int, result: AnyResult, fds: Sequence[int] = ()) -> None:
        """Send one reply."""
        frame = encode_reply(seq, result)
        if fds:
            socket.send_fds(self._sock, [frame], fds)
        else:
            self._sock.sendall(frame)

    def send_welcome(self) -> None:
        """Send the Welcome that a task's process gets unasked."""
        self.send(0, self.hello, [self._page_fd])

    def hang_up(self) -> None:
        """End the connection from the node's side."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        splitter = FrameSplitter()
        try:
            while data := self._sock.recv(1 << 20):
                for body in splitter.feed(data):
                    self._answer(body)
        except BrokenPipeError:
            self._sock.close()  # the client needs no more answers
        except BaseException as error:  # noqa: BLE001 - told to the test at its end
            self.failure = error
            self._sock.close()

    def _answer(self, body: bytes) -> None:
        request = decode_request(body)
        if isinstance(request.call, messages.Hello):
            self.send(request.seq, self.hello, [self._page_fd])
            return
        self.calls.append(request.call)
        answer = self.script(request.call)
        if answer is None:
            return
        result, fds = answer if isinstance(answer, tuple) else (answer, ())
        self.send(request.seq, result, fds)
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.peer.close()
        self._thread.join(10)
        self._sock.close()
        self.page.release()
        self._page_view.release()
        self._page_map.close()
        os.close(self._page_fd)
        if self.failure is not None and kind is None:
            raise self.failure
