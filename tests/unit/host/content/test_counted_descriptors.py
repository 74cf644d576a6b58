"""The host opens no more descriptors for an object than the core counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dios import limits
from dios.core.effects import AnswerRead
from dios.host.content.buffers import CompletedReply
from dios.host.content.memories import ContentMemory
from dios.ids import ObjectId
from dios.transport.memory.pool import MemoryPool
from dios.transport.rings.waiting import create_ring
from dios.wire.messages import Buffer
from dios.wire.types import Mode
from tests.support.host.harness import TASK, open_descriptors, rig


def test_a_ring_has_those_of_a_stream() -> None:
    """A ring with both ends attached and received has what a stream is counted with."""
    before = open_descriptors()
    ring = create_ring()
    for mode, most in zip(Mode, (limits.STREAM_DESCRIPTORS, limits.STREAM_DESCRIPTORS_ATTACHED), strict=True):
        assert open_descriptors() - before <= limits.STREAM_DESCRIPTORS
        for number in ring.hand_out(mode):
            os.close(number)
        assert open_descriptors() - before <= most
    ring.close()
    assert open_descriptors() == before


def test_memory_has_those_of_large_bytes() -> None:
    """A version, the memory of a buffer, and raw memory have what they are counted with."""
    pool = MemoryPool()
    size = 2 * limits.INLINE_BYTES_MAX
    kinds: dict[str, Callable[[], ContentMemory]] = {
        "version": lambda: ContentMemory.version(size, pool).filled(bytes(size)),
        "buffer": lambda: ContentMemory.shadow(size),
        "raw": lambda: ContentMemory.own(size),
    }
    for make in kinds.values():
        before = open_descriptors()
        memory = make()
        assert open_descriptors() - before <= limits.MEMORY_DESCRIPTORS
        memory.release()
    pool.close()


async def test_small_bytes_that_a_message_has_no_room_for_keep_none(tmp_path: Path) -> None:
    """Reads of many small objects in vectors leave the node no descriptor for each."""
    async with rig(tmp_path) as host:
        contents, buffers = host.host.contents, host.host.buffers
        before = open_descriptors()
        for number in range(1, 21):
            contents.set(ObjectId(number), b"%d" % number)
            effect = AnswerRead(TASK, 1, Buffer(number, 2, 0, 0), ObjectId(number), 0, 1 + (number > 9))
            answered = buffers.read(effect, 0)
            assert isinstance(answered, CompletedReply)
            assert os.pread(answered.fds[0], 10, 0)[:2].rstrip(b"\0") == b"%d" % number
            os.close(answered.fds[0])
        assert open_descriptors() == before
