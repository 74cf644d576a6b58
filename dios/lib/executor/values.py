"""Results as bytes: plain values quickly, everything else as a pickle.

A result comes from a sandbox, so the caller loads it with ``trusted_results``, unless it trusts the workers.
``call_pickles`` has the other direction.
"""

from __future__ import annotations

import io
import pickle
import struct
from contextlib import suppress
from typing import Final, NamedTuple, cast

import msgspec

from dios.lib.executor.blobs import Part, aligned
from dios.lib.executor.call_pickles import CallPickler
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.main_module import ProcessMain
from dios.lib.executor.trusted_results import ResultPickler, load

_PLAIN: Final = b"m"
_PICKLE: Final = b"p"
STORED_BYTES_MIN: Final = 1024 * 1024
"""A result over this size stays in a blob on the node of its worker until the caller asks for it."""

_SIZE: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_LEAST_SIZES: Final = 2
"""A result in a blob has a kind and the size of its body."""

_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


class Encoded(NamedTuple):
    """A result as its parts: plain or a pickle, and the buffers of the pickle."""

    plain: bool
    body: bytes
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.body) + sum(map(len, self.buffers))

    def joined(self) -> bytes:
        """Return the result as the body of a message."""
        if self.plain:
            return _PLAIN + self.body
        sizes = b"".join(_SIZE.pack(len(buffer)) for buffer in self.buffers)
        return b"".join((_PICKLE, _COUNT.pack(len(self.buffers)), sizes, *self.buffers, self.body))

    def parts(self) -> list[Part]:
        """Return the result as the parts of a blob; ``taken_apart`` reads them."""
        sizes = [0 if self.plain else 1, len(self.body), *map(len, self.buffers)]
        return [b"".join(map(_SIZE.pack, (len(sizes), *sizes))), self.body, *self.buffers]


def taken_apart(view: memoryview) -> tuple[bool, memoryview, list[memoryview]]:
    """Return what ``Encoded`` has of the bytes of a blob. Raises UntrustedResultError if they do not fit."""
    sizes = []
    end = _SIZE.size
    with suppress(struct.error):
        count = _SIZE.unpack_from(view)[0]
        end = (1 + count) * _SIZE.size
        if count >= _LEAST_SIZES and end <= len(view):
            sizes = [_SIZE.unpack_from(view, (1 + number) * _SIZE.size)[0] for number in range(count)]
    parts = []
    for size in sizes[1:]:
        place = aligned(end)
        end = place + size
        parts.append(view[place:end])
    if not parts or end != len(view) or sizes[0] > 1:
        raise UntrustedResultError("the result is in a blob whose bytes are not those of a result")
    return not sizes[0], parts[0], parts[1:]


def encode_parts(value: object, *, trust: bool = False) -> Encoded:
    """Return a result as parts, in a worker. Raise whatever the pickling of its parts raises.

    With ``trust`` the caller loads it as a pickle of any classes.
    """
    kind = type(value)
    if kind in _SCALARS or (kind is list and _SCALARS.issuperset(map(type, cast("list[object]", value)))):
        try:
            return Encoded(plain=True, body=_pack(value), buffers=[])
        except (OverflowError, UnicodeEncodeError):
            pass
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    if trust:
        CallPickler(file, buffers.append, ProcessMain()).dump(value)
    else:
        ResultPickler(file, buffers).dump(value)
    return Encoded(plain=False, body=file.getvalue(), buffers=[buffer.raw() for buffer in buffers])


def encode_result(value: object, *, trust: bool = False) -> bytes:
    """Return a result as the body of a message."""
    return encode_parts(value, trust=trust).joined()


def decode_result(data: bytes | bytearray, *, trust: bool) -> object:
    """Return a result, in its caller. Raises UntrustedResultError for what a worker may not send.

    Arrays use the memory of ``data``, and are writable if it is.
    """
    view = memoryview(data)
    if data[:1] == _PLAIN:
        return _unpacked(view[1:])
    buffers = []
    try:
        count = _COUNT.unpack_from(view, 1)[0]
        place = 1 + _COUNT.size + count * _SIZE.size
        for index in range(count):
            size = _SIZE.unpack_from(view, 1 + _COUNT.size + index * _SIZE.size)[0]
            buffers.append(view[place : place + size])
            place += size
    except struct.error as error:
        raise UntrustedResultError(f"the result cannot be decoded: {error}") from None
    return _loaded(view[place:], buffers, trust=trust)


def decode_stored(view: memoryview, *, trust: bool) -> object:
    """Return the result in a blob; the same errors. Arrays use the memory of the blob."""
    plain, body, buffers = taken_apart(view)
    return _unpacked(body) if plain else _loaded(body, buffers, trust=trust)


def _unpacked(body: memoryview) -> object:
    try:
        return _unpack(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UntrustedResultError(f"the result cannot be decoded: {error}") from None


def _loaded(body: memoryview, buffers: list[memoryview], *, trust: bool) -> object:
    if trust:
        return pickle.loads(body, buffers=buffers)  # noqa: S301 - the caller said that it trusts the code
    return load(bytes(body), buffers)
