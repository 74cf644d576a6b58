"""The forms of pandas: frames as arrays of columns, series, indexes, extension arrays and scalars."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timezone
from itertools import chain
from typing import Final, Literal, cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from pandas._libs.sparse import IntIndex

from dios.lib.executor.results.array_forms import Array
from dios.lib.executor.results.dtype_forms import frequency
from dios.lib.executor.results.forms import (
    Reading,
    copied_bytes,
    form,
    refusal,
    register,
    require,
    require_keys,
)

_NONE: Final = type(None)
_ZONES: Final = (_NONE, timezone, ZoneInfo)
_UNITS: Final = frozenset({"s", "ms", "us", "ns"})

_FREQUENCY_VALUES_MAX: Final = 2_000
"""The dates of an index with a frequency that pandas checks by code for each date, up to 0.2 s."""
_FAST_FREQUENCY_VALUES_MAX: Final = 100_000
_FAST_FREQUENCIES: Final = frozenset(
    getattr(pd.offsets, name)
    for name in ("Day", "BusinessDay", "Week", "MonthBegin", "MonthEnd", "BMonthBegin", "BMonthEnd")
)
"""Frequencies that pandas checks for all dates at once. The time of a ``Tick`` needs no bound."""

_ARRAYS: Final = (
    *(pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray, pd.arrays.StringArray),
    *(pd.arrays.ArrowStringArray, pd.arrays.ArrowExtensionArray, pd.Categorical, pd.arrays.SparseArray),
    *(pd.arrays.DatetimeArray, pd.arrays.TimedeltaArray, pd.arrays.PeriodArray, pd.arrays.IntervalArray),
    pd.arrays.NumpyExtensionArray,
)
_INDEXES: Final = (
    *(pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex, pd.IntervalIndex, pd.CategoricalIndex),
    *(pd.RangeIndex, pd.MultiIndex),
)
_COLUMN: Final = (np.ndarray, *_ARRAYS)


def _require_column(array: object, length: int | None = None) -> None:
    """Raise UntrustedResultError for an array that pandas does not have as a column of this length."""
    if type(array) is np.ndarray and (
        array.ndim != 1
        or array.dtype.kind not in "biufcmMO"
        or (array.dtype.kind in "mM" and np.datetime_data(array.dtype)[0] not in _UNITS)
    ):
        raise refusal(f"a column of the type {array.dtype}")
    if length is not None and len(array) != length:  # type: ignore[arg-type]
        raise refusal("a column of another length")


def _column(values: pd.Series | pd.Index) -> object:
    """Return the array of a series or an index: of numpy, if its type is one of numpy."""
    is_numpy = isinstance(values.dtype, np.dtype) and not (
        isinstance(values, pd.Index) and values.dtype.kind in "mM"
    )
    return values.to_numpy() if is_numpy else values.array


# -- indexes ----------------------------------------------------------------------------------------
def _index_parts(index: pd.Index) -> Iterable[object]:
    freq = getattr(index, "freq", None) if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) else None
    return _column(index), index.name, None if freq is None else freq.freqstr


def _index(items: list[object], _reading: Reading) -> pd.Index:
    require(items, _COLUMN, None, (str, _NONE))
    array, name, freq = items
    _require_column(array)
    if array.dtype == object:  # type: ignore[attr-defined]
        # The index looks up its values by their hash.
        require_keys(list(cast("Iterable[object]", array)))
    require_keys([name])
    index = pd.Index(array, dtype=array.dtype, name=name, copy=False)  # type: ignore[attr-defined]
    if freq is not None:
        offset = frequency(cast("str", freq))
        is_fast = type(offset) in _FAST_FREQUENCIES
        count_max = _FAST_FREQUENCY_VALUES_MAX if is_fast else _FREQUENCY_VALUES_MAX
        if len(index) > count_max and not isinstance(offset, pd.tseries.offsets.Tick):
            raise refusal(f"an index of more than {count_max:,} dates with the frequency {freq}")
        index.freq = offset
    return index


def _range_index(start: int, stop: int, step: int, name: object) -> pd.RangeIndex:
    require_keys([name])
    return pd.RangeIndex(start, stop, step, name=name)


def _multi_index(items: list[object], reading: Reading) -> pd.MultiIndex:
    require(items, list, list, list, (int, _NONE))
    levels, codes, names, order = cast("tuple[list[pd.Index], list[Array], list[object], int | None]", items)
    require(levels, *[_INDEXES] * len(levels))
    require(codes, *[np.ndarray] * len(levels))
    require_keys(names)
    for level, array in zip(levels, codes, strict=True):
        reading.charge(len(level) + array.nbytes)
        if array.dtype.kind != "i" or array.ndim != 1:
            raise refusal("a multi-index whose codes are no integers")
    return pd.MultiIndex(levels, codes, order, names, copy=False)


def _multi_index_parts(index: pd.MultiIndex) -> Iterable[object]:
    return list(index.levels), list(map(np.asarray, index.codes)), list(index.names), index.sortorder


def _index_schema(index: pd.Index) -> object:
    if isinstance(index, pd.MultiIndex):
        return len(index), repr(index.names), tuple(map(_index_schema, index.levels))
    return type(index), index.dtype, len(index), repr(index.name), getattr(index, "freq", None)


# -- series and frames ------------------------------------------------------------------------------
def _series_parts(series: pd.Series) -> Iterable[object]:
    return _column(series), series.index, series.name, *_notes(series)


def _notes(value: pd.Series | pd.DataFrame) -> tuple[object, object]:
    return dict(value.attrs), value.flags.allows_duplicate_labels


def _noted(value: pd.Series | pd.DataFrame, attributes: dict[object, object], has_duplicates: bool) -> object:  # noqa: FBT001 - as it stands in the format
    if attributes:
        value.attrs = attributes
    if not has_duplicates:
        value.flags.allows_duplicate_labels = False
    return value


def _series(items: list[object], _reading: Reading) -> object:
    require(items, _COLUMN, _INDEXES, None, dict, bool)
    array, index, name, *notes = items
    _require_column(array, len(cast("pd.Index", index)))
    require_keys([name])
    series = pd.Series(array, index=index, name=name, dtype=array.dtype, copy=False)  # type: ignore[attr-defined]
    return _noted(series, *notes)  # type: ignore[arg-type]


def _frame_parts(frame: pd.DataFrame) -> Iterable[object]:
    blocks: list[object] = []
    for block in frame._mgr.blocks:  # noqa: SLF001 - other ways copy the columns
        places, array = block.mgr_locs.as_array, block.values  # noqa: PD011 - a block is no frame
        if isinstance(array.dtype, np.dtype):
            blocks += (np.asarray(array), places)
        else:
            # Columns of times with a zone are together in an array of two dimensions.
            columns = array if array.ndim == 2 else [array]
            blocks += chain.from_iterable(zip(columns, map(int, places), strict=True))
    return frame.index, frame.columns, blocks, *_notes(frame)


def _frame(items: list[object], reading: Reading) -> object:
    require(items, _INDEXES, _INDEXES, list, dict, bool)
    index, columns, blocks, *notes = items
    reading.charge(sum(map(copied_bytes, cast("list[object]", blocks))))
    length = len(cast("pd.Index", index))
    arrays: list[tuple[object, Array]] = []
    for array, places in zip(*[iter(cast("list[object]", blocks))] * 2, strict=True):
        if type(places) is int:
            require([array], _ARRAYS)
            _require_column(array, length)
            arrays.append((array, np.array([places])))
        else:
            require([array, places], np.ndarray, np.ndarray)
            _require_block(cast("Array", array), cast("Array", places), length)
            arrays.append((array, cast("Array", places)))
    everywhere = np.concatenate([np.empty(0, np.intp), *(places for _, places in arrays)])
    count = len(cast("pd.Index", columns))
    if len(everywhere) != count or not np.array_equal(np.sort(everywhere), np.arange(count)):
        raise refusal("a frame with other columns than it says")
    return _noted(_made_frame(arrays, index, columns), *notes)  # type: ignore[arg-type]


def _require_block(block: Array, places: Array, length: int) -> None:
    if block.ndim != 2 or places.dtype != np.intp or places.shape != block.shape[:1]:
        raise refusal("a block of another shape")
    for row in block[:1]:
        _require_column(row, length)
    if block.shape[1] != length:
        raise refusal("a block of another length")


def _made_frame(arrays: list[tuple[object, Array]], index: object, columns: object) -> pd.DataFrame:
    internals = getattr(pd.api, "internals", None)
    if internals is not None:
        return internals.create_dataframe_from_blocks(arrays, index=index, columns=columns)
    table: dict[int, object] = {}
    for array, places in arrays:
        rows = array if type(array) is np.ndarray else [array]
        table.update(zip(places.tolist(), cast("Iterable[object]", rows), strict=True))
    frame = pd.DataFrame({place: table[place] for place in range(len(table))}, index=index, copy=False)
    frame.columns = columns
    return frame


def _frame_schema(frame: pd.DataFrame) -> object:
    return tuple(frame.dtypes), _index_schema(frame.index), _index_schema(frame.columns), repr(_notes(frame))


def _series_schema(series: pd.Series) -> object:
    return series.dtype, repr(series.name), _index_schema(series.index), repr(_notes(series))


# -- extension arrays -------------------------------------------------------------------------------
_MASKED: Final = {kind.__name__: kind for kind in _ARRAYS[:3]}


def _masked(name: str, data: Array, mask: Array) -> object:
    if data.ndim != 1 or mask.dtype != bool or data.shape != mask.shape:
        raise refusal("a column with a mask of another shape")
    return _MASKED[name](data, mask)


def _text_parts(array: pd.arrays.StringArray) -> Iterable[object]:
    return array.dtype, [None if text is array.dtype.na_value else text for text in array]


def _text(dtype: pd.StringDtype, texts: list[object]) -> object:
    if not {str, _NONE}.issuperset(map(type, texts)) or dtype.storage != "python":
        raise refusal("a column of text with other values")
    return pd.array(texts, dtype=dtype)


def _arrow_parts(array: pd.arrays.ArrowExtensionArray) -> Iterable[object]:
    return array.dtype, array.__arrow_array__()


def _arrow(items: list[object], _reading: Reading) -> object:
    import pyarrow as pa  # noqa: PLC0415 - only where the program uses it

    require(items, (pd.ArrowDtype, pd.StringDtype), pa.ChunkedArray)
    dtype, chunks = items
    if isinstance(dtype, pd.StringDtype) and (
        dtype.storage != "pyarrow" or chunks.type not in {pa.string(), pa.large_string()}  # type: ignore[attr-defined]
    ):
        raise refusal("a column of text with other values")
    return dtype.__from_arrow__(chunks)  # type: ignore[attr-defined]


def _categories(items: list[object], reading: Reading) -> pd.Categorical:
    require(items, np.ndarray, _INDEXES, bool)
    codes, categories, is_ordered = items
    array = cast("Array", codes)
    if array.dtype.kind != "i" or array.ndim != 1:
        raise refusal("a categorical whose codes are no integers")
    # An index that is a range has no bytes for its values.
    reading.charge(len(cast("pd.Index", categories)))
    return pd.Categorical.from_codes(array, categories, is_ordered)


def _sparse_parts(array: pd.arrays.SparseArray) -> Iterable[object]:
    places = np.asarray(array.sp_index.to_int_index().indices)
    return array.sp_values, places, array.fill_value, len(array), array.kind


def _sparse(items: list[object], reading: Reading) -> object:
    require(items, np.ndarray, np.ndarray, None, int, str)
    values, places, fill, length, kind = items
    numbers, indices = cast("Array", values), cast("Array", places)
    _require_column(numbers, len(indices))
    require_keys([fill])
    if numbers.dtype == object or indices.dtype != np.int32 or indices.ndim != 1:
        raise refusal("a sparse column of other values or places than numbers")
    reading.charge(cast("int", length))
    if hasattr(pd.arrays.SparseArray, "from_indices"):
        return pd.arrays.SparseArray.from_indices(numbers, indices, length, fill, kind)
    index = IntIndex(length, indices)
    index = index if kind == "integer" else index.to_block_index()
    return pd.arrays.SparseArray(numbers, sparse_index=index, fill_value=fill)


def _times(values: Array, zone: timezone | ZoneInfo | None) -> object:
    _require_column(values)
    if values.dtype.kind == "m":
        return pd.TimedeltaIndex(values).array
    index = pd.DatetimeIndex(values)
    return (index if zone is None else index.tz_localize("UTC").tz_convert(zone)).array


def _times_parts(array: pd.arrays.DatetimeArray | pd.arrays.TimedeltaArray) -> Iterable[object]:
    kind = "M" if isinstance(array, pd.arrays.DatetimeArray) else "m"
    return array.asi8.view(f"{kind}8[{array.unit}]"), getattr(array, "tz", None)


def _periods(ordinals: Array, freq: str) -> object:
    if ordinals.dtype != np.int64 or ordinals.ndim != 1:
        raise refusal("periods that are no integers")
    return pd.PeriodIndex.from_ordinals(ordinals, freq=frequency(freq)).array


def _intervals(left: object, right: object, closed: str) -> object:
    for side in (left, right):
        _require_column(side, len(left))  # type: ignore[arg-type]
        if side.dtype == object:  # type: ignore[attr-defined]
            raise refusal("intervals of other values than numbers and times")
    return pd.arrays.IntervalArray.from_arrays(left, right, closed)


def _numpy_array(values: Array) -> object:
    _require_column(values)
    return pd.arrays.NumpyExtensionArray(values)


def _dtype_schema(array: object) -> object:
    return array.dtype, len(array)  # type: ignore[attr-defined, arg-type]


# -- scalars ----------------------------------------------------------------------------------------
def _time_scalar_parts(value: pd.Timestamp | pd.Timedelta) -> Iterable[object]:
    number = int(value.asm8.view("i8"))
    return (
        (number, value.unit, value.tz, value.fold)
        if isinstance(value, pd.Timestamp)
        else (number, value.unit)
    )


def _timestamp(number: int, unit: str, zone: timezone | ZoneInfo | None, fold: int) -> pd.Timestamp:
    time = pd.Timestamp(np.datetime64(number, _unit(unit)))
    if zone is not None:
        return time.tz_localize("UTC").tz_convert(zone)
    return time.replace(fold=fold) if fold else time


def _timedelta(number: int, unit: str) -> pd.Timedelta:
    return pd.Timedelta(np.timedelta64(number, _unit(unit)))


def _unit(unit: str) -> Literal["s"]:
    if unit not in _UNITS:
        raise refusal(f"a time in the unit {unit!r}")
    return cast("Literal['s']", unit)


def _period(ordinal: int, freq: str) -> pd.Period:
    return pd.Period(ordinal=ordinal, freq=frequency(freq))


_ENDS: Final = (int, float, pd.Timestamp, pd.Timedelta, np.float64, np.int64, np.float32, np.int32)
_SINGLETONS: Final = {"NaT": pd.NaT, "NA": pd.NA}

register(
    __name__,
    (
        form(88, pd.DataFrame, _frame_parts, None, _frame, schema=_frame_schema),
        form(89, pd.Series, _series_parts, None, _series, schema=_series_schema),
        form(90, _INDEXES[:6], _index_parts, None, _index, schema=_index_schema),
        form(
            91,
            pd.RangeIndex,
            lambda index: (index.start, index.stop, index.step, index.name),
            (int, int, int, None),
            _range_index,
            schema=_index_schema,
        ),
        form(
            92,
            pd.MultiIndex,
            _multi_index_parts,
            None,
            _multi_index,
            schema=_index_schema,
        ),
        form(
            93,
            tuple(_MASKED.values()),
            lambda array: (type(array).__name__, array._data, array._mask),  # noqa: SLF001 - no other way to both
            (str, np.ndarray, np.ndarray),
            _masked,
            schema=_dtype_schema,
        ),
        form(94, pd.arrays.StringArray, _text_parts, (pd.StringDtype, list), _text, schema=_dtype_schema),
        form(
            95,
            (pd.arrays.ArrowStringArray, pd.arrays.ArrowExtensionArray),
            _arrow_parts,
            None,
            _arrow,
            schema=_dtype_schema,
        ),
        form(
            96,
            pd.Categorical,
            lambda array: (np.asarray(array.codes), array.categories, array.ordered),
            None,
            _categories,
            schema=lambda array: (array.dtype, array.codes.dtype, tuple(array.categories)),
        ),
        form(97, pd.arrays.SparseArray, _sparse_parts, None, _sparse, schema=_dtype_schema),
        form(
            98,
            (pd.arrays.DatetimeArray, pd.arrays.TimedeltaArray),
            _times_parts,
            (np.ndarray, _ZONES),
            _times,
            schema=_dtype_schema,
        ),
        form(
            99,
            pd.arrays.PeriodArray,
            lambda array: (array.asi8, array.freq.freqstr),
            (np.ndarray, str),
            _periods,
            schema=_dtype_schema,
        ),
        form(
            100,
            pd.arrays.IntervalArray,
            lambda array: (_column(array.left), _column(array.right), array.closed),
            (_COLUMN, _COLUMN, str),
            _intervals,
            schema=_dtype_schema,
        ),
        form(
            101,
            pd.arrays.NumpyExtensionArray,
            lambda array: (array.to_numpy(),),
            (np.ndarray,),
            _numpy_array,
            schema=_dtype_schema,
        ),
        form(
            102,
            pd.Timestamp,
            _time_scalar_parts,
            (int, str, _ZONES, int),
            _timestamp,
            is_key=True,
            schema=lambda time: (time, time.unit, str(time.tz), time.fold),
        ),
        form(
            103,
            pd.Timedelta,
            _time_scalar_parts,
            (int, str),
            _timedelta,
            is_key=True,
            schema=lambda time: (time, time.unit),
        ),
        form(
            104,
            pd.Period,
            lambda period: (period.ordinal, period.freq.freqstr),
            (int, str),
            _period,
            is_key=True,
            schema=lambda period: (period, period.freq),
        ),
        form(
            105,
            pd.Interval,
            lambda interval: (interval.left, interval.right, interval.closed),
            (_ENDS, _ENDS, str),
            pd.Interval,
            is_key=True,
        ),
        form(
            106,
            tuple(map(type, _SINGLETONS.values())),
            lambda value: (str(value).strip("<>"),),
            (str,),
            _SINGLETONS.__getitem__,
            is_key=True,
        ),
    ),
)
