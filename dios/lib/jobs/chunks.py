"""Intermediate and output data of a job: columns of keys and values.

Everything is MessagePack (``docs/libraries.md``). A chunk is an array whose first element is its tag, then a
column of keys and a column of values, so that coding a million pairs is one call into C. Streams and objects
carry chunks; ``dios.lib.jobs.intake`` decides when they count.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple, TypeAlias, cast
from zlib import crc32

import msgspec

from dios.errors import InvalidError, ProtocolError
from dios.lib.decoding import decoded
from dios.limits import JOB_CHUNK_PAIRS, JOB_REDUCERS_MAX

Key: TypeAlias = Hashable
Value: TypeAlias = object
Table: TypeAlias = tuple[list[Key], list[Value]]
"""Keys and values in two lists of the same length."""

FORMAT: Final = 1


class Tag(enum.IntEnum):
    """The first element of every message on an intermediate stream."""

    OPEN = 0  # [0, format, mapper, attempt]
    PAIRS = 1  # [1, keys, values]
    END = 2  # [2, pairs]
    TUPLES = 3  # [3, keys, values]: each key was a tuple, which MessagePack encodes as a list


class Opening(NamedTuple):
    """The first message of a stream: the mapper and its attempt."""

    mapper: int
    attempt: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_decode_opening: Final = msgspec.msgpack.Decoder(tuple[int, int, int, int]).decode

_KEY_TYPES: Final = frozenset({bytes, str, int, float, bool, type(None), tuple})
_TAG_AT: Final = 1
"""Every message is an array of two to four elements: a header byte, then the tag as a small integer."""


def encode_open(mapper: int, attempt: int) -> bytes:
    """Return the first message of a mapper's stream."""
    return _encode((Tag.OPEN, FORMAT, mapper, attempt))


def encode_end(pairs: int) -> bytes:
    """Return the last message of a mapper's stream, which has had ``pairs`` pairs."""
    return _encode((Tag.END, pairs))


def encode_pairs(keys: Sequence[Key], values: Sequence[Value]) -> bytes:
    """Return one chunk of pairs.

    Keys are bytes, text, numbers, or tuples of these; values are those of MessagePack (None, booleans,
    numbers up to 64 bits, text, bytes, lists, maps). Raises InvalidError otherwise.
    """
    tag = Tag.TUPLES if keys and type(keys[0]) is tuple else Tag.PAIRS
    if keys and type(keys[0]) not in _KEY_TYPES:
        raise InvalidError(f"a key is bytes, text, a number or a tuple, not {type(keys[0]).__name__}")
    try:
        return _encode((tag, keys, values))
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidError(f"a key or value cannot be sent: {error}") from error


def tag_of(message: bytes) -> Tag:
    """Return the tag of a message, without decoding it."""
    try:
        return Tag(message[_TAG_AT])
    except (IndexError, ValueError):
        raise ProtocolError("a mapper sent a message that is not a chunk") from None


def decode_open(message: bytes) -> Opening:
    """Read an OPEN message; ProtocolError for another format."""
    failure = "a mapper sent a message that is not a chunk"
    tag, form, mapper, attempt = decoded(_decode_opening, message, failure, ProtocolError)
    if tag != Tag.OPEN or form != FORMAT:
        raise ProtocolError(f"a stream begins with tag {tag}, format {form}; expected 0 and {FORMAT}")
    return Opening(mapper, attempt)


def decode_pairs(message: bytes | memoryview) -> Table:
    """Read a PAIRS or TUPLES message; ProtocolError if its columns do not match."""
    try:
        tag, keys, values = cast("tuple[object, object, object]", _decode(message))
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a chunk of pairs is damaged: {error}") from error
    if tag not in {Tag.PAIRS, Tag.TUPLES}:
        raise ProtocolError(f"a chunk of pairs has tag {tag!r}")
    if not isinstance(keys, list) or not isinstance(values, list) or len(keys) != len(values):
        raise ProtocolError("a chunk's keys and values do not match")
    if tag == Tag.TUPLES:
        return [_as_tuple(key) for key in keys], values
    return keys, values


def _as_tuple(key: object) -> Key:
    if isinstance(key, list):
        return tuple(_as_tuple(part) for part in key)
    if isinstance(key, Hashable):
        return key
    raise ProtocolError("a chunk's key is a map")


# -- which reducer a key belongs to ------------------------------------------------------------------
def _text_hash(key: str) -> int:
    return crc32(key.encode())


