"""Results as bytes: plain values quickly, all others in the closed format of ``results``.

A result comes from a sandbox. It is a pickle only if the caller trusts the workers. ``call_pickles`` has the
other direction.
"""

from __future__ import annotations

import enum
import io
import pickle
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from dios.lib.executor.blobs import Part, aligned
from dios.lib.executor.call_pickles import CallPickler
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.main_module import ProcessMain
from dios.lib.executor.results.reader import (
    BUFFERS_MAX,
    read_nested,
    read_plain,
    read_plain_tuple,
    read_value,
)
from dios.lib.executor.results.writer import nested_body, plain_body, write_value

_PARTS: Final = b"r"
"""The first byte of a result with parts."""
_MESSAGE_ALIGNMENT: Final = 16
"""The place of each part in a message is a multiple of this."""
STORED_BYTES_MIN: Final = 1024 * 1024
"""A result over this size stays in a blob on the node of its worker until the caller asks for it."""

_SIZE: Final = struct.Struct("<Q")
_LEAST_SIZES: Final = 2
"""A result with parts has a kind and the size of its body."""


class ResultKind(enum.IntEnum):
    """The form of a result's body."""

    PLAIN = 0
    """A scalar, or a list of scalars, in MessagePack."""
    PICKLE = 1
    """A pickle, for callers who trust the workers."""
    CLOSED = 2
    """A value in the closed format of ``results``."""
    TUPLE = 3
    """A tuple of scalars, as PLAIN has them as a list."""
    BYTES = 4
    """One ``bytes`` object."""
    NESTED = 5
    """A small value of nested lists, tuples and dictionaries of scalars, in MessagePack."""


_KINDS: Final = {kind.value: kind for kind in ResultKind}
_PREFIXES: Final = {
    ResultKind.PLAIN: b"m",
    ResultKind.TUPLE: b"t",
    ResultKind.BYTES: b"b",
    ResultKind.NESTED: b"n",
}
"""The first byte of a result without parts, by its kind."""
_READERS: Final[dict[ResultKind, Callable[[memoryview | bytes], object]]] = {
    ResultKind.PLAIN: read_plain,
    ResultKind.TUPLE: read_plain_tuple,
    ResultKind.BYTES: bytes,
    ResultKind.NESTED: read_nested,
}
"""The function that reads the body of a result without parts, by its kind."""
_READER_OF_PREFIX: Final = {prefix[0]: _READERS[kind] for kind, prefix in _PREFIXES.items()}


class Encoded(NamedTuple):
    """A result as its parts: the body, and the buffers that it needs."""

    kind: ResultKind
    body: bytes | memoryview
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.body) + sum(map(len, self.buffers))

    def joined(self) -> bytes:
        """Return the result as the body of a message."""
        if self.kind in _PREFIXES:
            return _PREFIXES[self.kind] + self.body
        end = len(_PARTS)
        parts: list[Part] = [_PARTS]
        for part in self.parts():
            parts += (bytes(_message_place(end) - end), part)
            end = _message_place(end) + len(part)
        return b"".join(parts)

    def parts(self) -> list[Part]:
        """Return the result as the parts of a blob; ``taken_apart`` reads them."""
        sizes = [self.kind, len(self.body), *map(len, self.buffers)]
        return [b"".join(map(_SIZE.pack, (len(sizes), *sizes))), self.body, *self.buffers]


