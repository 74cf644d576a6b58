"""Functions whose code or annotation says that their result cannot be sent: they are refused before they run.

Only what is certain is refused. An annotation that cannot be resolved, an abstract type, and a class of which
some subclass may be sent say nothing.
"""

from __future__ import annotations

import _thread
import collections.abc
import dataclasses
import functools
import inspect
import threading
import types
import typing
from typing import Final, cast
from weakref import WeakKeyDictionary, WeakSet

from dios.errors import InvalidError
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.results.class_forms import is_allowed
from dios.lib.executor.results.forms import (
    FORM_OF_TYPE,
    KEY_TYPES,
    LIBRARIES,
    load_forms_of,
    name_of,
    owner_of,
)

_CODE_FLAGS: Final = (
    (inspect.CO_GENERATOR, "a generator", "Return a list of its values"),
    (inspect.CO_COROUTINE, "a coroutine", "Submit a function that returns asyncio.run(...) of it"),
    (inspect.CO_ASYNC_GENERATOR, "an asynchronous generator", "Return a list of its values"),
)
_NEVER_SENT: Final = (
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType),
    *(threading.Lock, threading.RLock, _thread.LockType, _thread.RLock),
)
"""Types that have no subclasses and no pickle."""
_ABSTRACT: Final = (
    collections.abc.Generator,
    collections.abc.AsyncGenerator,
    collections.abc.Coroutine,
)
"""Types that have only values of ``_NEVER_SENT``, unless the program has made subclasses."""
_UNIONS: Final = (typing.Union, types.UnionType)

load_forms_of("")  # those of the standard library

_UNKNOWN: Final = object()
_hints: Final[WeakKeyDictionary[object, object]] = WeakKeyDictionary()
"""The resolved return annotations of functions."""
_accepted: Final[WeakSet[types.FunctionType]] = WeakSet()
"""The functions that were accepted without trust, whose further calls are not looked at."""


def require_sendable(function: object, *, trust: bool) -> None:
    """Raise an error for a function that says that its result cannot be sent from a worker.

    Raises InvalidError for what no worker can send, such as a generator, and without ``trust``
    UntrustedResultError for an object of a class that the closed format refuses.
    """
    if type(function) is types.FunctionType and function in _accepted:
        return
    while type(function) is functools.partial:
        function = function.func
    function = getattr(function, "__func__", function) if type(function) is types.MethodType else function
    if isinstance(function, types.FunctionType):
        for flag, result, advice in _CODE_FLAGS:
            if function.__code__.co_flags & flag:
                raise InvalidError(
                    f"{function.__qualname__} cannot be submitted: its result is {result}, which cannot "
                    f"leave its process. {advice}"
                )
    declared = _declared(function)
    if declared is not _UNKNOWN:
        _require(function, declared, trust=trust)
    if isinstance(function, types.FunctionType) and not trust:
        _accepted.add(function)


def _declared(function: object) -> object:
    """Return the type of all results of a function, or ``_UNKNOWN``."""
    if type(function) is type:
        # Calling it makes an object of just this class, unless it says otherwise.
        return function if owner_of(function, "__new__") is object else _UNKNOWN
    # A decorator that copied the annotation may return something else.
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return _UNKNOWN
    try:
        annotation = function.__annotations__.get("return", _UNKNOWN)
        if not isinstance(annotation, str):
            return annotation
        hint = _hints.get(function, _UNKNOWN)
        if hint is _UNKNOWN:
            alone = types.SimpleNamespace(__annotations__={"return": annotation})
            hint = _hints[function] = typing.get_type_hints(alone, function.__globals__)["return"]
    except Exception:  # noqa: BLE001 - an annotation is code of the program, and may name what is not there
        return _UNKNOWN
    return hint


def _require(function: object, declared: object, *, trust: bool) -> None:
    refused = _refused(declared, trust=trust)
    if refused is None:
        return
    subject = f"{_name(function)} cannot be submitted: it declares"
    if refused in _NEVER_SENT or refused in _ABSTRACT:
        raise InvalidError(
            f"{subject} a result with a {_name(refused)}, which cannot leave its process. Return the data, "
            "or correct the annotation"
        )
    name = name_of(cast("type", refused))
    raise UntrustedResultError(
        f"{subject} a result of the class {name}, which a caller does not accept from a sandboxed worker. "
        f"Return built-in types or a dataclass, permit the class with dios.allow({name.rpartition('.')[2]}) "
        "before the call, or make the executor with trust=True if you trust the code that runs"
    )


def _name(kind: object) -> str:
    return str(getattr(kind, "__qualname__", kind))


def _refused(declared: object, *, trust: bool) -> object | None:
    """Return the type in a declaration because of which no value can be sent, or None."""
    origin = typing.get_origin(declared) or declared
    arguments = typing.get_args(declared)
    if origin is typing.Annotated:
        return _refused(arguments[0], trust=trust)
    if any(origin is kind for kind in _UNIONS):
        refused = [_refused(part, trust=trust) for part in arguments]
        return None if None in refused else refused[0]
    if origin is tuple and Ellipsis not in arguments:
        return next(filter(None, (_refused(part, trust=trust) for part in arguments)), None)
    if any(origin is kind for kind in _NEVER_SENT):
        return origin
    if any(origin is kind for kind in _ABSTRACT):
        subclasses: list[type] = cast("type", origin).__subclasses__()
        return origin if set(subclasses) <= {*_ABSTRACT} else None
    is_class = type(origin) is type and not trust
    return origin if is_class and not _may_be_sent(cast("type", origin)) else None


def _may_be_sent(cls: type) -> bool:
    """Return False if the closed format has no form for the objects of a class and of all its subclasses."""
    if (
        cls in {object, type, memoryview}
        or cls in KEY_TYPES
        or cls in FORM_OF_TYPE
        or is_allowed(cls)
        or cls.__module__.partition(".")[0] in {*LIBRARIES, "typing"}
        or issubclass(cls, BaseException)
        or dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    ):
        return True
    return any(type(kind) is not type or _may_be_sent(kind) for kind in cls.__subclasses__())
