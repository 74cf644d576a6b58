"""The functions of a job's module, found and checked once, before any data.

Only mappers and reducers import a job's module; the controller never does. ``dios.lib.jobs.collect`` and
``dios.lib.jobs.intake`` call the functions.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import repeat
from types import ModuleType
from typing import Final, TypeAlias, cast

from msgspec import Struct

from dios.errors import InvalidError

Key: TypeAlias = Hashable
Value: TypeAlias = object
Pairs: TypeAlias = Iterable[tuple[Key, Value]]
Record: TypeAlias = bytes | str | memoryview

Reduce: TypeAlias = Callable[[Key, list[Value]], Value]
Function: TypeAlias = Callable[[Iterable[int]], int] | Reduce
"""Any callable; its arguments are checked before it is called."""

Apply: TypeAlias = Callable[[Iterable[Record], str], Iterator[object]]
"""A map function over many records of the document with a label: returns the pairs for each."""


class FunctionKind(enum.Enum):
    """The kinds of map functions."""

    PAIRS = "map"
    KEYS = "map_keys"
    BLOCK = "map_block"


FOLDS: Final[tuple[Callable[[Iterable[int]], int], ...]] = (sum, min, max)
"""The builtins that may be a reduce or combine function: they take the values of a key alone."""


class Functions(Struct, frozen=True):
    """A job's functions, ready to be applied. With ``text`` records are str; with ``sums`` values are added
    up on their way, with ``totals`` in the end.
    """

    kind: FunctionKind
    apply: Apply
    text: bool
    reduce: Reduce
    combine: Reduce | None
    sums: bool
    totals: bool


def functions_of(module: ModuleType) -> Functions:
    """Find and check the functions in a job's module; InvalidError with the missing function.

    ``map(record[, label])`` returns pairs, ``map_keys(record[, label])`` returns keys that count one each,
    ``map_block(block[, label])`` returns a mapping or pairs for many records at once. ``reduce`` and
    ``combine`` take a key and the list of its values, or are one of the builtins sum, min and max. If reduce
    is one of these, values are combined by it unless the job defines combine. With ``text = True`` records
    are str instead of bytes.
    """
    functions = {kind: _callable(module, kind.value) for kind in FunctionKind}
    there = [kind for kind, function in functions.items() if function is not None]
    if len(there) != 1:
        listed = ", ".join(kind.value for kind in there) or "none"
        raise InvalidError(f"a job's module defines one of map, map_keys and map_block; found {listed}")
    kind = there[0]
    reduce, combine = _callable(module, "reduce"), _callable(module, "combine")
    if reduce is None:
        raise InvalidError("a job's module defines reduce(key, values), or says reduce = sum")
    if combine is None and reduce in FOLDS:
        # The result by parts is the same as at once, so early combination loses nothing.
        combine = reduce
    if kind is FunctionKind.KEYS and combine in {min, max}:
        raise InvalidError("map_keys counts keys: combine is sum, or left out")
    for name, function in (("reduce", reduce), ("combine", combine)):
        if function is not None and function not in FOLDS and not _takes(function, 2):
            raise InvalidError(f"{name} must take (key, values)")
    return Functions(
        kind=kind,
        apply=_applied(kind, functions[kind]),
        text=bool(vars(module).get("text", False)),
        reduce=_with_key(reduce),
        combine=None if combine is None else _with_key(combine),
        sums=combine is sum,
        totals=reduce is sum,
    )


def _applied(kind: FunctionKind, function: Function | None) -> Apply:
    if function is not None and _takes(function, 1):
        single = cast("Callable[[Record], object]", function)
        return lambda records, _: map(single, records)
    if function is not None and _takes(function, 2):
        double = cast("Callable[[Record, str], object]", function)
        return lambda records, label: map(double, records, repeat(label))
    raise InvalidError(f"{kind.value} must take (record), or (record, label)")


def _callable(module: ModuleType, name: str) -> Function | None:
    function: object = vars(module).get(name)
    if function is None:
        return None
    if not callable(function):
        raise InvalidError(f"{name} in a job's module must be a function, not {type(function).__name__}")
    return cast("Function", function)


def _with_key(function: Function) -> Reduce:
    for fold in FOLDS:
        if fold is function:
            return _fold(fold)
    return cast("Reduce", function)


def _fold(fold: Callable[[Iterable[int]], int]) -> Reduce:
    def of_values(key: Key, values: list[Value]) -> Value:
        del key
        return fold(cast("list[int]", values))

    return of_values


def _takes(function: Function, count: int) -> bool:
    try:
        inspect.signature(function).bind(*([None] * count))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return count == 1
    return True
