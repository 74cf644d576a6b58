"""What a reducer makes of its streams: a mapper's pairs count once, and only when all of them have come.

Not for: reading streams or writing the output (``dios.lib.jobs.task``). Chunks are kept as they came,
encoded, until their attempt's END; an attempt that breaks off leaves no trace. Mappers are taken in the order
of their numbers, so that the same inputs give the same output bytes whichever mapper is the fastest.
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
        """Keep one more chunk."""
        self._chunks.append(chunk)
        self.held_bytes += len(chunk)

    def spill(self) -> None:
        """Put what is in memory on disk."""
        if self._chunks:
            self._spools.append(self._new_spool(self._chunks))
        self._chunks = []
        self.held_bytes = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for spool in self._spools:
            yield from spool
        yield from self._chunks

    def close(self) -> None:
        """Forget it."""
        for spool in self._spools:
            spool.close()
        self._spools = []
        self._chunks = []


class Intake:
    """Everything one reducer has heard; ``complete`` once every mapper's pairs are taken."""

    def __init__(self, order: ReduceOrder, functions: Functions, new_spool: NewSpool) -> None:
        self._order: Final = order
        self._functions: Final = functions
        self._new_spool: Final = new_spool
        self._open: Final[dict[int, Attempt]] = {}
        self._whole: Final[dict[int, Attempt]] = {}
        self._next = 0
        self._groups: Final = KeyGroups(new_spool, totals=functions.totals, distinct=functions.sums)

    @property
    def complete(self) -> bool:
        """Whether every mapper's pairs are here."""
        return self._next == self._order.mappers

    def message(self, stream: int, data: bytes) -> StreamRead | PairsReceived | None:
        """One message of a stream; answers what the controller should know.

        Raises ProtocolError when it is not what belongs there.
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
            raise ProtocolError(f"a stream says it is of mapper {opening.mapper}, which cannot be")
        self._open[stream] = Attempt(opening, self._new_spool)
        return StreamRead(opening.mapper, opening.attempt)

    def closed(self, stream: int) -> None:
        """A stream ended without END: that attempt never happened."""
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
        """Spill the largest part of what is held when it is over the order's budget."""
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
        """The reduced pairs, in tables. A reduce function that gives None leaves its key out."""
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
        """Give back everything on disk."""
        for attempt in [*self._open.values(), *self._whole.values()]:
            attempt.close()
        self._groups.close()
