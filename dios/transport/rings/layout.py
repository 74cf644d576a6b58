"""The memory of a SHMEM_STREAM: its layout, and its creation and end by the node.

Two memories, so that each end can write only its own: a page of control words each, and the ring after the
writer's page. Each end maps the other's memory read-only and trusts no value in it. The node is not on the
data path (thesis §4.7.4); ``dios.transport.rings.waiting`` describes the transfer of data.

    writer's memory: tail, state, v_w; then ``ring_bytes`` of data
    reader's memory: head, state, v_r

Head and tail count bytes from the beginning and never wrap. The low half of a state word is the number of
the present wait (0: the end is awake), the high half is 1 if the end is closed, so that one load reads both.
Each word has a cache line of its own. Sleeping ends are woken through ``dios.transport.rings.wakeups``.
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import Final, NamedTuple

from dios import limits
from dios.errors import InvalidError, OutOfMemoryError
from dios.transport.memory.mapping import map_memory
from dios.transport.memory.memfd import (
    close_all,
    create_memory,
    reopen_for_writing,
    reopen_read_only,
)
from dios.transport.rings.wakeups import create_wakeups, hang_up, hang_up_other
from dios.wire.types import Mode

CONTROL_BYTES: Final = mmap.PAGESIZE

# The indexes of the control words, in units of eight bytes.
COUNT: Final = 0
STATE: Final = 8
COMMITS: Final = 16

BROKEN: Final = 2**64 - 1
"""A count of the writer with the meaning: data are missing at the end, and nothing more comes."""

# The indexes of the halves of the state word, in units of four bytes: the number of a wait, and closed.
WAITING: Final = STATE * 2
CLOSED: Final = STATE * 2 + 1

_LABELS: Final = {Mode.WRITE: "stream", Mode.READ: "stream reader"}
_OPPOSITE: Final = {Mode.READ: Mode.WRITE, Mode.WRITE: Mode.READ}


class TakenRing(NamedTuple):
    """The descriptors of a ring that a node hands to the program that replaces its own; -1 for none."""

    writer: int
    reader: int
    write_socket: int
    read_socket: int
    wanting: tuple[Mode, ...]


class RingDescriptors:
    """The node's side of one ring: the descriptors of ends that no task has yet, and the means to close both.

    It has STREAM_DESCRIPTORS at most, and STREAM_DESCRIPTORS_ATTACHED when both ends were handed out. The
    memories stay open, so that the program that replaces the node's can map them again.
    """

    def __init__(self, ring_bytes: int, taken: TakenRing | None = None) -> None:
        self.ring_bytes: Final = ring_bytes
        self._memories: Final[dict[Mode, int]] = {}
        self._sockets: Final[dict[Mode, socket.socket]] = {}
        self._pages: Final[dict[Mode, memoryview]] = {}
        self._wanting: Final = set(Mode) if taken is None else set(taken.wanting)
        if taken is not None:
            self._memories.update({Mode.WRITE: taken.writer, Mode.READ: taken.reader})
            self._pages.update({mode: map_memory(fd, CONTROL_BYTES) for mode, fd in self._memories.items()})
            given = ((Mode.WRITE, taken.write_socket), (Mode.READ, taken.read_socket))
            self._sockets.update({mode: socket.socket(fileno=fd) for mode, fd in given if fd >= 0})
            return
        try:
            sizes = {Mode.WRITE: CONTROL_BYTES + ring_bytes, Mode.READ: CONTROL_BYTES}
            for mode, size in sizes.items():
                self._memories[mode] = create_memory(size, _LABELS[mode], sealable=False)
                self._pages[mode] = map_memory(self._memories[mode], CONTROL_BYTES)
            self._sockets[Mode.WRITE], self._sockets[Mode.READ] = create_wakeups()
        except OutOfMemoryError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise OutOfMemoryError(f"no memory for a ring of {ring_bytes} bytes: {error.strerror}") from error

    def hand_out(self, mode: Mode) -> tuple[int, int, int]:
        """Return the descriptors of an end for its receiver, in the order of an ``Attached`` reply.

        The caller closes them. The memories are open files of the receiver's own. The socket cannot be opened
        again; the node only hangs it up. Each end is handed out once: after both, the node keeps a single
        socket. Raise OSError.
        """
        other = _OPPOSITE[mode]
        descriptors: list[int] = []
        try:
            descriptors.append(reopen_for_writing(self._memories[mode]))
            descriptors.append(reopen_read_only(self._memories[other]))
            descriptors.append(os.dup(self._sockets[mode].fileno()))
        except OSError:
            close_all(descriptors)
            raise
        self._wanting.discard(mode)
        if not self._wanting:
            # The other socket of the pair hangs up both.
            self._sockets.pop(Mode.READ).close()
        return descriptors[0], descriptors[1], descriptors[2]

    def mark_closed(self, mode: Mode) -> None:
        """Mark an end that is gone as closed, and wake the other end."""
        with self._pages[mode].cast("I") as words:
            words[CLOSED] = 1
        own = self._sockets.get(mode)
        if own is not None:
            hang_up(own)
        else:
            hang_up_other(self._sockets[_OPPOSITE[mode]])

    def is_closed(self, mode: Mode) -> bool:
        """Return True if that end is closed, by itself or by the node."""
        with self._pages[mode].cast("I") as words:
            return bool(words[CLOSED])

    def commits(self, mode: Mode) -> int:
        """Return the number of writes (v_w) or reads (v_r) so far, as that end claims."""
        with self._pages[mode].cast("Q") as words:
            return words[COMMITS]

    def own_end(self, mode: Mode, wakeups: int) -> tuple[int, int, int]:
        """Return the descriptors of an end of the node itself, with the socket that a predecessor had."""
        return os.dup(self._memories[mode]), os.dup(self._memories[_OPPOSITE[mode]]), wakeups

    def hand_over(self) -> TakenRing:
        """Describe the ring for the successor of this process."""
        sockets = {mode: sock.fileno() for mode, sock in self._sockets.items()}
        return TakenRing(
            self._memories[Mode.WRITE],
            self._memories[Mode.READ],
            sockets[Mode.WRITE],
            sockets.get(Mode.READ, -1),
            tuple(self._wanting),
        )

    def close(self) -> None:
        """Close the node's descriptors; attached ends continue with each other."""
        for page in self._pages.values():
            page.release()
        self._pages.clear()
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
        close_all(self._memories.values())
        self._memories.clear()


def create_ring(ring_bytes: int = limits.STREAM_RING_BYTES_DEFAULT) -> RingDescriptors:
    """Create a ring of at least ``ring_bytes`` bytes, in whole pages; its owner closes it.

    Raises InvalidError outside STREAM_RING_BYTES_MIN to STREAM_RING_BYTES_MAX, and OutOfMemoryError.
    """
    if not limits.STREAM_RING_BYTES_MIN <= ring_bytes <= limits.STREAM_RING_BYTES_MAX:
        raise InvalidError(
            f"cannot create a ring of {ring_bytes} bytes: its size must be {limits.STREAM_RING_BYTES_MIN} "
            f"to {limits.STREAM_RING_BYTES_MAX} bytes"
        )
    return RingDescriptors(-(-ring_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
