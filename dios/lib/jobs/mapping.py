"""The work of a mapper: read records, call the map function, combine, and send each reducer its part.

It works on views and ``ChunkOutlet``s, which ``dios.lib.jobs.task`` makes of references and streams, so that
all of it runs in a test without a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol, cast

from dios.errors import ClosedError, UnreachableError
from dios.lib.jobs import chunks
from dios.lib.jobs.collect import Collector, collector_for
from dios.lib.jobs.functions import FunctionKind, Functions, Key, Pairs, Record
from dios.lib.jobs.orders import MapOrder
from dios.lib.jobs.records import blocks
from dios.limits import JOB_PAIR_BYTES, JOB_RECORD_BLOCK_BYTES


class ChunkOutlet(Protocol):
    """The writing end of one intermediate stream."""

    def send(self, data: bytes) -> None:
        """Send one message; ClosedError if the reducer is gone or needs no more."""

    def close(self) -> None:
        """Close the stream."""


class KeptOutlet:
    """An outlet that keeps all that was sent, also after its reducer is gone."""

    def __init__(self, outlet: ChunkOutlet) -> None:
        self._outlet: ChunkOutlet | None = outlet
        self.sent: Final[list[bytes]] = []

    def send(self, data: bytes) -> None:
        """Keep one message, and send it if the reducer lives."""
        self.sent.append(data)
        if self._outlet is not None:
            try:
                self._outlet.send(data)
            except (ClosedError, UnreachableError):
                self.close()

    def close(self) -> None:
        """Close the stream."""
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()


class ChunkSender:
    """Divides pairs among the reducers of this attempt, and sends them."""

    def __init__(self, order: MapOrder, outlets: Sequence[ChunkOutlet]) -> None:
        self._order: Final = order
        self._outlets: Final = dict(zip(order.partitions, outlets, strict=True))
        self._sent: Final = dict.fromkeys(order.partitions, 0)
        self.pairs = 0
        for number in order.partitions:
            self._send(number, chunks.encode_open(order.mapper, order.attempt))

    def send(self, table: chunks.Table) -> None:
        """Send a table's pairs, each to its reducer."""
        keys, values = table
        parts = chunks.partition(keys, values, self._order.reducers)
        # Mappers begin with different reducers, so that not all of them wait for the same one.
        turn = self._order.mapper % self._order.reducers
        for number in [*range(turn, len(parts)), *range(turn)]:
            if number not in self._outlets:
                continue
            some_keys, some_values = parts[number]
            for message in chunks.slices(some_keys, some_values):
                self._send(number, message)
            self._sent[number] += len(some_keys)
            self.pairs += len(some_keys)

    def end(self) -> None:
        """Send every reducer the end of this mapper's pairs."""
        for number in list(self._outlets):
            self._send(number, chunks.encode_end(self._sent[number]))
        for outlet in self._outlets.values():
            outlet.close()

    def _send(self, number: int, message: bytes) -> None:
        if number not in self._outlets:
            return
        try:
            self._outlets[number].send(message)
        except (ClosedError, UnreachableError):
            # That reducer died, and the controller will order this again, or it already had the pairs.
            self._outlets.pop(number).close()


def run_mapper(
    order: MapOrder,
    functions: Functions,
    inputs: Sequence[memoryview],
    outlets: Sequence[ChunkOutlet],
    progress: Callable[[int, int, int], None],
) -> int:
    """Carry out ``order``; return the number of sent pairs.

    ``progress`` is called for each block with its input, its beginning and its end. Exceptions of the
    job's functions are not caught.
    """
    collector = collector_for(functions)
    sender = ChunkSender(order, outlets)
    most = max(1, order.memory_bytes // JOB_PAIR_BYTES)
    feed = _feeder(functions, collector)
    block_bytes = _block_bytes(order, functions)
    for segment in order.segments:
        view = inputs[segment.input]
        for start, stop in blocks(view, segment, block_bytes):
            feed(view[start:stop], segment.label)
            if len(collector) >= most:
                # Memory is short: the combined pairs are sent; the reducer combines the rest.
                sender.send(collector.drain())
            progress(segment.input, start, stop)
    sender.send(collector.drain())
    sender.end()
    return sender.pairs


def _block_bytes(order: MapOrder, functions: Functions) -> int:
    if functions.kind is FunctionKind.BLOCK:
        return order.block_bytes
    return min(order.block_bytes, JOB_RECORD_BLOCK_BYTES)


def _feeder(functions: Functions, collector: Collector) -> Callable[[memoryview, str], None]:
    """Return the function for one block of a document, chosen once for the job."""
    apply, text = functions.apply, functions.text

    def feed_block(block: memoryview, label: str) -> None:
        for given in apply([block], label):
            if isinstance(given, Mapping):
                collector.add_mapping(given)
            else:
                collector.add_pairs(cast("Pairs", given))

    def feed_keys(block: memoryview, label: str) -> None:
        keys_by_record = cast("Iterable[Iterable[Key]]", apply(_records(block, text=text), label))
        collector.add_keys(chain.from_iterable(keys_by_record))

    def feed_pairs(block: memoryview, label: str) -> None:
        pairs_by_record = cast("Iterable[Pairs]", apply(_records(block, text=text), label))
        collector.add_pairs(chain.from_iterable(pairs_by_record))

    return {FunctionKind.BLOCK: feed_block, FunctionKind.KEYS: feed_keys, FunctionKind.PAIRS: feed_pairs}[
        functions.kind
    ]


def _records(block: memoryview, *, text: bool) -> Sequence[Record]:
    """Return the records of a block, without their newlines."""
    if text:
        lines = str(block, "utf-8", "replace").split("\n")
        if not lines[-1]:
            lines.pop()
        return lines
    records = bytes(block).split(b"\n")
    if not records[-1]:
        records.pop()
    return records