def _message_place(end: int) -> int:
    """Return the next place at which a part of a message may begin."""
    return -(-end // _MESSAGE_ALIGNMENT) * _MESSAGE_ALIGNMENT


def taken_apart(view: memoryview, place: Callable[[int], int] = aligned) -> Encoded:
    """Return the result in the bytes of a blob; with another function for the places, in other bytes.

    Raises UntrustedResultError if the bytes are not those of a result.
    """
    count = _SIZE.unpack_from(view)[0] if len(view) >= _SIZE.size else 0
    end = (1 + count) * _SIZE.size
    if _LEAST_SIZES <= count <= _LEAST_SIZES + BUFFERS_MAX and end <= len(view):
        kind, *sizes = view[_SIZE.size : end].cast("Q")
        parts = []
        for size in sizes:
            start = place(end)
            end = start + size
            parts.append(view[start:end])
        if kind in _KINDS and end == len(view):
            return Encoded(_KINDS[kind], parts[0], parts[1:])
    raise UntrustedResultError("the bytes of the result are not those of a result: call the function again")


def encode_parts(value: object, *, trust: bool = False) -> Encoded:
    """Return a result as parts, in a worker. Raise whatever the parts raise when they are taken apart.

    With ``trust`` the caller loads it as a pickle of any classes. Raises UntrustedResultError for a value
    that the caller would refuse, or that would change on its way.
    """
    if type(value) is bytes:
        return Encoded(ResultKind.BYTES, value, [])
    plain = plain_body(value)
    if plain is not None:
        return Encoded(ResultKind.TUPLE if type(value) is tuple else ResultKind.PLAIN, plain, [])
    nested = nested_body(value)
    if nested is not None:
        return Encoded(ResultKind.NESTED, nested, [])
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()

    def stays(buffer: pickle.PickleBuffer) -> bool:
        if len(buffers) >= BUFFERS_MAX:
            return True
        buffers.append(buffer)
        return False

    try:
        if not trust:
            return Encoded(ResultKind.CLOSED, *write_value(value))
        CallPickler(file, stays, ProcessMain()).dump(value)
    except SystemExit as error:
        # It would end the worker, and is the error of this call alone.
        raise TypeError(
            "the result cannot be sent: an object of it ended the program when it was reduced"
        ) from error
    return Encoded(ResultKind.PICKLE, file.getvalue(), [buffer.raw() for buffer in buffers])


def encode_result(value: object, *, trust: bool = False) -> bytes:
    """Return a result as the body of a message."""
    return encode_parts(value, trust=trust).joined()


def decode_result(data: bytes | bytearray, *, trust: bool, deadline: float | None = None) -> object:
    """Return a result, in its caller. Raises UntrustedResultError for what a worker may not send.

    Arrays use the memory of ``data``, and are writable if it is. Raises DecodeTimeoutError after
    ``deadline``, a time of ``time.monotonic``; a pickle is not interrupted.
    """
    view = memoryview(data)
    reader = _READER_OF_PREFIX.get(data[0]) if data else None
    if reader is not None:
        return reader(view[1:])
    if data[:1] != _PARTS:
        raise UntrustedResultError("the result begins with unknown bytes: call the function again")
    # Places count from the first byte of the message.
    return _decoded(taken_apart(view[_MESSAGE_ALIGNMENT:], _message_place), trust, deadline)


def decode_bytes(data: bytes | bytearray) -> bytes:
    """Return a result that is bytes. Raise UntrustedResultError for others, of which nothing is decoded."""
    if data[:1] != _PREFIXES[ResultKind.BYTES]:
        raise UntrustedResultError("the result is something else than bytes")
    return bytes(memoryview(data)[1:])


def decode_stored(view: memoryview, *, trust: bool, deadline: float | None = None) -> object:
    """Return the result in a blob; the same errors. Arrays use the memory of the blob."""
    return _decoded(taken_apart(view), trust, deadline)


def _decoded(encoded: Encoded, trust: bool, deadline: float | None) -> object:  # noqa: FBT001 - the caller's
    kind, body, buffers = encoded
    if kind is ResultKind.CLOSED:
        return read_value(body, buffers, deadline)
    if kind in _READERS:
        return _READERS[kind](body)
    if not trust:
        raise UntrustedResultError(
            "the result is a pickle, which a caller does not load from a sandboxed worker. Make the executor "
            "with trust=True if you trust the code that ran"
        )
    return pickle.loads(body, buffers=buffers)  # noqa: S301 - the caller said that it trusts the code
