"""The cells that a kernel has run, for frontends that show former ones at their prompt."""

from __future__ import annotations

import fnmatch
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

CELLS_MAX: Final = 1_000
SESSION: Final = 1
"""The number of the present session in the answers; 0 means it as well. A kernel keeps no other."""


class Cell(NamedTuple):
    """A cell that was run."""

    number: int
    code: str
    output: str | None
    """The text of its value, if it has one."""


class CellHistory:
    """The latest cells, at most ``CELLS_MAX``."""

    def __init__(self) -> None:
        self._cells: Final[deque[Cell]] = deque(maxlen=CELLS_MAX)

    def add(self, cell: Cell) -> None:
        """Add the cell that was run last."""
        self._cells.append(cell)

    def tail(self, count: int | None) -> list[Cell]:
        """Return the latest cells, all with None."""
        return _latest(self._cells, count)

    def in_range(self, session: int, start: int | None, stop: int | None) -> list[Cell]:
        """Return the cells of a session from a number on, before another one."""
        if session not in {0, SESSION}:
            return []
        first = 1 if start is None else start
        return [cell for cell in self._cells if first <= cell.number and (stop is None or cell.number < stop)]

    def search(self, pattern: str | None, count: int | None, *, unique: bool) -> list[Cell]:
        """Return the latest cells whose code matches a pattern of a shell.

        With ``unique`` these are the last ones of each code.
        """
        cells = [cell for cell in self._cells if fnmatch.fnmatchcase(cell.code, pattern or "*")]
        if unique:
            numbers = {cell.code: cell.number for cell in cells}
            cells = [cell for cell in cells if numbers[cell.code] == cell.number]
        return _latest(cells, count)


def _latest(cells: Iterable[Cell], count: int | None) -> list[Cell]:
    listed = list(cells)
    return listed if count is None else list(islice(listed, max(0, len(listed) - count), None))
