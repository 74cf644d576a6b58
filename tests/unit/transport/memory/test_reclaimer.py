"""The thread that frees large memories."""

from __future__ import annotations

import mmap
import os

import pytest

from dios.transport.memory import memfd, reclaimer
from dios.transport.memory.pool import MemoryPool
from dios.transport.memory.reclaimer import RECLAIM_BYTES_MIN, RECLAIMER, Reclaimer


def is_open(fd: int) -> bool:
    """Return True if the descriptor is open."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_small_memory_is_freed_at_once() -> None:
    """A memory below the bound starts no thread."""
    memory_reclaimer = Reclaimer()
    fd = memfd.create_memory(mmap.PAGESIZE)
    memory_reclaimer.close(fd, mmap.PAGESIZE, mmap.mmap(fd, mmap.PAGESIZE))
    assert not is_open(fd)


def test_large_memory_is_freed_with_its_mapping() -> None:
    """A large memory and its mapping are gone once the thread is idle, and other holders keep their bytes."""
    memory_reclaimer = Reclaimer()
    fd = memfd.create_memory(RECLAIM_BYTES_MIN)
    mapping = mmap.mmap(fd, RECLAIM_BYTES_MIN)
    mapping[-3:] = b"end"
    other = os.dup(fd)
    memory_reclaimer.close(fd, RECLAIM_BYTES_MIN, mapping)
    memory_reclaimer.wait_idle()
    assert not is_open(fd)
    assert mapping.closed
    assert os.pread(other, 3, RECLAIM_BYTES_MIN - 3) == b"end"
    os.close(other)


def test_who_wants_more_memory_waits_for_what_is_not_freed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more bytes waiting than the bound, the thread that wants memory waits until they are freed."""
    monkeypatch.setattr(reclaimer, "RECLAIM_BACKLOG_BYTES_MAX", RECLAIM_BYTES_MIN - 1)
    memory_reclaimer = Reclaimer()
    fd = memfd.create_memory(RECLAIM_BYTES_MIN)
    memory_reclaimer.close(fd, RECLAIM_BYTES_MIN)
    memory_reclaimer.wait_for_room()
    assert not memory_reclaimer.is_behind
    assert not is_open(fd)


def test_the_pool_gives_large_memories_to_the_thread() -> None:
    """A pooled memory that is too large to keep is freed by the reclaimer."""
    pool = MemoryPool(bytes_max=mmap.PAGESIZE)
    memory = pool.take(RECLAIM_BYTES_MIN)
    fd = memory.fd
    pool.give_back(memory)
    RECLAIMER.wait_idle()
    assert not is_open(fd)
