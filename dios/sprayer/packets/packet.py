"""Descriptors of packets, five-tuples, and the table of causes for which frames are dropped or passed on.

A descriptor (thesis section 3.2.3) has the address of its frame and all fields that handlers use. Only
descriptors move between cores. An IPv4 address is stored in 128 bits as ``::ffff:a.b.c.d``, in two halves.
Frames are read in ``parse.py`` and changed in ``rewrite.py``.
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
        ("room", "u2"),  # number of bytes of its place, from the first byte of the frame, that may be used
        *((name, "u1") for name in ("quic", "fragment")),
        ("slot", "u2"),  # where the bytes of a packet that waits are copied, from 1; 0 for the engine's place
        ("since", "u4"),  # when it began to wait, in seconds
    ]
)
"""A descriptor: 96 bytes. Offsets (``network`` to ``inner_transport``) count from the frame's first byte."""


class Packet(Protocol):
    """The fields of a packet for handlers; only ``drop``, ``set_source`` and the like change them."""

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
    """The offset of the transport protocol's payload."""
    inner: int
    """The offset of the packet that caused an ICMP error, or 0."""
    inner_transport: int
    source_port: int
    """The port of TCP and UDP. The identifier of an ICMP echo request; a reply has it as target port."""
    target_port: int
    version: int
    """4 or 6."""
    protocol: int
    """6, 17, 1 or 58. An ICMP error has the protocol, and the reversed flow, of the packet that caused it."""
    syn: int
    ack: int
    fin: int
    rst: int
    opens: int
    """1 if a packet may open a flow: the first SYN of TCP, any UDP packet, an ICMP echo request."""
    error: int
    """1 for an ICMP error."""
    side: int
    """The interface of arrival: 0 is inside, 1 outside."""
    home: int
    """The core that received it."""
    verdict: int
    cause: int
    room: int
    """The maximum length to which the frame may grow; 0 if the engine does not report it."""
    quic: int
    """0, ``QUIC_LONG`` or ``QUIC_SHORT``: the header of a packet of a function's ``quic_ports``."""
    fragment: int
    """0 for a whole packet, ``FIRST_PART`` or ``LATER_PART``; a later part has no transport header."""
    slot: int
    since: int


class Kept(Protocol):
    """The entry of a flow: the fields that a network function lists in ``entry``."""

    def __getattr__(self, name: str) -> int: ...
    def __setattr__(self, name: str, value: int) -> None: ...


class Entries(Protocol):
    """An array of flow entries."""

    def __getitem__(self, which: int, /) -> Kept: ...
    def __setitem__(self, which: int, entry: Kept, /) -> None: ...


class Batch(Protocol):
    """Packets in the order of their arrival: an array of ``PACKET``."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Packet]: ...
    def __getitem__(self, which: int, /) -> Packet: ...


Packets = npt.NDArray[np.void]
"""A batch, for code outside of handlers."""


class Flow(NamedTuple):
    """A five-tuple; in compiled code each field is an unsigned 64-bit integer."""

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
BACK: Final = 2
"""Send it out of the interface at which it came in."""
TO_CORE: Final = 3
"""Hand it over to ``connection_packets`` on the designated core of its flow."""
WAIT: Final = 4
"""Offer it to ``regular_packets`` of this core again, for a limited time."""
FIRST_PART: Final = 1
LATER_PART: Final = 2
HANDLE: Final = 2
"""In the table of causes: to the function's ``regular_packets``, with the cause."""

# The causes, in the order of ``CAUSES`` below.
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
SAME_ENDPOINTS: Final = 13
RING_FULL: Final = 14
NOT_SENT: Final = 15
FUNCTION: Final = 16
NO_FLOW: Final = 17
NO_PORT: Final = 18
TABLE_FULL: Final = 19
REFUSED: Final = 20
NO_SERVER: Final = 21
NOT_KNOWN: Final = 22
MAPPED: Final = 23
NO_ADDRESS: Final = 24
BAD_SUM: Final = 25
MATCHED: Final = 26
CHANGED: Final = 27
NOT_INSPECTED: Final = 28


class FrameCause(NamedTuple):
    """One row of the table: a name for counters, its meaning, and the verdict for such a frame."""

    name: str
    meaning: str
    stateful: int
    """``FORWARD`` or ``DROP`` for functions with flows. A frame that is forwarded so meets no handler."""
    stateless: int


