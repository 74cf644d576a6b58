"""Answers to ARP and neighbour discovery for addresses that only a network function has; compiled.

The answer is the hardware address of the machine on the other side, because frames pass a function with their
hardware addresses. It is learnt from the frames of that side.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import (
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
from dios.sprayer.packets.packet import BACK, NEIGHBOUR, NOT_IP, Packet
from dios.sprayer.packets.translate import folded, sum_bytes

_ARP: Final = 0x0806
_ARP_BYTES: Final = 28
_REQUEST: Final = 1
_REPLY: Final = 2
_SOLICITATION: Final = 135
_ADVERTISEMENT: Final = 136
_ADVERTISEMENT_BYTES: Final = 32
_SOLICITED: Final = 0x60000000
_OVERRIDE: Final = 0x20000000
_HOPS: Final = 255
_FULL: Final = 2**64 - 1
_MAPPED: Final = uint64(0xFFFF << 32)
_GROUP: Final = uint64(1 << 40)
_16: Final = uint64(16)


def networks_of(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return (N, 4) halves of addresses or networks, and of their masks."""
    rows = []
    for text in texts:
        net = ipaddress.ip_network(text)
        base, mask = int(net.network_address), int(net.netmask)
        if net.version == 4:
            base, mask = 0xFFFF << 32 | base, (_FULL << 64 | 0xFFFFFFFF << 32) | mask
        rows.append((base >> 64, base & _FULL, mask >> 64, mask & _FULL))
    return np.array(rows, np.uint64).reshape(len(rows), 4)


@no_refcount_kernel
def learn_hardware_address(packet: Packet, known: npt.NDArray[np.uint64]) -> None:
    """Remember the hardware address of a frame's sender as that of its side; ``known`` (2,) is by side."""
    sender = peek64(packet.address + 6) >> _16
    if sender & _GROUP == 0 and known[packet.side] != sender:
        known[packet.side] = sender


@no_refcount_kernel
def answer_neighbour(
    packet: Packet, cause: int, owned: npt.NDArray[np.uint64], known: npt.NDArray[np.uint64]
) -> bool:
    """Turn a request for an address that is ``owned`` into its answer, which goes back; else change nothing.

    ``cause`` is that of a parsed frame. Return False if nothing is answered.
    """
    other = known[1 - packet.side]
    if other == uint64(0):
        return False
    if cause == NOT_IP:
        return _answer_arp(packet, owned, other)
    return cause == NEIGHBOUR and _answer_solicitation(packet, owned, other)


@no_refcount_kernel
def _is_owned(high: int, low: int, owned: npt.NDArray[np.uint64]) -> bool:
    for i in range(len(owned)):
        row = owned[i]
        if ((high & row[2]) ^ row[0]) | ((low & row[3]) ^ row[1]) == uint64(0):
            return True
    return False


@no_refcount_kernel
def _turn(packet: Packet, hardware: int) -> None:
    """Address a frame to its sender, from a hardware address."""
    at = packet.address
    asker = peek64(at + 6) >> _16
    _put_hardware(at, asker)
    _put_hardware(at + 6, hardware)
    packet.verdict = BACK


@no_refcount_kernel
def _put_hardware(at: int, hardware: int) -> None:
    poke32(at, uint32(hardware >> _16))
    poke16(at + 4, uint16(hardware & uint64(0xFFFF)))


@no_refcount_kernel
def _answer_arp(packet: Packet, owned: npt.NDArray[np.uint64], hardware: int) -> bool:
    at = packet.address + packet.network
    if packet.length < packet.network + _ARP_BYTES or peek16(at - 2) != _ARP:
        return False
    if peek64(at) >> _16 != uint64(0x000108000604) or peek16(at + 6) != _REQUEST:
        return False
    asked, asker = peek32(at + 24), peek64(at + 8)
    if not _is_owned(uint64(0), _MAPPED | uint64(asked), owned):
        return False
    sender = peek32(at + 14)
    _put_hardware(at + 18, asker >> _16)
    poke32(at + 24, sender)
    _put_hardware(at + 8, hardware)
    poke32(at + 14, asked)
    poke16(at + 6, uint16(_REPLY))
    _turn(packet, hardware)
    return True


@no_refcount_kernel
def _answer_solicitation(packet: Packet, owned: npt.NDArray[np.uint64], hardware: int) -> bool:
    here, at = packet.address + packet.network, packet.address + packet.transport
    size = int64(packet.end) - int64(packet.transport)
    if packet.transport != packet.network + 40 or size < 24 or peek8(at) != _SOLICITATION:
        return False
    if peek8(here + 7) != _HOPS or peek8(at + 1):
        return False
    end = int64(packet.transport) + _ADVERTISEMENT_BYTES
    high, low = peek64(at + 8), peek64(at + 16)
    if end > max(int64(packet.room), int64(packet.length)) or not _is_owned(high, low, owned):
        return False
    to_high, to_low = peek64(here + 8), peek64(here + 16)
    flags = _SOLICITED
    if to_high | to_low == uint64(0):
        # Its sender is trying an address; all nodes hear that it is taken (RFC 4861, section 7.2.4).
        to_high, to_low, flags = uint64(0xFF02 << 48), uint64(1), _OVERRIDE
    poke16(here + 4, uint16(_ADVERTISEMENT_BYTES))
    poke64(here + 8, high)
    poke64(here + 16, low)
    poke64(here + 24, to_high)
    poke64(here + 32, to_low)
    poke8(at, uint8(_ADVERTISEMENT))
    poke16(at + 2, uint16(0))
    poke32(at + 4, uint32(flags))
    poke16(at + 24, uint16(0x0201))
    _put_hardware(at + 26, hardware)
    total = sum_bytes(at, _ADVERTISEMENT_BYTES) + sum_bytes(here + 8, 32) + _ADVERTISEMENT_BYTES + 58
    poke16(at + 2, uint16(folded(total) ^ 0xFFFF))
    packet.end = packet.length = end
    _turn(packet, hardware)
    return True
