"""``select`` of the blocking client: rings are checked directly, the node is asked about other objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

from dios.client.ops.attributes import Handle
from dios.client.ops.handles import nanoseconds
from dios.client.ops.nodes import select_op
from dios.client.ops.streams import ends_op
from dios.client.session import expect
from dios.client.sync.connection import Connection
from dios.errors import Conflict
from dios.transport.rings.waiting import RingEnd, is_ready, wait_any
from dios.wire import messages
from dios.wire.types import Mode

H = TypeVar("H", bound=Handle)

_WAKE_BYTES: Final = 64


def select(
    connection: Connection, references: Sequence[H], mode: Mode, timeout: float | None, turn: int
) -> H | None:
    """Return the first of ``references`` that is ready, None after ``timeout`` seconds (B.1.13).

    ``turn`` is the stream to check first, so that a busy stream does not starve the others.
    """
    ends, others = connection.run(ends_op(references, mode))
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
