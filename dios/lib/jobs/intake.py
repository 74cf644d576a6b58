"""A reducer's processing of its streams: a mapper's pairs count once, and only when all of them have come.

Chunks are kept encoded until the END of their attempt; an incomplete attempt leaves no trace. Mappers are
processed in the order of their numbers, so that the same inputs give the same output bytes, independent of
their speed. ``dios.lib.jobs.task`` reads the streams and writes the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dios.errors import ProtocolError
from dios.lib.jobs import chunks
from dios.lib.jobs.chunks import Opening, Table, Tag
from dios.lib.jobs.functions import Functions
from dios.lib.jobs.grouping import KeyGroups, NewSpool, Pair, Spool, tables_of
from dios.lib.jobs.orders import PairsReceived, ReduceOrder, StreamRead


class Attempt:
    """The chunks of one mapper's attempt so far, in memory or on disk."""

    def __init__(self, opening: Opening, new_spool: NewSpool) -> None:
        self.opening: Final = opening
        self._new_spool: Final = new_spool
        self._chunks: list[bytes] = []
        self._spools: list[Spool] = []
        self.held_bytes = 0

    def append(self, chunk: bytes) -> None:
        """Add a chunk."""
        self._chunks.append(chunk)
        self.held_bytes += len(chunk)

    def spill(self) -> None:
        """Write the chunks in memory to disk."""
        if self._chunks:
            self._spools.append(self._new_spool(self._chunks))
        self._chunks = []
        self.held_bytes = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for spool in self._spools:
            yield from spool
        yield from self._chunks

    def close(self) -> None:
        """Drop the attempt."""
        for spool in self._spools:
            spool.close()
        self._spools = []
        self._chunks = []


class Intake:
    """The data of one reducer; ``complete`` once every mapper's pairs have come."""

    def __init__(self, order: ReduceOrder, functions: Functions, new_spool: NewSpool) -> None:
        self._order: Final = order
        self._functions: Final = functions
        self._new_spool: Final = new_spool
        self._open: Final[dict[int, Attempt]] = {}
        self._whole: Final[dict[int, Attempt]] = {}
        self._next = 0
        self._groups: Final = KeyGroups(new_spool, totals=functions.totals, distinct=functions.sums)

    @property
    def reducer(self) -> int:
        """Return the number of the reducer."""
        return self._order.reducer

    @property
    def complete(self) -> bool:
        """Return True if every mapper's pairs are here."""
        return self._next == self._order.mappers

    def message(self, stream: int, data: bytes) -> StreamRead | PairsReceived | None:
        """Process one message of a stream; return the report for the controller.

        Raises ProtocolError for an unexpected message.
        """
        tag = chunks.tag_of(data)
        if tag is Tag.OPEN:
            return self._opened(stream, chunks.decode_open(data))
        attempt = self._open.get(stream)
        if attempt is None:
            raise ProtocolError("a mapper's stream does not begin with its number")
        if tag is Tag.END:
            del self._open[stream]
            return self._ended(attempt)
        if not self._known(attempt.opening.mapper):
            attempt.append(data)
            self._stay_small()
        return None

    def _opened(self, stream: int, opening: Opening) -> StreamRead:
        if stream in self._open or not 0 <= opening.mapper < self._order.mappers:
            raise ProtocolError(f"a stream has mapper number {opening.mapper}, which is out of range")
        self._open[stream] = Attempt(opening, self._new_spool)
        return StreamRead(opening.mapper, opening.attempt)

    def closed(self, stream: int) -> None:
        """Drop the attempt of a stream that ended without END."""
        attempt = self._open.pop(stream, None)
        if attempt is not None:
            attempt.close()

    def _known(self, mapper: int) -> bool:
        return mapper < self._next or mapper in self._whole

    def _ended(self, attempt: Attempt) -> PairsReceived:
        opening = attempt.opening
        if self._known(opening.mapper):
            attempt.close()
        else:
            self._whole[opening.mapper] = attempt
        while self._next in self._whole:
            self._count(self._whole.pop(self._next))
            self._next += 1
        return PairsReceived(opening.mapper, opening.attempt)

    def _count(self, attempt: Attempt) -> None:
        for chunk in attempt:
            self._groups.add(chunks.decode_pairs(chunk))
            self._stay_small()
        attempt.close()

    def _stay_small(self) -> None:
        """Spill the largest part of the data if it is over the order's budget."""
        attempts = [*self._open.values(), *self._whole.values()]
        waiting = sum(attempt.held_bytes for attempt in attempts)
        if waiting + self._groups.held_bytes <= self._order.memory_bytes:
            return
        largest = max(attempts, key=lambda attempt: attempt.held_bytes, default=None)
        if largest is not None and largest.held_bytes >= self._groups.held_bytes:
            largest.spill()
        else:
            self._groups.spill()

    def results(self) -> Iterator[Table]:
        """Yield the reduced pairs, in tables; a key whose reduce function returns None is left out."""
        ordered = self._order.ordered
        if self._functions.totals:
            yield from self._groups.sums(ordered=ordered)
        else:
            yield from tables_of(self._reduced(self._groups.pairs(ordered=ordered)))

    def _reduced(self, grouped: Iterator[Pair]) -> Iterator[Pair]:
        reduce = self._functions.reduce
        for key, values in grouped:
            if not isinstance(values, list):
                raise ProtocolError("a spilled run is damaged")
            value = reduce(key, values)
            if value is not None:
                yield key, value

    def close(self) -> None:
        """Free everything on disk."""
        for attempt in [*self._open.values(), *self._whole.values()]:
            attempt.close()
        self._groups.close()
