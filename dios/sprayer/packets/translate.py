"""Translation of packets between IPv4 and IPv6 (RFC 7915), and ICMP errors about them; compiled.

The Ethernet header stays. Addresses and ports are chosen by the caller, so this is the same for translation
with and without state. A checksum that was wrong before stays wrong, except for that of an ICMP error, which
the caller checks, since its contents change in length.
"""

from __future__ import annotations

from typing import Final

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import (
    copy_bytes,
    int64,
    peek8,
    peek16,
    peek32,
    peek64,
    poke8,
    poke16,
    poke32,
    poke64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from dios.sprayer.packets.packet import BACK, FINE, FRAGMENT, PROTOCOL, TOO_LONG, Flow, Packet
from dios.sprayer.packets.rewrite import address_words, adjust_checksum

_LOW: Final = uint64(0xFFFFFFFF)
_HEAD_4: Final = 20
_HEAD_6: Final = 40
_ERROR_6_BYTES_MAX: Final = 1280
_ERROR_4_BYTES_MAX: Final = 576
_DF_BYTES_MIN: Final = 1260
"""Packets up to this size may be fragmented again (RFC 7915, section 5.1)."""
_HOPS: Final = 64
_ICMP_4: Final = 1
_ICMP_6: Final = 58
_TIMESTAMPS: Final = (13, 14)
"""The types of queries and answers that only IPv4 has."""
_PLATEAUS: Final = (65_535, 32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68)
"""MTUs for routers that do not report theirs (RFC 1191, section 7.1)."""


@no_refcount_kernel
def sum_bytes(at: int, size: int) -> int:
    """Return the sum of 16-bit words, not folded; a last single byte is the upper half of a word."""
    total = int64(0)
    for i in range(0, size - 1, 2):
        total += int64(peek16(at + i))
    if size & 1:
        total += int64(peek8(at + size - 1)) << 8
    return total


@no_refcount_kernel
def folded(total: int) -> int:
    """Return a sum in ones' complement, of 16 bits."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@no_refcount_kernel
def move_bytes(to: int, at: int, size: int) -> None:
    """Move bytes by at least eight, up or down; the ranges may overlap."""
    whole = size & ~7
    if to > at:
        for i in range(size - 1, whole - 1, -1):
            poke8(to + i, peek8(at + i))
        for i in range(whole - 8, -8, -8):
            poke64(to + i, peek64(at + i))
        return
    for i in range(0, whole, 8):
        poke64(to + i, peek64(at + i))
    for i in range(whole, size):
        poke8(to + i, peek8(at + i))


@no_refcount_kernel
def write_header_4(at: int, size: int, more: int, hops: int, protocol: int, flow: Flow) -> None:
    """Write a header of IPv4 for a packet of ``size`` bytes; ``more`` is its second word (RFC 791)."""
    poke32(at + 4, uint32(more))
    poke16(at + 2, uint16(size))
    poke8(at + 8, uint8(hops))
    poke8(at + 9, uint8(protocol))
    poke16(at + 10, uint16(0))
    poke32(at + 12, uint32(flow.source_low & _LOW))
    poke32(at + 16, uint32(flow.target_low & _LOW))
    poke16(at + 10, uint16(folded(sum_bytes(at, _HEAD_4)) ^ 0xFFFF))


@no_refcount_kernel
def write_header_6(at: int, size: int, traffic: int, hops: int, kind: int, flow: Flow) -> None:
    """Write a header of IPv6 for a payload of ``size`` bytes."""
    poke32(at, uint32(6 << 28 | traffic << 20))
    poke16(at + 4, uint16(size))
    poke8(at + 6, uint8(kind))
    poke8(at + 7, uint8(hops))
    poke64(at + 8, flow.source_high)
    poke64(at + 16, flow.source_low)
    poke64(at + 24, flow.target_high)
    poke64(at + 32, flow.target_low)


@no_refcount_kernel
def change_transport(at: int, room: int, size: int, old: Flow, new: Flow, six: bool) -> int:  # noqa: FBT001 - compiled
    """Change ports and checksums of TCP, UDP or an echo for another version of IP; return its protocol there.

    Other protocols stay as they are: the places of their checksums are not known (RFC 7915, section 4.5).

    ``room`` bytes are there, of a packet whose transport header and payload have ``size``. ``six`` is True
    for a change to IPv6.
    """
    less = address_words(old.source_high, old.source_low, 4 if six else 6)
    less += address_words(old.target_high, old.target_low, 4 if six else 6)
    more = address_words(new.source_high, new.source_low, 6 if six else 4)
    more += address_words(new.target_high, new.target_low, 6 if six else 4)
    if old.protocol in (6, 17):
        poke16(at, uint16(new.source_port))
        poke16(at + 2, uint16(new.target_port))
        less += int64(old.source_port) + int64(old.target_port)
        more += int64(new.source_port) + int64(new.target_port)
        if old.protocol == 6:
            if room >= 18:
                adjust_checksum(at + 16, less, more)
        elif peek16(at + 6):
            adjust_checksum(at + 6, less, more)
            if peek16(at + 6) == 0:
                poke16(at + 6, uint16(0xFFFF))
        return int64(old.protocol)
    if old.protocol not in (_ICMP_4, _ICMP_6):
        return int64(old.protocol)
    # Only ICMPv6 has the addresses in its checksum.
    if six:
        less, more = int64(0), more + size + _ICMP_6
    else:
        less, more = less + size + _ICMP_6, int64(0)
    kind = int64(peek8(at))
    asks = kind in (8, 128)
    less += int64(peek16(at)) + int64(peek16(at + 4))
    if six:
        poke8(at, uint8(128 if asks else 129))
    else:
        poke8(at, uint8(8 if asks else 0))
    poke16(at + 4, uint16(new.source_port if asks else new.target_port))
    adjust_checksum(at + 2, less, more + int64(peek16(at)) + int64(peek16(at + 4)))
    return int64(_ICMP_6 if six else _ICMP_4)


@no_refcount_kernel
def _least_first(protocol: int) -> int:
    """Return the least size of a first fragment's payload: that of its transport header, if it is changed."""
    return int64(20 if protocol == 6 else 8 if protocol == 17 else 0)


@no_refcount_kernel
def _finish(packet: Packet, new: Flow, version: int, transport: int, size: int, protocol: int) -> None:
    """Write the descriptor of a translated packet whose transport header and payload have ``size`` bytes."""
    by = transport - int64(packet.transport)
    poke16(packet.address + packet.network - 2, uint16(0x86DD if version == 6 else 0x0800))
    packet.payload = uint16(int64(packet.payload) + by)
    packet.transport = uint16(transport)
    packet.version, packet.protocol = uint8(version), uint8(protocol)
    packet.end = packet.length = transport + size
    packet.source_high, packet.source_low = new.source_high, new.source_low
    packet.target_high, packet.target_low = new.target_high, new.target_low
    packet.source_port, packet.target_port = uint16(new.source_port), uint16(new.target_port)


@no_refcount_kernel
def to_six(packet: Packet, old: Flow, new: Flow) -> int:
    """Translate a packet or a fragment of IPv4; return ``FINE`` or a cause to drop it, then unchanged.

    ``old`` and ``new`` are its flows; the ports count only where it has a transport header.
    """
    network, transport, size = (
        int64(packet.network),
        int64(packet.transport),
        int64(packet.end - packet.transport),
    )
    here, at = packet.address + network, packet.address + transport
    parts = int64(peek16(here + 6)) & 0x3FFF
    head = _HEAD_6 + (8 if parts else 0)
    if network + head + size > max(int64(packet.room), int64(packet.length)):
        return int64(TOO_LONG)
    first = parts & 0x1FFF == 0
    if parts and (old.protocol in (_ICMP_4, _ICMP_6) or (first and size < _least_first(old.protocol))):
        return int64(FRAGMENT)
    if old.protocol == _ICMP_4 and peek8(at) in _TIMESTAMPS:
        return int64(PROTOCOL)
    no_sum = old.protocol == 17 and first and peek16(at + 6) == 0
    if no_sum and parts:
        # It needs the whole datagram (RFC 7915, section 4.5).
        return int64(FRAGMENT)
    protocol = int64(old.protocol)
    if first:
        protocol = change_transport(at, size, size, old, new, True)
    if no_sum:
        total = address_words(new.source_high, new.source_low, 6) + sum_bytes(at, size) + size + 17
        total = folded(total + address_words(new.target_high, new.target_low, 6)) ^ 0xFFFF
        poke16(at + 6, uint16(total or 0xFFFF))
    traffic, hops, name = int64(peek8(here + 1)), int64(peek8(here + 8)), peek16(here + 4)
    move_bytes(here + head, at, size)
    kind = 44 if parts else protocol
    write_header_6(here, size + head - _HEAD_6, traffic, hops - 1, kind, new)
    if parts:
        poke8(here + 40, uint8(protocol))
        poke8(here + 41, uint8(0))
        poke16(here + 42, uint16((parts & 0x1FFF) << 3 | parts >> 13))
        poke32(here + 44, uint32(name))
    _finish(packet, new, 6, network + head, size, protocol)
    return int64(FINE)


@no_refcount_kernel
def to_four(packet: Packet, old: Flow, new: Flow, name: int, fragment: int) -> int:
    """Translate a packet or a fragment of IPv6, without its extension headers; return as ``to_six`` does.

    ``name`` is the identification of a small packet; ``fragment`` is the offset of a fragment header in the
    frame, or 0.
    """
    network, transport, size = (
        int64(packet.network),
        int64(packet.transport),
        int64(packet.end - packet.transport),
    )
    here, at = packet.address + network, packet.address + transport
    more, first = int64(name & 0xFFFF) << 16, True
    if _HEAD_4 + size > _DF_BYTES_MIN:
        more = int64(0x4000)
    if fragment:
        parts = int64(peek16(packet.address + fragment + 2))
        first = parts & 0xFFF8 == 0
        more = int64(peek16(packet.address + fragment + 6)) << 16 | (parts & 1) << 13 | parts >> 3
        if old.protocol in (_ICMP_4, _ICMP_6) or (first and size < _least_first(old.protocol)):
            return int64(FRAGMENT)
    traffic, hops = int64(peek32(here)) >> 20 & 0xFF, int64(peek8(here + 7))
    protocol = int64(old.protocol)
    if first:
        protocol = change_transport(at, size, size, old, new, False)
    move_bytes(here + _HEAD_4, at, size)
    poke16(here, uint16(0x4500 | traffic))
    write_header_4(here, _HEAD_4 + size, more, hops - 1, protocol, new)
    _finish(packet, new, 4, network + _HEAD_4, size, protocol)
    return int64(FINE)


@no_refcount_kernel
def has_right_sums(packet: Packet) -> bool:
    """Return True if the checksum of an ICMP error is right, and that of the header of the packet in it.

    RFC 5508, section 4.1. The transport checksum of the packet inside is not looked at, because the packet is
    seldom whole.
    """
    at, size = packet.address + packet.transport, int64(packet.end) - int64(packet.transport)
    total = sum_bytes(at, size)
    if packet.version == 6:
        total += sum_bytes(packet.address + packet.network + 8, 32) + size + _ICMP_6
        return bool(folded(total) == 0xFFFF)
    within = packet.address + packet.inner
    head = int64(packet.inner_transport) - int64(packet.inner)
    return bool(folded(total) == 0xFFFF and folded(sum_bytes(within, head)) == 0xFFFF)


@no_refcount_kernel
def has_right_header(packet: Packet) -> bool:
    """Return True if the checksum of a header of IPv4 is right, which a header of IPv6 cannot replace."""
    here = packet.address + packet.network
    return bool(folded(sum_bytes(here, int64(peek8(here) & 15) * 4)) == 0xFFFF)


@no_refcount_kernel
def _write_icmp_sum(packet: Packet, network: int, transport: int, end: int, version: int) -> None:
    """Write the checksum of an ICMP message."""
    at, size = packet.address + transport, end - transport
    poke16(at + 2, uint16(0))
    total = sum_bytes(at, size)
    if version == 6:
        total += sum_bytes(packet.address + network + 8, 32) + size + _ICMP_6
    poke16(at + 2, uint16(folded(total) ^ 0xFFFF))


@no_refcount_kernel
def error_to_six(packet: Packet, outer: Flow, old: Flow, new: Flow, mtu: int) -> int:
    """Translate an ICMP error about a packet that was translated; return ``FINE`` or a cause.

    ``outer`` has the new addresses of the error. ``old`` and ``new`` are the flows of the packet in it,
    ``mtu`` is that of the interface of IPv6. The caller has called ``has_right_sums``.
    """
    network, inner, rest = int64(packet.network), int64(packet.inner), int64(packet.inner_transport)
    kind, code, value = _error_to_six(packet, mtu)
    if kind < 0 or (old.protocol == _ICMP_4 and peek8(packet.address + rest) in _TIMESTAMPS):
        return int64(PROTOCOL)
    here = packet.address + network
    room = int64(packet.end) - rest
    there = network + _HEAD_6 + 8 + _HEAD_6
    size = int64(peek16(packet.address + inner + 2)) - (rest - inner)
    protocol = change_transport(packet.address + rest, room, size, old, new, True)
    traffic, hops = int64(peek8(packet.address + inner + 1)), int64(peek8(packet.address + inner + 8))
    outer_traffic, outer_hops = int64(peek8(here + 1)), int64(peek8(here + 8))
    room = min(
        room, _ERROR_6_BYTES_MAX - 2 * _HEAD_6 - 8, max(int64(packet.room), int64(packet.length)) - there
    )
    if room < 8:
        return int64(TOO_LONG)
    move_bytes(packet.address + there, packet.address + rest, room)
    write_header_6(packet.address + there - _HEAD_6, size, traffic, hops, protocol, new)
    icmp = packet.address + network + _HEAD_6
    poke16(icmp, uint16(kind << 8 | code))
    poke32(icmp + 4, uint32(value))
    end = there + room
    write_header_6(here, end - network - _HEAD_6, outer_traffic, outer_hops - 1, _ICMP_6, outer)
    _write_icmp_sum(packet, network, network + _HEAD_6, end, 6)
    _finish(packet, outer, 6, network + _HEAD_6, end - network - _HEAD_6, _ICMP_6)
    return int64(FINE)


@no_refcount_kernel
def error_to_four(packet: Packet, outer: Flow, old: Flow, new: Flow, mtu: int) -> int:
    """Do the same for an ICMPv6 error; ``mtu`` is that of the interface of IPv6."""
    network, inner, rest = int64(packet.network), int64(packet.inner), int64(packet.inner_transport)
    kind, code, value = _error_to_four(packet, mtu)
    if kind < 0:
        return int64(PROTOCOL)
    here = packet.address + network
    room = int64(packet.end) - rest
    there = network + _HEAD_4 + 8 + _HEAD_4
    size = int64(peek16(packet.address + inner + 4)) + _HEAD_6 - (rest - inner)
    protocol = change_transport(packet.address + rest, room, size, old, new, False)
    traffic = int64(peek32(packet.address + inner)) >> 20 & 0xFF
    hops = int64(peek8(packet.address + inner + 7))
    outer_traffic, outer_hops = int64(peek32(here)) >> 20 & 0xFF, int64(peek8(here + 7))
    room = min(room, _ERROR_4_BYTES_MAX - 2 * _HEAD_4 - 8)
    move_bytes(packet.address + there, packet.address + rest, room)
    within = packet.address + there - _HEAD_4
    poke16(within, uint16(0x4500 | traffic))
    write_header_4(within, _HEAD_4 + size, int64(0x4000), hops, protocol, new)
    icmp = packet.address + network + _HEAD_4
    poke16(icmp, uint16(kind << 8 | code))
    poke32(icmp + 4, uint32(value))
    end = there + room
    poke16(here, uint16(0x4500 | outer_traffic))
    write_header_4(here, end - network, int64(0), outer_hops - 1, _ICMP_4, outer)
    _write_icmp_sum(packet, network, network + _HEAD_4, end, 4)
    _finish(packet, outer, 4, network + _HEAD_4, end - network - _HEAD_4, _ICMP_4)
    return int64(FINE)


@no_refcount_kernel
def _error_to_six(packet: Packet, mtu: int) -> tuple[int, int, int]:
    """Return type, code and second word of an ICMP error for IPv6 (RFC 7915, section 4.2), or -1."""
    at = packet.address + packet.transport
    kind, code, value = int64(peek8(at)), int64(peek8(at + 1)), int64(peek32(at + 4))
    nothing = (int64(-1), int64(0), int64(0))
    if kind == 11:
        return int64(3), code, int64(0)
    if kind == 3:
        if code == 2:
            return int64(4), int64(1), int64(6)
        if code == 4:
            size = value & 0xFFFF
            if size == 0:
                longest = int64(peek16(packet.address + packet.inner + 2))
                for plateau in _PLATEAUS:
                    if size == 0 and plateau < longest:
                        size = int64(plateau)
            return int64(2), int64(0), max(min(size + 20, mtu), int64(_ERROR_6_BYTES_MAX))
        if code in (9, 10, 13, 15):
            return int64(1), int64(1), int64(0)
        if code == 3:
            return int64(1), int64(4), int64(0)
        return (int64(1), int64(0), int64(0)) if code in (0, 1, 5, 6, 7, 8, 11, 12) else nothing
    if kind == 12 and code in (0, 2):
        place = value >> 24
        if place < 2:
            return int64(4), int64(0), place
        if place in (2, 3):
            return int64(4), int64(0), int64(4)
        if place == 8:
            return int64(4), int64(0), int64(7)
        if place == 9:
            return int64(4), int64(0), int64(6)
        if 12 <= place < 20:
            return int64(4), int64(0), int64(8 if place < 16 else 24)
    return nothing


@no_refcount_kernel
def _error_to_four(packet: Packet, mtu: int) -> tuple[int, int, int]:
    """Return type, code and second word of an ICMPv6 error for IPv4 (RFC 7915, section 5.2), or -1."""
    at = packet.address + packet.transport
    kind, code, value = int64(peek8(at)), int64(peek8(at + 1)), int64(peek32(at + 4))
    nothing = (int64(-1), int64(0), int64(0))
    if kind == 1:
        if code > 4:
            return nothing
        return int64(3), int64(10 if code == 1 else 3 if code == 4 else 1), int64(0)
    if kind == 2:
        return int64(3), int64(4), max(min(value, mtu) - 20, int64(68)) & 0xFFFF
    if kind == 3:
        return int64(11), code, int64(0)
    if kind == 4 and code == 1:
        return int64(3), int64(2), int64(0)
    if kind == 4 and code == 0:
        place = int64(-1)
        if value < 2:
            place = value
        elif value in (4, 5):
            place = int64(2)
        elif value == 6:
            place = int64(9)
        elif value == 7:
            place = int64(8)
        elif 8 <= value < 40:
            place = int64(12 if value < 24 else 16)
        if place >= 0:
            return int64(12), int64(0), place << 24
    return nothing


@no_refcount_kernel
def answer_with_error(packet: Packet, kind: int, code: int, value: int, high: int, low: int) -> bool:
    """Make a packet an ICMP error about itself, which goes back; return False if its place has no room.

    Its source is ``high`` and ``low``, an address of the function in the packet's version of IP.
    """
    network, version = int64(packet.network), int64(packet.version)
    head, most = (_HEAD_4, _ERROR_4_BYTES_MAX) if version == 4 else (_HEAD_6, _ERROR_6_BYTES_MAX)
    size = min(int64(packet.end) - network, most - head - 8)
    end = network + head + 8 + size
    if end > max(int64(packet.room), int64(packet.length)):
        return False
    here = packet.address + network
    flow = Flow(
        uint64(high), uint64(low), packet.source_high, packet.source_low, uint64(0), uint64(0), uint64(0)
    )
    move_bytes(here + head + 8, here, size)
    if version == 4:
        poke16(here, uint16(0x4500))
        write_header_4(here, end - network, int64(0), _HOPS, _ICMP_4, flow)
    else:
        write_header_6(here, end - network - head, int64(0), _HOPS, _ICMP_6, flow)
    poke16(here + head, uint16(kind << 8 | code))
    poke32(here + head + 4, uint32(value))
    packet.end = packet.length = end
    packet.transport = uint16(network + head)
    _write_icmp_sum(packet, network, network + head, end, version)
    turn_back(packet)
    return True


@no_refcount_kernel
def turn_back(packet: Packet) -> None:
    """Send a packet back to the machine from which it came."""
    at = packet.address
    word = peek64(at)
    copy_bytes(at, at + 6, 6)
    poke32(at + 6, uint32(word >> uint64(32)))
    poke16(at + 10, uint16((word >> uint64(16)) & uint64(0xFFFF)))
    packet.verdict = BACK
