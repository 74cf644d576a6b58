"""QUIC: recognition of its headers, and connection ids as keys of flow tables; compiled (RFC 8999, RFC 9000).

QUIC runs on UDP and bears reordering well, so the thesis names it as a flow of UDP that could be sprayed
(section 3.5). Only the first byte and the connection ids can be read: all else is encrypted. Packets with a
long header open a connection and carry the lengths of ids. Packets with a short header carry the id of their
receiver without its length, which must be known from the handshake. WebRTC, DTLS and WireGuard have other
first bytes (RFC 9443).

An id is stored as a flow of its own: its bytes are in place of addresses, its protocol is ``QUIC_ID``. Its
designated core would depend on the id, but only the core of its connection may write it. So a number is
added, with which the designated core is the wanted one; readers try all such numbers.
"""

from __future__ import annotations

from typing import Final

import numpy.typing as npt
from numpy import int64 as np_int64

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_QUIC_ID_BYTES_MAX
from dios.sprayer.compile.intrinsics import int64, peek8, peek16, peek32, uint64
from dios.sprayer.packets.packet import Flow, Packet

QUIC_LONG: Final = 1
QUIC_SHORT: Final = 2
QUIC_ID: Final = 255
"""The protocol of a key of an id: reserved, so no packet of a flow has it."""
SHORT_MIN: Final = 1 + SPRAYER_QUIC_ID_BYTES_MAX + 2
"""A packet with a short header is longer: behind the longest id are bytes that are encrypted, and so random.

The programs that steer frames read the last two of these bytes."""


@no_refcount_kernel
def quic_header(packet: Packet, ports: npt.NDArray[np_int64]) -> int:
    """Return ``QUIC_LONG``, ``QUIC_SHORT``, or 0 for a packet that is not QUIC of one of these ports."""
    if packet.protocol != 17 or packet.error:
        return 0
    for i in range(ports.size):
        if packet.source_port == ports[i] or packet.target_port == ports[i]:
            size = int64(peek16(packet.address + packet.transport + 4)) - 8
            if size < SHORT_MIN:
                return 0
            first = peek8(packet.address + packet.payload)
            if first & 0x80:
                return QUIC_LONG
            return QUIC_SHORT if first & 0x40 else 0
    return 0


@no_refcount_kernel
def source_id(packet: Packet) -> tuple[int, int]:
    """Return the offset and the length of the sender's id in a long header; the length is 0 without one."""
    here = packet.address + packet.payload
    end = packet.transport + int64(peek16(packet.address + packet.transport + 4))
    target_size = int64(peek8(here + 5))
    at = packet.payload + 6 + target_size
    # Version 0 is a negotiation, which repeats an id of the client.
    if peek32(here + 1) == 0 or target_size > SPRAYER_QUIC_ID_BYTES_MAX or at + 1 > end:
        return int64(0), int64(0)
    size = int64(peek8(packet.address + at))
    if size > SPRAYER_QUIC_ID_BYTES_MAX or at + 1 + size > end:
        return int64(0), int64(0)
    return int64(at + 1), size


@no_refcount_kernel
def id_flow(packet: Packet, at: int, size: int, number: int) -> Flow:
    """Return the key of an id of ``size`` bytes at an offset of a frame, with a number that chooses its core.

    The caller has checked that the frame has these bytes.
    """
    high = other = rest = uint64(0)
    for i in range(size):
        value = uint64(peek8(packet.address + at + i))
        if i < 8:
            high = (high << uint64(8)) | value
        elif i < 16:
            other = (other << uint64(8)) | value
        else:
            rest = (rest << uint64(8)) | value
    last = (uint64(size) << uint64(32)) | rest
    return Flow(high, other, last, uint64(number), uint64(0), uint64(0), uint64(QUIC_ID))
