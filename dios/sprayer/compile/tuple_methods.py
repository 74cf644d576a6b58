"""Methods of named tuples in compiled code, where Numba supports only their fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import CodeType
from typing import Protocol, cast

from numba import types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic, overload_method

from dios.sprayer.compile.inlined_methods import PART_OPTIONS


class Function(Protocol):
    """Any function written in Python."""

    __code__: CodeType
    __name__: str


def add_methods(
    kind: type[types.Type],
    methods: Mapping[str, Function],
    only: type | None = None,
    folded: Collection[str] = (),
) -> None:
    """Let compiled code call methods by name.

    ``kind`` is a class of Numba types. With ``only``, just this named tuple class has the methods. Methods in
    ``folded`` are inlined into each caller, because passing a tuple of many arrays is expensive.
    """
    for name, method in methods.items():
        options = PART_OPTIONS | ({"forceinline": True} if name in folded else {})
        overload_method(kind, name, jit_options=options)(_resolver(method, only))  # type: ignore[call-arg] # handed on


def _resolver(method: Function, only: type | None) -> Callable[[], None]:
    def resolve(*arguments: object) -> Function | None:
        kind = getattr(arguments[0], "instance_class", None)
        return method if only is None or kind is only else None

    # Numba compares the signatures of both functions.
    resolve.__signature__ = inspect.signature(cast("Callable[[], None]", method))  # type: ignore[attr-defined] # read by inspect
    return cast("Callable[[], None]", resolve)


def with_methods(
    tuple_class: type, methods: Mapping[str, Function]
) -> Callable[[tuple[object, ...]], tuple[object, ...]]:
    """Return a compiled function that gives a tuple of class ``tuple_class`` the methods of another class.

    Each class gets its own Numba type, because Numba uses the first method of a name that a type has.
    """
    kind = type(f"{tuple_class.__name__}WithMethods", (types.NamedTuple,), {})
    register_default(kind)(models.TupleModel)
    add_methods(kind, methods, folded=methods)

    def typed(_context: object, plain: types.NamedTuple) -> object:
        own = kind(plain.types, tuple_class)

        def built(_target: object, _builder: object, _signature: object, arguments: list[object]) -> object:
            return arguments[0]

        return own(plain), built

    return cast("Callable[[tuple[object, ...]], tuple[object, ...]]", intrinsic(typed))
