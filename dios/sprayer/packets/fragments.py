"""Fragments and packets without ports: what they lack for a flow table; compiled.

Only the first fragment of a datagram has ports. A table of datagrams, which all cores share, stores them for
the others, with the parts that have passed. A part that overlaps one of these is refused, as it could replace
what was inspected before (RFC 1858, RFC 5722), and so is a first part without its whole transport header. The
table has a fixed size: a new datagram takes the place of the oldest of a few.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_DATAGRAM_S, SPRAYER_DATAGRAMS, SPRAYER_READ_RETRIES_MAX
from dios.sprayer.compile.intrinsics import (
    compare_and_swap,
    int64,
    peek8,
    peek16,
    peek32,
    store_release,
    uint16,
    uint64,
)
from dios.sprayer.flows.five_tuple import drop, hash_flow, wait
from dios.sprayer.packets.packet import (
    FINE,
    FIRST_PART,
    FRAGMENT,
    LATER_PART,
    PROTOCOL,
    Flow,
    Packet,
)
from dios.sprayer.packets.parse import is_query, is_reply

UNKNOWN: Final = 0
"""The first part of the datagram was not seen yet."""
PASSES: Final = 1
REFUSED_PART: Final = -1

_WAYS: Final = 4
"""The number of places in which a datagram may be."""
_SETS: Final = SPRAYER_DATAGRAMS // _WAYS
_LOCK_WORDS: Final = 16
"""The distance of locks in words: processors load cache lines in pairs."""
_BYTES_MAX: Final = 65_535
_BLOCK: Final = 8
"""Offsets of fragments count blocks of eight bytes."""

# The columns of a datagram; the rest of a row has one bit for each block that has passed.
_ENDS: Final = 0  # four halves of addresses
_LABEL: Final = 4  # identification and protocol
_PORTS: Final = 5
_TIME: Final = 6  # of the first part, in seconds; 0 for a free row
_COUNT: Final = 7  # of blocks that have passed
_LAST: Final = 8  # the number of blocks of the whole datagram; 0 if unknown
_HIGHEST: Final = 9  # the end of the blocks that have passed
_BITS: Final = 10
_COLUMNS: Final = _BITS + -(-_BYTES_MAX // (_BLOCK * 64))

_32: Final = uint64(32)
_16: Final = uint64(16)
_ONE: Final = uint64(1)
_NOTHING: Final = uint64(0)

Table = npt.NDArray[np.uint64]
Locks = npt.NDArray[np.int64]


def make_datagrams() -> tuple[Table, Locks]:
    """Return the table of datagrams (SPRAYER_DATAGRAMS, columns), and its locks."""
    return np.zeros((SPRAYER_DATAGRAMS, _COLUMNS), np.uint64), np.zeros(_SETS * _LOCK_WORDS, np.int64)


@no_refcount_kernel
def fragment_header(packet: Packet) -> int:
    """Return the offset of the header for fragments in a frame of IPv6 that is a fragment; 0 for IPv4."""
    return int64(packet.network) + 40 if packet.version == 6 else int64(0)


@no_refcount_kernel
def fragment_of(packet: Packet) -> tuple[int, int, int]:
    """Set ``fragment``, the protocol and the transport header of a fragment, but not its ports.

    Return its identification, its offset in the datagram in bytes, and 1 if more fragments follow. The
    offset is -1 if it is invalid, or no fragment by itself, such as an ICMP error about one.
    """
    here = packet.address + packet.network
    invalid = (int64(0), int64(-1), int64(0))
    if packet.version == 4:
        shape = int64(peek16(here + 6))
        name, protocol = int64(peek16(here + 4)), int64(peek8(here + 9))
        start, more = (shape & 0x1FFF) * _BLOCK, shape >> 13 & 1
        transport = int64(packet.network) + int64(peek8(here) & 15) * 4
        if shape & 0x3FFF == 0:
            return invalid
    else:
        if peek8(here + 6) != 44:
            return invalid
        shape = int64(peek16(here + 42))
        name, protocol = int64(peek32(here + 44)), int64(peek8(here + 40))
        start, more = shape & 0xFFF8, shape & 1
        transport = int64(packet.network) + 48
    size = int64(packet.end) - transport
    if size <= 0 or (more and size % _BLOCK) or start + size > _BYTES_MAX:
        return invalid
    packet.fragment = LATER_PART if start else FIRST_PART
    packet.protocol, packet.transport, packet.payload = protocol, transport, transport
    packet.error = packet.opens = packet.syn = packet.fin = packet.rst = packet.ack = 0
    packet.source_port = packet.target_port = uint16(0)
    return name, start, more


@no_refcount_kernel
def read_first_part(packet: Packet) -> bool:
    """Fill in the ports and flags of a first fragment; return False if it lacks a part of its header."""
    here, size = packet.address + packet.transport, int64(packet.end) - int64(packet.transport)
    packet.opens = 1
    if packet.protocol == 6:
        if size < 20:
            return False
        flags = peek8(here + 13)
        packet.fin, packet.syn = flags & 1, flags >> 1 & 1
        packet.rst, packet.ack = flags >> 2 & 1, flags >> 4 & 1
        if flags & 0x17 == 0 or (packet.syn and flags & 5):
            return False
        packet.opens = packet.syn & (1 - packet.ack)
        packet.source_port, packet.target_port = peek16(here), peek16(here + 2)
    elif packet.protocol == 17:
        if size < 8:
            return False
        packet.source_port, packet.target_port = peek16(here), peek16(here + 2)
    elif packet.protocol == (1 if packet.version == 4 else 58):
        if size < 8:
            return False
        kind = peek8(here)
        if is_query(kind, packet.version):
            packet.source_port = peek16(here + 4)
        elif is_reply(kind, packet.version):
            packet.target_port = peek16(here + 4)
            packet.opens = 0
        else:
            return False
    return True


@no_refcount_kernel
def is_other(protocol: int) -> bool:
    """Return True for a protocol that has no ports here: neither TCP, UDP nor ICMP."""
    return bool(protocol not in (1, 6, 17, 58))


@no_refcount_kernel
def complete(packet: Packet, table: Table, locks: Locks, seed: int, now: int, others: bool) -> int:  # noqa: FBT001 - compiled
    """Complete a packet with the cause ``FRAGMENT`` or ``PROTOCOL``, so that it has a flow.

    Return 1 if it is complete now, 2 if it was before, because it waits for its flow; or 0 if it waits for
    the first fragment, or is dropped. ``others`` is True for a function that takes protocols without ports;
    the other arguments are those of ``admit_fragment``.
    """
    if packet.cause == FRAGMENT:
        result = admit_fragment(packet, table, locks, seed, now)
        if result == UNKNOWN:
            wait(packet)
            return int64(0)
        if result != PASSES:
            drop(packet, FRAGMENT)
            return int64(0)
    elif packet.cause == PROTOCOL:
        packet.source_port = packet.target_port = uint16(0)
        packet.payload = packet.transport
        packet.opens = 1 - packet.error
    else:
        return int64(2)
    other = is_other(packet.protocol)
    # Behind the header for fragments, an extension of IPv6 would hide ports from a function.
    hidden = packet.version == 6 and packet.protocol in (0, 43, 44, 51, 60)
    if hidden or (other and not others) or (packet.cause == PROTOCOL and not other):
        drop(packet, PROTOCOL)
        return int64(0)
    packet.cause = FINE
    return int64(1)


@no_refcount_kernel
def admit_fragment(packet: Packet, table: Table, locks: Locks, seed: int, now: int) -> int:
    """Fill in ``fragment``, ports and transport header of a fragment by those that passed before.

    Return ``PASSES``, then it counts as a part of its datagram; ``UNKNOWN``, then nothing has changed; or
    ``REFUSED_PART``. ``seed`` (uint64) is that of the hash, ``now`` the time in seconds.
    """
    name, start, more = fragment_of(packet)
    if start < 0 or (start == 0 and not read_first_part(packet)):
        return int64(REFUSED_PART)
    label = uint64(name) << uint64(8) | uint64(packet.protocol)
    flow = Flow(
        *(packet.source_high, packet.source_low, packet.target_high, packet.target_low),
        *(uint64(name) & uint64(0xFFFF), uint64(name) >> _16, uint64(packet.protocol)),
    )
    place = int64(hash_flow(flow, seed) & uint64(_SETS - 1))
    for _ in range(SPRAYER_READ_RETRIES_MAX):
        if compare_and_swap(locks, place * _LOCK_WORDS, 0, 1):
            result = _admit(packet, table, place * _WAYS, label, start, more, now)
            store_release(locks, place * _LOCK_WORDS, 0)
            return result
    return int64(REFUSED_PART)


@no_refcount_kernel
def _admit(packet: Packet, table: Table, first: int, label: int, start: int, more: int, now: int) -> int:
    """Do this in the locked rows from ``first`` on."""
    known, oldest = int64(-1), first
    for at in range(first, first + _WAYS):
        row = table[at]
        if int64(row[_TIME]) and now - int64(row[_TIME]) > SPRAYER_DATAGRAM_S:
            row[_TIME] = _NOTHING
        different = (row[_ENDS] ^ packet.source_high) | (row[_ENDS + 1] ^ packet.source_low)
        different |= (row[_ENDS + 2] ^ packet.target_high) | (row[_ENDS + 3] ^ packet.target_low)
        if row[_TIME] and different | (row[_LABEL] ^ label) == _NOTHING:
            known = at
        if row[_TIME] < table[oldest, _TIME]:
            oldest = at
    if start == 0:
        if known >= 0:
            return int64(REFUSED_PART)
        known = oldest
        row = table[known]
        for column in range(_COLUMNS):
            row[column] = _NOTHING
        row[_ENDS], row[_ENDS + 1] = packet.source_high, packet.source_low
        row[_ENDS + 2], row[_ENDS + 3] = packet.target_high, packet.target_low
        row[_LABEL], row[_TIME] = label, uint64(now)
        row[_PORTS] = uint64(packet.source_port) << _16 | uint64(packet.target_port)
    elif known < 0:
        return int64(UNKNOWN)
    row = table[known]
    size = int64(packet.end) - int64(packet.transport)
    if not _mark(row, start // _BLOCK, (start + size + _BLOCK - 1) // _BLOCK, more):
        return int64(REFUSED_PART)
    packet.source_port = uint16(row[_PORTS] >> _16)
    packet.target_port = uint16(row[_PORTS] & uint64(0xFFFF))
    return int64(PASSES)


@no_refcount_kernel
def _mark(row: Table, begin: int, end: int, more: int) -> bool:
    """Mark blocks of a datagram as passed; return False if one has passed, or is behind the last one.

    A complete datagram is forgotten, so its identification can be used again.
    """
    last = int64(row[_LAST])
    if last and (end > last or not more):
        return False
    if not more and int64(row[_HIGHEST]) > end:
        return False
    for block in range(begin, end):
        if row[_BITS + (block >> 6)] >> uint64(block & 63) & _ONE:
            return False
    for block in range(begin, end):
        row[_BITS + (block >> 6)] |= _ONE << uint64(block & 63)
    row[_COUNT] += uint64(end - begin)
    row[_HIGHEST] = max(row[_HIGHEST], uint64(end))
    if not more:
        row[_LAST] = uint64(end)
    if row[_LAST] and row[_COUNT] == row[_LAST]:
        row[_TIME] = _NOTHING
    return True
