"""Values that programs return, by name, and a comparison that notices every change."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import math
import os
import pathlib
import re
import time
import types
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse as sp

T = TypeVar("T")
Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.void]]"


@dataclasses.dataclass
class Point:
    """A record."""

    x: int
    tags: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A record without a dictionary, which also checks what it gets."""

    x: int

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        assert self.x >= 0


@dataclasses.dataclass
class Box(Generic[T]):
    """A record of any type, with a cached property and a field that its initializer does not set."""

    content: T
    size: int = dataclasses.field(init=False, default=3)

    @functools.cached_property
    def twice(self) -> list[T]:
        """Return the content two times."""
        return [self.content, self.content]


class Colour(enum.Enum):
    """An enumeration with an alias."""

    RED = (1, 0)
    GREEN = (0, 1)
    SCARLET = (1, 0)  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    """An enumeration of integers."""

    LOW = 1


class Mode(enum.StrEnum):
    """An enumeration of texts."""

    READ = "r"


class Access(enum.Flag):
    """A flag."""

    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    """A flag of integers."""

    A = 1
    B = 2


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class CodedError(Exception):
    """An exception whose initialiser takes something else than its arguments."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def _nested(levels: int) -> object:
    value: object = []
    for _ in range(levels):
        value = [value]
    return value


def _error() -> Exception:
    error = CodedError(5)
    error.add_note("a note")
    return error


def _boxed() -> Box[int]:
    box = Box(2)
    assert box.twice == [2, 2]
    return box


def _with_attributes() -> pd.DataFrame:
    frame = pd.DataFrame({"a": [1]})
    frame.attrs["source"] = ["x"]
    return frame


_DAYS: Final = pd.date_range("2024-03-30", periods=3, freq="D", tz="Europe/Berlin")
_FRAME: Final = pd.DataFrame({"a": range(6), "b": range(6)})
_ROWS: Final = [{"id": number, "name": f"n{number}", "weight": number / 2} for number in range(6)]
_GRID: Final = np.array([[0, 1.0, 0], [2, 0, 0], [0, 0, 0]])

PLAIN: Final[Mapping[str, object]] = {
    "int": 1,
    "large int": -(2**80),
    "float": 1.5,
    "infinity": float("-inf"),
    "text": "text",
    "long text": "a" * 1000,
    "surrogate": "a\ud800",
    "bytes": b"bytes",
    "large bytes": bytes(100_000),
    "none": None,
    "bool": True,
    "complex": 1 + 2j,
    "tuple": (1, (2,), "x"),
    "list": [1, [2], None],
    "empty containers": [[], (), {}, set(), frozenset(), "", b""],
    "set": {1, "a", (2, b"x")},
    "frozenset": frozenset({3}),
    "dict": {"a": (1,), (1, 2): None, None: 2.5},
    "rows": _ROWS,
    "rows and one of them": (_ROWS, _ROWS[2]),
    "tuples": [(number, str(number)) for number in range(10)],
    "rows with large ints": [(number, 2**70) for number in range(10)],
    "nested rows": [{"a": [number], "b": {"c": number}} for number in range(5)],
    "list of bytes": [b"a", b"b", b"c" * 1000],
    "deep list": _nested(40),
    "range": range(3),
    "slice": slice(1, None, 2),
    "ellipsis": ...,
    "type": (int, np.float64, dt.date),
    "bytearray": bytearray(b"q"),
    "date": dt.date(2024, 2, 29),
    "time": dt.time(1, 2, 3, 4, fold=1),
    "timedelta": dt.timedelta(1, 2, 3),
    "datetime": dt.datetime(2024, 1, 1, 5),  # noqa: DTZ001 - without a zone
    "datetime in UTC": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    "datetime with a zone": dt.datetime(
        2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")
    ),
    "datetime with an offset": dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2), "X")),
    "decimal": decimal.Decimal("1.50"),
    "fraction": fractions.Fraction(1, 3),
    "uuid": uuid.UUID(int=5),
    "counter": collections.Counter("aab"),
    "ordered dict": collections.OrderedDict(b=1, a=2),
    "deque": collections.deque([1], 5),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "chain map": collections.ChainMap({"a": 1}, {"b": 2}),
    "mapping proxy": types.MappingProxyType({"a": 1}),
    "path": pathlib.Path("/a"),
    "windows path": pathlib.PureWindowsPath("c:/a"),
    "network": ipaddress.ip_network("10.0.0.0/8"),
    "address": ipaddress.ip_address("fe80::1%eth0"),
    "namespace": types.SimpleNamespace(a=[1]),
    "pattern": re.compile(r"a(?P<x>b)", re.IGNORECASE | re.MULTILINE),
    "text file": io.StringIO("some text"),
    "bytes file": io.BytesIO(b"some bytes"),
    "array": array.array("d", [1, 2]),
    "struct time": time.gmtime(0),
    "stat": os.stat("/"),  # noqa: PTH116 - the type of the value
    "dataclass": Point(1, ["a"]),
    "frozen dataclass": Frozen(2),
    "dataclass with a cached property": _boxed(),
    "generic dataclass": Box[int](1),
    "member": Colour.GREEN,
    "alias": Colour.SCARLET,
    "int member": Level.LOW,
    "text member": Mode.READ,
    "flag": Access.READ,
    "combined flag": Access.READ | Access.WRITE,
    "empty flag": Access(0),
    "combined int flag": Bits.A | Bits.B,
    "int flag with other bits": Bits(12),
    "named tuple": Pair(1, "b"),
    "keys": {Colour.RED: 1, Level.LOW: 2, Pair(1, "b"): 3, Access.READ | Access.WRITE: 4},
    "exception": _error(),
    "file not found": FileNotFoundError(2, "no", "/a"),
    "import error": ImportError("no", name="x", path="y"),
    "exception group": ExceptionGroup("several", [ValueError(1), OSError(2, "no")]),
}
ARRAYS: Final[Mapping[str, object]] = {
    "integers": np.arange(5),
    "fortran order": np.asfortranarray(np.ones((2, 3))),
    "every second": np.arange(10)[::2],
    "no elements": np.zeros((0, 3)),
    "no dimension": np.array(5),
    "letters": np.array(["a", "bc"]),
    "text of any length": np.array(["a", "bcd"], dtype=np.dtypes.StringDType()),
    "octets": np.array([b"ab"]),
    "booleans": np.array([True, False]),
    "times": np.array(["2020-01-01", "NaT"], dtype="M8[ns]"),
    "big endian": np.zeros((2, 2), dtype=">i4"),
    "structured": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8", (2,))]),
    "record array": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "matrix": np.array([[1, 2]]).view(np.matrix),  # its constructor warns
    "masked": np.ma.array([1, 2], mask=[False, True]),
    "masked with a fill value": np.ma.array([1.0, 2.0], fill_value=7.5),
    "masked objects": np.ma.array([1, "a"], mask=[False, True], dtype=object),
    "masked constant": np.ma.masked,
    "objects": np.array([1, "a", None, [1, 2]], dtype=object),
    "objects of two dimensions": np.array([[1, "a"], [None, {2}]], dtype=object),
    "float64": np.float64(1.5),
    "float32": np.float32(2),
    "bool_": np.bool_(True),
    "str_": np.str_("x"),
    "datetime64": np.datetime64("2020-01-01"),
    "void": np.zeros(2, dtype="i4,f8")[0],
    "dtype": np.dtype([("a", "i4")]),
    "object dtype": np.dtype(object),
    "one array twice": [_GRID, _GRID],
    "random state": np.random.RandomState(3),
    "generator": np.random.default_rng(3),
    **{
        kind: getattr(sp, kind)(_GRID)
        for kind in [
            "csr_matrix",
            "csc_array",
            "coo_array",
            "bsr_array",
            "dia_array",
            "lil_matrix",
            "dok_array",
        ]
    },
}
PANDAS: Final[Mapping[str, object]] = {
    "frame": _FRAME,
    "empty frame": pd.DataFrame(),
    "no columns": pd.DataFrame(index=[1, 2]),
    "mixed types": pd.DataFrame(
        {"a": _DAYS, "b": pd.date_range("2020", periods=3), "c": [True, False, True], "d": ["x", None, "y"]}
    ),
    "Int64": pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64")}),
    "boolean": pd.Series([True, None], dtype="boolean"),
    "Float64": pd.array([1.5, None], dtype="Float64"),
    "string": pd.Series(["a", None], dtype="string"),
    "string of python": pd.Series(["a", None], dtype=pd.StringDtype("python")),
    "arrow list": pd.DataFrame({"a": pd.array([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int64())))}),
    "category": pd.DataFrame({"a": pd.Categorical(["b", "a"], categories=["b", "a", "z"], ordered=True)}),
    "categorical": pd.Categorical(["a", None, "b"]),
    "categories of a range": pd.Categorical.from_codes([0], pd.RangeIndex(3)),
    "index with frequency": pd.DataFrame({"a": range(3)}, index=_DAYS),
    "business days": pd.date_range("2020", periods=5, freq="B"),
    "time deltas": pd.timedelta_range("1D", periods=3),
    "period": pd.DataFrame({"a": pd.period_range("2024-01", periods=3, freq="M")}),
    "period index": pd.period_range("2020", periods=3, freq="Q"),
    "interval": pd.DataFrame({"a": pd.interval_range(0, 3)}),
    "cut": pd.DataFrame({"i": pd.cut([1, 2], 2)}),
    "sparse": pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 1])}),
    "sparse blocks": pd.arrays.SparseArray([0.0, np.nan, 1.0], kind="block"),
    "multi-index": pd.DataFrame(
        {"a": range(4)}, index=pd.MultiIndex.from_product([["x", "y"], [1, 2]], names=["k", None])
    ),
    "multi columns": pd.DataFrame(np.eye(2), columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
    "equal columns": pd.DataFrame(np.eye(2), columns=["a", "a"]),
    "integer columns": pd.DataFrame(np.ones((2, 2))),
    "named columns": pd.DataFrame({"a": [1]}).rename_axis(columns="c"),
    "objects in a frame": pd.DataFrame({"a": [1, "x", None], "b": [{1}, (2,), {"c": 3}]}),
    "index name": pd.DataFrame({"a": [1]}, index=pd.Index([5], name=("t", 1))),
    "dates": pd.DataFrame({"a": [dt.date(2024, 1, 1)]}),
    "seconds": pd.Series(np.array(["2020-01-01"], dtype="M8[s]")),
    "describe": _FRAME.describe(),
    "aggregated": _FRAME.groupby("a").agg(["min", "max"]),
    "rows of a frame": _FRAME.iloc[3:1:-1],
    "types of a frame": pd.DataFrame({"a": [1], "b": _DAYS[:1], "c": pd.Categorical([1])}).dtypes,
    "attributes": _with_attributes(),
    "flags": pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
    "series": pd.Series([1, 2], name="n"),
    "index": pd.Index(["a"], name="i"),
    "index of tuples": pd.Series([1], index=pd.Index([("a", 1)], tupleize_cols=False)),
    "Timestamp": pd.Timestamp("2024-01-01", tz="UTC"),
    "Timestamp in a fold": pd.Timestamp("2024-10-27 01:30", tz="UTC").tz_convert("Europe/Berlin"),
    "NaT": pd.NaT,
    "NA": pd.NA,
    "Timedelta": pd.Timedelta("1D"),
    "Period": pd.Period("2024-01"),
    "Interval": pd.Interval(pd.Timestamp("2020"), pd.Timestamp("2021"), closed="left"),
    "offset": pd.offsets.BDay(2),
    "CategoricalDtype": pd.CategoricalDtype(["a", "b"], ordered=True),
    "frames by name": {"x": _FRAME, 0: _FRAME.a},
}
ARROW: Final[Mapping[str, object]] = {
    "array": pa.array([1, None]),
    "nulls": pa.nulls(3),
    "texts": pa.array(["a", None, "bcd"]),
    "part of an array": pa.array(range(100_000)).slice(10, 5),
    "nested": pa.array([{"a": [1], "b": "x"}, None]),
    "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "fixed list": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
    "decimals": pa.array([decimal.Decimal("1.5")]),
    "timestamps": pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    "chunks": pa.chunked_array([[1], [2, 3]]),
    "batch": pa.record_batch({"a": [1]}),
    "table": pa.table({"a": [1, None]}, metadata={"k": "v"}),
    "table of unequal chunks": pa.table({"a": pa.chunked_array([[1], [2]]), "b": pa.chunked_array([[1, 2]])}),
    "table of chunks": pa.table({"a": pa.chunked_array([["x"], ["y", None]])}),
    "table without columns": pa.table({}),
    "schema": pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"x": "y"})]),
    "arrow type": pa.timestamp("ns", "UTC"),
    "scalar": pa.scalar("a"),
    "polars frame": pl.DataFrame({"a": [1, None], "b": [[1], [2, 3]]}),
    "polars series": pl.Series("s", [1, 2]),
    "polars categories": pl.Series("c", ["a", "b"], dtype=pl.Categorical),
    "polars enum": pl.Series("e", ["a", "b"], dtype=pl.Enum(["b", "a"])),
    "polars struct": pl.Series("s", [{"a": dt.time(1), "b": dt.timedelta(1)}]),
    "polars nulls": pl.DataFrame({"n": [None, None]}),
    "polars query": pl.DataFrame({"a": [1]}).lazy(),
}
VALUES: Final[Mapping[str, object]] = {**PLAIN, **ARRAYS, **PANDAS, **ARROW}

REFUSED: Final[Mapping[str, Callable[[], object]]] = {
    "aligned records": lambda: np.zeros(2, dtype=np.dtype("i1,f8", align=True)),
    "fields out of order": lambda: np.zeros(2, dtype="i1,i2")[["f1", "f0"]],
    "query that has not run": lambda: pl.DataFrame({"a": [1]}).lazy().select(pl.col("a") + 1),
    "python objects in polars": lambda: pl.Series("o", [object()], dtype=pl.Object),
    "run ends": lambda: pa.RunEndEncodedArray.from_arrays([2], pa.array([1])),
}
"""Values that data could have and that are refused with a reason."""


# -- the comparison ---------------------------------------------------------------------------------
def difference(value: object, other: object) -> str:
    """Return how a value differs from another in type, schema or content; empty if it does not."""
    if type(value) is not type(other):
        return f"{type(value).__name__} became {type(other).__name__}"
    for kinds, compare in _COMPARISONS:
        if isinstance(value, kinds):
            return "" if compare(value, other) else f"{value!r} became {other!r}"
    return "" if value == other else f"{value!r} became {other!r}"


def _same_items(value: object, other: object) -> bool:
    items, others = (list(cast("list[object]", part)) for part in (value, other))
    if isinstance(value, dict | collections.ChainMap | types.MappingProxyType):
        return _same_items(list(value.items()), list(cast("dict[object, object]", other).items()))
    return len(items) == len(others) and not any(map(difference, items, others))


def _same_exceptions(value: BaseException, other: BaseException) -> bool:
    if isinstance(value, BaseExceptionGroup):
        return _same_items(
            list(value.exceptions), list(cast("BaseExceptionGroup[Exception]", other).exceptions)
        )
    names = ("name", "path", "filename")
    return (value.args, vars(value), str(value)) == (other.args, vars(other), str(other)) and all(
        getattr(value, name, None) == getattr(other, name, None) for name in names
    )


def _same_arrays(value: Array, other: Array) -> bool:
    if np.ma.is_masked(value) and not value.shape:
        return other is value
    same = value.dtype == other.dtype and value.dtype.type is other.dtype.type and value.shape == other.shape
    if isinstance(value, np.ma.MaskedArray) and isinstance(other, np.ma.MaskedArray):
        masks = np.array_equal(np.ma.getmaskarray(value), np.ma.getmaskarray(other))
        same = same and masks and bool(value.fill_value == other.fill_value)
    contiguous = not value.flags.forc or value.flags.f_contiguous == other.flags.f_contiguous
    return same and contiguous and _same_items(_plain_items(value), _plain_items(other))


def _plain_items(array: Array) -> list[object]:
    items: list[object] = [*np.asarray(array).ravel().tolist()]
    return ["nan" if type(item) is float and math.isnan(item) else item for item in items]


def _same_indexes(value: pd.Index, other: pd.Index) -> bool:
    pd.testing.assert_index_equal(value, other, exact=True)
    return value.names == other.names and getattr(value, "freq", None) == getattr(other, "freq", None)


def _same_frames(value: pd.DataFrame | pd.Series, other: pd.DataFrame | pd.Series) -> bool:
    compare = (
        pd.testing.assert_frame_equal if isinstance(value, pd.DataFrame) else pd.testing.assert_series_equal
    )
    compare(value, other, check_freq=True)
    notes = [(part.attrs, part.flags.allows_duplicate_labels) for part in (value, other)]
    axes = zip(value.axes, other.axes, strict=True)
    return notes[0] == notes[1] and all(_same_indexes(*pair) for pair in axes)


def _same_pandas_arrays(value: object, other: object) -> bool:
    pd.testing.assert_extension_array_equal(value, other)
    return True


def _same_tables(value: pa.Table, other: pa.Table) -> bool:
    return (
        value.equals(other)
        and all(getattr(value, name, None) == getattr(other, name, None) for name in ("type", "num_chunks"))
        and (not hasattr(value, "schema") or value.schema.equals(other.schema, check_metadata=True))
    )


_COMPARISONS: Final[tuple[tuple[type | tuple[type, ...], Callable[..., bool]], ...]] = (  # type: ignore[explicit-any]
    ((list, tuple, dict, collections.ChainMap, types.MappingProxyType), _same_items),
    (BaseException, _same_exceptions),
    (np.ndarray, _same_arrays),
    (np.random.RandomState, lambda value, other: value.random() == other.random()),
    (np.random.Generator, lambda value, other: value.random() == other.random()),
    (
        (sp.sparray, sp.spmatrix),
        lambda value, other: (value != other).nnz == 0 and value.dtype == other.dtype,
    ),
    ((pd.DataFrame, pd.Series), _same_frames),
    (pd.Index, _same_indexes),
    (pd.api.extensions.ExtensionArray, _same_pandas_arrays),
    ((type(pd.NaT), type(pd.NA)), lambda value, other: value is other),
    (
        pd.Timestamp,
        lambda value, other: (
            value == other and (value.fold, value.unit, value.tz) == (other.fold, other.unit, other.tz)
        ),
    ),
    ((pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray), _same_tables),
    (pl.DataFrame, lambda value, other: value.equals(other) and value.schema == other.schema),
    (
        pl.Series,
        lambda value, other: value.equals(other) and (value.dtype, value.name) == (other.dtype, other.name),
    ),
    (pl.LazyFrame, lambda value, other: value.collect().equals(other.collect())),
    (
        (io.StringIO, io.BytesIO),
        lambda value, other: value.getvalue() == other.getvalue() and value.tell() == other.tell(),
    ),
    (
        dt.datetime,
        lambda value, other: (
            value == other and (value.fold, repr(value.tzinfo)) == (other.fold, repr(other.tzinfo))
        ),
    ),
    (dt.time, lambda value, other: value == other and value.fold == other.fold),
    (enum.Enum, lambda value, other: value is other or isinstance(value, Bits)),
)
