"""The forms of polars: frames, and series as frames of one column, as tables of pyarrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, cast

import polars as pl
import pyarrow as pa

from dios.lib.executor.results.forms import form, refusal, register

_METADATA: Final = re.compile(rb"_PL_(CATEGORICAL|ENUM_VALUES)[0-9]?")
"""The metadata of a column that polars may read: other keys name types that contain addresses."""

_IN_MEMORY: Final = re.compile(r"DF \[[^\n]*\]; PROJECT \*/\d+ COLUMNS")
"""The plan of a query that is a frame and nothing else."""


def _frame_parts(frame: pl.DataFrame) -> Iterable[object]:
    if frame.height and not frame.width:
        raise refusal("a frame of polars with rows and without columns")
    return (frame.to_arrow(compat_level=pl.CompatLevel.oldest()),)


def _query_parts(query: pl.LazyFrame) -> Iterable[object]:
    if not _IN_MEMORY.fullmatch(query.explain(optimized=False)):
        raise refusal("a query of polars that has not run; return query.collect()")
    return _frame_parts(query.collect())


def _frame(table: pa.Table) -> pl.DataFrame:
    for field in table.schema:
        _require_plain(field)
    try:
        return cast("pl.DataFrame", pl.from_arrow(table))
    except pl.exceptions.PanicException as error:
        raise refusal(f"a table that polars does not read ({error})") from None


def _require_plain(field: pa.Field) -> None:
    """Raise UntrustedResultError for a column with other metadata than that of categories."""
    for key in field.metadata or ():
        if not _METADATA.fullmatch(key):
            raise refusal(f"a column of polars with the metadata {key!r}")
    for number in range(field.type.num_fields):
        _require_plain(field.type.field(number))


def _from_frame(convert: Callable[[pl.DataFrame], object]) -> Callable[[pa.Table], object]:
    return lambda table: convert(_frame(table))


register(
    __name__,
    (
        form(84, pl.DataFrame, _frame_parts, (pa.Table,), _frame, schema=lambda frame: frame.schema),
        form(
            85,
            pl.Series,
            lambda series: _frame_parts(series.to_frame()),
            (pa.Table,),
            _from_frame(lambda frame: frame.to_series(0)),
            schema=lambda series: (series.name, series.dtype),
        ),
        form(
            86,
            pl.LazyFrame,
            _query_parts,
            (pa.Table,),
            _from_frame(pl.DataFrame.lazy),
            schema=pl.LazyFrame.collect_schema,
        ),
    ),
)
