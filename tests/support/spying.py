"""A record whose methods all note that they ran, for tests that no code of the program's classes may run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, cast

CALLS: Final[list[str]] = []
"""The names of the methods that ran."""

_NAMES: Final = [
    "init",
    "new",
    "post_init",
    "getattribute",
    "getattr",
    "setattr",
    "delattr",
    "repr",
    "str",
    "bytes",
    "format",
    "hash",
    "bool",
    "len",
    "iter",
    "next",
    "reversed",
    "contains",
    "getitem",
    "setitem",
    "delitem",
    "missing",
    "call",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "int",
    "index",
    "float",
    "complex",
    "round",
    "trunc",
    "add",
    "radd",
    "sub",
    "mul",
    "neg",
    "abs",
    "invert",
    "and",
    "or",
    "enter",
    "exit",
    "fspath",
    "sizeof",
    "dir",
    "copy",
    "deepcopy",
    "reduce",
    "reduce_ex",
    "getstate",
    "setstate",
    "getnewargs",
    "instancecheck",
    "subclasscheck",
    "length_hint",
    "array",
    "array_finalize",
    "array_ufunc",
    "array_function",
    "array_wrap",
    "arrow_array",
    "arrow_c_array",
    "arrow_c_stream",
    "dataframe",
    "buffer",
    "await",
    "set",
    "get",
]


def _method(name: str) -> Callable[..., object]:  # type: ignore[explicit-any]
    def method(self: object, *args: object, **kwargs: object) -> object:
        CALLS.append(name)
        return getattr(object, name)(self, *args, **kwargs) if hasattr(object, name) else 1

    return method


def _class_of(_instance: object) -> type:
    CALLS.append("__class__")
    return dict


Spy: Final = cast(
    "type",
    dataclasses.dataclass(init=False, repr=False, eq=False)(
        type(
            "Spy",
            (),
            {
                **{f"__{name}__": _method(f"__{name}__") for name in _NAMES},
                **{
                    name: property(_method(name))
                    for name in ("__array_interface__", "__array_struct__", "dtype")
                },
                "__class__": property(_class_of),
                "__annotations__": {"x": "object"},
                "__module__": __name__,
                "__qualname__": "Spy",
            },
        )
    ),
)
"""The record. It has one field, ``x``."""
