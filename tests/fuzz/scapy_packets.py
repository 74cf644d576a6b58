"""Random datagrams of sessions through a translator, made with scapy: of every kind that a network carries.

A datagram has *features*, the names of everything unusual about it, by which differences are explained. The
same seed gives the same datagrams. For: comparisons with Linux (``against_linux.py``).
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from scapy.layers import inet
from scapy.layers.inet import IP, IPOption
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
)
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet as ScapyPacket
from scapy.packet import Raw

from dios.sprayer import INSIDE, OUTSIDE
from tests.support.sprayer.frames import (
    ACK,
    ESP,
    FIN,
    GRE,
    ICMP,
    ICMP6,
    RST,
    SCTP,
    SYN,
    TCP,
    UDP,
    UDP_LITE,
    ones_sum,
)
from tests.support.sprayer.linux_router import CLIENTS, OWN4, OWN6, PREFIX, Kind

HARDWARE: Final = ("02:00:00:00:00:0a", "02:00:00:00:00:0b")
OTHERS: Final = (GRE, ESP, SCTP, UDP_LITE, 51, 89, 253)
"""Protocols other than TCP, UDP and ICMP."""
_ROUTE: Final = b"\xcb\x00\x71\x08\xcb\x00\x71\x09"
_OPTIONS: Final = {
    "nothing": b"\x01\x01\x01\x00",
    "record": b"\x07\x0b\x04" + bytes(8),
    "time": b"\x44\x0c\x05\x00" + bytes(8),
    "alert": b"\x94\x04\x00\x00",
    "loose route": b"\x83\x0b\x04" + _ROUTE,
    "strict route": b"\x89\x0b\x04" + _ROUTE,
    "ended route": b"\x83\x0b\x0c" + _ROUTE,
    "unknown": b"\x9e\x04\x12\x34",
    "long": b"\x9e\x20\x12\x34",
}
"""Options of IPv4; of the last one, the length goes beyond the header."""
LARGE: Final = 60_000
"""The payload of a segment that an interface joined or did not cut yet, in bytes."""
_LEAST: Final = 140
"""The least length to which a packet is cut, in bytes, so that its token stays."""
_TOKEN: Final = b"\xd1\x05\xbe\xef"
_UNREACHABLE: Final = ((3, 0), (3, 1), (3, 3), (3, 13), (11, 0), (12, 0))
_UNREACHABLE6: Final = ((1, 0), (1, 1), (1, 3), (1, 4), (2, 0), (3, 0), (4, 0))


def token(number: int) -> bytes:
    """Return 8 bytes by which the datagram of a number is recognised."""
    return _TOKEN + number.to_bytes(4)


def number_in(data: bytes) -> int | None:
    """Return the number of the token in some bytes: the last one, because errors have another in them."""
    at = data.rfind(_TOKEN)
    return int.from_bytes(data[at + 4 : at + 8]) if at >= 0 else None


class Ends(NamedTuple):
    """The addresses of a client and a server, as one side of the translator has them."""

    client: str
    server: str


@dataclass
class Session:
    """A client's end and a server's, and the progress of what they send."""

    inside: Ends
    outside: Ends
    protocol: int
    client_port: int
    server_port: int
    tags: tuple[int, ...]
    age: int = 0
    """The number of rounds since it began."""
    opened: bool = False
    """True after a packet from inside has passed on both sides."""
    answered: bool = False
    closed: bool = False
    unusual: bool = False
    """True after unusual flags or queries, which both may pass, and which one of both may have remembered."""
    sequences: tuple[int, int] = (0, 0)
    """The first numbers of TCP, of the client and the server."""
    ports: tuple[int, int] = (0, 0)
    """The client's port outside, of the function and of Linux."""
    packets: tuple[bytes, bytes] = (b"", b"")
    """A client's packet outside, from each of both, for errors about it."""
    answer: bytes = b""
    """An answer as the client has got it."""


@dataclass(frozen=True)
class Sample:
    """A datagram: its frames for the function and for Linux, which differ in translated ports."""

    number: int
    side: int
    session: Session
    frames: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    features: frozenset[str]
    role: str
    """``client``, ``answer``, ``stranger`` or ``error``."""


