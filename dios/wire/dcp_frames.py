"""How messages between nodes are framed, and how bytes go beside them.

Not for: what they say (``dios.wire.dcp``), or connections (``dios.transport.tcp.tls``).

The control connection carries frames, each with one ``Envelope``: a message, and few bytes beside it. More
bytes than DCP_INLINE_BYTES_MAX, and a message too long for a frame, take a data connection: a *transfer* is
a head of fixed length, the message, its bytes, and a BLAKE3 of all three. It arrives as one, or not at all.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import ProtocolError
from dios.wire import dcp
from dios.wire.codec import DCP_VERSION

OLDEST_VERSION: Final = max(DCP_VERSION - 1, 1)
DIGEST_BYTES: Final = 32

_LENGTH: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"dtr1"
HEAD_BYTES: Final = _HEAD.size


class Revoked(Struct, frozen=True, array_like=True, tag=50):
    """Whose certificates are worth nothing: the list of ``dios.transport.identity.trust``, which only grows.

    Each node says it first, and again whenever it has grown.
    """

    list: Annotated[bytes, Meta(max_length=limits.TRUST_BYTES_MAX)]


class Envelope(Struct, frozen=True, array_like=True):
    """What a frame holds: a message, and the bytes that go beside it, if they are few."""

    message: dcp.Message | Revoked
    beside: bytes | None = None


class Channel(Struct, frozen=True, array_like=True):
    """The second frame on a data connection: what it is for.

    ``stream`` 0 is for transfers to the node that accepts it. Otherwise it carries the stream whose end
    the request of that number, of the node that dials, took over; ``writes`` when that node sends the bytes.
    """

    stream: int = 0
    writes: bool = False


class Head(NamedTuple):
    """The beginning of a transfer: bytes of the message, and bytes beside it."""

    message_bytes: int
    size: int


_encode: Final = msgspec.msgpack.Encoder().encode
_envelopes: Final = msgspec.msgpack.Decoder(Envelope)
_channels: Final = msgspec.msgpack.Decoder(Channel)
_MALFORMED: Final = (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError)


def encode_frame(message: dcp.Message | Revoked, beside: bytes | None = None) -> bytes:
    """One frame, length included; the caller looks whether it is over DCP_FRAME_BYTES_MAX."""
    body = _encode((message,)) if beside is None else _encode((message, beside))
    return _LENGTH.pack(len(body)) + body


def decode_frame(body: bytes | bytearray | memoryview) -> tuple[dcp.Message | Revoked, bytes | None]:
    """Validate one frame's body (without its length): its message, and the bytes beside it.

    Raises ProtocolError.
    """
    try:
        envelope = _envelopes.decode(body)
    except _MALFORMED as error:
        raise ProtocolError(f"malformed message of a node: {error}") from None
    if envelope.beside is not None and len(envelope.beside) > limits.DCP_INLINE_BYTES_MAX:
        raise ProtocolError(f"{len(envelope.beside)} bytes inside a frame of a node")
    return envelope.message, envelope.beside


def encode_channel(channel: Channel) -> bytes:
    """The frame that says what a data connection is for."""
    body = _encode(channel)
    return _LENGTH.pack(len(body)) + body


def decode_channel(body: bytes | bytearray | memoryview) -> Channel:
    """Validate it; raises ProtocolError."""
    try:
        return _channels.decode(body)
    except _MALFORMED as error:
        raise ProtocolError(f"malformed beginning of a data connection: {error}") from None


def encode_head(message_bytes: int, size: int) -> bytes:
    """The head of a transfer with a message of so many bytes, and ``size`` bytes beside it."""
    return _HEAD.pack(_MAGIC, message_bytes, size)


def decode_head(head: bytes | bytearray | memoryview) -> Head:
    """Validate a transfer's head; raises ProtocolError."""
    magic, message_bytes, size = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise ProtocolError("a data connection carries something else than transfers")
    if message_bytes > limits.DCP_MESSAGE_BYTES_MAX or size > limits.DCP_RECEIVING_BYTES_MAX:
        raise ProtocolError(f"a transfer of {message_bytes} and {size} bytes is over the limit")
    if not message_bytes:
        raise ProtocolError("a transfer of bytes without a message")
    return Head(message_bytes, size)


def version_with(hello: dcp.PeerHello) -> int:
    """The version of the protocol to speak with a peer; raises ProtocolError where there is none."""
    newest = min(DCP_VERSION, hello.newest)
    if newest < max(OLDEST_VERSION, hello.oldest):
        raise ProtocolError(
            f"this node speaks the versions {OLDEST_VERSION} to {DCP_VERSION} of the protocol between nodes, "
            f"{hello.name} {hello.oldest} to {hello.newest}; update the older one, one release at a time"
        )
    return newest
