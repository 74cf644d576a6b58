"""Framing and the strict codec: bytes to validated messages and back.

A frame is a 4-byte little-endian length and that number of bytes of MessagePack. A frame that is not valid
ends the connection of its sender, with an error that names the fault.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from dios import limits
from dios.errors import ProtocolError
from dios.wire import dcp
from dios.wire.fields import TraceSpan
from dios.wire.messages import AnyCall, AnyResult, Reply, Request, SelfEvent, TaskRow

PROTOCOL_VERSION: Final = 1
DCP_VERSION: Final = 8
"""The version of the messages between nodes; ``dios.wire.dcp_frames`` has the oldest one that is spoken."""
TABLES_VERSION: Final = 4
"""The first version in which a node may read tables of another one."""
ADMISSION_VERSION: Final = 6
"""The first version in which a node enforces quotas."""
MANDATES_VERSION: Final = 8
"""The first version in which nodes exchange the register of principals and mandates of users."""
GENERATIONS_VERSION: Final = 8
"""The first version in which nodes exchange the generations of the cluster's secret."""

_LENGTH: Final = struct.Struct("<I")
_pack_length: Final = _LENGTH.pack
_unpack_length: Final = _LENGTH.unpack_from

_encoder: Final = msgspec.msgpack.Encoder()
_encode: Final = _encoder.encode
_request_decoder: Final = msgspec.msgpack.Decoder(Request)
_reply_decoder: Final = msgspec.msgpack.Decoder(Reply)
_event_decoder: Final[msgspec.msgpack.Decoder[SelfEvent]] = msgspec.msgpack.Decoder(SelfEvent)
_message_decoder: Final[msgspec.msgpack.Decoder[dcp.Message]] = msgspec.msgpack.Decoder(dcp.Message)
_status_decoder: Final = msgspec.msgpack.Decoder(TaskRow)


def encode_request(seq: int, call: AnyCall, trace: bytes | None = None) -> bytes:
    """Return the frame of a request; raise ProtocolError when it is over the limit."""
    # Without a trace, the frame is that of earlier releases, which accept no further field.
    body = _encode((seq, call) if trace is None else (seq, call, trace))
    if len(body) > limits.FRAME_BYTES_MAX:
        raise ProtocolError(f"a request of {len(body)} bytes is over {limits.FRAME_BYTES_MAX}")
    return _pack_length(len(body)) + body


def encode_reply(seq: int, result: AnyResult, spans: tuple[TraceSpan, ...] = ()) -> bytes:
    """Return the frame of a reply."""
    body = _encode((seq, result, spans) if spans else (seq, result))
    return _pack_length(len(body)) + body


def decode_request(body: bytes | bytearray | memoryview) -> Request:
    """Validate the body of a request, without its length."""
    try:
        return _request_decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed request: {error}") from None


def decode_reply(body: bytes | bytearray | memoryview) -> Reply:
    """Validate the body of a reply, without its length."""
    try:
        return _reply_decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed reply: {error}") from None


def encode_event(event: SelfEvent) -> bytes:
    """Encode an event that a task reads from its self-reference."""
    return _encode(event)


def decode_event(body: bytes) -> SelfEvent:
    """Decode an event that a task read from its self-reference."""
    return _event_decoder.decode(body)


def encode_status(row: TaskRow) -> bytes:
    """Encode the status record that a task reads from a TASK reference."""
    return _encode(row)


def decode_status(body: bytes) -> TaskRow:
    """Decode the status record of a TASK."""
    return _status_decoder.decode(body)


def encode_message(message: dcp.Message) -> bytes:
    """Encode a message to another node, without a length."""
    return _encode(message)


def decode_message(body: bytes | bytearray | memoryview) -> dcp.Message:
    """Validate a message of another node."""
    try:
        return _message_decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed message of another node: {error}") from None


class FrameSplitter:
    """Cuts a byte stream into frame bodies; keeps at most one unfinished frame."""

    def __init__(self, limit: int = limits.FRAME_BYTES_MAX) -> None:
        self._limit: Final = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take ``data`` and return the bodies that it completes; ProtocolError for a frame over the limit."""
        if not self._buffer and len(data) >= 4:
            # The common case: exactly one whole frame, no copy into the buffer.
            (length,) = _unpack_length(data)
            if length == len(data) - 4 and length <= self._limit:
                return [data[4:]]
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        start = 0
        with memoryview(buffer) as view:
            while len(view) - start >= 4:
                (length,) = _unpack_length(view, start)
                if length > self._limit:
                    raise ProtocolError(f"a frame of {length} bytes is over the limit of {self._limit}")
                end = start + 4 + length
                if len(view) < end:
                    break
                bodies.append(bytes(view[start + 4 : end]))
                start = end
        if start:
            del buffer[:start]
        return bodies

    @property
    def pending(self) -> int:
        """Return the number of bytes of the unfinished frame."""
        return len(self._buffer)

    @property
    def unfinished(self) -> bytes:
        """Return the bytes of the unfinished frame, with which another splitter can go on."""
        return bytes(self._buffer)
