"""Bad frames: valid frames of every kind with changed fields, cut or extended, and random bytes.

They attack network functions (``packet_checks.py``). The same seed gives the same frames. A quarter is
unchanged, so that there are connections to attack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.support.sprayer.frames import ACK, FIN, ICMP, ICMP6, RST, SYN, TCP, UDP, Made

OUTSIDE4 = ("198.51.100.1", "198.51.100.2")
OUTSIDE6 = ("2001:db8:5::1",)
SERVICE = ("203.0.113.7", 80)
"""Addresses of the functions under attack."""

_HEADERS = 90
_EDGES = (0, 1, 5, 6, 7, 8, 19, 20, 40, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
_KINDS = (0x0800, 0x86DD, 0x8100, 0x88A8, 0x0806, 0x8847, 0)
_PROTOCOLS = (0, 1, 2, 4, 6, 17, 41, 43, 44, 47, 50, 51, 58, 59, 60, 132, 255)
_PORTS = 400
_LONG = 5_000
"""One in this number of frames is longer than the limit."""


def seeds(rng: Random, count: int = 3_000) -> list[bytes]:
    """Return valid frames of few flows: connections, ICMP errors, fragments, tags, options, extensions."""
    return [_valid(rng) for _ in range(count)]


def _valid(rng: Random) -> bytes:
    six = rng.random() < 0.4
    inside = f"fd00::{rng.randrange(1, 9)}" if six else f"10.0.0.{rng.randrange(1, 9)}"
    others = OUTSIDE6 if six else (*OUTSIDE4, SERVICE[0])
    outside = rng.choice((*others, "2001:db8:9::9" if six else "192.0.2.9"))
    protocol = rng.choice((TCP, TCP, TCP, UDP, UDP, ICMP6 if six else ICMP))
    packet = Made(
        source=inside,
        target=outside,
        source_port=1024 + rng.randrange(_PORTS),
        target_port=rng.choice((80, 53, 1024 + rng.randrange(_PORTS))),
        protocol=protocol,
        flags=rng.choice((SYN, SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, RST, RST | ACK)),
        payload=rng.randbytes(rng.choice((0, 1, 20, 100))),
        tags=rng.choice((*[()] * 12, (5,), (5, 6), (5, 6, 7))),
        options=_options(rng, protocol, six=six),
        kind=rng.choice((8, 0)),
        checksum=six or rng.random() < 0.8,
    )
    if rng.random() < 0.4:
        packet = packet.other_way()
    if rng.random() < 0.01:
        packet = replace(packet, target=packet.source, target_port=packet.source_port)
    if protocol in (ICMP, ICMP6) and rng.random() < 0.5:
        about = Made(
            source=packet.target,
            target=packet.source,
            source_port=1024 + rng.randrange(_PORTS),
            protocol=rng.choice((TCP, UDP, protocol)),
            options=_options(rng, TCP, six=six) if not six else b"",
        ).packet()
        packet = Made(
            packet.source,
            packet.target,
            protocol=protocol,
            error_about=about[: rng.randrange(len(about) + 1)],
        )
    data = bytearray(packet.frame())
    # The last byte of the source tells the side it comes from.
    data[11] = rng.randrange(2)
    if rng.random() < 0.05 and len(data) > 24:
        data[20:22] = struct.pack(">H", rng.choice((0x2000, 0x2001, 0x00FF, 0x1FFF)))
    return bytes(data)


def _options(rng: Random, protocol: int, *, six: bool) -> bytes:
    if rng.random() < 0.7:
        return b""
    if not six:
        return b"\1" * 4 * rng.randrange(1, 11)
    kinds = [rng.choice((0, 43, 44, 51, 60)) for _ in range(rng.randrange(1, 11))]
    text = bytes(kinds[:1])
    for at, kind in enumerate(kinds):
        following = kinds[at + 1] if at + 1 < len(kinds) else protocol
        size = 1 if kind == 51 else 0
        text += bytes([following, size, 0, 0, 0, 0, 0, 0]) + bytes(4 * size)
    return text


def frames(rng: Random, count: int, valid: list[bytes]) -> Iterator[bytes]:
    """Yield ``count`` frames."""
    for number in range(count):
        chance = rng.random()
        if number % _LONG == _LONG - 1:
            yield valid[number % len(valid)] + bytes(rng.randrange(65_000, 70_000))
        elif chance < 0.25:
            yield rng.choice(valid)
        elif chance < 0.28:
            yield rng.randbytes(rng.randrange(120))
        else:
            data = bytearray(rng.choice(valid))
            for _ in range(rng.randrange(1, 4)):
                rng.choice(_BENDS)(rng, data, valid)
            yield bytes(data)


def _flip(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    if data:
        data[rng.randrange(min(len(data), _HEADERS))] ^= 1 << rng.randrange(8)


def _byte(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    if data:
        data[rng.randrange(min(len(data), _HEADERS))] = rng.randrange(256)


def _edge(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    if len(data) > 16:
        at = rng.randrange(12, min(len(data), _HEADERS) - 1)
        value = rng.choice((*_EDGES, len(data), len(data) - 14, len(data) - 13, len(data) - 34))
        data[at : at + 2] = struct.pack(">H", value & 0xFFFF)


def _cut(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _stuff(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(40))


def _splice(rng: Random, data: bytearray, valid: list[bytes]) -> None:
    other = rng.choice(valid)
    at = rng.randrange(min(len(data), len(other)) + 1)
    data[at:] = other[at:]


def _kind(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    data[12:14] = struct.pack(">H", rng.choice(_KINDS))


def _tag(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    data[12:12] = struct.pack(">HH", rng.choice((0x8100, 0x88A8)), rng.randrange(4096))


def _head(rng: Random, data: bytearray, _valid: list[bytes]) -> None:
    """Change the bytes with lengths and kinds of headers, in a frame without a tag."""
    at = rng.choice((14, 16, 17, 18, 20, 21, 23, 34, 46, 47, 54, 55, 66, 67))
    if at < len(data):
        data[at] = rng.choice((rng.choice(_PROTOCOLS), rng.randrange(256), 0x4F, 0x44, 0x60, 0xF0, 0x00))


_BENDS = (_flip, _byte, _edge, _edge, _cut, _stuff, _splice, _kind, _tag, _head, _head)
