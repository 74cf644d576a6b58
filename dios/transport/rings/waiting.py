"""SHMEM_STREAM: bytes and messages through a ring in shared memory, without a daemon (thesis §4.7.4).

The node creates a ring (``create_ring``) and gives each end its three descriptors. An end is an object
for a single thread. An end with nothing to do sleeps at its socket and is woken once for each wait.
``dios.transport.rings.waiting_trio`` waits on trio.

The reader publishes the space it freed only every quarter of the ring and when it has read everything: a
writer may find up to a quarter less room than there is. Every read of the peer's counters is checked: they
never go backwards or beyond the ring. A peer that breaks this ends the stream with ProtocolError, and so
does one that wakes this end again and again for nothing. An end that was seen closed stays closed. A writer
can change bytes while they are read; ``receive`` therefore copies them first.

A message is a length of four bytes and its bytes. A message longer than half the ring is streamed through
it. If a wait within such a message is interrupted, the stream becomes unusable; a wait before its beginning
can be interrupted without harm.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence

from dios.errors import UnreachableError
from dios.transport.rings.end import RingEnd, fence
from dios.transport.rings.layout import RingDescriptors, TakenRing, create_ring
from dios.transport.rings.reader import RingReader
from dios.transport.rings.writer import RingWriter

__all__ = [
    "RingDescriptors",
    "RingEnd",
    "RingReader",
    "RingWriter",
    "TakenRing",
    "create_ring",
    "is_ready",
    "wait_any",
]


def is_ready(end: RingEnd) -> bool:
    """Return True if the end can move a byte, or learn that its peer closed, without waiting."""
    try:
        return (
            end.readable() if isinstance(end, RingReader) else isinstance(end, RingWriter) and end.writable()
        )
    except UnreachableError:
        return True  # the next use of the end raises the error


def wait_any(
    rings: Sequence[RingEnd],
    timeout_s: float | None = None,
    extra_fds: Iterable[int] = (),
    *,
    checked: bool = False,
) -> tuple[list[RingEnd], list[int]]:
    """Wait until one of the ends is ready or one of ``extra_fds`` readable; return the ones that are.

    Both lists are empty when ``timeout_s`` seconds have passed (None: never). An end that becomes ready while
    this returns may be missing; the next call returns it. With ``checked`` the caller has just seen that no
    end is ready.
    """
    poll = select.poll()
    others = set(extra_fds)
    for fd in others:
        poll.register(fd, select.POLLIN)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ready = [] if checked else [end for end in rings if is_ready(end)]
    if ready:
        return ready, [fd for fd, _ in poll.poll(0)]
    ends = {end.fileno(): end for end in rings}
    for fd in ends:
        poll.register(fd, select.POLLIN)
    while True:
        wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        woken: set[int] = set()
        try:
            for end in ends.values():
                end.announce()
            fence()
            armed = not any(map(RingEnd.has_news, ends.values()))
            woken.update(fd for fd, _ in poll.poll(wait_ms if armed else 0))
        finally:
            for fd, end in ends.items():
                end.disarm(woken=fd in woken)
        # Since every end was armed, one without a wake-up has nothing new.
        candidates = (ends[fd] for fd in woken if fd in ends) if armed else ends.values()
        ready = [end for end in candidates if is_ready(end)]
        readable = [fd for fd in woken if fd in others]
        if ready or readable or (deadline is not None and time.monotonic() >= deadline):
            return ready, readable
