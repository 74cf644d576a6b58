"""Frames of all kinds, and by which rule each is steered: an oracle that knows no program.

Not for: checksums that are right: steering only reads them.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Final

TCP: Final = 6
UDP: Final = 17
QUIC_PORT: Final = 443


@dataclass(frozen=True)
class Made:
    """A frame and what is known of it."""

    data: bytes
    rule: str
    """``first`` core, by ``addresses``, by ``ports``, or as ``tcp``."""
    ends: tuple[tuple[bytes, int], tuple[bytes, int]] = ((b"", 0), (b"", 0))
    checksum: int = 0
    sequence: int = 0
    flags: int = 0
    clock: int | None = None
    """Of the timestamps option, where it is looked for."""
    rest: bytes = b""
    random_bytes: int | None = None
    """Of QUIC with a short header: the two bytes that steer."""


def make(chance: random.Random, *, plain: bool = False, quic: bool = False) -> Made:
    """Any frame; ``plain``: TCP or UDP that is whole and untagged, with no options of IP.

    ``quic``: half of the frames have QUIC's port at one end, and UDP of it any first byte.
    """
    six = chance.random() < 0.4
    ends = [(_address(chance, six=six), chance.randrange(1, 1 << 16)) for _ in range(2)]
    if quic and chance.random() < 0.5:
        which = chance.randrange(2)
        ends[which] = (ends[which][0], QUIC_PORT)
    return build(chance, (ends[0], ends[1]), plain=plain, quic=quic)


def build(
    chance: random.Random,
    ends: tuple[tuple[bytes, int], tuple[bytes, int]],
    *,
    plain: bool = False,
    quic: bool = False,
) -> Made:
    """A frame between two ends, an address and a port each."""
    (source, source_port), (target, target_port) = ends
    six = len(source) == 16
    protocol = chance.choice([TCP, TCP, UDP] if plain else [TCP, TCP, TCP, UDP, UDP, 1, 58, 47, 132])
    checksum, sequence = chance.randrange(1 << 16), chance.randrange(1 << 32)
    flags = chance.choice([0x10, 0x10, 0x10, 0x10, 0x02, 0x12, 0x11, 0x04])
    clock = chance.randrange(1 << 32) if chance.random() < 0.7 else None
    options = b"" if clock is None else struct.pack("!III", 0x0101080A, clock, 7)
    if clock is None and chance.random() < 0.3:
        options = struct.pack("!I", 0x020405B4)
    body = chance.randbytes(chance.randrange(40))
    ports = struct.pack("!HH", source_port, target_port)
    if protocol == TCP:
        size = 5 + len(options) // 4
        head = struct.pack("!IIBBHHH", sequence, 1, size << 4, flags, 100, checksum, 0)
        body = ports + head + options + body
    elif protocol == UDP:
        if quic and QUIC_PORT in (source_port, target_port):
            body = bytes([chance.randrange(256)]) + chance.randbytes(chance.randrange(40))
        body = ports + struct.pack("!HH", 8 + len(body), checksum) + body
    else:
        body = chance.randbytes(16) + body
    rule = {TCP: "tcp", UDP: "ports"}.get(protocol, "addresses")
    odd = "" if plain else chance.choice(["", "", "", "fragment", "longer"])
    if odd == "fragment" or (odd == "longer" and six):
        rule = "addresses"
    packet = (_six if six else _four)(chance, source, target, protocol, body, odd)
    tags = 0 if plain else chance.choice([0, 0, 1, 2])
    kind = 0x86DD if six else 0x0800
    if not plain and chance.random() < 0.05:
        kind, rule = 0x0806, "first"
    data = bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1])
    data += b"".join(struct.pack("!HH", chance.choice([0x8100, 0x88A8]), 7) for _ in range(tags))
    drawn = body[29:31] if rule == "ports" and QUIC_PORT in (source_port, target_port) else b""
    short = len(drawn) == 2 and body[8] & 0xC0 == 0x40
    return Made(
        data + struct.pack("!H", kind) + packet,
        rule,
        ends,
        checksum,
        sequence,
        flags,
        clock,
        random_bytes=int.from_bytes(drawn, "big") if short else None,
    )


def _address(chance: random.Random, *, six: bool) -> bytes:
    return chance.randbytes(16) if six else bytes([10, *chance.randbytes(3)])


def _four(chance: random.Random, source: bytes, target: bytes, protocol: int, body: bytes, odd: str) -> bytes:
    options = bytes(4 * chance.randrange(1, 11)) if odd == "longer" else b""
    part = chance.choice([0x2000, 0x0001, 0x2010]) if odd == "fragment" else chance.choice([0, 0x4000])
    head = struct.pack(
        "!BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options + body), 1, part, 64, protocol, 0
    )
    return head + source + target + options + body


def _six(chance: random.Random, source: bytes, target: bytes, protocol: int, body: bytes, odd: str) -> bytes:
    if odd:
        kind = 44 if odd == "fragment" else chance.choice([0, 43, 60])
        body, protocol = bytes([protocol, 0, 0, 8, 0, 0, 0, 1]) + body, kind
    return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + source + target + body


def seen(frame: bytes) -> tuple[bytes, dict[int, int]]:
    """What a program gets of a frame: from its network header on, the outer tag and the kind beside it."""
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind not in (0x8100, 0x88A8):
        return frame[14:], {0: kind}
    return frame[18:], {0: struct.unpack_from("!H", frame, 16)[0]}


def _word(value: int) -> int:
    return value & 0xFFFFFFFF


def flow_hash(frame: Made, secret: int) -> int:
    """The hash of a flow's ends, 16 bits."""
    key = secret * 0x9E3779B97F4A7C15 & (2**64 - 1)
    factor, two = key & 0xFFFFFFFF | 1, key >> 32 | 1
    total = 0
    for plain, port in frame.ends:
        # Addresses of IPv4 as ::ffff:a.b.c.d.
        address = plain if len(plain) == 16 else bytes(10) + b"\xff\xff" + plain
        words = struct.unpack("!4I", address)
        end = (words[0] * 0x9E3779B1 + words[1]) * (factor ^ 0x85EBCA77 | 1)
        end += words[2] * (factor ^ two | 1) + words[3] * factor
        if frame.rule != "addresses":
            end += port * two
        end = _word(end)
        total += end ^ end >> 15
    return _word(total * 0x9E3779B1) >> 16


def expected(frame: Made, steer: str, cores: int, secret: int) -> int:
    """The core that a frame goes to."""
    if frame.rule == "first":
        return 0
    hashed = flow_hash(frame, secret)
    if frame.random_bytes is not None and steer in ("spray", "direct"):
        return frame.random_bytes % cores
    if frame.random_bytes is not None and steer.startswith("subset"):
        return ((hashed * cores >> 16) + frame.random_bytes % min(int(steer[7:]), cores)) % cores
    if frame.rule != "tcp" or steer == "rss" or (steer == "direct" and frame.flags & 7):
        return hashed * cores >> 16
    if steer in ("spray", "direct"):
        return frame.checksum % cores
    if steer == "flowlet":
        clock = frame.sequence >> 16 if frame.clock is None else frame.clock >> 2
        mixed = _word(clock * 0x9E3779B1)
        return (((mixed >> 16 ^ mixed) + hashed) & 0xFFFF) % cores
    width = int(steer.partition(":")[2])
    return ((hashed * cores >> 16) + frame.checksum % min(width, cores)) % cores
