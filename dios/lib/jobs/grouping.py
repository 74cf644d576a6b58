"""A reducer's memory: values grouped by key, with sorted runs on disk if there are too many.

``dios.lib.jobs.intake`` keeps data that does not count yet, and calls the reduce function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol, TypeAlias, cast

from dios.errors import InvalidError
from dios.lib.jobs import chunks
from dios.lib.jobs.chunks import Key, Table, Value
from dios.lib.jobs.collect import add_columns
from dios.limits import JOB_CHUNK_PAIRS, JOB_PAIR_BYTES, JOB_RUNS_MAX

Pair: TypeAlias = tuple[Key, Value]


class Spool(Protocol):
    """Chunks that were written to disk together, to be read in the same order."""

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield the chunks, from the first on."""

    def close(self) -> None:
        """Free the space."""


NewSpool: TypeAlias = Callable[[list[bytes]], Spool]
"""Writes chunks to disk."""


class KeyGroups:
    """Values by key: either their sum (``totals``) or the list of them in order of arrival.

    With ``distinct`` no key occurs twice in one added table.
    """

    def __init__(self, new_spool: NewSpool, *, totals: bool, distinct: bool) -> None:
        self._new_spool: Final = new_spool
        self._totals: Final = totals
        self._distinct: Final = distinct
        self._sums: dict[Key, int] = {}
        self._lists: dict[Key, list[Value]] = {}
        self._listed = 0
        self._runs: list[Spool] = []

    @property
    def held_bytes(self) -> int:
        """Return the approximate memory of the groups in bytes."""
        return (len(self._sums) + self._listed) * JOB_PAIR_BYTES

    def add(self, table: Table) -> None:
        """Add pairs to their groups."""
        keys, values = table
        if not self._totals:
            self._listed += len(keys)
            lists = self._lists
            for key, value in zip(keys, values, strict=True):
                if key in lists:
                    lists[key].append(value)
                else:
                    lists[key] = [value]
        elif self._distinct:
            add_columns(self._sums, keys, cast("list[int]", values))
        else:
            sums = self._sums
            get = sums.get
            for key, number in zip(keys, cast("list[int]", values), strict=True):
                sums[key] = get(key, 0) + number

    def spill(self) -> None:
        """Write the groups to disk as one run, sorted by key."""
        if not self._sums and not self._lists:
            return
        if len(self._runs) >= JOB_RUNS_MAX:
            self._compact()
        self._runs.append(self._written(self._sorted()))
        self._sums.clear()
        self._lists.clear()
        self._listed = 0

    def _compact(self) -> None:
        together = self._written(self._merged(self._runs))
        for run in self._runs:
            run.close()
        self._runs = [together]

    def _written(self, pairs: Iterator[Pair]) -> Spool:
        return self._new_spool([chunks.encode_pairs(keys, values) for keys, values in tables_of(pairs)])

    def _sorted(self) -> Iterator[Pair]:
        held: dict[Key, int] | dict[Key, list[Value]] = self._sums if self._totals else self._lists
        try:
            order = sorted(cast("dict[bytes, object]", held))
        except TypeError as error:
            raise InvalidError(f"all keys of a job must be of one type: {error}") from error
        return ((key, held[key]) for key in order)

    def _merged(self, runs: Sequence[Spool]) -> Iterator[Pair]:
        """Yield the groups of all runs and of the memory, by key; earlier runs first within a key."""
        sources = [chunks.pairs_of(run) for run in runs]
        first = cast("Callable[[Pair], bytes]", itemgetter(0))
        for key, same in groupby(merge(*sources, key=first), key=first):
            values = [value for _, value in same]
            if self._totals:
                yield key, sum(cast("list[int]", values))
            else:
                yield key, [value for part in cast("list[list[Value]]", values) for value in part]

    def pairs(self, *, ordered: bool) -> Iterator[Pair]:
        """Yield every group, as key and sum or key and values; by key if ``ordered`` or spilled."""
        if self._runs:
            self.spill()
            yield from self._merged(self._runs)
        elif ordered:
            yield from self._sorted()
        else:
            yield from self._sums.items() if self._totals else self._lists.items()

    def sums(self, *, ordered: bool) -> Iterator[Table]:
        """Yield every key and its sum, in tables; in whole columns unless something was spilled."""
        if self._runs or ordered:
            yield from tables_of(self.pairs(ordered=ordered))
            return
        keys, values = list(self._sums), list(self._sums.values())
        for start in range(0, len(keys), JOB_CHUNK_PAIRS):
            stop = start + JOB_CHUNK_PAIRS
            yield keys[start:stop], cast("list[Value]", values[start:stop])

    def close(self) -> None:
        """Free the space of all runs."""
        for run in self._runs:
            run.close()
        self._runs = []


def tables_of(pairs: Iterator[Pair]) -> Iterator[Table]:
    """Yield pairs as tables of at most JOB_CHUNK_PAIRS pairs."""
    keys: list[Key] = []
    values: list[Value] = []
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        if len(keys) == JOB_CHUNK_PAIRS:
            yield keys, values
            keys, values = [], []
    if keys:
        yield keys, values
