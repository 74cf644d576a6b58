"""The orders of a controller to its tasks, and their reports.

An order is the bytes of a task's first input; reports are messages on its first output.
``docs/libraries.md#mapreduce`` has the tables.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from dios.errors import ProtocolError
from dios.lib.decoding import decoded
from dios.lib.jobs.records import Segment

PART_LABEL: Final = "part"
"""The label of the last output of a mapper that keeps all that it sends; it serves all reducers."""

JOB_MODULE: Final = "job"
"""The name under which a task imports the job's module."""


class MapOrder(Struct, frozen=True, array_like=True, tag=1):
    """One attempt of one mapper: the records to read, and the reducers to serve.

    ``partitions`` are those reducers, in the order of the streams in the outputs; inputs are numbered from
    the second of the task's inputs on.
    """

    mapper: int
    attempt: int
    reducers: int
    partitions: tuple[int, ...]
    segments: tuple[Segment, ...]
    memory_bytes: int
    block_bytes: int


class ReduceOrder(Struct, frozen=True, array_like=True, tag=2):
    """One attempt of one reducer; ``mappers`` is the number of mappers whose pairs it needs."""

    reducer: int
    attempt: int
    mappers: int
    memory_bytes: int
    ordered: bool


class ProgressReport(Struct, frozen=True, array_like=True, tag=10):
    """The bytes of input that were mapped, or the pairs that were reduced, since the last report."""

    amount: int


class StreamRead(Struct, frozen=True, array_like=True, tag=11):
    """A reducer reads the stream of this mapper's attempt."""

    mapper: int
    attempt: int


class PairsReceived(Struct, frozen=True, array_like=True, tag=12):
    """A reducer has all of a mapper's pairs; no other attempt of the mapper is needed."""

    mapper: int
    attempt: int


class PartUnread(Struct, frozen=True, array_like=True, tag=14):
    """A reducer could not read a kept part, the object with this id."""

    object_id: int


class Finished(Struct, frozen=True, array_like=True, tag=13):
    """A task has completed its order; its costs. ``pairs`` were sent or written, ``spilled`` bytes
    went to disk, ``peak_bytes`` is the most memory it used.
    """

    pairs: int
    cpu_ns: int
    peak_bytes: int
    spilled: int = 0


Order: TypeAlias = MapOrder | ReduceOrder
Report: TypeAlias = ProgressReport | StreamRead | PairsReceived | PartUnread | Finished

_encode: Final = msgspec.msgpack.Encoder().encode
_orders: Final[msgspec.msgpack.Decoder[Order]] = msgspec.msgpack.Decoder(Order)
_reports: Final[msgspec.msgpack.Decoder[Report]] = msgspec.msgpack.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    """Return the bytes of an order or report."""
    return _encode(message)


def decode_order(data: bytes) -> Order:
    """Read an order; raises ProtocolError."""
    return decoded(_orders.decode, data, "the controller's order is malformed", ProtocolError)


def decode_report(data: bytes) -> Report:
    """Read a report of an untrusted task; raises ProtocolError."""
    return decoded(_reports.decode, data, "a task's report is malformed", ProtocolError)
