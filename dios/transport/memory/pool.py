"""Memories that only the node writes, kept for the next version instead of being given back to the system.

Not for: memory that a task writes: it stays writable for whoever mapped it, and is sealed or dropped, never
re-used.

Fresh pages cost far more than the copy itself (1 to 2 GB/s against 7 to 16 on pages that exist), so that a
version which replaces another one should land on old pages. That is safe only where nobody else can see
them any more. A memory of this pool is sealed (FUTURE_WRITE) with the node's own mapping as the only
writable one, so nobody else could ever have written it; but a reader keeps its mapping as long as it likes,
the node cannot see whether it did, and what a reader holds must stay what it was. Hence the rule: **a
memory whose descriptor was handed out is re-used only after the node says that everybody who got it has
ended** (``holders_ended``), which it can say of sandboxed tasks, and never of people's processes.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from typing import Final

from dios import limits
from dios.transport.memory.memfd import create_memory, reopen_read_only, seal_future_write

_PAGE: Final = mmap.PAGESIZE


class PooledMemory:
    """One memory with the node's writable view of it; ``length`` bytes are used, the rest of its pages is
    zero.
    """

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
        """Whether its bytes are zero where nobody has written since it was made."""

    def hand_out(self) -> int:
        """An open file for one reader, who closes it: from now on the memory is somebody else's too.

        Raises OSError without descriptors.
        """
        fd = reopen_read_only(self.fd)
        self.handed_out = True
        return fd

    def holders_ended(self) -> None:
        """The node knows that every process which got the descriptor has ended."""
        self.handed_out = False

    def close(self) -> None:
        """Give the node's descriptor and mapping back; readers keep theirs."""
        if self.fd >= 0:
            self.view.release()
            self._mapping.close()
            os.close(self.fd)
            self.fd = -1


class MemoryPool:
    """Free memories by their size in whole pages, the longest unused given back first; for one thread."""

    def __init__(self, bytes_max: int = limits.MEMORY_POOL_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._free: Final[OrderedDict[int, PooledMemory]] = OrderedDict()
        self.free_bytes = 0
        self.reused = 0

    def take(self, length: int) -> PooledMemory:
        """A memory for ``length`` bytes, more than 0, **all of which the caller must write** before handing
        it out.

        Bytes of an earlier version may stand there until then; those behind ``length`` are zero. Raises
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
        """Nobody in the node needs the memory any more: keep it for re-use if that is safe, else close it."""
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
        """Give everything back to the system."""
        while self._free:
            self._free.popitem()[1].close()
        self.free_bytes = 0
