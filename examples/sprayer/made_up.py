"""A small file of generated packets: connections from inside to a web server, and its answers.

It is used by ``nat.py`` and ``count.py`` and is not run itself.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from dios.sprayer import INSIDE, OUTSIDE
from dios.sprayer.pcap import PcapWriter, read_pcap

CLIENTS = ("10.0.0.5", "10.0.0.6", "10.0.0.7")
SERVER = "203.0.113.9"
SYN, ACK = 2, 16


def frame(source: str, source_port: int, target: str, target_port: int, flags: int) -> bytes:
    """Return Ethernet, IPv4 and TCP headers without payload, with checksums."""
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    tcp = struct.pack(">HHIIBBHHH", source_port, target_port, 1, 1, 5 << 4, flags, 1000, 0, 0)
    tcp = tcp[:16] + checksum(ends + struct.pack(">HH", 6, len(tcp)) + tcp) + tcp[18:]
    head = struct.pack(">BBHHHBBH", 4 << 4 | 5, 0, 20 + len(tcp), 1, 0, 64, 6, 0) + ends
    return bytes(12) + b"\x08\0" + head[:10] + checksum(head) + head[12:] + tcp


def checksum(data: bytes) -> bytes:
    """Return the Internet checksum."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", total ^ 0xFFFF)


def ends(data: bytes) -> tuple[str, int, str, int]:
    """Return source and target of a frame."""
    ports = struct.unpack(">HH", data[34:38])
    return socket.inet_ntoa(data[26:30]), ports[0], socket.inet_ntoa(data[30:34]), ports[1]


def side(data: bytes) -> int:
    """Return the side of a frame: sources that begin with 10 are inside."""
    return INSIDE if data[26] == 10 else OUTSIDE


def write(path: Path, frames: list[bytes]) -> None:
    """Write frames to a file, one millisecond apart."""
    with path.open("wb") as file:
        writer = PcapWriter(file)
        for number, data in enumerate(frames):
            writer.write(10**9 + number * 10**6, data)


def read(path: Path) -> list[bytes]:
    """Return the frames of a file."""
    with path.open("rb") as file:
        return [record.data for record in read_pcap(file, str(path))]