def _any_hash(key: Key) -> int:
    try:
        return crc32(_encode(key))
    except (TypeError, OverflowError) as error:
        raise InvalidError(f"a key of type {type(key).__name__} cannot be sent: {error}") from error


def hash_of(key: Key) -> Callable[[Key], int]:
    """Return the hash function for keys like ``key``, which is equal in every process."""
    if type(key) is bytes:
        return cast("Callable[[Key], int]", crc32)
    if type(key) is str:
        return cast("Callable[[Key], int]", _text_hash)
    return _any_hash


def partition(keys: Sequence[Key], values: Sequence[Value], count: int) -> list[Table]:
    """Divide pairs among ``count`` reducers by the hash of their keys; the order in each part is kept.

    All keys of one job must be of one type, because equal keys of two types may have different hashes.
    """
    if count == 1 or not keys:
        return [(list(keys), list(values)), *(([], []) for _ in range(count - 1))]
    homes = _homes(keys, count)
    parts: list[Table] = []
    for reducer in range(count):
        chosen = homes.translate(bytes(home == reducer for home in range(256)))
        parts.append((list(compress(keys, chosen)), list(compress(values, chosen))))
    return parts


def _homes(keys: Sequence[Key], count: int) -> bytes:
    """Return the reducer of each key as one byte, from the hash's lowest byte if ``count`` divides 256."""
    if count > JOB_REDUCERS_MAX:
        raise InvalidError(f"a job has at most {JOB_REDUCERS_MAX} reducers, not {count}")
    try:
        hashes = array("L", map(hash_of(keys[0]), keys))
    except (TypeError, AttributeError) as error:
        raise InvalidError(f"all keys of a job must be of one type: {error}") from error
    if 256 % count == 0:
        low = hashes.tobytes()[:: hashes.itemsize] if _LITTLE else bytes(value & 255 for value in hashes)
        return low.translate(bytes(byte % count for byte in range(256)))
    return bytes(value % count for value in hashes)


_LITTLE: Final = array("H", [1]).tobytes()[0] == 1


def slices(keys: list[Key], values: list[Value], pairs: int = JOB_CHUNK_PAIRS) -> Iterator[bytes]:
    """Encode a table as chunks of at most ``pairs`` pairs each."""
    for start in range(0, len(keys), pairs):
        yield encode_pairs(keys[start : start + pairs], values[start : start + pairs])


# -- several chunks in one object ---------------------------------------------------------------------
LENGTH_BYTES: Final = 4


def framed(chunk: bytes) -> bytes:
    """Return a chunk with its length, as in spilled runs and output objects."""
    return len(chunk).to_bytes(LENGTH_BYTES, "little") + chunk


def unframed(view: memoryview) -> Iterator[memoryview]:
    """Yield the chunks of an object's bytes; ProtocolError if the last one is truncated."""
    place, end = 0, len(view)
    while place < end:
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(view[place:start], "little")
        if place > end:
            raise ProtocolError("a job's object ends inside a chunk")
        yield view[start:place]


def pairs_of(chunks: Iterable[bytes | memoryview]) -> Iterator[tuple[Key, Value]]:
    """Yield every pair of some chunks, in order."""
    for chunk in chunks:
        yield from zip(*decode_pairs(chunk), strict=True)


# -- the pairs of a mapper for all reducers -----------------------------------------------------------
_PLACE_BYTES: Final = 8
PART_HEADER_BYTES: Final = (JOB_REDUCERS_MAX + 1) * _PLACE_BYTES


def kept_part(sent: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the bytes of a kept part, in pieces: where each reducer's messages end, and the messages."""
    sections = [[framed(message) for message in messages] for messages in sent]
    place = PART_HEADER_BYTES
    places = [place]
    for section in sections:
        place += sum(map(len, section))
        places.append(place)
    header = b"".join(place.to_bytes(_PLACE_BYTES, "little") for place in places)
    return [header.ljust(PART_HEADER_BYTES, b"\0"), *(piece for section in sections for piece in section)]


def section_of(header: bytes, reducer: int) -> tuple[int, int]:
    """Return the place and the size of a reducer's messages in a kept part; ProtocolError if damaged."""
    start = reducer * _PLACE_BYTES
    place, end = (
        int.from_bytes(header[at : at + _PLACE_BYTES], "little") for at in (start, start + _PLACE_BYTES)
    )
    if not PART_HEADER_BYTES <= place <= end:
        raise ProtocolError("a kept part is damaged")
    return place, end - place
