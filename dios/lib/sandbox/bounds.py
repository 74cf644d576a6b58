"""The sizes of what a session may send; the session cuts honestly, and its caller enforces them."""

from __future__ import annotations

from typing import Final

import msgspec

from dios.errors import InvalidError
from dios.limits import GIB, KIB, MIB

SHOWN_MOST: Final = 100
"""The largest bound for the numbers of figures and tables; the next ones are those of a table."""
TABLE_ROWS_MOST: Final = 10_000
TABLE_COLUMNS_MOST: Final = 1_000

_MOST: Final = {
    "output_bytes": 64 * MIB,
    "repr_chars": MIB,
    "value_bytes": 256 * MIB,
    "displays": 10_000,
    "display_bytes": 256 * MIB,
    "figures": SHOWN_MOST,
    "figure_bytes": 32 * MIB,
    "tables": SHOWN_MOST,
    "table_rows": TABLE_ROWS_MOST,
    "table_columns": TABLE_COLUMNS_MOST,
    "cell_chars": 16 * KIB,
}

HTML_CHARS_MAX: Final = 2 * MIB
"""The characters of one value as HTML."""
DISPLAY_ID_CHARS_MAX: Final = 64
DESCRIPTION_CHARS_MAX: Final = 32 * KIB
"""The characters of the description of a name."""

TRACEBACK_CHARS_MAX: Final = 32 * KIB
"""The traceback of an exception; its message has a quarter of this at most."""
MESSAGE_CHARS_MAX: Final = TRACEBACK_CHARS_MAX // 4
TYPE_CHARS_MAX: Final = 200

COMPLETIONS_MAX: Final = 500
"""The names that complete another one."""
NAME_CHARS_MAX: Final = 500
"""The characters of a dotted name."""

RECORD_BYTES: Final = 64 * KIB
"""The bytes of an answer in addition to what the bounds count."""


class SandboxBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a run returns; more is cut with a notice, or refused with an error.

    ``output_bytes`` count for standard output and standard error each, ``repr_chars`` for the shown value,
    ``value_bytes`` for the encoded value of ``get`` and ``call``; ``displays`` for what a run shows while it
    runs, which has ``display_bytes`` together. With 0 tables, data frames are shown as
    text like other values. Raises InvalidError for a number below 0 or too large.
    """

    output_bytes: int = MIB
    repr_chars: int = 16 * KIB
    value_bytes: int = 64 * MIB
    displays: int = 1_000
    display_bytes: int = 16 * MIB
    figures: int = 10
    figure_bytes: int = 4 * MIB
    tables: int = 10
    table_rows: int = 50
    table_columns: int = 50
    cell_chars: int = 200

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise InvalidError(f"the bound {name} must be from 0 to {most:,}, not {value!r}")

    @property
    def table_bytes(self) -> int:
        """Return the number of bytes of the largest table, and no more than the largest answer has."""
        # A character has at most four bytes; a cell has five bytes around its text, or nine as a number.
        cells = (self.table_rows + 1) * self.table_columns
        return min(RECORD_BYTES + cells * (4 * self.cell_chars + 9), _MOST["value_bytes"])

    @property
    def answer_bytes(self) -> int:
        """Return the number of bytes of the longest answer of an honest session."""
        texts = 4 * (self.repr_chars + TRACEBACK_CHARS_MAX + MESSAGE_CHARS_MAX)
        shown = self.tables * self.table_bytes + self.figures * (self.figure_bytes + 9)
        return min(RECORD_BYTES + texts + max(self.value_bytes, shown, self.display_bytes), GIB)
