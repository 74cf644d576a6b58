"""The forms of the types of columns of pandas, and of its frequencies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timezone
from typing import Final, TypeAlias, cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from dios.lib.executor.frames import Function
from dios.lib.executor.results.array_forms import Dtype
from dios.lib.executor.results.forms import Reading, form, refusal, register, require, require_keys

_NONE: Final = type(None)

_FREQUENCY_CHARS_MAX: Final = 64

_SIMPLE: Final = {
    str(kind): kind
    for kind in map(
        pd.api.types.pandas_dtype,
        [
            "Int8",
            "Int16",
            "Int32",
            "Int64",
            "UInt8",
            "UInt16",
            "UInt32",
            "UInt64",
            "Float32",
            "Float64",
            "boolean",
        ],
    )
}


def frequency(text: str) -> pd.offsets.BaseOffset:
    """Return the frequency of a text."""
    if len(text) > _FREQUENCY_CHARS_MAX:
        raise refusal("a frequency of an impossible length")
    return pd.tseries.frequencies.to_offset(text)


def _dtype_parts(dtype: object) -> Iterable[object]:
    name = type(dtype).__name__
    if str(dtype) in _SIMPLE:
        return (str(dtype),)
    return name, *(_PARAMETERS[name][1](dtype))


def _dtype(items: list[object], reading: Reading) -> object:
    name, *parts = items
    require(items[:1], str)
    if name in _SIMPLE and not parts:
        return _SIMPLE[name]
    build, _, kinds = _PARAMETERS[str(name)]
    require(parts, *kinds)
    if issubclass(type(parts[0]), pd.Index):
        reading.charge(len(cast("pd.Index", parts[0])))
    return build(*parts)


def _arrow_dtype(kind: object) -> object:
    import pyarrow as pa  # noqa: PLC0415 - only where the program uses it

    if not issubclass(type(kind), pa.DataType):
        raise refusal("a type of Arrow that is none")
    return pd.ArrowDtype(kind)


def _sparse_dtype(dtype: Dtype, fill: object) -> pd.SparseDtype:
    require_keys([fill])
    return pd.SparseDtype(dtype, fill)


_NUMBERS: Final = tuple(
    {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"}
)
_TIMES: Final = (type(np.dtype("M8")), type(np.dtype("m8")), pd.DatetimeTZDtype)
_INDEXES: Final = (
    *(pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex, pd.IntervalIndex, pd.CategoricalIndex),
    *(pd.RangeIndex, _NONE),
)
_Kinds: TypeAlias = "tuple[type | tuple[type, ...] | None, ...]"
_PARAMETERS: Final[dict[str, tuple[Function[object], Function[tuple[object, ...]], _Kinds]]] = {
    "CategoricalDtype": (
        pd.CategoricalDtype,
        lambda dtype: (dtype.categories, dtype.ordered),
        (_INDEXES, (bool, _NONE)),
    ),
    "DatetimeTZDtype": (
        pd.DatetimeTZDtype,
        lambda dtype: (dtype.unit, dtype.tz),
        (str, (timezone, ZoneInfo)),
    ),
    "PeriodDtype": (
        lambda text: pd.PeriodDtype(frequency(text)),
        lambda dtype: (dtype.freq.freqstr,),
        (str,),
    ),
    "IntervalDtype": (
        pd.IntervalDtype,
        lambda dtype: (dtype.subtype, dtype.closed),
        ((*_NUMBERS, *_TIMES, _NONE), (str, _NONE)),
    ),
    "SparseDtype": (
        _sparse_dtype,
        lambda dtype: (dtype.subtype, dtype.fill_value),
        ((*_NUMBERS, *_TIMES), None),
    ),
    "StringDtype": (
        lambda storage, is_nan: pd.StringDtype(storage, na_value=np.nan if is_nan else pd.NA),
        lambda dtype: (dtype.storage, dtype.na_value is not pd.NA),
        (str, bool),
    ),
    "ArrowDtype": (_arrow_dtype, lambda dtype: (dtype.pyarrow_dtype,), (None,)),
}
"""The types with parameters: how to build one from them, how to read them, and their types."""


_OFFSETS: Final = tuple({kind for kind in vars(pd.offsets).values() if isinstance(kind, type)})
_DTYPES: Final = tuple({*map(type, _SIMPLE.values()), *(getattr(pd, name) for name in _PARAMETERS)})

register(
    __name__,
    (
        form(108, _DTYPES, _dtype_parts, None, _dtype, schema=lambda dtype: dtype),
        form(109, _OFFSETS, lambda value: (value.freqstr,), (str,), frequency, schema=lambda value: value),
    ),
)
