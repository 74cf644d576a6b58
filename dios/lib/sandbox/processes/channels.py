"""The streams between one handle of a sandbox's owner and one program, seen from the owner.

The methods that wait are generators of ``dios.lib.sandbox.steps``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import msgspec

from dios.client.sync.node import Node, Reference, Task
from dios.errors import (
    ClosedError,
    DiosError,
    EndOfStreamError,
    InvalidError,
    ProtocolError,
    TimeLimitError,
)
from dios.lib.executor import frames
from dios.lib.sandbox.errors import ProgramDetachedError, SandboxEndedError
from dios.lib.sandbox.processes.records import (
    ORDER_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    RECORD,
    RECORD_BYTES_MAX,
    Control,
    Detached,
    Order,
    Record,
    Streams,
    decoded_record,
)
from dios.lib.sandbox.protocol import STDERR, STDOUT
from dios.lib.sandbox.steps import Steps, Wait, call, each_side_by_side, read, side_by_side
from dios.limits import KIB
from dios.transport.rings.waiting import RingReader, RingWriter
from dios.wire.types import NameKind, ObjectType

_CONTROL_RING_BYTES: Final = 4 * KIB
_STATUS_RING_BYTES: Final = RECORD_BYTES_MAX
_DATA_RING_BYTES: Final = 128 * KIB

_NAMES: Final = {STDOUT: "stdout", STDERR: "stderr"}

_LOST: Final = "the sandbox ended, or it sends no records any more"


class ProgramOutput(NamedTuple):
    """A piece of the output of a program: "stdout" or "stderr", and bytes."""

    stream: str
    data: bytes


class Channel:
    """The four streams of one handle."""

    def __init__(self, opened: list[Reference], ends: tuple[object, object, object, object]) -> None:
        self._opened: Final = opened
        self.control: Final = cast("RingWriter", ends[0])
        self.status: Final = cast("RingReader", ends[1])
        self.input: Final = cast("RingWriter", ends[2])
        self.output: Final = cast("RingReader", ends[3])
        self._sending: Final = threading.Lock()
        self._has_left = False
        self._records: Final = frames.FrameBuffer(RECORD_BYTES_MAX)
        self._outputs: Final = frames.FrameBuffer(OUTPUT_BYTES_MAX)
        self._received: Final[list[Record]] = []
        self._parts: Final[list[ProgramOutput]] = []

    def record(self, timeout_s: float | None) -> Steps[Record]:
        """Wait for the next record. Raise TimeLimitError, SandboxEndedError or ProgramDetachedError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._received:
            try:
                data = yield from read(self.status, _left(deadline))
            except (EndOfStreamError, ClosedError):
                raise SandboxEndedError(_LOST) from None
            for kind, body in self._records.feed(data):
                if kind != RECORD:
                    raise ProtocolError(f"the sandbox sent a frame of kind {kind}, which is no record")
                self._received.append(decoded_record(body))
        record = self._received.pop(0)
        if isinstance(record, Detached):
            raise ProgramDetachedError("another handle has attached itself to the program")
        return record

    def part(self, timeout_s: float | None) -> Steps[ProgramOutput | None]:
        """Wait for the next piece of output, and return it; None at its end. Raise TimeLimitError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._parts:
            try:
                data = yield from read(self.output, _left(deadline))
            except (EndOfStreamError, ClosedError):
                return None
            for kind, body in self._outputs.feed(data):
                if kind not in _NAMES:
                    raise ProtocolError(f"the sandbox sent output of the stream {kind}, which does not exist")
                self._parts.append(ProgramOutput(_NAMES[kind], bytes(body)))
        return self._parts.pop(0)

    @property
    def has_part(self) -> bool:
        """Return True if a piece of output can be read without waiting for the sandbox."""
        return bool(self._parts)

    def send(self, control: Control, timeout_s: float) -> Steps[None]:
        """Send an order about the program, also while others send some.

        Raise ClosedError if the sandbox reads no more, TimeLimitError if it does not read for ``timeout_s``.
        """
        frame = frames.frame(RECORD, msgspec.msgpack.encode(control))
        deadline = time.monotonic() + timeout_s
        while not self._sent(frame):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeLimitError("the sandbox does not read the orders about the program")
            yield Wait((self.control,), left)

    def _sent(self, frame: bytes) -> bool:
        with self._sending:
            if self._has_left:
                raise ClosedError("the handle of the program was closed")
            if not self.control.peer_closed and self.control.room < len(frame):
                return False
            self.control.write(frame, 0)
            return True

    def leave(self) -> Steps[None]:
        """Close the stream of orders. The sandbox then closes the others, so that nobody waits for them."""
        with self._sending:
            has_left, self._has_left = self._has_left, True
        if not has_left:
            control = self._opened.pop(0)
            control.detach()
            with contextlib.suppress(DiosError):
                yield from call(control.close_op())

    def close(self) -> Steps[None]:
        """Close the streams; a second call does nothing."""
        yield from self.leave()
        opened, self._opened[:] = list(self._opened), []
        for reference in opened:
            reference.detach()
        with contextlib.suppress(DiosError):
            yield from each_side_by_side([reference.close_op() for reference in opened])


def open_channel(node: Node, task: Task, order_of: Callable[[Streams], Order]) -> Steps[Channel]:
    """Give an order to the session of a sandbox, and return the channel for it.

    Raise InvalidError for an order that is too large, and the errors of delegation.
    """
    opened: list[Reference] = []
    sizes = (_CONTROL_RING_BYTES, _STATUS_RING_BYTES, _DATA_RING_BYTES, _DATA_RING_BYTES)
    try:
        created = yield from side_by_side(
            [node.create_stream_op(ring_bytes=size) for size in sizes], opened.append
        )
        control, status, source, target = created
        names = Streams(*(stream.fingerprint for stream in (control, status, source, target)))
        order = _encoded(order_of(names))
        blob = yield from call(node.create_op(ObjectType.SHMEM_BLOB, data=order, naming=NameKind.ANONYMOUS))
        opened.append(blob)
        ends = yield from side_by_side(
            [control.writer_op(), status.reader_op(), source.writer_op(), target.reader_op()]
        )
        yield from side_by_side(
            [
                control.delegate_op(task, "read"),
                status.delegate_op(task, "write"),
                source.delegate_op(task, "read"),
                target.delegate_op(task, "write"),
                # The last one: the session then has the others.
                blob.delegate_op(task, "read"),
            ]
        )
        channel = Channel(opened, (ends[0], ends[1], ends[2], ends[3]))
    except GeneratorExit:
        raise
    except BaseException:
        for reference in opened:
            reference.detach()
        with contextlib.suppress(DiosError):
            yield from each_side_by_side([reference.close_op() for reference in opened])
        raise
    return channel


def _encoded(order: Order) -> bytes:
    try:
        data = msgspec.msgpack.encode(order)
    except UnicodeEncodeError as error:
        raise InvalidError(f"a text cannot be sent, because UTF-8 has no such character: {error}") from None
    if len(data) > ORDER_BYTES_MAX:
        raise InvalidError(f"the arguments have {len(data):,} bytes, over {ORDER_BYTES_MAX:,}")
    return data


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
