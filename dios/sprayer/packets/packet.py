"""Packets as workers see them: descriptors, five-tuples, and one table of what happens to odd frames.

Not for: reading or changing bytes of frames (``parse_kernels.py``, ``rewrite_kernels.py``).

A descriptor (thesis section 3.2.3) holds the address of its frame and all that handlers ask for. Only
descriptors cross between cores. IPv4 addresses stand in 128 bits as ``::ffff:a.b.c.d``, in two halves.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

PACKET: Final = np.dtype(
    [
        ("address", "i8"),  # of the frame's first byte
        ("hash", "u8"),  # of the five-tuple, the same in both directions
        *((f"{end}_{half}", "u8") for end in ("source", "target") for half in ("high", "low")),
        ("length", "i4"),  # of the frame
        ("frame", "i4"),  # the engine's own number of it
        ("end", "i4"),  # of the IP packet in the frame; padding follows
        *((name, "u2") for name in ("network", "transport", "payload", "inner", "inner_transport")),
        ("source_port", "u2"),
        ("target_port", "u2"),
        *((name, "u1") for name in ("version", "protocol", "syn", "ack", "fin", "rst", "opens", "error")),
        *((name, "u1") for name in ("side", "home", "verdict", "cause")),
        ("room", "u2"),  # bytes of its place that may be used, from the frame's first byte on
        ("reserved", "u8"),
    ]
)
"""A descriptor: 96 bytes. Offsets (``network`` to ``inner_transport``) count from the frame's first byte."""


class Packet(Protocol):
    """What a handler reads of a packet; it is changed by ``drop`` and by ``set_source`` and the like only."""

    address: int
    hash: int
    source_high: int
    source_low: int
    target_high: int
    target_low: int
    length: int
    frame: int
    end: int
    network: int
    transport: int
    payload: int
    """Where what the transport protocol carries begins."""
    inner: int
    """Where the packet begins that an ICMP error is about, or 0."""
    inner_transport: int
    source_port: int
    """Of TCP and UDP. The identifier of an ICMP echo request, which a reply has as its target's."""
    target_port: int
    version: int
    """4 or 6."""
    protocol: int
    """6, 17, 1 or 58. An ICMP error has that of what it is about, as it has its flow, turned round."""
    syn: int
    ack: int
    fin: int
    rst: int
    opens: int
    """1 if a new flow may begin so: the first SYN of TCP, anything of UDP, an ICMP echo request."""
    error: int
    """1 for an ICMP error."""
    side: int
    """The interface that it came from: 0 is inside, 1 outside."""
    home: int
    """The core that received it."""
    verdict: int
    cause: int
    room: int
    """So long the frame may become; 0 where the engine does not say."""


class Kept(Protocol):
    """What is kept of a flow: the fields that a network function names in ``entry``."""

    def __getattr__(self, name: str) -> int: ...
    def __setattr__(self, name: str, value: int) -> None: ...


class Entries(Protocol):
    """An array of what is kept of flows."""

    def __getitem__(self, which: int, /) -> Kept: ...
    def __setitem__(self, which: int, entry: Kept, /) -> None: ...


class Batch(Protocol):
    """Packets in the order in which they came: an array of ``PACKET``."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Packet]: ...
    def __getitem__(self, which: int, /) -> Packet: ...


Packets = npt.NDArray[np.void]
"""The same for code that is no handler."""


class Flow(NamedTuple):
    """A five-tuple; numbers without a sign in 64 bits each, in compiled code."""

    source_high: int
    source_low: int
    target_high: int
    target_low: int
    source_port: int
    target_port: int
    protocol: int


INSIDE: Final = 0
OUTSIDE: Final = 1

FORWARD: Final = 0
DROP: Final = 1

# Why a frame is odd, or why a packet was dropped. The order is that of the names below.
FINE: Final = 0
TRUNCATED: Final = 1
TOO_LONG: Final = 2
TAGS: Final = 3
NOT_IP: Final = 4
BAD_VERSION: Final = 5
BAD_HEADER: Final = 6
FRAGMENT: Final = 7
EXTENSIONS: Final = 8
ROUTED: Final = 9
PROTOCOL: Final = 10
NEIGHBOUR: Final = 11
BAD_FLAGS: Final = 12
TO_ITSELF: Final = 13
RING_FULL: Final = 14
NOT_SENT: Final = 15
FUNCTION: Final = 16
NO_FLOW: Final = 17
NO_PORT: Final = 18
TABLE_FULL: Final = 19
REFUSED: Final = 20
NO_SERVER: Final = 21
NOT_KNOWN: Final = 22


class Cause(NamedTuple):
    """One row of the table: a name for counters, what it is, and what happens to such a frame."""

    name: str
    meaning: str
    stateful: int
    """``FORWARD`` or ``DROP`` where the function keeps flows. Whatever is forwarded so meets no handler."""
    stateless: int


CAUSES: Final = (
    Cause("fine", "a packet that handlers get", FORWARD, FORWARD),
    Cause("truncated", "a header, or the packet it promises, goes beyond the frame", DROP, DROP),
    Cause("too_long", "longer than 65,535 bytes", DROP, DROP),
    Cause("tags", "more than two VLAN tags", DROP, DROP),
    Cause("not_ip", "ARP and whatever else is neither IPv4 nor IPv6", FORWARD, FORWARD),
    Cause("bad_version", "the version in the header is not that of the frame", DROP, DROP),
    Cause("bad_header", "lengths in a header contradict each other", DROP, DROP),
    # Ports stand in the first fragment only, so its followers belong to no flow that could be looked up.
    Cause("fragment", "a part of a fragmented packet, or an error about one", DROP, FORWARD),
    Cause("extensions", "more extension headers of IPv6 than eight", DROP, DROP),
    Cause("routed", "a source route that is not at its end: addresses are not those of the flow", DROP, DROP),
    Cause("protocol", "neither TCP, UDP, ICMP echo nor an ICMP error", DROP, FORWARD),
    Cause("neighbour", "discovery of neighbours and groups of IPv6", FORWARD, FORWARD),
    Cause("bad_flags", "flags of TCP that no packet of a connection has", DROP, DROP),
    Cause("to_itself", "source and target are the same", DROP, DROP),
    Cause("ring_full", "no room on the way to its designated core", DROP, DROP),
    Cause("not_sent", "no room where it was to go out", DROP, DROP),
    Cause("function", "dropped by the function", DROP, DROP),
    Cause("no_flow", "of no flow that is known", DROP, DROP),
    Cause("no_port", "no port is left", DROP, DROP),
    Cause("table_full", "no room in the table of flows", DROP, DROP),
    Cause("refused", "not allowed by the function's rules", DROP, DROP),
    Cause("no_server", "nobody serves at the moment", DROP, DROP),
    Cause("not_known", "it stands for bytes that are not remembered here", DROP, DROP),
)


def rules(*, stateless: bool) -> npt.NDArray[np.uint8]:
    """What happens to a frame by cause: ``FORWARD`` or ``DROP``."""
    return np.array([cause.stateless if stateless else cause.stateful for cause in CAUSES], np.uint8)


def halves(address: str) -> tuple[int, int]:
    """An address of IPv4 or IPv6 as it stands in descriptors. ``ValueError`` if it is none."""
    found = ipaddress.ip_address(address)
    number = int(found) if found.version == 6 else 0xFFFF << 32 | int(found)
    return number >> 64, number & (2**64 - 1)


def address_of(high: int, low: int) -> str:
    """The reverse of :func:`halves`."""
    found = ipaddress.IPv6Address(int(high) << 64 | int(low))
    return str(found.ipv4_mapped or found)
