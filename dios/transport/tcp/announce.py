"""Announcements of nodes on the local network, and the reception of other nodes' announcements.

An announcement is a hint where to connect, and proves only that a holder of the cluster's secret made it at
some time. The TLS handshake then proves who answers (``dios.transport.tcp.tls``).

It has no time. Clocks may differ by an hour, so a window would be hours wide and would exclude nobody; and
a datagram that is repeated later costs one connection to a former address of a node. Announcements are
never answered, so this port reveals nothing to strangers and amplifies nothing; datagrams of other clusters
are ignored. A flood only stops the reception here: one datagram is read per ANNOUNCE_PAUSE_MS, and gossip
still finds the nodes.
"""

from __future__ import annotations

import hmac
import logging
import socket
from collections.abc import Callable
from random import random
from typing import Annotated, Final, NamedTuple

import msgspec
import trio
from blake3 import blake3
from msgspec import Meta, Struct

from dios import limits
from dios.ids import NodeId

_log: Final = logging.getLogger(__name__)
_MAGIC: Final = b"DIOS here 1\0"
_CONTEXT: Final = "dios 2026 announcements of nodes on a local network"
_CLUSTER_BYTES: Final = 8
_MAC_BYTES: Final = 16
GROUP: Final = "239.255.68.105"
"""The destination of announcements: a site-local multicast address (RFC 2365), one hop away."""


class _Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    node: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    address: Annotated[str, Meta(min_length=1, max_length=limits.NODE_ADDRESS_CHARS_MAX)]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Body)


class AnnouncedNode(NamedTuple):
    """The announced node: its cluster, its address, and the secret of the cluster."""

    cluster: bytes
    """SHA-256 of the root's certificate."""
    secret: bytes
    node: NodeId
    address: str

    def __repr__(self) -> str:
        return f"AnnouncedNode({self.node:016x}, {self.address!r})"


class ReceivedAnnouncement(NamedTuple):
    """A node that announced itself."""

    node: NodeId
    address: str


class MulticastNetwork(NamedTuple):
    """The network for announcements: a multicast group, its port, and optionally this machine's address."""

    group: str = GROUP
    port: int = limits.ANNOUNCE_PORT
    interface: str = "0.0.0.0"  # noqa: S104 - means that the system chooses, nothing is bound to it


def encode(voice: AnnouncedNode) -> bytes:
    """Return the datagram that announces this node; at most ANNOUNCE_BYTES_MAX bytes."""
    signed = _MAGIC + voice.cluster[:_CLUSTER_BYTES] + _encoder.encode(_Body(voice.node, voice.address))
    return signed + _seal(voice.secret, signed)


def decode(datagram: bytes, cluster: bytes, secret: bytes) -> ReceivedAnnouncement | None:
    """Return the announcement in a datagram; None if it is malformed, altered, or of another cluster."""
    start = _MAGIC + cluster[:_CLUSTER_BYTES]
    if len(datagram) > limits.ANNOUNCE_BYTES_MAX or not datagram.startswith(start):
        return None
    signed, seal = datagram[:-_MAC_BYTES], datagram[-_MAC_BYTES:]
    if not hmac.compare_digest(seal, _seal(secret, signed)):
        return None
    try:
        body = _decoder.decode(signed[len(start) :])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    return ReceivedAnnouncement(NodeId(body.node), body.address)


def _seal(secret: bytes, signed: bytes) -> bytes:
    key = blake3(secret, derive_key_context=_CONTEXT).digest()
    return blake3(signed, key=key).digest(_MAC_BYTES)


async def announce(
    voice: AnnouncedNode, heard: Callable[[ReceivedAnnouncement], None], place: MulticastNetwork | None = None
) -> None:
    """Announce this node every ANNOUNCE_PERIOD_MS, and call ``heard`` for each announcement of another.

    Runs until cancelled. The same node is reported again and again; the caller must bound the number of its
    connections. Raises OSError if there is no multicast on that network; a network that disappears for a
    while is tried again.
    """
    place = place or MulticastNetwork()
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # Several nodes of one machine receive at the same port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        here = socket.inet_aton(place.interface)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
        joined = socket.inet_aton(place.group) + here
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        # Bound to the group's address, so that no unicast datagrams are received.
        await sock.bind((place.group, place.port))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_speak, sock, voice, place)
            await _listen(sock, voice, heard)


async def _speak(sock: trio.socket.SocketType, voice: AnnouncedNode, place: MulticastNetwork) -> None:
    datagram = encode(voice)
    failed = False
    while True:
        try:
            await sock.sendto(datagram, (place.group, place.port))
            failed = False
        except OSError as error:
            if not failed:
                _log.warning("this node cannot announce itself", extra={"why": str(error)})
            failed = True
        # A random period, so that nodes that were started together do not announce together for ever.
        await trio.sleep(limits.ANNOUNCE_PERIOD_MS / 1000 * (0.5 + random()))  # noqa: S311 - no secret


async def _listen(
    sock: trio.socket.SocketType, voice: AnnouncedNode, heard: Callable[[ReceivedAnnouncement], None]
) -> None:
    while True:
        try:
            datagram = await sock.recv(limits.ANNOUNCE_BYTES_MAX + 1)
        except OSError as error:
            _log.debug("an announcement was not received", extra={"why": str(error)})
        else:
            announcement = decode(datagram, voice.cluster, voice.secret)
            if announcement is not None and announcement.node != voice.node:
                heard(announcement)
        # A flood of this port gets a constant share of this process.
        await trio.sleep(limits.ANNOUNCE_PAUSE_MS / 1000)
