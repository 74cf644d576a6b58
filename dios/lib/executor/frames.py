"""Frames of the two streams between an executor and a worker.

A frame is its length and its kind, one byte, and a body. Both sides read whatever bytes are here and cut
them into frames, so that neither waits in the middle of one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias, TypeVar

from dios.errors import ProtocolError
from dios.limits import MIB, STREAM_MESSAGE_BYTES_MAX

T = TypeVar("T")

Function: TypeAlias = Callable[..., T]  # type: ignore[explicit-any]
"""A function of any arguments, which the caller of an executor chooses."""

RESULT_BYTES_MAX: Final = 256 * MIB
"""The longest frame of a worker. The caller keeps at most one incomplete frame of each worker in memory."""

_HEAD: Final = struct.Struct("<IB")
_NUMBER: Final = struct.Struct("<Q")

FUNCTION: Final = 1
"""To a worker: the number of a function, and its pickle."""
CALL: Final = 2
"""To a worker: the number of a call, that of its function, and the arguments."""
FORGET: Final = 3
"""To a worker: the number of a function that is not called any more."""
MODULES: Final = 4
"""To a worker: archives of packages, in MessagePack."""
INITIALIZER: Final = 5
"""To a worker: the pickle of the initializer and its arguments."""
RESULT: Final = 6
"""From a worker: the number of a call, and its value."""
EXCEPTION: Final = 7
"""From a worker: the number of a call, and the exception that left it."""
BROKEN: Final = 8
"""From a worker, before it is ready: the exception that left its initializer."""
READY: Final = 9
"""From a worker, before its first call: it has started, and its initializer has run."""
OUTPUT: Final = 10
"""From a worker: bytes that a call printed."""
CALL_ONCE: Final = 11
"""To a worker: the number of a call, the length of its function's pickle, this pickle, and the arguments."""
SUBMIT: Final = 12
"""From a worker: its number for a nested call, and the rest of CALL_ONCE."""
WAITING: Final = 13
"""From a worker: its call waits for nested calls; the number of NESTED and ANSWER frames that it has read."""
RETURNED: Final = 14
"""From a worker whose call waits: the number of a call that it has not begun and gives back."""
NESTED: Final = 15
"""To a worker: a nested call, in the form of CALL_ONCE. It is made at once, above a call that waits."""
ANSWER: Final = 16
"""To a worker: its number for a nested call, one of the outcomes below as a byte, and what belongs to it."""

RETURNS: Final = 0
"""The outcome of a nested call that returned: the result follows."""
RAISES: Final = 1
"""The outcome of a nested call that raised: the exception follows."""
LOST: Final = 2
"""The outcome of a nested call whose worker ended: the reason follows as text."""
REFUSED: Final = 3
"""The outcome of a nested call over a bound: the reason follows as text."""

NESTED_CALLS_MAX: Final = 10_000
"""Nested calls of one worker that are not answered."""

NESTED_BYTES_MAX: Final = 256 * MIB
"""The bytes of these calls, and those of results that the worker has not read."""

NESTED_DEPTH_MAX: Final = 256
"""Calls that wait for nested calls in one worker."""
WANTED: Final = 20
"""From a worker: the object ids of blobs that its call needs, in MessagePack."""
BLANK: Final = 21
"""From a worker: its call has a large result and needs a blob for it."""
STORED: Final = 22
"""From a worker: the number of a call, and the object id of the blob with its result."""
UNREADABLE: Final = 23
"""From a worker: the number of a call that has a result of another call, which it cannot load."""
DROPPED: Final = 24
"""To a worker: the object ids of blobs that are not used any more, in MessagePack."""

TRACED: Final = 25
"""To a worker: the context of the call that comes next, as the text of ``traceparent``."""
SCRIPT: Final = 26
"""To a worker: the script of the program, which is run as the main module."""
DEFINE: Final = 27
"""To a worker: the value of a name of the main module."""
ENVIRONMENT: Final = 28
"""To a worker, first of all: variables of its environment."""


def frame(kind: int, *parts: bytes | memoryview, bytes_max: int = STREAM_MESSAGE_BYTES_MAX) -> bytes:
    """Return one frame. Raise ``OverflowError`` if its body is over ``bytes_max``."""
    size = sum(map(len, parts))
    if size > bytes_max:
        raise OverflowError(f"{size:,} bytes are over {bytes_max:,} for one call or result; divide the data")
    return b"".join((_HEAD.pack(size, kind), *parts))


def number(value: int) -> bytes:
    """Return the number of a call or function as it stands at the beginning of a body."""
    return _NUMBER.pack(value)


def numbered(body: memoryview) -> tuple[int, memoryview]:
    """Return the number at the beginning of a body, and the rest. Raise ``ProtocolError`` if it is short."""
    if len(body) < _NUMBER.size:
        raise ProtocolError(f"a frame of {len(body)} bytes has no number")
    return _NUMBER.unpack_from(body)[0], body[_NUMBER.size :]


class FrameBuffer:
    """Received bytes that are not yet complete frames, at most ``bytes_max`` for one frame."""

    __slots__ = ("_bytes_max", "_data", "_wanted")

    def __init__(self, bytes_max: int = STREAM_MESSAGE_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._data = bytearray()
        self._wanted = _HEAD.size

    def feed(self, data: bytes | bytearray) -> Iterator[tuple[int, memoryview]]:
        """Add bytes, and yield the kind and body of each frame that is complete.

        Take all of the frames before the next call. Raise ``ProtocolError`` for a frame that is too long.
        """
        if self._data:
            self._data += data
            if len(self._data) < self._wanted:
                return
            data, self._data = self._data, bytearray()
        view = memoryview(data)
        place = 0
        while len(view) - place >= _HEAD.size:
            size, kind = _HEAD.unpack_from(view, place)
            if size > self._bytes_max:
                raise ProtocolError(f"a frame of {size} bytes is over {self._bytes_max}")
            end = place + _HEAD.size + size
            if end > len(view):
                self._wanted = end - place
                break
            yield kind, view[place + _HEAD.size : end]
            place = end
        else:
            self._wanted = _HEAD.size
        self._data += view[place:]
