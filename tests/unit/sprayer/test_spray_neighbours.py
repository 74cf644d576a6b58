"""Answers to ARP and neighbour discovery for addresses that only a network function has."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, Workers
from dios.sprayer.functions.nat import Nat
from tests.support.sprayer.frames import ones_sum

OURS_4, OURS_6 = "198.51.100.1", "2001:db8::77"
ASKER, OTHER = bytes.fromhex("02aa00000001"), bytes.fromhex("02bb00000002")
ALL, NODE_6 = b"\xff" * 6, "2001:db8::1"


def arp(operation: int, sender: str, hardware: bytes, target: str, to: bytes = bytes(6)) -> bytes:
    """A frame of ARP, broadcast if it asks."""
    head = (
        (ALL if operation == 1 else to) + hardware + struct.pack(">HHHBBH", 0x806, 1, 0x800, 6, 4, operation)
    )
    ends = (hardware, ipaddress.ip_address(sender).packed, to, ipaddress.ip_address(target).packed)
    return head + b"".join(ends)


def icmp6(source: str, target: str, body: bytes, to: bytes, hardware: bytes) -> bytes:
    """A frame of neighbour discovery, with its checksum."""
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    checksum = ones_sum(ends + struct.pack(">II", len(body), 58) + body)
    body = body[:2] + struct.pack(">H", checksum) + body[4:]
    head = to + hardware + struct.pack(">HIHBB", 0x86DD, 6 << 28, len(body), 58, 255)
    return head + ends + body


def solicitation(target: str, source: str = NODE_6, option: bytes = b"\x01\x01" + ASKER) -> bytes:
    """A neighbour solicitation of the asker."""
    asked = ipaddress.ip_address(target).packed
    group = str(ipaddress.ip_address(ipaddress.ip_address("ff02::1:ff00:0").packed[:13] + asked[13:]))
    body = struct.pack(">BBHI", 135, 0, 0, 0) + asked + option
    return icmp6(source, group, body, b"\x33\x33\xff" + asked[13:], ASKER)


def advertisement(target: str, to: str, flags: int) -> bytes:
    """What the asker gets: the hardware address of the other side."""
    body = struct.pack(">BBHI", 136, 0, 0, flags) + ipaddress.ip_address(target).packed + b"\x02\x01" + OTHER
    return icmp6(target, to, body, ASKER, OTHER)


@pytest.fixture(scope="module")
def workers() -> Workers:
    """A NAT on one core."""
    return Workers(Nat([OURS_4, OURS_6]), MemoryEngine([]), seed=1, now=100)


def sent(workers: Workers, frame: bytes, side: int) -> tuple[bytes, bool]:
    """Return what is sent for a frame, and whether it goes back."""
    engine = MemoryEngine([frame], sides=[side], grow=8)
    workers.change_engine(engine)
    workers.drain()
    (outgoing,) = engine.sent()
    return outgoing.data, outgoing.back


def test_requests_for_own_addresses_are_answered(workers: Workers) -> None:
    """The answer names the machine on the other side; until that has sent something, requests pass."""
    request = arp(1, "198.51.100.9", ASKER, OURS_4)
    assert sent(workers, request, OUTSIDE) == (request, False)
    hello = arp(1, "10.0.0.5", OTHER, "10.0.0.6")
    assert sent(workers, hello, INSIDE) == (hello, False)
    assert sent(workers, request, OUTSIDE) == (arp(2, OURS_4, OTHER, "198.51.100.9", ASKER), True)
    for option in (b"\x01\x01" + ASKER, b""):
        asked = solicitation(OURS_6, option=option)
        assert sent(workers, asked, OUTSIDE) == (advertisement(OURS_6, NODE_6, 0x60000000), True)
    trying = solicitation(OURS_6, source="::", option=b"")
    assert sent(workers, trying, OUTSIDE) == (advertisement(OURS_6, "ff02::1", 0x20000000), True)


def test_all_else_passes_as_it_is(workers: Workers) -> None:
    """Requests for other addresses, answers, and what is no proper request are not touched."""
    sent(workers, arp(1, "10.0.0.5", OTHER, "10.0.0.6"), INSIDE)
    hops = bytearray(solicitation(OURS_6))
    hops[21] = 64
    for frame in (
        arp(1, "198.51.100.9", ASKER, "198.51.100.2"),
        arp(2, "198.51.100.9", ASKER, OURS_4, OTHER),
        arp(1, "198.51.100.9", ASKER, OURS_4)[:-1],
        solicitation("2001:db8::78"),
        bytes(hops),
    ):
        assert sent(workers, frame, OUTSIDE) == (frame, False)
