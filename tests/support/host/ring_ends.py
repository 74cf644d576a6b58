"""Both ends of a ring in one process, for tests."""

from __future__ import annotations

from typing import Literal

from dios import limits
from dios.transport.rings.waiting import RingDescriptors, RingReader, RingWriter, create_ring
from dios.wire.types import Mode

LIMIT_S = 30
RING = limits.STREAM_RING_BYTES_MIN


def writer_of(ring: RingDescriptors) -> RingWriter:
    """The writing end, with descriptors of its own."""
    return RingWriter(ring.hand_out(Mode.WRITE), ring.ring_bytes)


def reader_of(ring: RingDescriptors) -> RingReader:
    """The reading end, with descriptors of its own."""
    return RingReader(ring.hand_out(Mode.READ), ring.ring_bytes)


def write_control(ring: RingDescriptors, mode: Mode, unit: Literal["I", "Q"], word: int, value: int) -> None:
    """Write into an end's control page, as its task can: ``word`` counts units of four or eight bytes."""
    with ring._pages[mode].cast(unit) as words:
        words[word] = value


class Ends:
    """A ring with both its ends in this process."""

    def __init__(self, ring_bytes: int = RING) -> None:
        self.ring = create_ring(ring_bytes)
        self.writer = writer_of(self.ring)
        self.reader = reader_of(self.ring)

    def of(self, mode: Mode) -> RingWriter | RingReader:
        """One of the ends."""
        return self.writer if mode is Mode.WRITE else self.reader

    def close(self) -> None:
        """Close all three."""
        self.writer.close()
        self.reader.close()
        self.ring.close()
