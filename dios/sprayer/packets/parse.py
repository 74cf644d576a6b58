"""From the bytes of a frame to its descriptor: Ethernet, VLAN tags, IPv4, IPv6, TCP, UDP, ICMP; compiled.

Not for: what happens to odd frames: each answer here is a cause, and ``packet.py`` has the table.

Nothing beyond ``length`` bytes is ever read. Checksums are not checked: what is changed later keeps a wrong
one wrong (RFC 1624), and the receiver finds out as it would have.
"""

from __future__ import annotations

from dios.compiled import borrowing
from dios.limits import SPRAYER_EXTENSIONS_MAX, SPRAYER_FRAME_BYTES_MAX
from dios.sprayer.compile.intrinsics import natural, peek8, peek16, peek32, peek64, whole
from dios.sprayer.flows.five_tuple import get_five_tuple, hash_flow
from dios.sprayer.packets.packet import (
    BAD_FLAGS,
    BAD_HEADER,
    BAD_VERSION,
    EXTENSIONS,
    FINE,
    FORWARD,
    FRAGMENT,
    NEIGHBOUR,
    NOT_IP,
    PROTOCOL,
    ROUTED,
    TAGS,
    TO_ITSELF,
    TOO_LONG,
    TRUNCATED,
    Packet,
)

_MAPPED = natural(0xFFFF << 32)


@borrowing
def parse(packet: Packet, seed: int) -> int:
    """Fill in a descriptor that has ``address``, ``length`` and ``side``; ``FINE``, or why it is odd.

    An odd one's other fields mean nothing. ``seed`` (uint64) is that of the hash.
    """
    packet.verdict = FORWARD
    packet.cause = FINE
    for_ip = _ethernet(packet)
    if for_ip < 0:
        return -for_ip
    packet.syn = packet.ack = packet.fin = packet.rst = packet.opens = packet.error = 0
    packet.inner = packet.inner_transport = 0
    found = _internet(packet, packet.network, packet.length, for_ip)
    if found != FINE:
        return found
    same = packet.source_high == packet.target_high and packet.source_low == packet.target_low
    if same and packet.source_port == packet.target_port:
        return TO_ITSELF
    packet.hash = hash_flow(get_five_tuple(packet), seed)
    return FINE


@borrowing
def _ethernet(packet: Packet) -> int:
    """4 or 6, or minus the cause."""
    if packet.length < 14:
        return -TRUNCATED
    if packet.length > SPRAYER_FRAME_BYTES_MAX:
        return -TOO_LONG
    at = 14
    kind = peek16(packet.address + 12)
    while kind in (0x8100, 0x88A8):
        if at == 22:
            return -TAGS
        if packet.length < at + 4:
            return -TRUNCATED
        kind = peek16(packet.address + at + 2)
        at += 4
    packet.network = at
    if kind == 0x0800:
        return 4
    return 6 if kind == 0x86DD else -NOT_IP


@borrowing
def _internet(packet: Packet, at: int, end: int, version: int) -> int:
    """A packet of IP that is all there, up to ``end``."""
    packet.version = version
    here = packet.address + at
    head = 20 if version == 4 else 40
    if at + head > end:
        return TRUNCATED
    if peek8(here) >> 4 != version:
        return BAD_VERSION
    if version == 4:
        head = (peek8(here) & 15) * 4
        total = whole(peek16(here + 2))
    else:
        total = 40 + whole(peek16(here + 4))
    if head < 20 or total < head:
        return BAD_HEADER
    if at + total > end:
        return TRUNCATED
    packet.end = at + total
    _addresses(packet, here, version)
    where = _follow(packet, at, packet.end)
    if where < 0:
        return -where
    packet.transport = where
    if packet.protocol == 6:
        return _tcp(packet, where)
    if packet.protocol == 17:
        return _udp(packet, where)
    if (packet.protocol == 1 and version == 4) or (packet.protocol == 58 and version == 6):
        return _icmp(packet, where)
    return PROTOCOL


@borrowing
def _addresses(packet: Packet, here: int, version: int) -> None:
    if version == 4:
        packet.source_high = packet.target_high = 0
        packet.source_low = _MAPPED | natural(peek32(here + 12))
        packet.target_low = _MAPPED | natural(peek32(here + 16))
        return
    packet.source_high = peek64(here + 8)
    packet.source_low = peek64(here + 16)
    packet.target_high = peek64(here + 24)
    packet.target_low = peek64(here + 32)


