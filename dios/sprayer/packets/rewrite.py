"""Changes of a packet's addresses, ports and length, with incremental checksums (RFC 1624); compiled.

A checksum that was wrong before stays wrong. Ethernet addresses are not changed.

The flow of an ICMP error is the reverse of the flow of the packet that caused it. So a new target of the flow
is a new target of the error and a new source of the packet inside it, whose checksums change too.
"""

from __future__ import annotations

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import (
    int64,
    peek8,
    peek16,
    peek64,
    poke16,
    poke32,
    poke64,
    uint16,
    uint32,
    uint64,
)
from dios.sprayer.packets.packet import LATER_PART, Packet
from dios.sprayer.packets.parse import is_query


@no_refcount_kernel
def address_words(high: int, low: int, version: int) -> int:
    """Return the sum of the 16-bit words of an address."""
    total = int64(low & uint64(0xFFFF)) + int64((low >> uint64(16)) & uint64(0xFFFF))
    if version == 4:
        return total
    total += int64((low >> uint64(32)) & uint64(0xFFFF)) + int64(low >> uint64(48))
    for shift in range(0, 64, 16):
        total += int64((high >> uint64(shift)) & uint64(0xFFFF))
    return total


@no_refcount_kernel
def adjust_checksum(address: int, less: int, more: int) -> None:
    """Update a checksum of at most twenty words whose sum was ``less`` and is ``more`` now."""
    # Equation 3 of RFC 1624: ~(~HC + ~m + m').
    total = (int64(peek16(address)) ^ 0xFFFF) + (20 * 0xFFFF - less) + more
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    poke16(address, uint16(total ^ 0xFFFF))


@no_refcount_kernel
def _adjust_inside(address: int, outer: int, less: int, more: int) -> None:
    """Update a checksum that is itself covered by another checksum at ``outer``."""
    old = int64(peek16(address))
    adjust_checksum(address, less, more)
    adjust_checksum(outer, old, int64(peek16(address)))


@no_refcount_kernel
def _adjust_udp(address: int, less: int, more: int) -> None:
    """Update a UDP checksum: 0 means no checksum, so a result of 0 is written as 0xFFFF."""
    if peek16(address):
        adjust_checksum(address, less, more)
        if peek16(address) == 0:
            poke16(address, uint16(0xFFFF))


@no_refcount_kernel
def _put_address(place: int, high: int, low: int, version: int) -> int:
    """Write an address; return the sum of the words of the previous address."""
    if version == 4:
        old = int64(peek16(place)) + int64(peek16(place + 2))
        poke32(place, uint32(low & uint64(0xFFFFFFFF)))
        return old
    old = address_words(peek64(place), peek64(place + 8), version)
    poke64(place, high)
    poke64(place + 8, low)
    return old


@no_refcount_kernel
def _change(packet: Packet, high: int, low: int, port: int, away: int) -> None:
    """Set the source (``away`` 0) or target (1) of a packet: address, port and checksums."""
    version = int64(packet.version)
    more = address_words(high, low, version)
    network, transport = packet.address + packet.network, packet.address + packet.transport
    place = 12 + away * 4 if version == 4 else 8 + away * 16
    less = _put_address(network + place, high, low, version)
    if version == 4:
        adjust_checksum(network + 10, less, more)
    if packet.fragment == LATER_PART:
        return
    if packet.error:
        if version == 6:
            adjust_checksum(transport + 2, less, more)
        _change_inside(packet, high, low, port, 1 - away)
    elif packet.protocol in (6, 17):
        old = int64(peek16(transport + 2 * away))
        poke16(transport + 2 * away, uint16(port))
        if packet.protocol == 6:
            adjust_checksum(transport + 16, less + old, more + port)
        else:
            _adjust_udp(transport + 6, less + old, more + port)
    elif packet.protocol not in (1, 58):
        _adjust_other(packet, transport, less, more)
    else:
        if version == 6:
            adjust_checksum(transport + 2, less, more)
        # The identifier of a query is its source port, that of a reply its target port.
        if is_query(peek8(transport), version) == (away == 0):
            old = int64(peek16(transport + 4))
            poke16(transport + 4, uint16(port))
            adjust_checksum(transport + 2, old, port)


