"""The frames on a lane between a session and its gateway; their form is that of ``dios.lib.executor.frames``.

A lane carries one request at a time. The session sends REQUEST, any number of BODY, and END or ABORT. The
gateway sends RESPONSE and any number of DATA, and ends with DONE; or it ends with FAILED at any time. A
session that needs no more of an answer sends ABORT, and reads up to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from dios.errors import EndOfStreamError, ProtocolError, TimeLimitError
from dios.lib.executor import frames
from dios.limits import KIB, MIB
from dios.transport.rings.waiting import RingReader, RingWriter
from dios.wire.types import RequestEnd

LANES: Final = 4
"""The requests of a session at the same time; further ones wait."""
LANE_BYTES: Final = 128 * KIB
PART_BYTES: Final = 32 * KIB
"""The bytes of a body in one frame, at most."""
HEAD_BYTES_MAX: Final = 256 * KIB
"""The bytes of the status and the headers of an answer; a request may have a quarter of this."""
HEADERS_MAX: Final = 100
REQUEST_BYTES_MAX: Final = 64 * MIB
RESPONSE_BYTES_MAX: Final = 1024 * MIB
"""The bytes of the bodies."""
IDLE_S: Final = 60.0
"""A server that moves no byte for this time is given up."""
REQUEST_S: Final = 900.0
"""The whole time of a request."""
POLL_S: Final = 0.25
"""The seconds after which a side that waits checks again if the other side has ended."""

REQUEST: Final = 1
BODY: Final = 2
END: Final = 3
ABORT: Final = 4
RESPONSE: Final = 5
DATA: Final = 6
DONE: Final = 7
FAILED: Final = 8

_FRAME_BYTES_MAX: Final = 2 * HEAD_BYTES_MAX

Header = tuple[str, str]


def request_label(lane: int) -> str:
    """Return the label of the stream to the gateway. Names of inputs do not begin with a dot."""
    return f".lane{lane}.requests"


def response_label(lane: int) -> str:
    """Return the label of the stream from the gateway."""
    return f".lane{lane}.responses"


class RequestHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request: the place of its origin, and what HTTP has before the body.

    ``length`` are the bytes of the body; None if they are not known before it ends.
    """

    origin: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    method: str
    target: str
    headers: list[Header]
    length: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] | None = 0


class AnswerHead(msgspec.Struct, frozen=True, array_like=True):
    """An answer before its body. ``length`` is what the server said of it, None for an unknown one."""

    status: int
    reason: str
    headers: list[Header]
    length: int | None


class RequestFailure(msgspec.Struct, frozen=True, array_like=True):
    """The reason for a request without a complete answer."""

    end: RequestEnd
    message: str


class Lane:
    """One side of a lane: the frames that come and go. One thread at a time uses it."""

    def __init__(self, reader: RingReader, writer: RingWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self._buffer: Final = frames.FrameBuffer(_FRAME_BYTES_MAX)
        self._here: Final[deque[tuple[int, bytes]]] = deque()

    def send(self, kind: int, body: bytes = b"") -> None:
        """Send a frame; wait while there is no room. Raise ClosedError if the other side has ended."""
        self._writer.write(frames.frame(kind, body))

    def receive(self, check: Callable[[], None] | None = None) -> tuple[int, bytes]:
        """Return the next frame; ``check`` is called again and again while none is here.

        Raises EndOfStreamError or ClosedError if the other side has ended, ProtocolError for a frame that is
        too long.
        """
        while not self._here:
            try:
                self._read(None if check is None else POLL_S)
            except TimeLimitError:
                if check is not None:
                    check()
        return self._here.popleft()

    def peek(self) -> int:
        """Return the kind of the next frame, or 0 if none is here; it does not wait."""
        if not self._here:
            try:
                self._read(0)
            except (TimeLimitError, EndOfStreamError):
                return 0  # an end is found by the one who waits for the next frame
        return self._here[0][0] if self._here else 0

    def _read(self, timeout_s: float | None) -> None:
        for kind, body in self._buffer.feed(self._reader.read(0, timeout_s)):
            self._here.append((kind, bytes(body)))


_requests: Final = msgspec.msgpack.Decoder(RequestHead)
_responses: Final = msgspec.msgpack.Decoder(AnswerHead)
_failures: Final = msgspec.msgpack.Decoder(RequestFailure)
encode: Final = msgspec.msgpack.encode


def decode_request(body: bytes) -> RequestHead:
    """Return a request. Raise ProtocolError for bytes that are none."""
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"it is no request: {error}") from None


def decode_response(body: bytes) -> AnswerHead:
    """Return the head of an answer, which the gateway has checked."""
    return _responses.decode(body)


def decode_failure(body: bytes) -> RequestFailure:
    """Return the reason of a failure."""
    return _failures.decode(body)
