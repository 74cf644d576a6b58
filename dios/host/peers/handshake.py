"""How connections between nodes begin: who says what first, and whether the two understand each other.

Not for: certificates, which were checked before (``dios.transport.tcp.tls``), or which of two connections
stays.
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ProtocolError, UnreachableError
from dios.host.peers.connection_protocols import Line, Myself
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


class Opened(NamedTuple):
    """What the other node said first, and the frames that came right behind it."""

    hello: PeerHello
    rest: list[bytes]


def hello_of(me: Myself, channel: int = CONTROL) -> PeerHello:
    """What this node says first."""
    return PeerHello(OLDEST_VERSION, DCP_VERSION, me.node, me.epoch, me.name, me.rack, me.address, channel)


def say_hello(line: Line, me: Myself, channel: int = CONTROL, purpose: Channel | None = None) -> None:
    """Send the first frame, and on a data connection the second."""
    line.send_nowait(encode_frame(hello_of(me, channel)))
    if purpose is not None:
        line.send_nowait(encode_channel(purpose))


async def hear_hello(line: Line) -> Opened:
    """Wait for the other's first frame and check it against its certificate.

    Raises ProtocolError for what is no hello of this peer, UnreachableError when the other ended the
    connection or says nothing within HELLO_MS_MAX.
    """
    bodies: list[bytes] = []
    with trio.move_on_after(limits.HELLO_MS_MAX / 1000):
        bodies = await line.receive()
    if not bodies:
        raise UnreachableError(f"{line.peer.name} did not say hello")
    hello, _ = decode_frame(bodies[0])
    if not isinstance(hello, PeerHello):
        raise ProtocolError(f"the first message was a {type(hello).__name__} and no hello")
    if hello.node != line.peer.node or hello.name != line.peer.name:
        raise ProtocolError(f"a hello in the name of {hello.name}, with the certificate of {line.peer.name}")
    if hello.epoch < 0 or hello.channel < 0:
        raise ProtocolError("a hello with a negative epoch or channel")
    return Opened(hello, bodies[1:])


def check_version(hello: PeerHello) -> None:
    """Refuse who speaks no version of ours; raises ProtocolError."""
    version_with(hello)


async def hear_purpose(line: Line, opened: Opened) -> Channel:
    """The second frame on a data connection; raises ProtocolError, UnreachableError."""
    bodies = opened.rest
    if not bodies:
        with trio.move_on_after(limits.HELLO_MS_MAX / 1000):
            bodies = await line.receive()
    if not bodies:
        raise UnreachableError(f"{line.peer.name} did not say what a connection is for")
    if len(bodies) > 1:
        raise ProtocolError("more was said on a data connection before it was accepted")
    return decode_channel(bodies[0])


def jittered_s(wait_ms: int) -> float:
    """Between half of it and all of it, in seconds, so that nodes which wait alike do not act alike."""
    return (wait_ms / 2 + secrets.randbelow(wait_ms * 500 + 1) / 1000) / 1000
