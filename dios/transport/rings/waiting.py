"""SHMEM_STREAM: bytes and messages through a ring in shared memory, with no daemon on the way (thesis
§4.7.4).

Not for: waiting on trio (``dios.transport.rings.waiting_trio``), or other kinds of stream.

The node makes a ring (``create_ring``) and hands each end its four descriptors; each end is one object,
used by one thread. Nobody spins: an end with nothing to do sleeps on its event counter, and is woken once
for each wait.

The reader tells of the space it made only every quarter of the ring and whenever it has read all there was: a
writer may find up to a quarter less room than there is. What the peer wrote into its counters is checked at
each look (never backwards, never beyond the ring), and a peer that breaks this costs the stream:
ProtocolError. A writer can change bytes while they are read; who cares copies them first, as ``receive``
does.

Messages are bytes with a length of four bytes before them. One longer than half the ring streams through
it, and a wait given up in its middle (an interrupt) leaves the stream unusable; before its beginning, as it
was.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from dios.errors import UnreachableError
from dios.transport.rings.end import RingEnd
from dios.transport.rings.layout import RingDescriptors, create_ring
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter

__all__ = ["RingDescriptors", "RingEnd", "RingReader", "RingWriter", "create_ring", "is_ready", "wait_any"]


def is_ready(end: RingEnd) -> bool:
    """Whether the end can move a byte, or learn of its peer's end, without waiting."""
    try:
        return (
            end.readable() if isinstance(end, RingReader) else isinstance(end, RingWriter) and end.writable()
        )
    except UnreachableError:
        return True  # whoever uses it is told at once


def wait_any(
    rings: Sequence[RingEnd], timeout_s: float | None = None, extra_fds: Iterable[int] = ()
) -> tuple[list[RingEnd], list[int]]:
    """Wait until one of the ends is ready or one of ``extra_fds`` readable; return all that are.

    Both lists are empty when ``timeout_s`` seconds have passed (None: never).
    """
    poll = select.poll()
    others = set(extra_fds)
    for fd in others:
        poll.register(fd, select.POLLIN)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        with ExitStack() as armed:
            wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            for end in rings:
                if is_ready(end) or not end.arm():
                    wait_ms = 0
                    break
                poll.register(end.fileno(), select.POLLIN)
                armed.callback(end.disarm)
                armed.callback(poll.unregister, end.fileno())
            events = poll.poll(wait_ms)
        ready = [end for end in rings if is_ready(end)]
        readable = [fd for fd, _ in events if fd in others]
        if ready or readable or (deadline is not None and time.monotonic() >= deadline):
            return ready, readable
