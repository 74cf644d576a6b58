"""A pool of memories that only the node writes; they are re-used for the next version.

New pages are much slower than the copy itself (1 to 2 GB/s, compared with 7 to 16 on existing pages), so a
version that replaces another should use old pages. That is safe only if nobody else can read them any more.
A memory of this pool is sealed (FUTURE_WRITE) with the node's mapping as the only writable one, so nobody
else has ever written it. But a reader may keep its mapping, the node cannot know, and its bytes must not
change. Hence the rule: **a memory whose descriptor was given away is re-used only after the node reports that
all its receivers have ended** (``holders_ended``). The node knows that of sandboxed tasks, and never of the
processes of users.

Memory that a task writes is not pooled: it is sealed or dropped.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from typing import Final

from dios import limits
from dios.transport.memory.memfd import create_memory, reopen_read_only, seal_future_write
from dios.transport.memory.reclaimer import RECLAIMER

_PAGE: Final = mmap.PAGESIZE


class PooledMemory:
    """One memory with the node's writable view of it; ``length`` bytes are used, the rest is zero."""

    __slots__ = ("_mapping", "capacity", "fd", "fresh", "handed_out", "length", "view")

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.fd = create_memory(capacity, "version")
        try:
            self._mapping: Final = mmap.mmap(self.fd, capacity)
            self.view: Final = memoryview(self._mapping)
            seal_future_write(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self.length = 0
        self.handed_out = False
        self.fresh = True
        """True if its bytes are zero except where they were written since it was created."""

    def hand_out(self) -> int:
        """Return an open file for one reader, which closes it; the memory is shared from now on.

        Raises OSError if there are no descriptors.
        """
        fd = reopen_read_only(self.fd)
        self.handed_out = True
        return fd

    def close(self) -> None:
        """Release the node's descriptor and mapping; readers keep theirs."""
        if self.fd >= 0:
            self.view.release()
            RECLAIMER.close(self.fd, self.capacity, self._mapping)
            self.fd = -1


class MemoryPool:
    """Free memories by their size in whole pages; the longest unused is closed first. For one thread."""

    def __init__(self, bytes_max: int = limits.MEMORY_POOL_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._free: Final[OrderedDict[int, PooledMemory]] = OrderedDict()
        self.free_bytes = 0
        self.reused = 0

    def take(self, length: int) -> PooledMemory:
        """Return a memory for ``length`` bytes, more than 0; the caller must write **all of them** before
        sharing it.

        They may be bytes of an earlier version until then; the bytes after ``length`` are zero. Raises
        OutOfMemoryError.
        """
        capacity = -(-length // _PAGE) * _PAGE
        for key in reversed(self._free):
            memory = self._free[key]
            if memory.capacity == capacity:
                del self._free[key]
                self.free_bytes -= capacity
                self.reused += 1
                break
        else:
            memory = PooledMemory(capacity)
        memory.length = length
        memory.view[length:] = bytes(capacity - length)
        return memory

    def give_back(self, memory: PooledMemory) -> None:
        """Take back an unused memory: keep it for re-use if that is safe, else close it."""
        if memory.handed_out or memory.capacity > self._bytes_max:
            memory.close()
            return
        memory.fresh = False
        self._free[id(memory)] = memory
        self.free_bytes += memory.capacity
        while self.free_bytes > self._bytes_max or len(self._free) > limits.MEMORY_POOL_ENTRIES_MAX:
            _, oldest = self._free.popitem(last=False)
            self.free_bytes -= oldest.capacity
            oldest.close()

    def close(self) -> None:
        """Close every free memory."""
        while self._free:
            self._free.popitem()[1].close()
        self.free_bytes = 0
