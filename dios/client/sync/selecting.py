"""``select`` of the blocking client: rings are checked directly, the node is asked about other objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

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
    ready, _ = wait_any(listed, timeout)
    return ends[ready[0]] if ready else None


def _select_both(
    connection: Connection, ends: dict[RingEnd, H], others: Sequence[H], mode: Mode, timeout: float | None
) -> H | None:
    call = messages.Select(tuple(item.ref for item in others), mode, nanoseconds(timeout))
    seq = connection.begin(call)
    answer = None
    while answer is None:
        try:
            # The node applies the timeout: its answer comes when it has passed.
            ready = [] if connection.answered else wait_any(list(ends), None, [connection.fileno()])[0]
        except BaseException:
            connection.abandon(seq, call)
            raise
        if ready:
            connection.abandon(seq, call)
            return ends[ready[0]]
        try:
            # The message may be the answer to an abandoned call; then the rings are checked again.
            answer = connection.take(seq, call)
        except Conflict:
            return None
    index = expect(messages.Selected, answer).index
    return None if index < 0 else others[index]
