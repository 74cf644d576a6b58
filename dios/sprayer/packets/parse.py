"""Parsing of a frame into its descriptor: Ethernet, VLAN tags, IPv4, IPv6, TCP, UDP, ICMP; compiled.

Each function here returns a cause; ``packet.py`` has the table of what happens to such frames. Nothing beyond
``length`` bytes is read. Checksums are not verified: a later change keeps a wrong checksum wrong (RFC 1624),
so the receiver detects it.
"""

from __future__ import annotations

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_EXTENSIONS_MAX, SPRAYER_FRAME_BYTES_MAX
from dios.sprayer.compile.intrinsics import int64, peek8, peek16, peek32, peek64, uint64
from dios.sprayer.flows.five_tuple import get_five_tuple, hash_by_source, hash_flow, inside_first
from dios.sprayer.packets.packet import (
    BAD_FLAGS,
    BAD_HEADER,
    BAD_VERSION,
    EXTENSIONS,
    FINE,
    FORWARD,
    FRAGMENT,
    MAPPED,
    NEIGHBOUR,
    NOT_IP,
    PROTOCOL,
    ROUTED,
    SAME_ENDPOINTS,
    TAGS,
    TOO_LONG,
    TRUNCATED,
    Packet,
)

_IN_MAPPED = uint64(0xFFFF << 32)


@no_refcount_kernel
def parse(packet: Packet, seed: int, by_inside_end: int = 0) -> int:
    """Fill in a descriptor that has ``address``, ``length`` and ``side``; return ``FINE`` or the cause.

    For any other cause the remaining fields are undefined. ``PROTOCOL`` alone leaves those of IP: addresses,
    ``protocol``, ``transport``, ``end``, and of an ICMP error ``error`` and ``inner``; ``FRAGMENT`` leaves
    addresses and ``end``. ``seed`` (uint64) is the seed of the hash; with ``by_inside_end`` the end that is
    inside chooses the core in it.
    """
    packet.verdict = FORWARD
    packet.cause = FINE
    packet.slot = 0
    for_ip = _ethernet(packet)
    if for_ip < 0:
        return -for_ip
    packet.syn = packet.ack = packet.fin = packet.rst = packet.opens = packet.error = 0
    packet.inner = packet.inner_transport = packet.quic = packet.fragment = 0
    fault = _internet(packet, packet.network, packet.length, for_ip)
    if fault != FINE:
        return fault
    same = packet.source_high == packet.target_high and packet.source_low == packet.target_low
    if same and packet.source_port == packet.target_port:
        return SAME_ENDPOINTS
    if by_inside_end:
        packet.hash = hash_by_source(inside_first(packet), seed)
    else:
        packet.hash = hash_flow(get_five_tuple(packet), seed)
    return FINE


@no_refcount_kernel
def _ethernet(packet: Packet) -> int:
    """Return 4 or 6, or the negated cause."""
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


@no_refcount_kernel
def _internet(packet: Packet, at: int, end: int, version: int) -> int:
    """Parse an IP packet that must end at or before ``end``."""
    packet.version = version
    here = packet.address + at
    head = 20 if version == 4 else 40
    if at + head > end:
        return TRUNCATED
    if peek8(here) >> 4 != version:
        return BAD_VERSION
    if version == 4:
        head = (peek8(here) & 15) * 4
        total = int64(peek16(here + 2))
    else:
        total = 40 + int64(peek16(here + 4))
    if head < 20 or total < head:
        return BAD_HEADER
    if at + total > end:
        return TRUNCATED
    packet.end = at + total
    _addresses(packet, here, version)
    if _mapped(packet):
        return MAPPED
    transport = _follow(packet, at, packet.end)
    if transport < 0:
        return -transport
    packet.transport = transport
    if packet.protocol == 6:
        return _tcp(packet, transport)
    if packet.protocol == 17:
        return _udp(packet, transport)
    if (packet.protocol == 1 and version == 4) or (packet.protocol == 58 and version == 6):
        return _icmp(packet, transport)
    return PROTOCOL


@no_refcount_kernel
def _addresses(packet: Packet, here: int, version: int) -> None:
    if version == 4:
        packet.source_high = packet.target_high = 0
        packet.source_low = _IN_MAPPED | uint64(peek32(here + 12))
        packet.target_low = _IN_MAPPED | uint64(peek32(here + 16))
        return
    packet.source_high = peek64(here + 8)
    packet.source_low = peek64(here + 16)
    packet.target_high = peek64(here + 24)
    packet.target_low = peek64(here + 32)


@no_refcount_kernel
def _mapped(packet: Packet) -> bool:
    """Return True if an IPv6 packet has an address that stands for an IPv4 address."""
    mapped = packet.source_high == 0 and packet.source_low >> uint64(32) == uint64(0xFFFF)
    mapped |= packet.target_high == 0 and packet.target_low >> uint64(32) == uint64(0xFFFF)
    return bool(mapped and packet.version == 6)


