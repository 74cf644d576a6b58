"""The frames between nodes, and the bytes that are sent next to messages.

The control connection carries frames, each with one ``Envelope``: a message and few bytes next to it. More
bytes than DCP_INLINE_BYTES_MAX, and a message too long for a frame, use a data connection. There a
*transfer* is a head of fixed length, the message and its bytes. It arrives completely or not at all.
``dios.wire.dcp`` has the messages, ``dios.transport.tcp.tls`` the connections.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import ProtocolError
from dios.wire import dcp
from dios.wire.codec import DCP_VERSION
from dios.wire.earlier_forms import earlier_form
from dios.wire.fields import Identifier
from dios.wire.mandates import RegisterBytes

OLDEST_VERSION: Final = 3
"""The oldest version of the messages that this node speaks.

A node of version 2 would start a task without the devices that it asks for, because it ignores fields that
it does not know, and would end the connection at the first task that has moved.
"""

_LENGTH: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"dtr2"
HEAD_BYTES: Final = _HEAD.size


class Revoked(Struct, frozen=True, array_like=True, tag=50):
    """A member's signed statement about removed nodes (``dios.transport.identity.statements``).

    Each node first sends those that it believes, and later each that is new to it.
    """

    statement: Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)]


class Resting(Struct, frozen=True, array_like=True, tag=51):
    """The sender closes this connection because nothing was sent on it for a while. Both nodes live."""


class Continuing(Struct, frozen=True, array_like=True, tag=52):
    """The sender replaces its program if ``begins``, and its streams wait; otherwise it does not after all.

    It is the same start of the node when it connects again. Version CONTINUING_VERSION and later.
    """

    begins: bool


CONTINUING_VERSION: Final = 5
"""The first version in which a stream goes on over another connection."""


class AuditHeads(Struct, frozen=True, array_like=True, tag=53):
    """Signed heads of the sender's audit log, and those of the receiver's log that the sender keeps.

    Version HEADS_VERSION and later. It is also the only message on a connection for heads, where it has all
    heads of the connecting node that the accepting node keeps.
    """

    lines: Annotated[
        tuple[Annotated[str, Meta(max_length=limits.AUDIT_HEAD_BYTES_MAX)], ...],
        Meta(max_length=limits.AUDIT_HEADS_KEPT_MAX),
    ]


HEADS_VERSION: Final = 7
"""The first version in which nodes keep each other's audit heads."""


class Principals(Struct, frozen=True, array_like=True, tag=54):
    """The register of enrolled principals that the sender has stored (``dios.wire.mandates``).

    Each node sends it first, and again when it has a newer one. Version MANDATES_VERSION and later.
    """

    register: RegisterBytes


class LaterSecrets(Struct, frozen=True, array_like=True, tag=55):
    """The later secrets of the cluster that the sender has stored (``dios.transport.identity.generations``).

    Each node sends it first, and again when it has newer ones, except to nodes from which it is withheld.
    Version GENERATIONS_VERSION and later.
    """

    document: Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)]

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"LaterSecrets({len(self.document)} bytes)"


Control: TypeAlias = Revoked | Resting | Continuing | AuditHeads | Principals | LaterSecrets
"""The messages between hosts, which the core does not see."""


class Envelope(Struct, frozen=True, array_like=True):
    """The content of a frame: a message, and the bytes next to it, if there are few."""

    message: dcp.Message | Control
    beside: Annotated[bytes, Meta(max_length=limits.DCP_INLINE_BYTES_MAX)] | None = None


class Channel(Struct, frozen=True, array_like=True):
    """The second frame on a data connection: the purpose of the connection.

    ``stream`` 0 is for transfers to the accepting node. Otherwise the connection carries the stream whose
    end was attached by the request with that number, of the connecting node; ``writes`` is true if that node
    sends the bytes.
    """

    stream: Identifier = 0
    writes: bool = False


class Head(NamedTuple):
    """The beginning of a transfer: the size of the message, and the number of bytes next to it."""

    message_bytes: int
    size: int


_encode: Final = msgspec.msgpack.Encoder().encode
_envelopes: Final = msgspec.msgpack.Decoder(Envelope)
_channels: Final = msgspec.msgpack.Decoder(Channel)
_MALFORMED: Final = (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError)


def encode_frame(
    message: dcp.Message | Control, beside: bytes | None = None, version: int = DCP_VERSION
) -> bytes:
    """Return a frame with its length, as a node understands it that speaks this version of the messages.

    The caller checks it against DCP_FRAME_BYTES_MAX.
    """
    known = message if version >= dcp.TIME_VERSION else earlier_form(message)
    body = _encode((known,)) if beside is None else _encode((known, beside))
    return _LENGTH.pack(len(body)) + body


def decode_frame(body: bytes | bytearray | memoryview) -> tuple[dcp.Message | Control, bytes | None]:
    """Validate the body of one frame; return its message and the bytes next to it.

    Raises ProtocolError.
    """
    try:
        envelope = _envelopes.decode(body)
    except _MALFORMED as error:
        raise ProtocolError(f"malformed message of another node: {error}") from None
    return envelope.message, envelope.beside


def encode_channel(channel: Channel) -> bytes:
    """Return the frame that gives the purpose of a data connection."""
    body = _encode(channel)
    return _LENGTH.pack(len(body)) + body


def decode_channel(body: bytes | bytearray | memoryview) -> Channel:
    """Validate the frame that gives the purpose of a data connection; raises ProtocolError."""
    try:
        return _channels.decode(body)
    except _MALFORMED as error:
        raise ProtocolError(f"malformed beginning of a data connection: {error}") from None


def encode_head(head: Head) -> bytes:
    """Return the head of a transfer as it is sent."""
    return _HEAD.pack(_MAGIC, head.message_bytes, head.size)


def decode_head(head: bytes | bytearray | memoryview) -> Head:
    """Validate the head of a transfer; raises ProtocolError."""
    magic, message_bytes, size = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise ProtocolError("a data connection carries bytes that are not a transfer")
    if message_bytes > limits.DCP_MESSAGE_BYTES_MAX or size > limits.DCP_RECEIVING_BYTES_MAX:
        raise ProtocolError(f"a transfer of {message_bytes} and {size} bytes is over the limit")
    if not message_bytes:
        raise ProtocolError("a transfer of bytes without a message")
    return Head(message_bytes, size)


def version_with(hello: dcp.PeerHello) -> int:
    """Return the version of the protocol to speak with a peer; ProtocolError if there is no common one."""
    newest = min(DCP_VERSION, hello.newest)
    if newest < max(OLDEST_VERSION, hello.oldest):
        older = hello.name if hello.newest < DCP_VERSION else "this node"
        raise ProtocolError(
            f"no common protocol version between nodes: this node speaks {OLDEST_VERSION} to {DCP_VERSION}, "
            f"{hello.name} {hello.oldest} to {hello.newest}. Update {older}, which has an older release."
        )
    return newest
