"""Named tuples with methods in compiled code, where Numba gives them fields only.

Not for: plain functions, which compiled code calls as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import CodeType
from typing import Protocol, cast

from numba import types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic, overload_method


class Function(Protocol):
    """Any function that is written in Python."""

    __code__: CodeType
    __name__: str


def give_methods(
    kind: type[types.Type],
    found: Mapping[str, Function],
    only: type | None = None,
    folded: Collection[str] = (),
) -> None:
    """Let compiled code call methods by name: their own text is compiled.

    ``kind`` is a class of Numba's types; of its named tuples ``only`` one has them, where that is said. Those
    ``folded`` become a part of each caller: a tuple of many arrays costs much to hand over.
    """
    for name, method in found.items():
        options = {"forceinline": True} if name in folded else {}
        overload_method(kind, name, jit_options=options)(_resolver(method, only))  # type: ignore[call-arg] # handed on


def _resolver(method: Function, only: type | None) -> Callable[[], None]:
    def resolve(*arguments: object) -> Function | None:
        kind = getattr(arguments[0], "instance_class", None)
        return method if only is None or kind is only else None

    # Numba compares how both are called.
    resolve.__signature__ = inspect.signature(cast("Callable[[], None]", method))  # type: ignore[attr-defined] # read by inspect
    return cast("Callable[[], None]", resolve)


def with_methods(
    made: type, found: Mapping[str, Function]
) -> Callable[[tuple[object, ...]], tuple[object, ...]]:
    """For compiled code: what gives a tuple of the class ``made`` the methods of another class.

    Each has a type of its own then: Numba looks no further than the first method of a name that a type has.
    """
    kind = type(f"{made.__name__}WithMethods", (types.NamedTuple,), {})
    register_default(kind)(models.TupleModel)
    give_methods(kind, found, folded=found)

    def typed(_context: object, plain: types.NamedTuple) -> object:
        own = kind(plain.types, made)

        def built(_target: object, _builder: object, _signature: object, arguments: list[object]) -> object:
            return arguments[0]

        return own(plain), built

    return cast("Callable[[tuple[object, ...]], tuple[object, ...]]", intrinsic(typed))
