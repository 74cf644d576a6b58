"""The steps of a sandbox that wait: calls to the node, and bytes to and from the session.

``link`` and ``ops`` are generators of steps, written once for both faces. ``sandbox`` takes the steps in
the thread of its caller, an async face on its event loop. An exception of a step is thrown into the
generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from dios.client.ops.batches import Pending, together
from dios.client.session import Operation
from dios.transport.rings.waiting import RingEnd, RingReader, RingWriter

T = TypeVar("T")


class Call(NamedTuple):
    """Run an operation of the client."""

    operation: Operation[object]


class Write(NamedTuple):
    """Write bytes to a stream; TimeLimitError after the time."""

    writer: RingWriter
    data: bytes
    timeout_s: float | None


class Read(NamedTuple):
    """Wait for bytes of a stream; TimeLimitError after the time."""

    reader: RingReader
    timeout_s: float | None


class Wait(NamedTuple):
    """Wait until one of the ends of streams can move a byte, or the time is over."""

    ends: tuple[RingEnd, ...]
    timeout_s: float | None


Step: TypeAlias = "Call | Write | Read | Wait"
Steps: TypeAlias = Generator[Step, object, T]


def call(operation: Operation[T]) -> Steps[T]:
    """Run an operation of the client, and return its result."""
    return cast("T", (yield Call(operation)))


def side_by_side(
    operations: Sequence[Operation[T]], on_result: Callable[[T], object] = lambda _: None
) -> Steps[list[T]]:
    """Run operations that are independent, in few messages, and return their results.

    ``on_result`` is called with each result, also if another operation fails. Raise the first error.
    """
    outcomes = yield from each_side_by_side(operations)
    for outcome in outcomes:
        if outcome.error is None:
            on_result(outcome.result())
    return [outcome.result() for outcome in outcomes]


def each_side_by_side(operations: Sequence[Operation[T]]) -> Steps[list[Pending[T]]]:
    """Run operations that are independent, in few messages, and return their outcomes."""
    outcomes: list[Pending[T]] = [Pending() for _ in operations]
    if operations:
        yield from call(
            together(
                cast("Sequence[Operation[object]]", operations), cast("Sequence[Pending[object]]", outcomes)
            )
        )
    return outcomes


def read(reader: RingReader, timeout_s: float | None) -> Steps[bytes]:
    """Wait for bytes of a stream, and return them."""
    return cast("bytes", (yield Read(reader, timeout_s)))
