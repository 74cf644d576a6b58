"""The main module as functions see it, in the program and in its workers.

Definitions of the module travel by name. ``main_names`` sends its values, and ``main_worker`` receives them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Final, Protocol, cast

import msgspec

MAIN: Final = "__main__"

CACHED: Final = type(functools.lru_cache(len))
"""The type of functions with ``lru_cache`` or ``cache``."""

IF_MISSING: Final = 0
"""The rule for a value that a worker keeps if it has one of that name."""
IF_DIFFERENT: Final = 1
"""The rule for data that the script of a worker may have made itself, equal to these."""
ALWAYS: Final = 2
UNSENDABLE: Final = 3
"""The rule for a value that cannot be pickled: the error of its absence has the reason."""
REMOVED: Final = 4
"""The rule for a value that cannot be pickled any more: workers remove the value that they have."""

failures: Final[dict[str, BaseException]] = {}
"""The names that this worker could not define, and the reasons."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """The values of names, or of attributes of classes, in the main module.

    There are several if the values point at each other or share a part.
    """

    names: tuple[str, ...]
    rule: int
    data: bytes
    """A pickle of the list of the values; with ``UNSENDABLE`` and ``REMOVED`` the reason as text."""


class BoundNamespace:
    """In the place of a namespace in a pickle: that of the worker, with some values that come along."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names: Final = names


class MainContext(Protocol):
    """The main module of a pickler."""

    @property
    def namespace(self) -> dict[str, object]:
        """Return the names of the module."""

    def need(self, name: str) -> frozenset[str]:
        """Have a name defined in the workers before they read the pickle that is being made.

        Return the names that the pickle itself must bring along, because their values are large.
        """

    def is_in_progress(self, name: str) -> bool:
        """Return True while the definition of a name is made."""


class ProcessMain:
    """The main module of this process, for pickles whose receiver has the same names."""

    @property
    def namespace(self) -> dict[str, object]:
        """Return the names of the module."""
        return main_namespace()

    def need(self, _name: str) -> frozenset[str]:
        """Return no names."""
        return frozenset()

    def is_in_progress(self, _name: str) -> bool:
        """Return False."""
        return False


def main_namespace() -> dict[str, object]:
    """Return the namespace of this process's main module."""
    return sys.modules[MAIN].__dict__


def main_attribute(qualname: str, _namespace: object = None) -> object:
    """Return a function or a class of the main module, which a pickle names."""
    top, *rest = qualname.split(".")
    values = main_namespace()
    if top not in values:
        absent = failures.get(top) or AttributeError(f"the main module of this worker has no {top!r}")
        raise absent.with_traceback(None)
    return functools.reduce(getattr, rest, values[top])


def bound_namespace(values: dict[str, object]) -> dict[str, object]:
    """Return the namespace of the main module after setting some of its names."""
    main = main_namespace()
    main.update(values)
    return main


def new_variable(name: str, *defaults: object) -> ContextVar[object]:
    """Return a context variable, with its default if it has one."""
    return ContextVar(name, default=defaults[0]) if defaults else ContextVar(name)


def cached(function: object, parameters: dict[str, object]) -> object:
    """Return a function with a cache of its own."""
    return functools.lru_cache(**parameters)(function)  # type: ignore[call-overload]  # those of such a function


def qualname_in(namespace: dict[str, object], value: object) -> str:
    """Return the name by which the main module has a function, a class, or a wrapper of a function.

    It is empty for what the module does not have under a name, such as a function in a function.
    """
    try:
        if not callable(value) or getattr(value, "__module__", None) != MAIN:
            return ""
    except Exception:  # noqa: BLE001 - a proxy may raise anything
        return ""
    if not isinstance(value, type | FunctionType | CACHED):
        attributes = getattr(value, "__dict__", {})
        # functools.wraps has made some objects like functions.
        if "__wrapped__" not in attributes or "__qualname__" not in attributes:
            return ""
    qualname = cast("str", getattr(value, "__qualname__", ""))
    if "<" in qualname:
        return next((name for name, other in list(namespace.items()) if other is value), "")
    top, *rest = qualname.split(".")
    known = namespace.get(top)
    for part in rest:
        known = getattr(known, part, None)
    return qualname if known is value else ""


def names_in(value: object) -> Iterator[str]:
    """Yield the global names in a function, or in the functions of a class."""
    if isinstance(value, type):
        for part in vars(value).values():
            yield from names_in(part)
    code = value if isinstance(value, CodeType) else getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            yield from names_in(constant)
