"""The stream of bytes in each direction of a TCP connection, as its receiver will read it; compiled.

A stream keeps the bytes that the receiver has not acknowledged yet, and those beyond a gap, in a ring of
``window`` bytes. So a segment that repeats bytes is compared with what was sent before, and bytes beyond a
gap are read when the gap is filled. A stream without such bytes has no ring.

Numbers of a stream have 32 bits and wrap around; distances between them are signed.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import (
    copy_bytes,
    int64,
    peek8,
    peek16,
    peek32,
    poke16,
    uint8,
    uint16,
    uint32,
)
from dios.sprayer.functions.payloads import same_bytes
from dios.sprayer.packets.packet import Packet
from dios.sprayer.packets.rewrite import adjust_checksum

GAPS_MAX: Final = 4
"""The number of separate ranges of bytes beyond a gap that a stream keeps."""

STREAM: Final = np.dtype(
    [
        ("next", "u4"),  # number of the first byte that was not read yet
        ("low", "u4"),  # of the first byte in the ring
        ("acknowledged", "u4"),  # of the first byte that the receiver lacks, as far as known
        ("first", "u4"),  # of the stream's first byte
        ("offered", "u4"),  # of the first byte by the last SYN
        ("state", "u4"),  # of the automaton
        ("folded", "u4"),  # of the automaton without case
        ("ring", "i4"),  # or -1
        ("ranges", "u1"),  # the number of ranges beyond a gap
        ("scale", "u1"),  # of the windows that this side announces
        ("offered_scale", "u1"),  # by the last SYN, or NO_SCALE
        ("live", "u1"),  # 1 after the SYN
        ("fin", "u1"),  # 1 after FIN
    ]
)
"""One direction of a connection."""

OLD: Final = 0
"""Nothing is new: the receiver has all of it, or it is equal to what was sent before."""
READ: Final = 1
"""Bytes from ``next`` on can be read in the ring."""
LATER: Final = 2
"""All new bytes are beyond a gap."""
NO_ROOM: Final = 3
"""Too far ahead, too many gaps, or no ring is free: nothing was kept."""
UNKEPT: Final = 4
"""The next bytes of a stream without a ring: they can be read in the packet."""
FORGOTTEN: Final = 5
"""Bytes that the receiver may lack and that are not in the ring any more."""

NO_SCALE: Final = 255
_SCALE_MAX: Final = 14
_HALF: Final = 0x80000000
_WORD: Final = 0xFFFFFFFF


class Stream(Protocol):
    """A row of ``STREAM``."""

    next: int
    low: int
    acknowledged: int
    first: int
    offered: int
    state: int
    folded: int
    ring: int
    ranges: int
    scale: int
    offered_scale: int
    live: int
    fin: int


class Streams(Protocol):
    """An array of ``STREAM``."""

    def __getitem__(self, which: int, /) -> Stream: ...


class StreamTables(NamedTuple):
    """All streams, their rings and ranges; S streams, R rings for each core."""

    streams: Streams
    """(S,) two for each connection, in the order of its directions."""
    ranges: npt.NDArray[np.uint32]
    """(S, GAPS_MAX, 2) the first byte of each range beyond a gap, and the one behind its last; unordered."""
    rings: npt.NDArray[np.uint8]
    """(cores * R * window,)"""
    free: npt.NDArray[np.int32]
    """(cores, R) free rings, of which the first ``left`` are valid."""
    left: npt.NDArray[np.int64]
    """(cores, 16)"""
    window: int
    """A power of two."""


@no_refcount_kernel
def ahead(number: int, base: int) -> int:
    """Return the distance of a 32-bit number from another, from -2^31 to 2^31 - 1."""
    return ((int64(number) - int64(base) + _HALF) & _WORD) - _HALF


@no_refcount_kernel
def plus(number: int, distance: int) -> int:
    """Return a 32-bit number at a distance."""
    return uint32((int64(number) + distance) & _WORD)


@no_refcount_kernel
def ring_at(tables: StreamTables, ring: int, number: int) -> tuple[int, int]:
    """Return the address of a byte in a ring, and the number of bytes before the ring wraps around."""
    at = int64(number) & (tables.window - 1)
    return tables.rings.ctypes.data + int64(ring) * tables.window + at, tables.window - at


@no_refcount_kernel
def release_ring(tables: StreamTables, stream: Stream, core: int) -> None:
    """Give the ring of a stream back."""
    if stream.ring >= 0:
        tables.free[core, tables.left[core, 0]] = stream.ring
        tables.left[core, 0] += 1
        stream.ring = -1
    stream.ranges = 0


@no_refcount_kernel
def begin_stream(tables: StreamTables, stream: Stream, first: int, core: int) -> None:
    """Begin a stream at its first byte."""
    release_ring(tables, stream, core)
    stream.first = stream.next = stream.low = stream.acknowledged = uint32(first)
    stream.state = stream.folded = uint32(0)
    stream.fin = 0
    stream.live = 1


@no_refcount_kernel
def add_segment(
    tables: StreamTables,
    which: int,
    stream: Stream,
    address: int,
    first: int,
    size: int,
    core: int,
    strict: bool,  # noqa: FBT001 - compiled
) -> tuple[int, int, bool]:
    """Keep the bytes of a segment; return a code, the number of bytes to read from ``next`` on, and a flag.

    ``which`` is the index of the stream's ranges. With ``strict`` the ring keeps all that the receiver lacks;
    otherwise the oldest bytes make room for new ones. The flag is True if bytes differ from those that were
    sent before; then nothing is kept with ``strict``.
    """
    start = ahead(first, stream.next)
    end, origin = start + size, address - start
    low = ahead(stream.low, stream.next) if stream.ring >= 0 else int64(0)
    if end <= low:
        return (FORGOTTEN if end > ahead(stream.acknowledged, stream.next) else OLD), int64(0), False
    if end > low + tables.window:
        if strict or end > tables.window:
            return NO_ROOM, int64(0), False
        low = end - tables.window
        stream.low = plus(stream.next, low)
    if stream.ring < 0:
        if tables.left[core, 0] == 0:
            unkept = start <= 0 and not strict
            return (UNKEPT, end, False) if unkept else (NO_ROOM, int64(0), False)
        tables.left[core, 0] -= 1
        stream.ring = tables.free[core, tables.left[core, 0]]
        stream.low = stream.next
    start = max(start, low)
    changed = _differs(tables, stream, origin, start, min(end, 0))
    for i in range(stream.ranges):
        begin, other = _range(tables, which, stream, i)
        changed = changed or _differs(tables, stream, origin, max(start, begin), min(end, other))
    if changed and strict:
        return OLD, int64(0), True
    if end <= 0:
        return OLD, int64(0), changed
    if start > 0:
        if not _add_range(tables, which, stream, start, end):
            return NO_ROOM, int64(0), changed
        _store(tables, stream, origin, start, end)
        return LATER, int64(0), changed
    _store(tables, stream, origin, start, end)
    return READ, join_ranges(tables, which, stream, end), changed


@no_refcount_kernel
def join_ranges(tables: StreamTables, which: int, stream: Stream, end: int) -> int:
    """Remove the ranges that are not beyond a gap any more; return the end of what can be read.

    ``end`` and the result are distances from ``next``.
    """
    i = 0
    while i < stream.ranges:
        begin, other = _range(tables, which, stream, i)
        if begin > end:
            i += 1
            continue
        end = max(end, other)
        _remove_range(tables, which, stream, i)
        i = 0
    return end


@no_refcount_kernel
def _range(tables: StreamTables, which: int, stream: Stream, i: int) -> tuple[int, int]:
    """Return the distances of a range from ``next``."""
    row = tables.ranges[which, i]
    return ahead(row[0], stream.next), ahead(row[1], stream.next)


@no_refcount_kernel
def _remove_range(tables: StreamTables, which: int, stream: Stream, i: int) -> None:
    last = int64(stream.ranges) - 1
    tables.ranges[which, i, 0] = tables.ranges[which, last, 0]
    tables.ranges[which, i, 1] = tables.ranges[which, last, 1]
    stream.ranges = uint8(last)


@no_refcount_kernel
def _add_range(tables: StreamTables, which: int, stream: Stream, start: int, end: int) -> bool:
    """Add a range beyond a gap, joined with those that it touches; return False if there are too many."""
    touched = 0
    for i in range(stream.ranges):
        begin, other = _range(tables, which, stream, i)
        touched += int64(begin <= end and other >= start)
    if touched == 0 and stream.ranges == GAPS_MAX:
        return False
    i = 0
    while i < stream.ranges:
        begin, other = _range(tables, which, stream, i)
        if begin <= end and other >= start:
            start, end = min(start, begin), max(end, other)
            _remove_range(tables, which, stream, i)
            i = 0
        else:
            i += 1
    row = tables.ranges[which, int64(stream.ranges)]
    row[0], row[1] = plus(stream.next, start), plus(stream.next, end)
    stream.ranges = uint8(int64(stream.ranges) + 1)
    return True


@no_refcount_kernel
def _differs(tables: StreamTables, stream: Stream, origin: int, start: int, end: int) -> bool:
    """Return True if a packet has other bytes than the ring between two distances from ``next``."""
    while start < end:
        at, room = ring_at(tables, stream.ring, plus(stream.next, start))
        size = min(room, end - start)
        if not same_bytes(origin + start, at, size):
            return True
        start += size
    return False


@no_refcount_kernel
def _store(tables: StreamTables, stream: Stream, origin: int, start: int, end: int) -> None:
    """Copy bytes of a packet between two distances from ``next`` into the ring."""
    while start < end:
        at, room = ring_at(tables, stream.ring, plus(stream.next, start))
        size = min(room, end - start)
        copy_bytes(at, origin + start, size)
        start += size


@no_refcount_kernel
def open_stream(tables: StreamTables, which: int, packet: Packet, first: int, core: int) -> None:
    """Record the SYN of a connection's first side; ``which`` is its stream."""
    mine, theirs = tables.streams[which], tables.streams[which ^ 1]
    mine.offered, mine.offered_scale = uint32(first), uint8(window_scale(packet))
    if theirs.live == 0 and (mine.live == 0 or mine.first != first):
        begin_stream(tables, mine, first, core)
        mine.scale = 0