@borrowing
def _follow(packet: Packet, at: int, end: int) -> int:
    """Where the transport's header begins, after options and extensions, or minus a cause.

    The fixed header is known to be there. Notes the protocol.
    """
    here = packet.address + at
    if peek8(here) >> 4 == 4:
        packet.protocol = peek8(here + 9)
        head = whole(peek8(here) & 15) * 4
        if head < 20 or at + head > end:
            return -BAD_HEADER
        return at + head if peek16(here + 6) & 0x3FFF == 0 else whole(-FRAGMENT)
    kind = peek8(here + 6)
    at += 40
    for _ in range(SPRAYER_EXTENSIONS_MAX + 1):
        if kind not in (0, 43, 44, 51, 60):
            packet.protocol = kind
            return at
        if at + 8 > end:
            return -TRUNCATED
        here = packet.address + at
        size = (whole(peek8(here + 1)) + 1) * 8
        if kind == 44:
            if peek16(here + 2) & 0xFFF9:
                return -FRAGMENT
            size = whole(8)
        elif kind == 51:
            size = (whole(peek8(here + 1)) + 2) * 4
        elif kind == 43 and peek8(here + 3):
            return -ROUTED
        kind = peek8(here)
        at += size
        if at > end:
            return -TRUNCATED
    return -EXTENSIONS


@borrowing
def _tcp(packet: Packet, at: int) -> int:
    here = packet.address + at
    if at + 20 > packet.end:
        return TRUNCATED
    size = whole(peek8(here + 12) >> 4) * 4
    if size < 20:
        return BAD_HEADER
    if at + size > packet.end:
        return TRUNCATED
    flags = peek8(here + 13)
    packet.fin, packet.syn = flags & 1, flags >> 1 & 1
    packet.rst, packet.ack = flags >> 2 & 1, flags >> 4 & 1
    if flags & 0x17 == 0 or (packet.syn and flags & 5):
        return BAD_FLAGS
    packet.opens = packet.syn & (1 - packet.ack)
    packet.source_port, packet.target_port = peek16(here), peek16(here + 2)
    packet.payload = at + size
    return FINE


@borrowing
def _udp(packet: Packet, at: int) -> int:
    here = packet.address + at
    if at + 8 > packet.end:
        return TRUNCATED
    size = whole(peek16(here + 4))
    if size < 8:
        return BAD_HEADER
    if at + size > packet.end:
        return TRUNCATED
    packet.source_port, packet.target_port = peek16(here), peek16(here + 2)
    packet.opens = 1
    packet.payload = at + 8
    return FINE


@borrowing
def _icmp(packet: Packet, at: int) -> int:
    here = packet.address + at
    if at + 8 > packet.end:
        return TRUNCATED
    kind = peek8(here)
    packet.payload = at + 8
    packet.source_port = packet.target_port = 0
    four = packet.version == 4
    if kind == (8 if four else 128):
        packet.source_port = peek16(here + 4)
        packet.opens = 1
        return FINE
    if kind == (0 if four else 129):
        packet.target_port = peek16(here + 4)
        return FINE
    if kind in (3, 11, 12) if four else kind in (1, 2, 3, 4):
        return _error(packet, at + 8)
    if not four and (130 <= kind <= 137 or kind == 143):
        return NEIGHBOUR
    return PROTOCOL


@borrowing
def _error(packet: Packet, at: int) -> int:
    """The flow of an ICMP error is that of what it is about, turned round: it goes to that one's source."""
    here = packet.address + at
    if at + (20 if packet.version == 4 else 40) > packet.end:
        return TRUNCATED
    if peek8(here) >> 4 != packet.version:
        return BAD_VERSION
    where = _follow(packet, at, packet.end)
    if where < 0:
        return -where
    if where + 8 > packet.end:
        return TRUNCATED
    to_high, to_low = packet.target_high, packet.target_low
    _addresses(packet, here, packet.version)
    source_high, source_low = packet.source_high, packet.source_low
    if source_high != to_high or source_low != to_low:
        return BAD_HEADER
    packet.source_high, packet.source_low = packet.target_high, packet.target_low
    packet.target_high, packet.target_low = source_high, source_low
    there = packet.address + where
    if packet.protocol in (6, 17):
        packet.source_port, packet.target_port = peek16(there + 2), peek16(there)
    elif packet.protocol == (1 if packet.version == 4 else 58):
        kind = peek8(there)
        if kind == (8 if packet.version == 4 else 128):
            packet.target_port = peek16(there + 4)
        elif kind == (0 if packet.version == 4 else 129):
            packet.source_port = peek16(there + 4)
        else:
            return PROTOCOL
    else:
        return PROTOCOL
    packet.error = 1
    packet.inner, packet.inner_transport = at, where
    return FINE
