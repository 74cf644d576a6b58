"""Frames of Ethernet, made and read slowly and plainly; shares nothing with the kernels.

For: tests of ``dios.sprayer``.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, replace

TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
GRE, ESP, SCTP, UDP_LITE = 47, 50, 132, 136
FIN, SYN, RST, ACK = 1, 2, 4, 16


def ones_sum(data: bytes) -> int:
    """The Internet checksum of bytes."""
    data += b"\0" * (len(data) % 2)
    total = sum(int(word) for word in struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@dataclass(frozen=True)
class Made:
    """What a frame is made of."""

    source: str = "10.0.0.1"
    target: str = "192.0.2.9"
    source_port: int = 1234
    target_port: int = 80
    protocol: int = TCP
    flags: int = ACK
    payload: bytes = b""
    tags: tuple[int, ...] = ()
    options: bytes = b""
    """Of IPv4; or whole extension headers of IPv6, the kind of the first before them."""
    kind: int = 8
    """Of ICMP: an echo request, or a reply; ``source_port`` is the identifier."""
    checksum: bool = True
    """Without, UDP has none."""
    sequence: int = 7
    """Of TCP."""
    error_about: bytes = b""
    """A packet of IP inside of an ICMP error."""

    @property
    def version(self) -> int:
        """4 or 6."""
        return ipaddress.ip_address(self.source).version

    def other_way(self) -> Made:
        """What comes back."""
        return replace(
            self,
            source=self.target,
            target=self.source,
            source_port=self.target_port,
            target_port=self.source_port,
        )

    def transport(self) -> bytes:
        """TCP, UDP or ICMP, with its checksum."""
        ends = struct.pack(">HH", self.source_port, self.target_port)
        if self.protocol == TCP:
            data = (
                ends
                + struct.pack(">IIBBHHH", self.sequence, 9, 5 << 4, self.flags, 1000, 0, 0)
                + self.payload
            )
            return self._summed(data, 16)
        if self.protocol == UDP:
            data = ends + struct.pack(">HH", 8 + len(self.payload), 0) + self.payload
            return self._summed(data, 6) if self.checksum else data
        if self.protocol == UDP_LITE:
            return self._summed(ends + bytes(4) + self.payload, 6)
        if self.protocol in (GRE, ESP, SCTP):
            return ends + self.payload
        if self.error_about:
            data = bytes([3 if self.version == 4 else 1, 1, 0, 0, 0, 0, 0, 0]) + self.error_about
            return self._summed(data, 2)
        kind = self.kind if self.version == 4 else {8: 128, 0: 129}.get(self.kind, self.kind)
        return self._summed(struct.pack(">BBHHH", kind, 0, 0, self.source_port, 1) + self.payload, 2)

    def _summed(self, data: bytes, at: int) -> bytes:
        pseudo = b""
        if self.protocol in (TCP, UDP, UDP_LITE) or self.version == 6:
            ends = (ipaddress.ip_address(self.source).packed, ipaddress.ip_address(self.target).packed)
            pseudo = b"".join(ends) + struct.pack(">II", len(data), self.protocol)
        checksum = ones_sum(pseudo + data)
        if self.protocol == UDP and checksum == 0:
            checksum = 0xFFFF
        return data[:at] + struct.pack(">H", checksum) + data[at + 2 :]

    def packet(self) -> bytes:
        """The packet of IP."""
        data = self.transport()
        source, target = (ipaddress.ip_address(address).packed for address in (self.source, self.target))
        if self.version == 6:
            first, rest = (self.options[0], self.options[1:]) if self.options else (self.protocol, b"")
            return struct.pack(">IHBB", 6 << 28, len(rest + data), first, 64) + source + target + rest + data
        size = 20 + len(self.options)
        head = struct.pack(
            ">BBHHHBBH4s4s",
            *(4 << 4 | size // 4, 0, size + len(data), 1, 0, 64, self.protocol, 0, source, target),
        )
        head += self.options
        return head[:10] + struct.pack(">H", ones_sum(head)) + head[12:] + data

    def frame(self) -> bytes:
        """The frame."""
        tags = b"".join(struct.pack(">HH", 0x8100, tag) for tag in self.tags)
        kind = 0x0800 if self.version == 4 else 0x86DD
        return b"\x02" * 6 + b"\x04" * 6 + tags + struct.pack(">H", kind) + self.packet()


def parts_of(frame: bytes, size: int, name: int = 7) -> list[bytes]:
    """Return the fragments of a frame without tags, options and extensions, with ``size`` bytes at most."""
    head, packet = frame[:14], frame[14:]
    begin = 20 if packet[0] >> 4 == 4 else 40
    data, parts = packet[begin:], []
    for at in range(0, len(data), size):
        piece, more = data[at : at + size], at + size < len(data)
        if begin == 20:
            shape = struct.pack(">HHH", 20 + len(piece), name, more << 13 | at >> 3)
            start = packet[:2] + shape + packet[8:10] + b"\0\0" + packet[12:20]
            start = start[:10] + struct.pack(">H", ones_sum(start)) + start[12:]
        else:
            length = struct.pack(">HBB", 8 + len(piece), 44, packet[7])
            start = packet[:4] + length + packet[8:40]
            start += struct.pack(">BBHI", packet[6], 0, at | more, name)
        parts.append(head + start + piece)
    return parts


@dataclass(frozen=True)
class Read:
    """What a well-formed frame says."""

    source: str
    target: str
    source_port: int
    target_port: int
    protocol: int
    flags: int
    payload: bytes
    sums_right: bool


def read(frame: bytes) -> Read:
    """Read a frame of TCP, UDP or an ICMP echo; ``sums_right`` is whether all checksums are."""
    at = 14
    while frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    return read_packet(frame[at:])


def read_packet(packet: bytes) -> Read:
    """The same of a packet of IP."""
    right = True
    if packet[0] >> 4 == 4:
        size = (packet[0] & 15) * 4
        right = ones_sum(packet[:size]) == 0
        protocol, total = packet[9], struct.unpack(">H", packet[2:4])[0]
        source, target = packet[12:16], packet[16:20]
    else:
        size, protocol, total = 40, packet[6], 40 + struct.unpack(">H", packet[4:6])[0]
        source, target = packet[8:24], packet[24:40]
        while protocol in (0, 43, 44, 60):
            protocol, size = packet[size], size + (8 if protocol == 44 else 8 * (packet[size + 1] + 1))
    data = packet[size:total]
    pseudo = b""
    if protocol in (TCP, UDP) or len(source) == 16:
        pseudo = source + target + struct.pack(">II", len(data), protocol)
    if not (protocol == UDP and data[6:8] == b"\0\0"):
        right = right and ones_sum(pseudo + data) == 0
    source_port, other = struct.unpack(">HH", data[:4])
    flags, payload = 0, data[8:]
    if protocol == TCP:
        flags, payload = data[13], data[(data[12] >> 4) * 4 :]
    elif protocol != UDP:
        source_port, other = (
            (struct.unpack(">H", data[4:6])[0], 0)
            if data[0] in (8, 128)
            else (0, struct.unpack(">H", data[4:6])[0])
        )
    ends = (str(ipaddress.ip_address(source)), str(ipaddress.ip_address(target)))
    return Read(*ends, source_port, other, protocol, flags, payload, right)
