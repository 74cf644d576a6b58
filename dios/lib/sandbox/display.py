"""Shows values in a session: figures of matplotlib as PNG, data frames as rows, anything else as text.

The packages are used only where the code of the session has imported them.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.failures import clean
from dios.lib.sandbox.pictures import is_png
from dios.lib.sandbox.protocol import Cell, TableRecord

_INTEGER_MAX: Final = 1 << 63
_PYPLOT: Final = "matplotlib.pyplot"


class _Pyplot(Protocol):
    def get_fignums(self) -> list[int]: ...
    def figure(self, number: int) -> Figure: ...
    def close(self, number: int | str) -> None: ...


class Figure(Protocol):
    """A figure of matplotlib, as far as it is used here."""

    def savefig(self, file: io.BytesIO, *, format: str, bbox_inches: str) -> None:  # noqa: A002 - its name
        """Draw it into a file."""


def prepare() -> None:
    """Let matplotlib draw into memory when the session imports it."""
    os.environ["MPLBACKEND"] = "Agg"
    # pyplot.show() does nothing here: the figures are taken at the end of the cell.
    warnings.filterwarnings("ignore", message=".*non-interactive.*cannot be shown")


class DisplayedValues:
    """The figures and tables of one run, and the number of values that it has shown."""

    def __init__(self, bounds: SandboxBounds, warn: Callable[[str], None]) -> None:
        self.figures: Final[list[bytes]] = []
        self.tables: Final[list[TableRecord]] = []
        self.shown_tables = 0
        """The number of tables that were shown already, which are not in ``tables``."""
        self.bounds: Final = bounds
        self.warn: Final = warn
        self._displays_left = bounds.displays
        self._bytes_left = bounds.display_bytes

    def take_figures(self) -> None:
        """Draw and close the open figures of pyplot."""
        pyplot = cast("_Pyplot | None", sys.modules.get(_PYPLOT))
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for count, number in enumerate(pyplot.get_fignums()):
            if count >= self.bounds.figures:
                self.warn(f"a run returns at most {self.bounds.figures} figures; the others are dropped")
                break
            self._add(drawn(pyplot.figure(number), self.warn))
        pyplot.close("all")

    def _add(self, data: bytes) -> None:
        if not data:
            return
        if len(data) > self.bounds.figure_bytes or not is_png(data):
            self.warn(f"a figure of {len(data):,} bytes is over the bounds; make it smaller (dpi, figsize)")
            return
        self.figures.append(data)

    def may_show(self, size: int) -> bool:
        """Count a value of ``size`` bytes that the run shows; return False if there is no room for it."""
        if self._displays_left <= 0 or size > self._bytes_left:
            return False
        self._displays_left -= 1
        self._bytes_left -= size
        return True

    def take_table(self, value: object) -> bool:
        """Keep the first rows if ``value`` is a data frame; return True for one."""
        package = type(value).__module__.partition(".")[0]
        reader = _READERS.get(package)
        if reader is None or package not in sys.modules or not self.bounds.tables:
            return False
        try:
            table = reader(value, self.bounds)
        except Exception as error:  # noqa: BLE001 - a frame may be of a class of the session
            self.warn(f"a table could not be read: {type(error).__name__}: {error}")
            return False
        if table is None:
            return False
        if len(self.tables) + self.shown_tables < self.bounds.tables:
            self.tables.append(table)
        else:
            self.warn(f"a run returns at most {self.bounds.tables} tables; the others are dropped")
        return True


def drawn(figure: Figure, warn: Callable[[str], None]) -> bytes:
    """Return a figure as a PNG picture; no bytes if it cannot be drawn."""
    file = io.BytesIO()
    try:
        figure.savefig(file, format="png", bbox_inches="tight")
    except Exception as error:  # noqa: BLE001 - a figure draws itself with code of the session
        warn(f"a figure could not be drawn: {type(error).__name__}: {error}")
        return b""
    return file.getvalue()


def shown_value(value: object, bounds: SandboxBounds) -> str:
    """Return the text of a value, of at most ``repr_chars`` characters."""
    return clean(repr(value), bounds.repr_chars)


# -- data frames --------------------------------------------------------------------------------------
def _pandas(value: object, bounds: SandboxBounds) -> TableRecord | None:
    import pandas as pd  # noqa: PLC0415 - only where the session uses it

    if isinstance(value, pd.Series):
        value = value.to_frame()
    if not isinstance(value, pd.DataFrame):
        return None
    height, width = value.shape
    head = value.iloc[: bounds.table_rows, : bounds.table_columns]
    index = head.index
    names = [str(name) for name in head.columns]
    columns = [head.iloc[:, number].tolist() for number in range(len(names))]
    if not (isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1):
        # The index of describe() or of a group has the names of the rows.
        names = ["" if index.name is None else str(index.name), *names][: bounds.table_columns]
        columns = [index.tolist(), *columns][: bounds.table_columns]
        width += 1
    return _table(names, columns, (height, width), bounds)


def _polars(value: object, bounds: SandboxBounds) -> TableRecord | None:
    import polars as pl  # noqa: PLC0415 - the same

    if isinstance(value, pl.Series):
        value = value.to_frame()
    if not isinstance(value, pl.DataFrame):
        return None
    names = value.columns[: bounds.table_columns]
    columns = [value[name].head(bounds.table_rows).to_list() for name in names]
    return _table(names, columns, value.shape, bounds)


def _arrow(value: object, bounds: SandboxBounds) -> TableRecord | None:
    import pyarrow as pa  # noqa: PLC0415 - the same

    if not isinstance(value, pa.Table | pa.RecordBatch):
        return None
    head = value.slice(0, bounds.table_rows)
    names = head.schema.names[: bounds.table_columns]
    columns = [head.column(number).to_pylist() for number in range(len(names))]
    return _table(names, columns, (value.num_rows, value.num_columns), bounds)


_READERS: Final[dict[str, Callable[[object, SandboxBounds], TableRecord | None]]] = {
    "pandas": _pandas,
    "polars": _polars,
    "pyarrow": _arrow,
}


def _table(
    names: Sequence[str], columns: Sequence[Sequence[object]], shape: tuple[int, int], bounds: SandboxBounds
) -> TableRecord:
    rows = [[_cell(value, bounds.cell_chars) for value in row] for row in list(zip(*columns, strict=True))]
    return TableRecord([clean(name, bounds.cell_chars) for name in names], rows, *shape)


def _cell(value: object, chars_max: int) -> Cell:
    if value is None or type(value) in {bool, float}:
        return cast("Cell", value)
    if type(value) is int and -_INTEGER_MAX <= value < _INTEGER_MAX:
        return value
    return clean(value if type(value) is str else str(value), chars_max)
