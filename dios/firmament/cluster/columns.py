"""Tables whose columns are numpy arrays, and whose rows are added and removed.

They let a round work on all tasks at once. The columns' meaning is in ``state``. The row number of an element
stays the same while the element exists; a freed row is used again later. Columns double in length when they
are full, so a reference to a column's array is valid only until the next ``add``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ABSENT = -1
"""The value for "none" in a column of row numbers or identifiers."""

FIRST_ROWS = 16
"""The length of every column of a new table."""


class Rows:
    """Row numbers by identifier: the rows in use, and the free ones."""

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
        """Return the row of an element; raise KeyError if it does not exist."""
        return self._row_of[identifier]

    def find(self, identifier: int) -> int:
        """Return the row of an element, or ABSENT."""
        return self._row_of.get(identifier, ABSENT)

    def all(self) -> Ints:
        """Return the rows in use, ascending."""
        return np.flatnonzero(self.alive)

    def add(self, identifier: int) -> int:
        """Return a row for a new element; raise ValueError if the identifier is in use."""
        return int(self.add_many([identifier])[0])

    def add_many(self, identifiers: Iterable[int]) -> Ints:
        """Return rows for new elements, in their order.

        Raises:
            ValueError: an identifier is in use; nothing has changed.
        """
        wanted = list(identifiers)
        if len(set(wanted)) != len(wanted) or any(identifier in self._row_of for identifier in wanted):
            twice = [
                identifier
                for identifier in wanted
                if identifier in self._row_of or wanted.count(identifier) > 1
            ]
            raise ValueError(f"identifier {twice[0]} is in the table already")
        rows = [self._free.pop() for _ in range(min(len(self._free), len(wanted)))]
        fresh = len(wanted) - len(rows)
        rows.extend(range(self._used, self._used + fresh))
        self._used += fresh
        if self._used > len(self.alive):
            self._grow(max(2 * len(self.alive), self._used))
        added = np.array(rows, np.int64)
        self.alive[added] = True
        self.id[added] = wanted
        self._row_of.update(zip(wanted, rows, strict=True))
        return added

    def remove(self, identifier: int) -> int:
        """Free an element's row and return its number; raise KeyError if it does not exist."""
        row = self._row_of.pop(identifier)
        self.alive[row] = False
        self.id[row] = ABSENT
        self._free.append(row)
        return row

    def renumber(self) -> None:
        """Number the rows again, after the columns ``alive`` and ``id`` of a copy were replaced."""
        rows = self.all()
        self._row_of = dict(zip(self.id[rows].tolist(), rows.tolist(), strict=True))

    def _grow(self, length: int) -> None:
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray):
                longer = np.zeros((length, *column.shape[1:]), column.dtype)
                longer[: len(column)] = column
                setattr(self, name, longer)
        self.id[~self.alive] = ABSENT


class NameTable:
    """Small integers for strings, such as equivalence classes and machine types. They are kept for ever."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self.names: list[str] = []

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """Return the number of a name; a new name gets the next number."""
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self.names)
            self.names.append(name)
        return number