CAUSES: Final = (
    FrameCause("fine", "a packet that handlers receive", FORWARD, FORWARD),
    FrameCause("truncated", "a header, or the length in it, goes beyond the end of the frame", DROP, DROP),
    FrameCause("too_long", "longer than 65,535 bytes", DROP, DROP),
    FrameCause("tags", "more than two VLAN tags", DROP, DROP),
    FrameCause("not_ip", "ARP and other frames that are neither IPv4 nor IPv6", FORWARD, FORWARD),
    FrameCause("bad_version", "the version in the IP header differs from that of the frame", DROP, DROP),
    FrameCause("bad_header", "lengths in a header contradict each other", DROP, DROP),
    # Only the first fragment has ports, so the flow of the other fragments is unknown.
    FrameCause("fragment", "a part of a fragmented packet, or an error about one", DROP, FORWARD),
    FrameCause("extensions", "more than eight IPv6 extension headers", DROP, DROP),
    FrameCause(
        "routed", "a source route that has not ended: its addresses are not those of the flow", DROP, DROP
    ),
    FrameCause("protocol", "neither TCP, UDP, an ICMP echo or timestamp, nor an ICMP error", DROP, FORWARD),
    FrameCause("neighbour", "neighbour and multicast discovery of IPv6", FORWARD, FORWARD),
    FrameCause("bad_flags", "TCP flags that no packet of a connection has", DROP, DROP),
    FrameCause("to_itself", "source and target are equal", DROP, DROP),
    FrameCause("ring_full", "the ring to its designated core is full", DROP, DROP),
    FrameCause("not_sent", "the outgoing interface had no room", DROP, DROP),
    FrameCause("function", "dropped by the function", DROP, DROP),
    FrameCause("no_flow", "of an unknown flow", DROP, DROP),
    FrameCause("no_port", "no port is free", DROP, DROP),
    FrameCause("table_full", "the flow table is full", DROP, DROP),
    FrameCause("refused", "not allowed by the function's rules", DROP, DROP),
    FrameCause("no_server", "no server is available", DROP, DROP),
    FrameCause("not_known", "a token for bytes that are not in the cache", DROP, DROP),
    # Its flow would be that of a packet of IPv4.
    FrameCause("mapped", "an IPv6 packet with an address of ::ffff:0:0/96", DROP, DROP),
    FrameCause("no_address", "the function has no address of the packet's version of IP", DROP, DROP),
    FrameCause(
        "bad_sum", "a wrong checksum, where the function must know what a receiver accepts", DROP, DROP
    ),
    FrameCause("matched", "it completes a pattern, or belongs to a connection that has one", DROP, DROP),
    FrameCause("changed", "other bytes than were sent before at the same place of a stream", DROP, DROP),
    FrameCause("not_inspected", "its bytes cannot be inspected: too far ahead, or no room", DROP, DROP),
)


def verdicts(*, stateless: bool, fragments: bool = False, protocols: bool = False) -> npt.NDArray[np.uint8]:
    """Return the verdict for a frame by cause: ``FORWARD`` or ``DROP``.

    It is ``HANDLE`` for fragments, and for packets of other protocols, if the function takes them.
    """
    rules = np.array([cause.stateless if stateless else cause.stateful for cause in CAUSES], np.uint8)
    if fragments:
        rules[FRAGMENT] = HANDLE
    if protocols:
        rules[PROTOCOL] = HANDLE
    return rules


def halves(address: str) -> tuple[int, int]:
    """Return an IPv4 or IPv6 address as two halves for descriptors; raise ``ValueError`` if it is invalid."""
    parsed = ipaddress.ip_address(address)
    number = int(parsed) if parsed.version == 6 else 0xFFFF << 32 | int(parsed)
    return number >> 64, number & (2**64 - 1)


def checked_address(address: str, version: int | None = None) -> str:
    """Return an address from which packets can come; raise ``ValueError`` if it is invalid or not one.

    With ``version`` the address must be of that version of IP.
    """
    parsed = ipaddress.ip_address(address)
    mapped = parsed.version == 6 and parsed.ipv4_mapped is not None
    if (
        mapped
        or parsed.is_unspecified
        or parsed.is_multicast
        or parsed.is_loopback
        or int(parsed) == 2**32 - 1
    ):
        kind = "an IPv4 address in the form of IPv6" if mapped else "no address of a host"
        raise ValueError(f"{address} is {kind}: packets cannot come from it. Give another address")
    if version is not None and parsed.version != version:
        raise ValueError(f"{address} is an address of IPv{parsed.version}; give one of IPv{version}")
    return str(parsed)


def address_of(high: int, low: int) -> str:
    """Return the text of an address; the reverse of :func:`halves`."""
    address = ipaddress.IPv6Address(int(high) << 64 | int(low))
    return str(address.ipv4_mapped or address)
