"""Typed channels over streams: a sender and a receiver of values of one type (thesis §9.1.1, Listing 9.1).

A stream has one writer and one reader, and so has a channel. ``docs/libraries.md`` describes the ways to give
an end to a task.

Values are those of MessagePack, and records of them (``msgspec.Struct``, dataclasses). Received values are
never executed, and the reader checks them against the type, because any task may be the writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Generic, Self, TypeVar

import msgspec

from dios.client.session import expect
from dios.client.sync.node import Node, Reference, Stream
from dios.errors import DiosError, EndOfStreamError, InvalidError, ProtocolError
from dios.wire import messages
from dios.wire.types import Permission

T = TypeVar("T")


def channel(node: Node, item: type[T], *, ring_bytes: int = 0) -> tuple[Sender[T], Receiver[T]]:
    """Create a channel for values of type ``item``; return its two ends, to use here or to give to tasks.

    ``ring_bytes`` (0: the node's default) bounds the bytes in transit; ``send`` waits above that.
    """
    with node.create_stream(ring_bytes=ring_bytes) as stream:
        # Each reference has one right: when nobody can send any more, the receiver learns of it.
        return Sender(_narrowed(node, stream, Permission.WRITE), item), Receiver(
            _narrowed(node, stream, Permission.READ), item
        )


def _narrowed(node: Node, stream: Stream, right: Permission) -> Stream:
    """Return a second reference of this task with one right, and the right to delegate it."""
    call = messages.Copy(stream.ref, node.self.ref, int(right | Permission.DELEGATE))
    (answer,) = node.vector([call])
    if isinstance(answer, DiosError):
        raise answer
    narrowed = node.handle(expect(messages.References, answer).references[0])
    if not isinstance(narrowed, Stream):
        raise ProtocolError("the node returned an object that is not a stream")
    return narrowed


class End(Generic[T]):
    """The common part of both ends. A ``with`` body closes the end."""

    __slots__ = ("item", "stream", "used")

    def __init__(self, stream: Stream, item: type[T]) -> None:
        self.stream: Final = stream
        self.item: Final = item
        self.used = False
        """Return True if this process has attached the end; then it cannot be given to a task."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {_name_of(self.item)} {self.stream.fingerprint}>"

    def close(self) -> None:
        """Close this end: the other side can still receive everything that was sent."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sender(End[T]):
    """The sending end."""

    __slots__ = ()

    def send(self, value: T, timeout: float | None = None) -> None:
        """Send one value; wait while there is no room. TimeLimitError after ``timeout`` seconds.

        Raises ClosedError if the receiver is closed, InvalidError for a value that cannot be encoded.
        """
        data = encode(value)
        self.used = True
        self.stream.send(data, timeout)


class Receiver(End[T]):
    """The receiving end; iterating yields values until the sender is closed."""

    __slots__ = ()

    def receive(self, timeout: float | None = None) -> T:
        """Wait for the next value and return it; TimeLimitError after ``timeout`` seconds.

        Raises EndOfStreamError if the sender is closed and everything was received, ProtocolError for bytes
        that are not a value of the channel's type.
        """
        self.used = True
        return decode(self.stream.receive(timeout), self.item)

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                yield self.receive()
        except EndOfStreamError:
            return


def select(node: Node, receivers: Sequence[Receiver[T]], timeout: float | None = None) -> Receiver[T] | None:
    """Return the first of ``receivers`` with a value or a closed sender; None after ``timeout`` seconds.

    To wait for tasks, timers and blobs as well, give ``node.select`` the ``stream`` of the ends.
    """
    by_stream: dict[Reference, Receiver[T]] = {}
    for receiver in receivers:
        receiver.used = True
        by_stream[receiver.stream] = receiver
    ready = node.select(list(by_stream), timeout=timeout)
    return None if ready is None else by_stream[ready]


def encode(value: object) -> bytes:
    """Return the encoded value; InvalidError if MessagePack cannot encode it."""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError) as error:
        raise InvalidError(f"cannot send this {type(value).__name__} to another task: {error}") from None


def decode(data: bytes, item: type[T]) -> T:
    """Return a decoded value, checked against its type; raises ProtocolError."""
    try:
        return msgspec.msgpack.decode(data, type=item)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the received bytes are not a {_name_of(item)}: {error}") from None


def _name_of(item: type[T]) -> str:
    # A list[int] has no name.
    return getattr(item, "__name__", str(item))