@dataclass
class _Shape:
    """The headers around a transport protocol's bytes."""

    features: set[str] = field(default_factory=set)
    service: int = 0
    hops: int = 64
    whole: bool = False
    """True if it must not be fragmented."""
    label: int = 0
    options: list[IPOption] = field(default_factory=list)
    extensions: list[ScapyPacket] = field(default_factory=list)
    padding: int = 0
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Beginnings and ends of fragments, in the order in which they are sent."""
    bend: Callable[[bytearray], None] | None = None
    """A change of the packet of IP."""


class Generator:
    """Datagrams for one kind of function, by a seed."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind: Final = kind
        self.rng: Final = Random(seed)  # noqa: S311 - repeatable, nothing secret
        self.number = 0
        self.sessions: list[Session] = []

    def session(self) -> Session:
        """Return a new session."""
        rng = self.rng
        client, server = rng.randrange(5, 5 + CLIENTS - 1), rng.randrange(1, 9)
        self.number += 1
        six = self.kind not in {"nat64", "siit"} and rng.random() < 0.4
        four_out, six_out = f"203.0.113.{server}", f"2001:db8:9::{server}"
        inside, outside = {
            "nat": (
                (Ends(f"fd00::{client}", six_out), Ends(OWN6, six_out))
                if six
                else (Ends(f"10.0.0.{client}", four_out), Ends(OWN4, four_out))
            ),
            "firewall": (
                (Ends(f"fd00::{client}", six_out),) * 2 if six else (Ends(f"10.0.0.{client}", four_out),) * 2
            ),
            "nat64": (Ends(f"2001:db8:c::{client}", f"{PREFIX}{four_out}"), Ends(OWN4, four_out)),
            "siit": (
                Ends(f"{PREFIX}192.0.2.{client}", f"{PREFIX}{four_out}"),
                Ends(f"192.0.2.{client}", four_out),
            ),
        }[self.kind]
        protocol = rng.choice(
            (TCP, TCP, TCP, UDP, UDP, UDP, ICMP, *([rng.choice(OTHERS)] * (rng.random() < 0.4)))
        )
        tags = rng.choice(((), (), (), (5,), (5, 6)))
        server_port = rng.choice((53, 80, 443, 7 if rng.random() < 0.1 else 123, 4500))
        client_port = 1024 + self.number % 60_000
        sequences = rng.randrange(2**31), rng.randrange(2**31)
        return Session(inside, outside, protocol, client_port, server_port, tags, sequences=sequences)

    def sample(self, session: Session) -> Sample:
        """Return a datagram of a session: one of the client, an answer, a stranger's, or an error."""
        rng = self.rng
        roles = ["client", "client"]
        if session.opened or self.kind == "siit":
            roles += ["answer", "answer", "stranger", "error"]
        else:
            roles += ["stranger"] * (rng.random() < 0.1)
        if session.answer:
            roles.append("error inside")
        role = rng.choice(roles)
        self.number += 1
        side = INSIDE if role in {"client", "error inside"} else OUTSIDE
        shape = self._shape(session, self._version(session, side))
        if role.startswith("error"):
            return self._error(session, shape, side)
        ends = session.inside if side == INSIDE else session.outside
        here, there = (ends.client, ends.server) if side == INSIDE else (ends.server, ends.client)
        if role == "stranger":
            here = re.sub(r"\d+$", "77", here)
            shape.features.add("stranger")
        # Both get the same bytes, but for the port.
        state = rng.getstate()
        frames = []
        for which in range(2):
            rng.setstate(state)
            port = session.client_port if side == INSIDE else session.ports[which] or session.client_port
            ports = (port, session.server_port) if side == INSIDE else (session.server_port, port)
            transport = self._transport(session, shape, here, there, ports, side)
            frames.append(
                self._frames(session, shape, side, here, there, self._protocol(session, side), transport)
            )
        return Sample(self.number, side, session, (frames[0], frames[1]), frozenset(shape.features), role)

    def _version(self, session: Session, side: int) -> int:
        return 6 if ":" in (session.inside if side == INSIDE else session.outside).client else 4

    def _protocol(self, session: Session, side: int) -> int:
        if session.protocol == ICMP and self._version(session, side) == 6:
            return ICMP6
        return session.protocol

    # --- transport ------------------------------------------------------------------------------------------

    def _transport(
        self, session: Session, shape: _Shape, here: str, there: str, ports: tuple[int, int], side: int
    ) -> bytes:
        rng = self.rng
        size = rng.choice((0, 1, 7, 60, 200, 1200))
        if rng.random() < 0.02 and "fragments" not in shape.features:
            size = rng.choice((8_000, LARGE))
            shape.features.add("large")
        payload = token(self.number) + rng.randbytes(size)
        protocol = self._protocol(session, side)
        header: ScapyPacket
        if protocol == TCP:
            header = self._tcp(session, shape, ports, side)
        elif protocol == UDP:
            header = inet.UDP(sport=ports[0], dport=ports[1])
            if rng.random() < 0.1:
                shape.features.add("no checksum")
                header.chksum = 0
        elif protocol in {ICMP, ICMP6}:
            header = self._echo(session, shape, ports[0] if side == INSIDE else ports[1], side, protocol)
        else:
            shape.features |= {"other protocol", f"protocol {protocol}"}
            other = self._other(protocol) + payload
            if protocol != UDP_LITE:
                return other
            covered = rng.choice((0, 8))
            if covered:
                shape.features.add("partial checksum")
            return _lite(other, here, there, covered)
        ip = IPv6(src=here, dst=there) if ":" in here else IP(src=here, dst=there)
        data = bytearray(bytes(ip / header / Raw(payload))[40 if ":" in here else 20 :])
        if rng.random() < 0.03:
            shape.features.add("wrong checksum")
            at = {TCP: 16, UDP: 6}.get(protocol, 2)
            data[at : at + 2] = struct.pack(">H", (int.from_bytes(data[at : at + 2]) ^ 0x5555) or 1)
        return bytes(data)

    def _tcp(self, session: Session, shape: _Shape, ports: tuple[int, int], side: int) -> ScapyPacket:
        rng = self.rng
        if not session.opened:
            flags = SYN
        elif not session.answered:
            flags = SYN if side == INSIDE else SYN | ACK
        else:
            flags = ACK | 8 * rng.randrange(2)
            if rng.random() < 0.1:
                flags = rng.choice((FIN | ACK, RST, RST | ACK))
                shape.features.add("end")
        if rng.random() < 0.04:
            flags = rng.choice((0, FIN, SYN | FIN, SYN | RST, ACK, SYN | ACK, SYN, FIN | ACK | 40, 63))
            session.unusual = True
        if session.unusual:
            shape.features.add("unusual flags")
        options: list[tuple[str, object]] = []
        if rng.random() < 0.4:
            options = [("MSS", 1460), ("NOP", None), ("WScale", 7), ("Timestamp", (1, 2)), ("SAckOK", b"")]
            rng.shuffle(options)
        header = inet.TCP(sport=ports[0], dport=ports[1], flags=flags, options=options)
        own, other = session.sequences if side == INSIDE else session.sequences[::-1]
        header.seq = own + (not flags & SYN)
        if flags & ACK:
            header.ack = other + 1
        if rng.random() < 0.05 and not flags & SYN:
            header.flags |= 32
            header.urgptr = 3
        return header

    def _echo(
        self, session: Session, shape: _Shape, identifier: int, side: int, protocol: int
    ) -> ScapyPacket:
        rng = self.rng
        reply, unusual = side == OUTSIDE, rng.random() < 0.1
        session.unusual |= unusual
        if session.unusual:
            shape.features.add("unusual query")
        if unusual:
            if protocol == ICMP:
                return inet.ICMP(type=rng.choice((13, 14, 15, 17, 18, 10, 5, 40, 8, 0)), id=identifier)
            return rng.choice((ICMPv6EchoRequest, ICMPv6EchoReply))(id=identifier)
        if protocol == ICMP:
            return inet.ICMP(type=0 if reply else 8, id=identifier, seq=rng.randrange(9))
        return (ICMPv6EchoReply if reply else ICMPv6EchoRequest)(id=identifier, seq=rng.randrange(9))

    def _other(self, protocol: int) -> bytes:
        if protocol == GRE:
            return struct.pack(">HH", 0, 0x0800)
        if protocol == 51:
            return struct.pack(">BBHII", 17, 4, 0, 9, 1) + bytes(12)
        if protocol == UDP_LITE:
            return struct.pack(">HHHH", 9, 9, 0, 0)
        return self.rng.randbytes(12)

    # --- errors ---------------------------------------------------------------------------------------------

    def _error(self, session: Session, shape: _Shape, side: int) -> Sample:
        rng = self.rng
        version = self._version(session, side)
        ends = session.inside if side == INSIDE else session.outside
        shape.features.add("error")
        kind, code = rng.choice(_UNREACHABLE if version == 4 else _UNREACHABLE6)
        if rng.random() < 0.05:
            kind, code = (5, 1) if version == 4 else (137, 0)
            shape.features.add("unusual query")
        shape.features.add(f"error {kind}.{code}")
        reporter = ends.client if side == INSIDE else re.sub(r"\d+$", "98", ends.server)
        target = ends.client if side == OUTSIDE else ends.server
        frames = []
        broken = rng.random() < 0.05
        state = rng.getstate()
        for which in range(2):
            rng.setstate(state)
            about = session.answer if side == INSIDE else session.packets[which] or session.packets[0]
            if not about:
                about = session.packets[1]
            size = (20 if version == 4 else 40) + 8
            inner = about[:size] + token(self.number)
            word = {3: 1400 if code == 4 else 0, 2: 1400 if version == 6 else 0}.get(kind, 0)
            text = struct.pack(">BBHI", kind, code, 0, word) + inner
            if version == 4:
                packet = bytes(IP(src=reporter, dst=target, proto=ICMP) / Raw(_summed(text)))[20:]
            else:
                packet = bytes(
                    IPv6(src=reporter, dst=target, nh=ICMP6) / Raw(_summed(text, reporter, target))
                )[40:]
            if broken:
                packet = (
                    packet[:2] + struct.pack(">H", (int.from_bytes(packet[2:4]) ^ 0x5555) or 1) + packet[4:]
                )
            protocol = ICMP if version == 4 else ICMP6
            frames.append(self._frames(session, shape, side, reporter, target, protocol, packet))
        if broken:
            shape.features.add("wrong checksum")
        if shape.cuts:
            shape.features.add("fragmented error")
        role = "error" if side == OUTSIDE else "error inside"
        return Sample(self.number, side, session, (frames[0], frames[1]), frozenset(shape.features), role)

    # --- headers --------------------------------------------------------------------------------------------

    def _shape(self, session: Session, version: int) -> _Shape:
        rng, shape = self.rng, _Shape()
        shape.service = rng.choice((0, 0, 0, 0x28, 0xB8))
        shape.label = rng.choice((0, rng.randrange(1 << 20)))
        shape.whole = rng.random() < 0.4
        if session.tags:
            shape.features.add("tags")
        for chance, feature in (
            (0.04, self._last_hop),
            (0.12, self._options),
            (0.12, self._padded),
            (0.18, self._fragmented),
            (0.05, self._bent),
        ):
            if rng.random() < chance:
                feature(shape, version)
        return shape

    def _last_hop(self, shape: _Shape, version: int) -> None:
        shape.hops = self.rng.choice((1, 0))
        shape.features.add("last hop")

    def _padded(self, shape: _Shape, version: int) -> None:
        shape.padding = self.rng.randrange(1, 40)
        shape.features.add("padding")

    def _options(self, shape: _Shape, version: int) -> None:
        """Add an option of IPv4, or up to three extension headers of IPv6."""
        rng = self.rng
        if version == 4:
            name = rng.choice(tuple(_OPTIONS))
            shape.features |= {"options", f"option {name}"}
            shape.options = [IPOption(_OPTIONS[name])]
            return
        shape.features.add("extensions")
        for _ in range(rng.randrange(1, 4)):
            kind = rng.choice(("hop", "destination", "destination", "routing"))
            size = rng.choice((4, 4, 4, 12))
            padding = PadN(optdata=bytes(size))
            if size > 7:
                shape.features.add("extension padded")
            if kind == "routing":
                left = rng.randrange(2)
                shape.features.add("extension route" if left else "extension ended route")
                route = IPv6ExtHdrRouting(addresses=["2001:db8:9::55"], segleft=left, type=rng.choice((0, 2)))
                shape.extensions.append(route)
            elif kind == "hop" and not shape.extensions:
                shape.features.add("extension hop")
                shape.extensions.append(IPv6ExtHdrHopByHop(options=[padding]))
            else:
                shape.extensions.append(IPv6ExtHdrDestOpt(options=[padding]))

    def _fragmented(self, shape: _Shape, version: int) -> None:
        shape.features |= {"fragments", *(["fragments behind extensions"] if shape.extensions else [])}
        shape.whole = False
        shape.cuts = [(-1, -1)]  # decided when the size is known

    def _bent(self, shape: _Shape, version: int) -> None:
        """Damage a field of the header of IP."""
        name, bend = self.rng.choice(_BENDS)
        shape.features.add(f"damaged {name}")
        shape.bend = bend

    def _cut(self, shape: _Shape, size: int) -> list[tuple[int, int]]:
        rng = self.rng
        step = 8 * rng.choice((3, 8, 16, 40))
        step = max(step, 8 * (size // 64))
        cuts = [(at, min(at + step, size)) for at in range(0, size, step)]
        how = rng.choice(
            ("order", "shuffled", "shuffled", "reversed", "twice", "overlap", "missing", "beyond")
        )
        if how == "shuffled":
            rng.shuffle(cuts)
        elif how == "reversed":
            cuts.reverse()
        elif how == "twice":
            cuts.insert(rng.randrange(len(cuts) + 1), rng.choice(cuts))
        elif how == "overlap" and len(cuts) > 1:
            begin, end = cuts[1]
            cuts.insert(rng.randrange(1, len(cuts)), (begin - 8, end))
        elif how == "missing" and len(cuts) > 1:
            cuts.pop(rng.randrange(len(cuts)))
        elif how == "beyond" and len(cuts) > 1:
            cuts.append((size + 80, size + 96))
        shape.features.add(f"fragments {how}")
        return cuts

    def _frames(
        self, session: Session, shape: _Shape, side: int, here: str, there: str, protocol: int, data: bytes
    ) -> tuple[bytes, ...]:
        rng = self.rng
        name = self.number & 0xFFFF or 1
        cuts = self._cut(shape, len(data)) if shape.cuts else [(0, len(data))]
        packets = []
        for begin, end in cuts:
            piece = data[begin:end].ljust(end - begin, b"\0")
            more = end < len(data)
            if ":" in here:
                packet: ScapyPacket = IPv6(
                    src=here, dst=there, tc=shape.service, fl=shape.label, hlim=shape.hops
                )
                for extension in shape.extensions:
                    packet /= extension.copy()
                if shape.cuts:
                    packet /= IPv6ExtHdrFragment(offset=begin // 8, m=int(more), id=self.number)
                packet.lastlayer().nh = protocol
                packets.append(bytes(packet / Raw(piece)))
            else:
                flags = "MF" if more and shape.cuts else "DF" if shape.whole else 0
                packets.append(
                    bytes(
                        IP(
                            src=here,
                            dst=there,
                            tos=shape.service,
                            ttl=shape.hops,
                            id=name,
                            flags=flags,
                            frag=begin // 8 if shape.cuts else 0,
                            proto=protocol,
                            options=shape.options,
                        )
                        / Raw(piece)
                    )
                )
        if shape.bend is not None and not shape.cuts:
            whole = bytearray(packets[0])
            shape.bend(whole)
            packets[0] = bytes(whole)
        trailer = rng.randbytes(shape.padding)
        return tuple(
            bytes(_ethernet(session.tags, side, ":" in here)) + packet + trailer for packet in packets
        )


def _checked(packet: bytearray) -> None:
    """Give a header of IPv4 its checksum again."""
    if packet[0] >> 4 == 4:
        size = max(packet[0] & 15, 5) * 4
        packet[10:12] = b"\0\0"
        packet[10:12] = struct.pack(">H", ones_sum(bytes(packet[:size])))


def _version_bent(packet: bytearray) -> None:
    packet[0] ^= 0x30


def _header_bent(packet: bytearray) -> None:
    if packet[0] >> 4 == 4:
        packet[0] = 0x44
    else:
        packet[6] = 59


def _checksum_bent(packet: bytearray) -> None:
    if packet[0] >> 4 == 4:
        packet[10] ^= 0x55


def _length_bent(by: int) -> Callable[[bytearray], None]:
    def bend(packet: bytearray) -> None:
        at = 2 if packet[0] >> 4 == 4 else 4
        size = int.from_bytes(packet[at : at + 2]) + by
        if _LEAST < size < 65_536:
            packet[at : at + 2] = struct.pack(">H", size)
            _checked(packet)

    return bend


def _source_bent(four: bytes, six: bytes) -> Callable[[bytearray], None]:
    def bend(packet: bytearray) -> None:
        if packet[0] >> 4 == 4:
            packet[12:16] = four or packet[16:20]
            _checked(packet)
        else:
            packet[8:24] = six or packet[24:40]

    return bend


def _target_bent(packet: bytearray) -> None:
    if packet[0] >> 4 == 4:
        packet[16:20] = bytes((224, 0, 0, 9))
        _checked(packet)
    else:
        packet[24:40] = b"\xff\x02" + bytes(13) + b"\x09"


_BENDS: Final[tuple[tuple[str, Callable[[bytearray], None]], ...]] = (
    ("version", _version_bent),
    ("header", _header_bent),
    ("header checksum", _checksum_bent),
    ("short length", _length_bent(-30)),
    ("long length", _length_bent(200)),
    ("source loopback", _source_bent(bytes((127, 0, 0, 1)), bytes(15) + b"\x01")),
    ("source multicast", _source_bent(bytes((224, 0, 0, 9)), b"\xff\x02" + bytes(13) + b"\x09")),
    ("source nobody", _source_bent(bytes(4), bytes(16))),
    ("source target", _source_bent(b"", b"")),
    ("target multicast", _target_bent),
)
"""Damages of the header of IP."""


def _summed(text: bytes, *ends: str) -> bytes:
    """Return an ICMP message with its checksum; ``ends`` are the addresses of IPv6."""
    pseudo = b""
    if ends:
        pseudo = b"".join(ipaddress.ip_address(end).packed for end in ends) + struct.pack(
            ">II", len(text), ICMP6
        )
    return text[:2] + struct.pack(">H", ones_sum(pseudo + text)) + text[4:]


def _lite(data: bytes, here: str, there: str, covered: int) -> bytes:
    """Return UDP-Lite with a checksum of this number of bytes; 0 for all."""
    ends = b"".join(ipaddress.ip_address(end).packed for end in (here, there))
    data = data[:4] + struct.pack(">HH", covered, 0) + data[8:]
    pseudo = ends + struct.pack(">II", len(data), UDP_LITE)
    return data[:6] + struct.pack(">H", ones_sum(pseudo + data[: covered or None])) + data[8:]


def without_tags(frame: bytes) -> bytes:
    """Return a frame without its VLAN tags."""
    while frame[12:14] in {b"\x81\x00", b"\x88\xa8"}:
        frame = frame[:12] + frame[16:]
    return frame


def _ethernet(tags: tuple[int, ...], side: int, six: bool) -> ScapyPacket:  # noqa: FBT001 - the version
    kind = 0x86DD if six else 0x0800
    header = Ether(src=HARDWARE[side], dst=HARDWARE[1 - side], type=(kind, 0x8100, 0x88A8)[len(tags)])
    if len(tags) == 2:
        return header / Dot1AD(vlan=tags[0], type=0x8100) / Dot1Q(vlan=tags[1], type=kind)
    return header / Dot1Q(vlan=tags[0], type=kind) if tags else header
