"""Changing addresses, ports and lengths of a packet, with checksums kept up as RFC 1624 says; compiled.

Not for: Ethernet addresses, or checksums that were wrong: they stay as wrong as they were.

The flow of an ICMP error is that of the packet that it is about, turned round: a new target of it is a new
target of the error, and a new source of the packet inside, whose checksums change too.
"""

from __future__ import annotations

from dios.compiled import borrowing
from dios.sprayer.compile.intrinsics import (
    natural,
    peek8,
    peek16,
    peek64,
    poke16,
    poke32,
    poke64,
    whole,
    word16,
    word32,
)
from dios.sprayer.packets.packet import Packet


@borrowing
def _words(high: int, low: int, version: int) -> int:
    """The sum of an address' 16-bit words."""
    total = whole(low & natural(0xFFFF)) + whole((low >> natural(16)) & natural(0xFFFF))
    if version == 4:
        return total
    total += whole((low >> natural(32)) & natural(0xFFFF)) + whole(low >> natural(48))
    for shift in range(0, 64, 16):
        total += whole((high >> natural(shift)) & natural(0xFFFF))
    return total


@borrowing
def _adjust(address: int, less: int, more: int) -> None:
    """Change a checksum for at most nine words that summed to ``less`` and now do to ``more``."""
    # Equation 3 of RFC 1624: ~(~HC + ~m + m').
    total = (whole(peek16(address)) ^ 0xFFFF) + (9 * 0xFFFF - less) + more
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    poke16(address, word16(total ^ 0xFFFF))


@borrowing
def _adjust_inside(address: int, outer: int, less: int, more: int) -> None:
    """The same for a checksum that another one, at ``outer``, is over."""
    old = whole(peek16(address))
    _adjust(address, less, more)
    _adjust(outer, old, whole(peek16(address)))


@borrowing
def _adjust_udp(address: int, less: int, more: int) -> None:
    """The same for UDP: no checksum is none, and one that comes out as none is written the other way."""
    if peek16(address):
        _adjust(address, less, more)
        if peek16(address) == 0:
            poke16(address, word16(0xFFFF))


@borrowing
def _put_address(where: int, high: int, low: int, version: int) -> int:
    """Write an address; the sum of the words that stood there."""
    if version == 4:
        old = whole(peek16(where)) + whole(peek16(where + 2))
        poke32(where, word32(low & natural(0xFFFFFFFF)))
        return old
    old = _words(peek64(where), peek64(where + 8), version)
    poke64(where, high)
    poke64(where + 8, low)
    return old


@borrowing
def _change(packet: Packet, high: int, low: int, port: int, away: int) -> None:
    """Give the packet another source (``away`` 0) or target (1): address, port and checksums."""
    version = whole(packet.version)
    more = _words(high, low, version)
    network, transport = packet.address + packet.network, packet.address + packet.transport
    place = 12 + away * 4 if version == 4 else 8 + away * 16
    less = _put_address(network + place, high, low, version)
    if version == 4:
        _adjust(network + 10, less, more)
    if packet.error:
        if version == 6:
            _adjust(transport + 2, less, more)
        _change_inside(packet, high, low, port, 1 - away)
    elif packet.protocol in (6, 17):
        old = whole(peek16(transport + 2 * away))
        poke16(transport + 2 * away, word16(port))
        if packet.protocol == 6:
            _adjust(transport + 16, less + old, more + port)
        else:
            _adjust_udp(transport + 6, less + old, more + port)
    else:
        if version == 6:
            _adjust(transport + 2, less, more)
        # An echo's identifier is its source's port, a reply's its target's; the other end has none.
        if (peek8(transport) in (8, 128)) == (away == 0):
            old = whole(peek16(transport + 4))
            poke16(transport + 4, word16(port))
            _adjust(transport + 2, old, port)


@borrowing
def _change_inside(packet: Packet, high: int, low: int, port: int, away: int) -> None:
    """The same for the packet inside of an ICMP error, as far as it is there, and the error's checksum."""
    version = whole(packet.version)
    more = _words(high, low, version)
    network, transport = packet.address + packet.inner, packet.address + packet.inner_transport
    outer = packet.address + packet.transport + 2
    place = 12 + away * 4 if version == 4 else 8 + away * 16
    less = _put_address(network + place, high, low, version)
    _adjust(outer, less, more)
    if version == 4:
        _adjust_inside(network + 10, outer, less, more)
    if packet.protocol in (6, 17):
        old = whole(peek16(transport + 2 * away))
        poke16(transport + 2 * away, word16(port))
        _adjust(outer, old, port)
        if packet.protocol == 6:
            if packet.inner_transport + 18 <= packet.end:
                _adjust_inside(transport + 16, outer, less + old, more + port)
        else:
            sum_before = whole(peek16(transport + 6))
            _adjust_udp(transport + 6, less + old, more + port)
            _adjust(outer, sum_before, whole(peek16(transport + 6)))
        return
    if version == 6:
        _adjust_inside(transport + 2, outer, less, more)
    if (peek8(transport) in (8, 128)) == (away == 0):
        old = whole(peek16(transport + 4))
        poke16(transport + 4, word16(port))
        _adjust(outer, old, port)
        _adjust_inside(transport + 2, outer, old, port)


@borrowing
def set_source(packet: Packet, high: int, low: int, port: int) -> None:
    """Send a packet from another address (two halves, see ``packet.py``) and port, as its flow then says."""
    _change(packet, natural(high), natural(low), whole(port), 0)
    packet.source_high, packet.source_low, packet.source_port = natural(high), natural(low), port


@borrowing
def set_target(packet: Packet, high: int, low: int, port: int) -> None:
    """Send a packet to another address and port."""
    _change(packet, natural(high), natural(low), whole(port), 1)
    packet.target_high, packet.target_low, packet.target_port = natural(high), natural(low), port


@borrowing
def set_payload_size(packet: Packet, size: int) -> bool:
    """Let a packet of TCP or UDP carry so many bytes, and its frame end behind them; whether there is room.

    Lengths of IP and UDP are changed, and the checksum of IPv4's header. That of TCP or UDP stays as it was,
    since what is carried is the caller's: it is right again only when all of it is again as it was.
    """
    end = packet.payload + size
    old = whole(packet.end - packet.network)
    new = old + end - packet.end
    if end > max(whole(packet.room), whole(packet.length)) or new > 0xFFFF:
        return False
    network = packet.address + packet.network
    if packet.version == 4:
        poke16(network + 2, word16(new))
        _adjust(network + 10, old, new)
    else:
        poke16(network + 4, word16(new - 40))
    if packet.protocol == 17:
        poke16(packet.address + packet.transport + 4, word16(end - packet.transport))
    packet.end = packet.length = end
    return True
