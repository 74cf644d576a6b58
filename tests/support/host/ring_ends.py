"""Both ends of a ring in one process, for tests."""

from __future__ import annotations

import os

from dios import limits
from dios.transport.rings.waiting import RingDescriptors, RingReader, RingWriter, create_ring
from dios.wire.types import Mode

LIMIT_S = 30
RING = limits.STREAM_RING_BYTES_MIN


def writer_of(ring: RingDescriptors) -> RingWriter:
    """The writing end, with descriptors of its own."""
    return RingWriter([os.dup(fd) for fd in ring.end(Mode.WRITE)], ring.ring_bytes)


def reader_of(ring: RingDescriptors) -> RingReader:
    """The reading end, with descriptors of its own."""
    return RingReader([os.dup(fd) for fd in ring.end(Mode.READ)], ring.ring_bytes)


class Ends:
    """A ring with both its ends in this process."""

    def __init__(self, ring_bytes: int = RING) -> None:
        self.ring = create_ring(ring_bytes)
        self.writer = writer_of(self.ring)
        self.reader = reader_of(self.ring)

    def close(self) -> None:
        """Close all three."""
        self.writer.close()
        self.reader.close()
        self.ring.close()