@no_refcount_kernel
def _adjust_other(packet: Packet, transport: int, less: int, more: int) -> None:
    """Update the checksum of another protocol that covers addresses: of DCCP (33) and UDP-Lite (136)."""
    if packet.protocol in (33, 136) and transport + 8 <= packet.address + packet.end:
        _adjust_udp(transport + 6, less, more)


@no_refcount_kernel
def _change_inside(packet: Packet, high: int, low: int, port: int, away: int) -> None:
    """Change the packet inside an ICMP error, as far as it is included, and the checksum of the error."""
    version = int64(packet.version)
    more = address_words(high, low, version)
    network, transport = packet.address + packet.inner, packet.address + packet.inner_transport
    outer = packet.address + packet.transport + 2
    place = 12 + away * 4 if version == 4 else 8 + away * 16
    less = _put_address(network + place, high, low, version)
    adjust_checksum(outer, less, more)
    if version == 4:
        _adjust_inside(network + 10, outer, less, more)
    if packet.protocol in (6, 17):
        old = int64(peek16(transport + 2 * away))
        poke16(transport + 2 * away, uint16(port))
        adjust_checksum(outer, old, port)
        if packet.protocol == 6:
            if packet.inner_transport + 18 <= packet.end:
                _adjust_inside(transport + 16, outer, less + old, more + port)
        else:
            sum_before = int64(peek16(transport + 6))
            _adjust_udp(transport + 6, less + old, more + port)
            adjust_checksum(outer, sum_before, int64(peek16(transport + 6)))
        return
    if packet.protocol not in (1, 58):
        sum_before = int64(peek16(transport + 6))
        _adjust_other(packet, transport, less, more)
        adjust_checksum(outer, sum_before, int64(peek16(transport + 6)))
        return
    if version == 6:
        _adjust_inside(transport + 2, outer, less, more)
    if is_query(peek8(transport), version) == (away == 0):
        old = int64(peek16(transport + 4))
        poke16(transport + 4, uint16(port))
        adjust_checksum(outer, old, port)
        _adjust_inside(transport + 2, outer, old, port)


@no_refcount_kernel
def set_source(packet: Packet, high: int, low: int, port: int) -> None:
    """Set the source address (two halves, see ``packet.py``) and port of a packet and of its flow."""
    _change(packet, uint64(high), uint64(low), int64(port), 0)
    packet.source_high, packet.source_low, packet.source_port = uint64(high), uint64(low), port


@no_refcount_kernel
def set_target(packet: Packet, high: int, low: int, port: int) -> None:
    """Set the target address and port of a packet and of its flow."""
    _change(packet, uint64(high), uint64(low), int64(port), 1)
    packet.target_high, packet.target_low, packet.target_port = uint64(high), uint64(low), port


@no_refcount_kernel
def set_payload_size(packet: Packet, size: int) -> bool:
    """Set the payload size of a TCP or UDP packet and end its frame there; return False if there is no room.

    The lengths of IP and UDP and the header checksum of IPv4 are updated. The checksum of TCP or UDP is not,
    because the payload belongs to the caller: it is right again when the whole payload is as it was.
    """
    end = packet.payload + size
    old = int64(packet.end - packet.network)
    new = old + end - packet.end
    if end > max(int64(packet.room), int64(packet.length)) or new > 0xFFFF:
        return False
    network = packet.address + packet.network
    if packet.version == 4:
        poke16(network + 2, uint16(new))
        adjust_checksum(network + 10, old, new)
    else:
        poke16(network + 4, uint16(new - 40))
    if packet.protocol == 17:
        poke16(packet.address + packet.transport + 4, uint16(end - packet.transport))
    packet.end = packet.length = end
    return True