@no_refcount_kernel
def accept_stream(tables: StreamTables, which: int, packet: Packet, first: int, core: int) -> None:
    """Begin both streams with the answer to a SYN, unless they have begun with these numbers."""
    mine, theirs = tables.streams[which], tables.streams[which ^ 1]
    number = peek32(packet.address + packet.transport + 8)
    begun = theirs.live and theirs.first == theirs.offered
    # The opening packet may have had data.
    most = ahead(theirs.next, theirs.first) if begun else int64(0)
    if packet.ack == 0 or not 0 <= ahead(number, theirs.offered) <= most:
        return
    if mine.live and mine.first == first and begun:
        return
    if not begun:
        begin_stream(tables, theirs, theirs.offered, core)
    begin_stream(tables, mine, first, core)
    mine.scale, theirs.scale = uint8(window_scale(packet)), theirs.offered_scale
    if NO_SCALE in (mine.scale, theirs.scale):
        # Windows are scaled in both directions or not at all (RFC 7323, section 2.2).
        mine.scale = theirs.scale = 0


@no_refcount_kernel
def acknowledge(
    tables: StreamTables,
    which: int,
    packet: Packet,
    core: int,
    strict: bool,  # noqa: FBT001 - compiled
) -> tuple[int, int]:
    """Forget the bytes that the receiver of a stream has, as its ``packet`` says.

    Return the number of bytes that it has although they did not pass, and of bytes to read after them. With
    ``strict`` such a packet changes nothing, and a window above that of the ring is made smaller, so that no
    sender has more on its way than a ring keeps.
    """
    stream, other = tables.streams[which], tables.streams[which ^ 1]
    here = packet.address + packet.transport
    if packet.ack == 0 or stream.live == 0:
        return int64(0), int64(0)
    number = peek32(here + 8)
    beyond, more = ahead(number, stream.next), int64(0)
    if beyond == 1 and stream.fin:
        number, beyond = uint32(stream.next), int64(0)
    if beyond > 0:
        if strict:
            return beyond, int64(0)
        more = join_ranges(tables, which, stream, beyond) - beyond
        stream.state = stream.folded = uint32(0)
        stream.next = plus(stream.next, beyond)
    if ahead(number, stream.acknowledged) > 0:
        stream.acknowledged = number
        if strict:
            stream.low = number
    if stream.acknowledged == stream.next and stream.ranges == 0 and more == 0:
        release_ring(tables, stream, core)
    if strict:
        old, most = int64(peek16(here + 14)), tables.window >> int64(other.scale)
        if old > most:
            poke16(here + 14, uint16(most))
            adjust_checksum(here + 16, old, most)
    return max(beyond, int64(0)), more


@no_refcount_kernel
def window_scale(packet: Packet) -> int:
    """Return the window scale option of a segment with SYN, at most 14, or ``NO_SCALE``."""
    at, end = int64(packet.transport) + 20, int64(packet.payload)
    while at + 1 < end:
        kind, size = peek8(packet.address + at), int64(peek8(packet.address + at + 1))
        if kind == 0:
            break
        if kind == 1:
            at += 1
            continue
        if kind == 3 and size == 3 and at + 3 <= end:
            return min(int64(peek8(packet.address + at + 2)), _SCALE_MAX)
        at += max(size, 2)
    return int64(NO_SCALE)


@no_refcount_kernel
def has_right_sum(packet: Packet) -> bool:
    """Return True if the checksum of a TCP segment is right."""
    place, halves = (12, 4) if packet.version == 4 else (8, 16)
    at, size = packet.address + packet.transport, int64(packet.end) - int64(packet.transport)
    total = size + 6
    for i in range(halves):
        total += int64(peek16(packet.address + packet.network + place + 2 * i))
    for i in range(0, size - 1, 2):
        total += int64(peek16(at + i))
    if size & 1:
        total += int64(peek8(at + size - 1)) << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return bool(total == 0xFFFF)
