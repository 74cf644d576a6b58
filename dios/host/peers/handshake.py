"""The first messages of a connection between nodes: identities, protocol versions, the connection's purpose.

Certificates were checked before (``dios.transport.tcp.tls``).
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ProtocolError, UnreachableError
from dios.host.peers.connection_protocols import NodeDescription, PeerConnection
from dios.wire.codec import DCP_VERSION
from dios.wire.dcp import PeerHello
from dios.wire.dcp_frames import (
    OLDEST_VERSION,
    Channel,
    decode_channel,
    decode_frame,
    encode_channel,
    encode_frame,
    version_with,
)

CONTROL: Final = 0
HEADS: Final = 2**32 - 1
"""The channel of a connection on which a node is sent the heads of its audit log."""


class ReceivedHello(NamedTuple):
    """The other node's first message and the frames received after it."""

    hello: PeerHello
    rest: list[bytes]


def hello_of(me: NodeDescription, channel: int = CONTROL) -> PeerHello:
    """Return this node's first message."""
    return PeerHello(OLDEST_VERSION, DCP_VERSION, me.node, me.epoch, me.name, me.rack, me.address, channel)


def send_hello(
    line: PeerConnection, me: NodeDescription, channel: int = CONTROL, purpose: Channel | None = None
) -> None:
    """Send the first frame, and on a data connection the second frame."""
    line.send_nowait(encode_frame(hello_of(me, channel)))
    if purpose is not None:
        line.send_nowait(encode_channel(purpose))


async def receive_hello(line: PeerConnection) -> ReceivedHello:
    """Wait for the other node's first frame and check it against its certificate.

    Raise ProtocolError if the frame is not the hello of this peer, and UnreachableError if the connection
    ended or nothing arrived within HELLO_MS_MAX.
    """
    bodies: list[bytes] = []
    with trio.move_on_after(limits.HELLO_MS_MAX / 1000):
        bodies = await line.receive()
    if not bodies:
        raise UnreachableError(f"node {line.peer.name} sent no hello")
    hello, _ = decode_frame(bodies[0])
    if not isinstance(hello, PeerHello):
        raise ProtocolError(f"the first message was a {type(hello).__name__} instead of a hello")
    if hello.node != line.peer.node or hello.name != line.peer.name:
        raise ProtocolError(
            f"the hello has the name {hello.name}, but the certificate has the name {line.peer.name}"
        )
    return ReceivedHello(hello, bodies[1:])


def check_version(hello: PeerHello) -> None:
    """Raise ProtocolError unless both nodes support a common protocol version."""
    version_with(hello)


async def receive_purpose(line: PeerConnection, opened: ReceivedHello) -> Channel:
    """Wait for the second frame of a data connection. Raise ProtocolError or UnreachableError."""
    bodies = opened.rest
    if not bodies:
        with trio.move_on_after(limits.HELLO_MS_MAX / 1000):
            bodies = await line.receive()
    if not bodies:
        raise UnreachableError(f"node {line.peer.name} did not send the purpose of a data connection")
    if len(bodies) > 1:
        raise ProtocolError("frames arrived on a data connection before it was accepted")
    return decode_channel(bodies[0])


def jittered_s(wait_ms: int) -> float:
    """Return a random time in seconds from half of ``wait_ms`` to all of it; nodes then do not act alike."""
    return (wait_ms / 2 + secrets.randbelow(wait_ms * 500 + 1) / 1000) / 1000
