"""Tables whose columns are numpy arrays, with rows that come and go: how Firmament keeps a cluster.

For: a round's work over all tasks at once. Not for: what the columns mean (``state``).

A row number stays the same while its element lives; a freed row is used again later. Columns grow by
doubling, so that a reference to a column's array is good only until the next ``add``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ABSENT = -1
"""In a column of row numbers or identifiers: none."""

FIRST_ROWS = 16
"""The length of every column of a new table."""


class Rows:
    """Row numbers by identifier: which are in use, and which are free to use again."""

    def __init__(self) -> None:
        self.alive: Flags = np.zeros(FIRST_ROWS, np.bool_)
        self.id: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._used = 0

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, identifier: int) -> bool:
        return identifier in self._row_of

    def row(self, identifier: int) -> int:
        """The row of an element; KeyError when there is none."""
        return self._row_of[identifier]

    def find(self, identifier: int) -> int:
        """The row of an element, or ABSENT."""
        return self._row_of.get(identifier, ABSENT)

    def all(self) -> Ints:
        """The rows in use, ascending."""
        return np.flatnonzero(self.alive)

    def add(self, identifier: int) -> int:
        """A row for a new element; ValueError when it is there already."""
        return int(self.add_many([identifier])[0])

    def add_many(self, identifiers: Iterable[int]) -> Ints:
        """Rows for new elements, in their order; ValueError, and nothing changed, when one is there."""
        wanted = list(identifiers)
        if len(set(wanted)) != len(wanted) or any(one in self._row_of for one in wanted):
            twice = [one for one in wanted if one in self._row_of or wanted.count(one) > 1]
            raise ValueError(f"identifier {twice[0]} is in the table already")
        rows = [self._free.pop() for _ in range(min(len(self._free), len(wanted)))]
        fresh = len(wanted) - len(rows)
        rows.extend(range(self._used, self._used + fresh))
        self._used += fresh
        if self._used > len(self.alive):
            self._grow(max(2 * len(self.alive), self._used))
        found = np.array(rows, np.int64)
        self.alive[found] = True
        self.id[found] = wanted
        self._row_of.update(zip(wanted, rows, strict=True))
        return found

    def remove(self, identifier: int) -> int:
        """Free an element's row and return its number; KeyError when there is none."""
        row = self._row_of.pop(identifier)
        self.alive[row] = False
        self.id[row] = ABSENT
        self._free.append(row)
        return row

    def _grow(self, length: int) -> None:
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray):
                longer = np.zeros((length, *column.shape[1:]), column.dtype)
                longer[: len(column)] = column
                setattr(self, name, longer)
        self.id[~self.alive] = ABSENT


class Names:
    """Small integers for strings, such as equivalence classes and machine types; never forgotten."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self.names: list[str] = []

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """The number of a name, given at its first use."""
        found = self._number.get(name)
        if found is None:
            found = self._number[name] = len(self.names)
            self.names.append(name)
        return found
