"""``select`` of the blocking client: it looks at rings itself, and asks the node about other objects.

The streams of the last select are kept with their waits, because most programs select among the same streams
again and again.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from dios.client.ops.attributes import Handle
from dios.client.ops.handles import nanoseconds
from dios.client.ops.nodes import select_op
from dios.client.ops.streams import ends_op
from dios.client.session import expect
from dios.client.sync.connection import Connection
from dios.errors import Conflict
from dios.transport.rings.wait_set import WaitSet
from dios.transport.rings.waiting import RingEnd, is_ready, wait_any
from dios.wire import messages
from dios.wire.types import Mode

H = TypeVar("H", bound=Handle)

_WAKE_BYTES: Final = 64


class LastSelect(Generic[H]):
    """The streams of a connection's last select, and the waits that are kept for them."""

    def __init__(self) -> None:
        self._waits: Final = WaitSet()
        self._references: list[H] = []
        self._mode = Mode.READ
        self._by_end: dict[RingEnd, H] = {}

    @property
    def usable(self) -> bool:
        """Return False in a forked process."""
        return self._waits.usable

    def is_of(self, references: Sequence[H], mode: Mode) -> bool:
        """Return True if these are the streams of the last select."""
        return (
            mode is self._mode
            and len(references) == len(self._references)
            and all(map(operator.is_, references, self._references))
        )

    def replace(self, references: Sequence[H], mode: Mode, ends: dict[RingEnd, H]) -> None:
        """Keep these streams, whose ends are given, in place of the last ones."""
        self._references = []
        self._waits.replace(ends)
        self._references, self._mode, self._by_end = list(references), mode, ends

    def wait(self, timeout: float | None) -> H | None:
        """Return a stream that is ready, None after ``timeout`` seconds."""
        end = self._waits.wait(timeout)
        return None if end is None else self._by_end[end]

    def close(self) -> None:
        """Release the waits."""
        self._waits.close()


class Selects(Generic[H]):
    """The selects of one connection. One thread at a time can use what is kept of the last one."""

    def __init__(self) -> None:
        # Empty while a thread uses it: taking it out is a single step, which needs no lock.
        self._kept: Final[list[LastSelect[H] | None]] = [None]
        self._turn = 0

    def select(
        self, connection: Connection, references: Sequence[H], mode: Mode, timeout: float | None
    ) -> H | None:
        """Return the first of ``references`` that is ready, None after ``timeout`` seconds (B.1.13)."""
        try:
            last = self._kept.pop()
        except IndexError:
            self._turn += 1
            return select(connection, references, mode, timeout, self._turn)
        try:
            if last is not None and last.usable and last.is_of(references, mode):
                return last.wait(timeout)
            ends, others = connection.run(ends_op(references, mode))
            if others or not ends:
                self._turn += 1
                return _select(connection, ends, others, mode, timeout, self._turn)
            if last is None or not last.usable:
                last = LastSelect()
            last.replace(references, mode, ends)
            return last.wait(timeout)
        finally:
            self._kept.append(last)

    def close(self) -> None:
        """Release what is kept."""
        for last in self._kept:
            if last is not None:
                last.close()
        self._kept[:] = [None]


def select(
    connection: Connection, references: Sequence[H], mode: Mode, timeout: float | None, turn: int
) -> H | None:
    """Return the first of ``references`` that is ready, None after ``timeout`` seconds (B.1.13).

    ``turn`` is the stream to check first, so that a busy stream does not starve the others.
    """
    ends, others = connection.run(ends_op(references, mode))
    return _select(connection, ends, others, mode, timeout, turn)


def _select(
    connection: Connection,
    ends: dict[RingEnd, H],
    others: Sequence[H],
    mode: Mode,
    timeout: float | None,
    turn: int,
) -> H | None:
    if not ends:
        index = connection.run(select_op(others, mode, timeout))
        return None if index < 0 else others[index]
    listed = list(ends)
    start = turn % len(listed)
    for end in listed[start:] + listed[:start]:
        if is_ready(end):
            return ends[end]
    if others:
        return _select_both(connection, ends, others, mode, timeout)
    ready, _ = wait_any(listed, timeout, checked=True)
    return ends[ready[0]] if ready else None


def _select_both(
    connection: Connection, ends: dict[RingEnd, H], others: Sequence[H], mode: Mode, timeout: float | None
) -> H | None:
    call = messages.Select(tuple(item.ref for item in others), mode, nanoseconds(timeout))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        index = _poll_both(connection, ends, call, wake_read, wake_write)
    finally:
        os.close(wake_read)
        os.close(wake_write)
    return index if not isinstance(index, int) else None if index < 0 else others[index]


def _poll_both(
    connection: Connection, ends: dict[RingEnd, H], call: messages.Select, wake_read: int, wake_write: int
) -> H | int:
    """Return the stream that is ready, or the index of another object; -1 after the timeout.

    Another thread may receive the answer, and then writes to ``wake_write``.
    """
    seq = connection.begin(call, wake_write)
    answer = None
    while answer is None:
        try:
            # The node applies the timeout: its answer comes when it has passed.
            ready: Sequence[RingEnd] = ()
            if not connection.has_answer(seq):
                ready, readable = wait_any(list(ends), None, [connection.fileno(), wake_read])
                if wake_read in readable:
                    os.read(wake_read, _WAKE_BYTES)
        except BaseException:
            connection.abandon(seq, call)
            raise
        if ready:
            connection.abandon(seq, call)
            return ends[ready[0]]
        try:
            # The message may be the answer to another call; then the rings are checked again.
            answer = connection.take(seq, call)
        except Conflict:
            return -1
    return expect(messages.Selected, answer).index
