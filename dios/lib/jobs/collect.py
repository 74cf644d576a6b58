"""The pairs of a map function, collected and combined until they are sent.

The loops run once for each pair of intermediate data, so each has few bytecodes or none: a Counter counts a
whole iterable in C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import add
from typing import Protocol, cast

from dios.lib.jobs.chunks import Key, Table, Value
from dios.lib.jobs.functions import Functions, Pairs, Reduce


class Collector(Protocol):
    """The receiver of a mapper's pairs."""

    def add_keys(self, keys: Iterable[Key]) -> None:
        """Add one to the count of each key."""

    def add_pairs(self, pairs: Pairs) -> None:
        """Add pairs of key and value."""

    def add_mapping(self, mapping: Mapping[Key, Value]) -> None:
        """Add one value for each key, from a block function."""

    def __len__(self) -> int:
        """Return the number of collected values."""

    def drain(self) -> Table:
        """Return the collected pairs, and start empty."""


class Sums(Collector):
    """A collector that adds up the values of each key at once."""

    def __init__(self) -> None:
        self._totals: Counter[Key] = Counter()

    def add_keys(self, keys: Iterable[Key]) -> None:
        self._totals.update(keys)

    def add_pairs(self, pairs: Pairs) -> None:
        totals = self._totals
        get = totals.get
        for key, value in cast("Iterable[tuple[Key, int]]", pairs):
            totals[key] = get(key, 0) + value

    def add_mapping(self, mapping: Mapping[Key, Value]) -> None:
        add_columns(self._totals, list(mapping), cast("list[int]", list(mapping.values())))

    def __len__(self) -> int:
        """Return the number of collected keys."""
        return len(self._totals)

    def drain(self) -> Table:
        """Return the totals, and start empty."""
        totals, self._totals = self._totals, Counter()
        return list(totals), list(totals.values())


def add_columns(totals: dict[Key, int], keys: list[Key], values: list[int]) -> None:
    """Add ``values`` to the totals of ``keys``, which are distinct, without a loop in Python."""
    # The update of Counter would count the pairs themselves.
    if not totals:
        dict.update(totals, zip(keys, values, strict=True))
    else:
        dict.update(totals, zip(keys, map(add, values, map(totals.get, keys, repeat(0))), strict=True))


class ListCollector(Collector):
    """A collector that lists the values of each key, and combines them when there are many and at the end."""

    def __init__(self, combine: Reduce) -> None:
        self._combine = combine
        self._lists: dict[Key, list[Value]] = {}
        self._held = 0

    def add_keys(self, keys: Iterable[Key]) -> None:
        self.add_pairs(zip(keys, repeat(1), strict=False))

    def add_pairs(self, pairs: Pairs) -> None:
        lists = self._lists
        held = 0
        for key, value in pairs:
            held += 1
            if key in lists:
                lists[key].append(value)
            else:
                lists[key] = [value]
        self._held += held

    def add_mapping(self, mapping: Mapping[Key, Value]) -> None:
        self.add_pairs(mapping.items())

    def __len__(self) -> int:
        """Return the number of collected values."""
        return self._held

    def drain(self) -> Table:
        """Return one combined value for each key, and start empty."""
        lists, self._lists, self._held = self._lists, {}, 0
        combine = self._combine
        keys = list(lists)
        return keys, [
            values[0] if len(values) == 1 else combine(key, values) for key, values in lists.items()
        ]


class PlainCollector(Collector):
    """A collector that combines nothing and keeps pairs in order."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._values: list[Value] = []

    def add_keys(self, keys: Iterable[Key]) -> None:
        self._keys.extend(keys)
        self._values.extend(repeat(1, len(self._keys) - len(self._values)))

    def add_pairs(self, pairs: Pairs) -> None:
        put_key, put_value = self._keys.append, self._values.append
        for key, value in pairs:
            put_key(key)
            put_value(value)

    def add_mapping(self, mapping: Mapping[Key, Value]) -> None:
        self._keys.extend(mapping)
        self._values.extend(mapping.values())

    def __len__(self) -> int:
        """Return the number of collected pairs."""
        return len(self._keys)

    def drain(self) -> Table:
        table = self._keys, self._values
        self._keys, self._values = [], []
        return table


def collector_for(functions: Functions) -> Collector:
    """Return a collector for a job's functions."""
    if functions.sums:
        return Sums()
    if functions.combine is not None:
        return ListCollector(functions.combine)
    return PlainCollector()
