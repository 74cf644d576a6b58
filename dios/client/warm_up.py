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
from dios.transport.unix.client import ClientChannel
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, encode_reply
from dios.wire.types import Brand, Buffering, Deletion, ObjectType, Permission, Persistence, Proximity

_TURNS: Final = 10
"""The interpreter adapts a function after eight calls."""

_PROGRAM: Final = b'import time; now = time.perf_counter_ns()\nclass _A:\n    """."""\n'
_FILE: Final = "<rehearsal>"


class _Stage:
    """A channel through which nothing is sent."""

    has_received = False

    def fileno(self) -> int:
        """Return no descriptor."""
        return -1


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
        program=_PROGRAM,
    )
    return encode_reply(0, welcome)[4:]


_WELCOME: Final = _welcome()
"""Encoded once, in memory that the children share."""


def rehearse(turns: int = 1) -> None:
    """Receive a Welcome and compile the program in it."""
    for _ in range(turns):
        _, result = Session().reply(_WELCOME, ())
        welcome = cast("messages.Welcome", result)
        node = Node(Connection(cast("ClientChannel", _Stage())), welcome)
        if node.executable is not None and welcome.program is not None:
            source = decode_program(welcome.program).main
            linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
            code: CodeType = compile(source, _FILE, "exec", dont_inherit=True)
            exec(code, {"__name__": _FILE})  # noqa: S102 - our own three lines
            del linecache.cache[_FILE]


def rehearse_in_zygote() -> None:
    """Let the interpreter adapt this code in memory that all tasks share."""
    rehearse(_TURNS)
