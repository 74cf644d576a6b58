"""Announcements of nodes on the local network, and the reception of other nodes' announcements.

An announcement is a hint where to connect. It is signed with the node's key, and proves only that a member
made it at some time. The TLS handshake then proves who answers (``dios.transport.tcp.tls``). It needs no
secret of the cluster: a node that was away for long is heard, and one that was removed is not.

It has no time. Clocks may differ by an hour, so a window would be hours wide and would exclude nobody; and
a datagram that is repeated later costs one connection to a former address of a node. Announcements are
never answered, so this port reveals nothing to strangers and amplifies nothing; datagrams of other clusters
are ignored. A flood only stops the reception here: one datagram is read per ANNOUNCE_PAUSE_MS, and gossip
still finds the nodes.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from random import random
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import trio
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct

from dios import limits
from dios.ids import NodeId
from dios.transport.identity.certificates import key_digest

_log: Final = logging.getLogger(__name__)
_MAGIC: Final = b"DIOS here 2\0"
_CLUSTER_BYTES: Final = 8
_SIGNATURE_BYTES: Final = 64
GROUP: Final = "239.255.68.105"
"""The destination of announcements: a site-local multicast address (RFC 2365), one hop away."""


class _Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    node: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    address: Annotated[str, Meta(min_length=1, max_length=limits.NODE_ADDRESS_CHARS_MAX)]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Body)


class AnnouncedNode(NamedTuple):
    """The announced node: its cluster, its key, and its address."""

    cluster: bytes
    """SHA-256 of the root's certificate."""
    key: Ed25519PrivateKey
    node: NodeId
    address: str

    def __repr__(self) -> str:
        return f"AnnouncedNode({self.node:016x}, {self.address!r})"


IsMember: TypeAlias = Callable[[NodeId, bytes], bool]
"""Returns True if a node with this id, whose public key has this SHA-256, is known and was not removed."""


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
    body = _Body(voice.node, voice.address, voice.key.public_key().public_bytes_raw())
    signed = _MAGIC + voice.cluster[:_CLUSTER_BYTES] + _encoder.encode(body)
    return signed + voice.key.sign(signed)


def decode(datagram: bytes, cluster: bytes, is_member: IsMember) -> ReceivedAnnouncement | None:
    """Return the announcement in a datagram; None if it is malformed, altered, or not of a known member."""
    start = _MAGIC + cluster[:_CLUSTER_BYTES]
    if len(datagram) > limits.ANNOUNCE_BYTES_MAX or not datagram.startswith(start):
        return None
    signed, signature = datagram[:-_SIGNATURE_BYTES], datagram[-_SIGNATURE_BYTES:]
    try:
        body = _decoder.decode(signed[len(start) :])
        key = Ed25519PublicKey.from_public_bytes(body.key)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, ValueError):
        return None
    if not is_member(NodeId(body.node), key_digest(key)):
        return None
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return None
    return ReceivedAnnouncement(NodeId(body.node), body.address)


async def announce(
    voice: AnnouncedNode,
    is_member: IsMember,
    heard: Callable[[ReceivedAnnouncement], None],
    place: MulticastNetwork | None = None,
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
            await _listen(sock, voice, is_member, heard)


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
    sock: trio.socket.SocketType,
    voice: AnnouncedNode,
    is_member: IsMember,
    heard: Callable[[ReceivedAnnouncement], None],
) -> None:
    while True:
        try:
            datagram = await sock.recv(limits.ANNOUNCE_BYTES_MAX + 1)
        except OSError as error:
            _log.debug("an announcement was not received", extra={"why": str(error)})
        else:
            announcement = decode(datagram, voice.cluster, is_member)
            if announcement is not None and announcement.node != voice.node:
                heard(announcement)
        # A flood of this port gets a constant share of this process.
        await trio.sleep(limits.ANNOUNCE_PAUSE_MS / 1000)