@no_refcount_kernel
def _follow(packet: Packet, at: int, end: int) -> int:
    """Return the offset of the transport header after options and extensions, or the negated cause.

    The caller has checked that the fixed header is complete. Sets the protocol.
    """
    here = packet.address + at
    if peek8(here) >> 4 == 4:
        packet.protocol = peek8(here + 9)
        head = int64(peek8(here) & 15) * 4
        if head < 20 or at + head > end:
            return -BAD_HEADER
        fault = _options(here, head) if head > 20 else FINE
        if fault != FINE:
            return -fault
        return at + head if peek16(here + 6) & 0x3FFF == 0 else int64(-FRAGMENT)
    kind = peek8(here + 6)
    at += 40
    for _ in range(SPRAYER_EXTENSIONS_MAX + 1):
        if kind not in (0, 43, 44, 51, 60):
            packet.protocol = kind
            return at
        if at + 8 > end:
            return -TRUNCATED
        here = packet.address + at
        size = (int64(peek8(here + 1)) + 1) * 8
        if kind == 44:
            if peek16(here + 2) & 0xFFF9:
                return -FRAGMENT
            size = int64(8)
        elif kind == 51:
            size = (int64(peek8(here + 1)) + 2) * 4
        elif kind == 43 and peek8(here + 3):
            return -ROUTED
        kind = peek8(here)
        at += size
        if at > end:
            return -TRUNCATED
    return -EXTENSIONS


@no_refcount_kernel
def _options(here: int, head: int) -> int:
    """Return ``FINE``, or the cause to drop a packet for the options in its IPv4 header of ``head`` bytes."""
    at = int64(20)
    while at < head:
        kind = peek8(here + at)
        if kind == 0:
            return FINE
        if kind == 1:
            at += 1
            continue
        size = int64(peek8(here + at + 1)) if at + 1 < head else int64(0)
        if size < 2 or at + size > head:
            return BAD_HEADER
        if kind in (131, 137) and size > 2 and int64(peek8(here + at + 2)) <= size:
            return ROUTED
        at += size
    return FINE


@no_refcount_kernel
def _tcp(packet: Packet, at: int) -> int:
    here = packet.address + at
    if at + 20 > packet.end:
        return TRUNCATED
    size = int64(peek8(here + 12) >> 4) * 4
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


@no_refcount_kernel
def _udp(packet: Packet, at: int) -> int:
    here = packet.address + at
    if at + 8 > packet.end:
        return TRUNCATED
    size = int64(peek16(here + 4))
    if size < 8:
        return BAD_HEADER
    if at + size > packet.end:
        return TRUNCATED
    packet.source_port, packet.target_port = peek16(here), peek16(here + 2)
    packet.opens = 1
    packet.payload = at + 8
    return FINE


@no_refcount_kernel
def is_query(kind: int, version: int) -> bool:
    """Return True for the type of an ICMP query with an identifier: an echo, or with IPv4 a timestamp."""
    return bool(kind in (8, 13) if version == 4 else kind == 128)


@no_refcount_kernel
def is_reply(kind: int, version: int) -> bool:
    """Return True for the type of an answer to such a query."""
    return bool(kind in (0, 14) if version == 4 else kind == 129)


@no_refcount_kernel
def _icmp(packet: Packet, at: int) -> int:
    here = packet.address + at
    if at + 8 > packet.end:
        return TRUNCATED
    kind = peek8(here)
    packet.payload = at + 8
    packet.source_port = packet.target_port = 0
    four = packet.version == 4
    if is_query(kind, packet.version):
        packet.source_port = peek16(here + 4)
        packet.opens = 1
        return FINE
    if is_reply(kind, packet.version):
        packet.target_port = peek16(here + 4)
        return FINE
    if kind in (3, 11, 12) if four else kind in (1, 2, 3, 4):
        return _error(packet, at + 8)
    if not four and (130 <= kind <= 137 or kind == 143):
        return NEIGHBOUR
    return PROTOCOL


@no_refcount_kernel
def _error(packet: Packet, at: int) -> int:
    """Set the flow of an ICMP error: the reverse of the flow of the packet that caused it."""
    here = packet.address + at
    if at + (20 if packet.version == 4 else 40) > packet.end:
        return TRUNCATED
    if peek8(here) >> 4 != packet.version:
        return BAD_VERSION
    transport = _follow(packet, at, packet.end)
    if transport < 0:
        return -transport
    if transport + 8 > packet.end:
        return TRUNCATED
    to_high, to_low = packet.target_high, packet.target_low
    _addresses(packet, here, packet.version)
    if _mapped(packet):
        return MAPPED
    source_high, source_low = packet.source_high, packet.source_low
    if source_high != to_high or source_low != to_low:
        return BAD_HEADER
    packet.source_high, packet.source_low = packet.target_high, packet.target_low
    packet.target_high, packet.target_low = source_high, source_low
    packet.error = 1
    packet.inner, packet.inner_transport = at, transport
    there = packet.address + transport
    if packet.protocol in (6, 17):
        packet.source_port, packet.target_port = peek16(there + 2), peek16(there)
    elif packet.protocol == (1 if packet.version == 4 else 58):
        kind = peek8(there)
        if is_query(kind, packet.version):
            packet.target_port = peek16(there + 4)
        elif is_reply(kind, packet.version):
            packet.source_port = peek16(there + 4)
        else:
            return PROTOCOL
    else:
        return PROTOCOL
    return FINE
