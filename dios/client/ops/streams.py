"""Streams: the ends of a ring in shared memory, attached at their first use and then used without calls.

``dios.transport.rings.waiting`` describes the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from dios.client.ops.attributes import Handle
from dios.client.session import Operation, expect_attached
from dios.transport.rings.waiting import RingEnd, RingReader, RingWriter
from dios.wire import messages
from dios.wire.types import Mode

if TYPE_CHECKING:
    from dios.client.ops.attributes import NodeBase

H = TypeVar("H", bound=Handle)


class StreamOps(Handle):
    """The handle of a stream; its first use makes it the writing or the reading end (B.1.7)."""

    __slots__ = ("_reader", "_writer")

    def __init__(self, node: NodeBase, info: messages.Reference, name: bytes | None = None) -> None:
        super().__init__(node, info, name)
        self._reader: RingReader | None = None
        self._writer: RingWriter | None = None

    def reader_op(self) -> Operation[RingReader]:
        """Return the reading end, which needs no calls; Busy if another reference has it."""
        if self._reader is None:
            answer = yield messages.Attach(self._info.ref, Mode.READ)
            attached, fds = expect_attached(answer)
            self._reader = RingReader(fds, attached.ring_bytes)
            self._node.ends.add(self._reader)
        return self._reader

    def writer_op(self) -> Operation[RingWriter]:
        """Return the writing end, which needs no calls; Busy if another reference has it."""
        if self._writer is None:
            answer = yield messages.Attach(self._info.ref, Mode.WRITE)
            attached, fds = expect_attached(answer)
            self._writer = RingWriter(fds, attached.ring_bytes)
            self._node.ends.add(self._writer)
        return self._writer

    def attached(self, mode: Mode) -> RingEnd | None:
        """Return the end for ``mode`` if it is attached already."""
        return self._reader if mode is Mode.READ else self._writer

    def end_op(self, mode: Mode) -> Operation[RingEnd]:
        """Return the end for ``mode``."""
        if mode is Mode.READ:
            return (yield from self.reader_op())
        return (yield from self.writer_op())

    def detach(self) -> None:
        """Close the ends; the other side can still read everything that was sent.

        A closed end cannot be attached again. The reference stays until ``close``.
        """
        for end in (self._reader, self._writer):
            if end is not None:
                end.close()
                self._node.ends.discard(end)


def ends_op(references: Sequence[H], mode: Mode) -> Operation[tuple[dict[RingEnd, H], list[H]]]:
    """Return the streams among ``references`` by their ends, attached if necessary, and the other objects."""
    ends: dict[RingEnd, H] = {}
    others: list[H] = []
    for reference in references:
        if isinstance(reference, StreamOps):
            end = reference.attached(mode)
            ends[(yield from reference.end_op(mode)) if end is None else end] = reference
        else:
            others.append(reference)
    return ends, others
