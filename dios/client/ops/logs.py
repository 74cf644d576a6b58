"""Logs (DURABLE_STREAM): the operations on them, and their entries."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, TypeVar, cast

from dios.client.buffers import memory_of
from dios.client.ops.attributes import Handle, NodeBase
from dios.client.ops.handles import Data, nanoseconds
from dios.client.ops.nodes import labelled_call, refs_of
from dios.client.session import Operation, all_held, expect, expect_buffer, vector
from dios.errors import ProtocolError, TimeLimitError
from dios.limits import LOG_HEAD_BYTES
from dios.wire import messages
from dios.wire.types import Flag, NameKind, ObjectType

L = TypeVar("L", bound=Handle)

_LENGTH: Final = struct.Struct(">I")


class Entry(NamedTuple):
    """One entry of a log: its bytes, its position, and the position of the next entry."""

    data: bytes
    position: int
    next: int


class LogOps(Handle):
    """A log: entries are appended at its end, and read from any position that an earlier read returned."""

    __slots__ = ()

    def append_op(self, data: Data) -> Operation[int]:
        """Append one entry; return its number, from 1 on, when it is on the disk.

        Several writers may append at once: entries are never mixed.
        """
        call = messages.WriteOnce(self._info.ref, bytes(memoryview(data).cast("B")))
        return expect(messages.Committed, (yield call)).v_w

    def append_all_op(self, entries: Iterable[Data]) -> Operation[int]:
        """Append many entries in few messages; return the number of the last when all are on the disk."""
        calls = [messages.WriteOnce(self._info.ref, bytes(memoryview(data).cast("B"))) for data in entries]
        answers = all_held((yield from vector(calls)))
        return expect(messages.Committed, answers[-1]).v_w if answers else self.v_w

    def read_op(self, position: int = 0, *, wait: bool = False) -> Operation[list[Entry]]:
        """Return the entries from ``position`` on that fit one message; an empty list at the end.

        With ``wait`` it waits at the end for the next entry.
        """
        flags = Flag.NONE if wait else Flag.NON_BLOCKING
        call = messages.ReadOnce(self._info.ref, offset=position, flags=int(flags))
        result, fd = expect_buffer((yield call))
        return _entries(memory_of(result, fd, writable=False).read(), position)

    def next_op(self, position: int, timeout: float) -> Operation[list[Entry]]:
        """Return entries like ``read`` with ``wait``; TimeLimitError after ``timeout`` seconds."""
        entries = yield from self.read_op(position)
        if not entries:
            # The node knows the position of this reader from its last read, which was at the end.
            call = messages.Select((self._info.ref,), timeout_ns=nanoseconds(timeout))
            expect(messages.Selected, (yield call))
            entries = yield from self.read_op(position)
        if not entries:
            raise TimeLimitError("nothing was appended in time", fingerprint=self.fingerprint)
        return entries


class LogMakers(NodeBase, Generic[L]):
    """The call that creates a log; ``L`` is the client's class of logs."""

    def create_log_op(
        self, *, groups: Iterable[Handle] = (), secrecy: Iterable[str] | None = None
    ) -> Operation[L]:
        """Create a log in ``groups``. It is on disk when this returns, and stays until it is deleted.

        Without a group it has no name, and is deleted with its last reference. ``secrecy`` are the tags of
        its label; None gives it that of the task.
        """
        refs = refs_of(groups)
        naming = NameKind.RANDOM if refs else NameKind.ANONYMOUS
        call = messages.Create(ObjectType.DURABLE_STREAM, refs, naming)
        created = expect(messages.Created, (yield labelled_call(call, secrecy)))
        return cast("L", self.handle(created.reference, created.name))


def _entries(data: bytes, position: int) -> list[Entry]:
    entries: list[Entry] = []
    place = 0
    while place < len(data):
        if len(data) - place < LOG_HEAD_BYTES:
            raise ProtocolError("the node answered with an incomplete entry")
        (size,) = _LENGTH.unpack_from(data, place)
        begin, end = place + LOG_HEAD_BYTES, place + LOG_HEAD_BYTES + size
        if end > len(data):
            raise ProtocolError("the node answered with an incomplete entry")
        entries.append(Entry(data[begin:end], position + place, position + end))
        place = end
    return entries
