"""Typed channels over streams: a sender and a receiver of values of one type (thesis §9.1.1, Listing 9.1).

Not for: bytes as they are (``Node.create_stream``), or several readers of one channel: a stream has one
writer and one reader. ``docs/libraries.md`` tells how tasks come by an end.

Values are what MessagePack holds, and records (``msgspec.Struct``, dataclasses) of such. Nothing that comes
in is ever executed: the reader checks it against the type, since the writer may be anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import msgspec

from dios.client.session import expect
from dios.client.sync.node import Node, Reference, Stream
from dios.errors import DiosError, EndOfStreamError, InvalidError, ProtocolError
from dios.wire import messages
from dios.wire.types import Permission

T = TypeVar("T")


def channel(node: Node, item: type[T], *, ring_bytes: int = 0) -> tuple[Sender[T], Receiver[T]]:
    """Make a channel for values of type ``item``; its two ends are to be used here or handed to tasks.

    ``ring_bytes`` (0: the node's default) bound what was sent and not yet received: over it, ``send`` waits.
    """
    with node.create_stream(ring_bytes=ring_bytes) as stream:
        # Each end can only be that end: once nobody can send any more, the receiver learns of it.
        return Sender(_narrowed(node, stream, Permission.WRITE), item), Receiver(
            _narrowed(node, stream, Permission.READ), item
        )


def _narrowed(node: Node, stream: Stream, right: Permission) -> Stream:
    """A second reference of this task with one right, and that to hand it on."""
    call = messages.Copy(stream.ref, node.self.ref, int(right | Permission.DELEGATE))
    (answer,) = node.vector([call])
    if isinstance(answer, DiosError):
        raise answer
    found = node.handle(expect(messages.References, answer).references[0])
    if not isinstance(found, Stream):
        raise ProtocolError("the node's copy of a stream is no stream")
    return found


class End(Generic[T]):
    """What both ends have in common. A ``with`` body closes the end."""

    __slots__ = ("item", "stream", "used")

    def __init__(self, stream: Stream, item: type[T]) -> None:
        self.stream: Final = stream
        self.item: Final = item
        self.used = False
        """Whether this process is the end: then it cannot be handed on any more."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {_name_of(self.item)} {self.stream.fingerprint}>"

    def close(self) -> None:
        """Let go of this end: the other side learns of it, and still receives what was sent."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sender(End[T]):
    """The end that values go into."""

    __slots__ = ()

    def send(self, value: T, timeout: float | None = None) -> None:
        """Send one value; waits while there is no room, at most ``timeout`` seconds (TimeLimitError).

        Raises ClosedError when the receiver is gone, InvalidError for a value that cannot travel.
        """
        data = encode(value)
        self.used = True
        self.stream.send(data, timeout)


class Receiver(End[T]):
    """The end that values come out of; iterating gives them until the sender is gone."""

    __slots__ = ()

    def receive(self, timeout: float | None = None) -> T:
        """Wait for the next value, at most ``timeout`` seconds (TimeLimitError).

        Raises EndOfStreamError when the sender is gone and everything was received, ProtocolError for what
        is no value of the channel's type.
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
    """The first of ``receivers`` with a value, or whose sender is gone; None after ``timeout`` seconds.

    To wait for tasks, timers and blobs as well, give ``node.select`` the ends' ``stream``.
    """
    by_stream: dict[Reference, Receiver[T]] = {}
    for receiver in receivers:
        receiver.used = True
        by_stream[receiver.stream] = receiver
    ready = node.select(list(by_stream), timeout=timeout)
    return None if ready is None else by_stream[ready]


def encode(value: object) -> bytes:
    """A value as it travels; InvalidError for one that MessagePack does not hold."""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError) as error:
        raise InvalidError(f"a {type(value).__name__} cannot travel between tasks: {error}") from None


def decode(data: bytes, item: type[T]) -> T:
    """What ``encode`` made, checked against its type; ProtocolError for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=item)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"what came in is no {_name_of(item)}: {error}") from None


def _name_of(item: type[T]) -> str:
    # A list[int] has no name of its own.
    return getattr(item, "__name__", str(item))
