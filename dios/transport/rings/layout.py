"""The memory of a SHMEM_STREAM: its layout, and the node's part in it, which is making and ending it.

Not for: moving data (``dios.transport.rings.waiting``): the node is on no stream's data path (thesis §4.7.4).

Two memories, so that each end can write only what is its own: a page of control words each, and behind
the writer's page the ring. Each end maps the other's memory for reading only, and believes nothing it reads
there.

    writer's memory: tail, state, v_w; then ``ring_bytes`` of data
    reader's memory: head, state, v_r

Head and tail count bytes since the beginning and never wrap. A state word holds in its low half the number
of the present wait (0: the end is awake) and in its high half whether the end is closed, so that one load
tells the other end both. Each word stands in a cache line of its own.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Final

from dios import limits
from dios.errors import InvalidError, OutOfMemoryError
from dios.transport.memory.memfd import (
    close_all,
    copies_of,
    create_memory,
    reopen_for_writing,
    reopen_read_only,
)
from dios.wire.types import Mode

CONTROL_BYTES: Final = mmap.PAGESIZE

# Places of the control words, in units of eight bytes.
COUNT: Final = 0
STATE: Final = 8
COMMITS: Final = 16

BROKEN: Final = 2**64 - 1
"""A count of the writer that says: what came before is not all there was, and nothing more comes."""

# Places of the halves of the state word, in units of four bytes: the numbers of a wait, and closed.
WAITING: Final = STATE * 2
CLOSED: Final = STATE * 2 + 1

_EVENT_FLAGS: Final = os.EFD_CLOEXEC | os.EFD_NONBLOCK


def ring_event(fd: int) -> None:
    """Add to an event counter; one that is full is readable anyway."""
    with suppress(BlockingIOError):
        os.eventfd_write(fd, 1)


class RingDescriptors:
    """The node's hold on one ring: the descriptors for both ends, and the right to end either."""

    def __init__(self, ring_bytes: int) -> None:
        self.ring_bytes: Final = ring_bytes
        self._fds: Final[list[int]] = []
        self._mappings: Final[dict[Mode, mmap.mmap]] = {}
        try:
            writers = self._keep(create_memory(CONTROL_BYTES + ring_bytes, "stream"))
            readers = self._keep(create_memory(CONTROL_BYTES, "stream reader"))
            self._mappings[Mode.WRITE] = mmap.mmap(writers, CONTROL_BYTES)
            self._mappings[Mode.READ] = mmap.mmap(readers, CONTROL_BYTES)
            data = self._keep(os.eventfd(0, _EVENT_FLAGS))
            space = self._keep(os.eventfd(0, _EVENT_FLAGS))
            self._ends: Final = {
                Mode.WRITE: (writers, self._keep(reopen_read_only(readers)), space, data),
                Mode.READ: (readers, self._keep(reopen_read_only(writers)), data, space),
            }
        except OutOfMemoryError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise OutOfMemoryError(f"no memory for a ring of {ring_bytes} bytes: {error.strerror}") from error

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def end(self, mode: Mode) -> tuple[int, int, int, int]:
        """The four descriptors of the end that writes or reads, in the order of an ``Attached`` reply.

        They stay the node's own.
        """
        return self._ends[mode]

    def hand_out(self, mode: Mode) -> tuple[int, int, int, int]:
        """As ``end``, for a receiver: open files of its own, which the caller closes. Raises OSError.

        The two event counters cannot be opened again; whoever has an end can wake the other one, and what
        else their copies share is between the ends of one stream.
        """
        own, peers, *events = self._ends[mode]
        made: list[int] = []
        try:
            made.append(reopen_for_writing(own))
            made.append(reopen_read_only(peers))
            sleeps, wakes = copies_of(events)
        except OSError:
            close_all(made)
            raise
        return made[0], made[1], sleeps, wakes

    def mark_closed(self, mode: Mode) -> None:
        """Say on behalf of an end that is gone that it is, and wake the other one."""
        with memoryview(self._mappings[mode]) as view, view.cast("I") as words:
            words[CLOSED] = 1
        ring_event(self._ends[mode][3])

    def is_closed(self, mode: Mode) -> bool:
        """Whether that end said, or somebody said for it, that it is closed."""
        with memoryview(self._mappings[mode]) as view, view.cast("I") as words:
            return bool(words[CLOSED])

    def commits(self, mode: Mode) -> int:
        """The writes (v_w) or reads (v_r) so far, as that end claims."""
        with memoryview(self._mappings[mode]) as view, view.cast("Q") as words:
            return words[COMMITS]

    def close(self) -> None:
        """Let go; ends that are open go on with each other."""
        for mapping in self._mappings.values():
            mapping.close()
        self._mappings.clear()
        while self._fds:
            os.close(self._fds.pop())


def create_ring(ring_bytes: int = limits.STREAM_RING_BYTES_DEFAULT) -> RingDescriptors:
    """Make a ring that holds at least ``ring_bytes`` bytes, in whole pages; its owner closes it.

    Raises InvalidError outside STREAM_RING_BYTES_MIN to STREAM_RING_BYTES_MAX, OutOfMemoryError.
    """
    if not limits.STREAM_RING_BYTES_MIN <= ring_bytes <= limits.STREAM_RING_BYTES_MAX:
        raise InvalidError(
            f"a ring of {ring_bytes} bytes is not between {limits.STREAM_RING_BYTES_MIN} "
            f"and {limits.STREAM_RING_BYTES_MAX}"
        )
    return RingDescriptors(-(-ring_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
