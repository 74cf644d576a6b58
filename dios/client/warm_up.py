"""The warm-up of a child of the pool: it runs everything before a task's first line with a fake node.

A forked child pays for each page of its memory at the first write, and Python writes even to objects that it
only reads. After the warm-up it has its own pages. The warm-up is invisible: it uses no socket and leaves the
interpreter's state unchanged.
"""

from __future__ import annotations

import linecache
from types import CodeType
from typing import Final, cast

from dios.client.program import decode_program
from dios.client.session import Session
from dios.client.sync.connection import Connection
from dios.client.sync.node import Node
from dios.transport.unix.client import ClientChannel, Received
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, decode_request, encode_reply
from dios.wire.types import Brand, Buffering, Deletion, ObjectType, Permission, Persistence, Proximity

_TURNS: Final = 3
_PROGRAM: Final = b'import time; now = time.perf_counter_ns()\nclass _A:\n    """."""\n'
_FILE: Final = "<rehearsal>"


class _Stage:
    """A node that returns the same bytes for every read."""

    _seq = 0

    def fileno(self) -> int:
        """Return no descriptor."""
        return -1

    has_received = True

    def send(self, frame: bytes) -> None:
        """Note one read of the program."""
        self._seq = decode_request(frame[4:]).seq

    def receive(self) -> Received:
        """Answer the read."""
        size = len(_PROGRAM)
        answer = messages.Buffer(0, size, 1, 1, messages.Mapping.NONE, 0, size, _PROGRAM)
        return encode_reply(self._seq, answer)[4:], ()


def _reference(number: int, kind: ObjectType) -> messages.Reference:
    return messages.Reference(
        number,
        number,
        kind,
        int(Permission.ALL),
        Persistence.VOLATILE,
        Proximity.NODE,
        Deletion.REFERENCE_COUNTED,
        Buffering.DOUBLE,
        number,
        *(0, 0, 0, 0, 0),
        fingerprint="0" * 12,
        label="input",
    )


def _welcome() -> bytes:
    welcome = messages.Welcome(
        PROTOCOL_VERSION,
        bytes(32),
        Brand.PURE,
        _reference(1, ObjectType.TASK),
        _reference(2, ObjectType.CONSOLE_STREAM),
        (_reference(3, ObjectType.GROUP),),
        (_reference(4, ObjectType.SHMEM_BLOB), _reference(5, ObjectType.SHMEM_STREAM)),
        (_reference(6, ObjectType.SHMEM_STREAM),),
        ("argument",),
        _reference(7, ObjectType.SHMEM_BLOB),
        "label",
    )
    return encode_reply(0, welcome)[4:]


def rehearse() -> None:
    """Receive a Welcome, read a program and compile it, a few times."""
    body = _welcome()
    for _ in range(_TURNS):
        _, welcome = Session().reply(body, ())
        node = Node(Connection(cast("ClientChannel", _Stage())), cast("messages.Welcome", welcome))
        if node.executable is not None:
            source = decode_program(node.executable.read_bytes()).main
            linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
            code: CodeType = compile(source, _FILE, "exec", dont_inherit=True)
            exec(code, {"__name__": _FILE})  # noqa: S102 - our own three lines
            del linecache.cache[_FILE]
