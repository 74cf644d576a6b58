"""Frees large memories and files in a thread of its own.

The kernel frees the pages of a memory, or the blocks of a removed file, when its last descriptor is closed: a
gigabyte takes 0.2 s. The event loop therefore gives large ones to this thread. A mapping is emptied in slices
first, because no other thread of the process can map memory while one large mapping is removed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from queue import SimpleQueue
from typing import Final, NamedTuple

RECLAIM_BYTES_MIN: Final = 4 << 20
"""A smaller memory is freed at once: that takes less than a millisecond."""

RECLAIM_BACKLOG_BYTES_MAX: Final = 1 << 30
"""With more bytes waiting, ``wait_for_room`` delays the thread that wants more memory."""

_SLICE_BYTES: Final = 16 << 20
_MADV_DONTNEED: Final = 4

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Unused(NamedTuple):
    """A descriptor to close and a mapping to remove; either may be missing."""

    fd: int
    mapping: mmap.mmap | None
    size: int


class Reclaimer:
    """A thread that frees memories in the order in which it gets them; it starts with the first large one.

    Every entry of its queue is an open descriptor of this process, so that the limit of descriptors bounds
    the queue. Any thread may call any method.
    """

    def __init__(self) -> None:
        self._queue: Final[SimpleQueue[_Unused]] = SimpleQueue()
        self._changed: Final = threading.Condition()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None

    @property
    def is_behind(self) -> bool:
        """True if more bytes wait to be freed than the bound; new large memories should wait then."""
        return self._waiting_bytes > RECLAIM_BACKLOG_BYTES_MAX

    def close(self, fd: int, size: int, mapping: mmap.mmap | None = None) -> None:
        """Close a descriptor, and remove the mapping of it; soon if it has ``RECLAIM_BYTES_MIN`` bytes."""
        if size < RECLAIM_BYTES_MIN:
            if mapping is not None:
                mapping.close()
            os.close(fd)
            return
        with self._changed:
            self._waiting_bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="memory reclaimer", daemon=True)
                self._thread.start()
        self._queue.put(_Unused(fd, mapping, size))

    def wait_for_room(self) -> None:
        """Wait until at most ``RECLAIM_BACKLOG_BYTES_MAX`` bytes wait to be freed. Not for an event loop."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_behind)

    def wait_idle(self) -> None:
        """Wait until everything is freed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes)

    def _work(self) -> None:
        while True:
            unused = self._queue.get()
            try:
                if unused.mapping is not None:
                    _empty(unused.mapping)
                    unused.mapping.close()
                os.close(unused.fd)
            finally:
                size = unused.size
                del unused
                with self._changed:
                    self._waiting_bytes -= size
                    self._changed.notify_all()


def _empty(mapping: mmap.mmap) -> None:
    """Remove the pages of a shared mapping from this process in slices, without the interpreter lock."""
    size = len(mapping)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for offset in range(0, size, _SLICE_BYTES):
        _libc.madvise(start + offset, min(_SLICE_BYTES, size - offset), _MADV_DONTNEED)


RECLAIMER: Final = Reclaimer()
"""The reclaimer of this process."""
