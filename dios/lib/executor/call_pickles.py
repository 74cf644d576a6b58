"""Calls as bytes: plain values quickly, everything else as a pickle of any functions and classes.

A call goes to a sandbox, so its pickle may run any code there.
"""

from __future__ import annotations

import enum
import io
import pickle
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final, NamedTuple, Protocol, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from dios.errors import InvalidError
from dios.lib.executor.archives import Archive
from dios.lib.executor.blobs import BUFFER_BYTES_MIN
from dios.lib.executor.frames import Function
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.main_module import (
    BoundNamespace,
    MainContext,
    bound_namespace,
    main_attribute,
    names_in,
    qualname_in,
)

Arguments: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"

PLAIN_CALL: Final = b"m"
PICKLED_CALL: Final = b"p"
SHARED_CALL: Final = b"s"
"""The first byte of a call with values in blobs. The size of a ``SharedHead``, it and a pickle follow."""

_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})
_pack: Final = msgspec.msgpack.Encoder().encode


class SharedHead(msgspec.Struct, frozen=True, array_like=True):
    """The values in blobs that the pickle of a call needs, by the object ids of the blobs."""

    buffers: list[tuple[int, int, int]]
    """Of each buffer of the pickle: the blob, the place in it and the size."""
    values: list[int]


class PickleFile(Protocol):
    """The file of a pickler."""

    def write(self, data: bytes | bytearray, /) -> object:
        """Add bytes of the pickle."""


class CallPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and arguments, and notes the modules that they refer to.

    With ``main`` the receiver has the main module of the program: what it defines is pickled by its name.
    """

    def __init__(
        self,
        file: PickleFile,
        buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None,
        main: MainContext | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.modules: Final[set[str]] = set()
        self.names: Final[set[str]] = set()
        """The names of the main module that the value needs."""
        self._main: Final = main

    def is_named(self, qualname: str) -> bool:
        """Return True for what the receiver has under a name."""
        return bool(qualname)

    def brought(self, names: frozenset[str]) -> BoundNamespace:
        """Return the namespace of the receiver with the large values that this pickle brings along."""
        return BoundNamespace(names)

    def reducer_override(self, value: object) -> object:
        """Note the module of a function, a class or an object, and name what the main module defines."""
        named = value if isinstance(value, type | FunctionType) else type(value)
        self.modules.add(value.__name__ if isinstance(value, ModuleType) else str(named.__module__))
        if self._main is not None:
            if type(value) is BoundNamespace:
                return self.reduced_namespace(value.names)
            qualname = qualname_in(self._main.namespace, value)
            if self.is_named(qualname):
                brought = self.needed([qualname.partition(".")[0]])
                return main_attribute, (qualname, self.brought(brought)) if brought else (qualname,)
        reduced = super().reducer_override(value)
        return _with_all_members(value, reduced) if isinstance(value, enum.EnumMeta) else reduced

    def reduced_namespace(self, names: frozenset[str]) -> object:
        """Return how the receiver gets its namespace with some values."""
        assert self._main is not None, "only a main module has a namespace"  # noqa: S101 - for the types
        return bound_namespace, ({name: self._main.namespace[name] for name in names},)

    def _dynamic_function_reduce(self, function: FunctionType) -> object:
        """Return how to make a function of the main module, which has the namespace of the receiver."""
        if self._main is None or function.__globals__ is not self._main.namespace:
            return super()._dynamic_function_reduce(function)
        used = set(names_in(function)) & self._main.namespace.keys()
        namespace = self.brought(self.needed(used))
        make, (code, _, *rest), (state, slots), *last = super()._dynamic_function_reduce(function)
        return make, (code, namespace, *rest), (state, {**slots, "__globals__": {}}), *last

    def needed(self, names: Collection[str]) -> frozenset[str]:
        """Have names defined in the receiver; return those whose values this pickle brings along."""
        assert self._main is not None, "only a main module has names"  # noqa: S101 - for the types
        self.names.update(names)
        return frozenset(other for name in names for other in self._main.need(name))


def _with_all_members(cls: enum.EnumMeta, reduced: object) -> object:
    """Return a reduced class with all members: cloudpickle leaves out those of flags with several bits."""
    if not isinstance(reduced, tuple) or len(reduced) < 3:
        return reduced
    make, arguments, (state, slots), *others = reduced
    members: dict[str, enum.Enum] = dict(cls.__members__)
    values = {name: member.value for name, member in members.items()}
    state = {name: attribute for name, attribute in state.items() if name not in members}
    return make, (*arguments[:3], values, *arguments[4:]), (state, slots), *others


class Pickle(NamedTuple):
    """The pickle of a value, and the names of the modules, and of the main module, that it needs."""

    data: bytes
    modules: set[str]
    names: set[str]


Pickled: TypeAlias = Callable[[object, str], Pickle]
"""Returns the pickle of a value, described by the text for errors."""


def encode_call_function(
    function: Function[object], modules: LocalModules, pickled: Pickled, main: MainContext | None
) -> tuple[Pickle, bool]:
    """Return the pickle of a function, and True if it stays the same at further calls.

    Raises InvalidError with the part that cannot be pickled.
    """
    pickle_of_it = pickled(function, "the function")
    modules.add(pickle_of_it.modules)
    namespace = {} if main is None else main.namespace
    return pickle_of_it, bool(qualname_in(namespace, function)) or _is_constant(function, namespace, 0)


def encode_arguments(
    args: Sequence[object], kwargs: dict[str, object], modules: LocalModules, pickled: Pickled | None = None
) -> tuple[bytes, list[Archive]]:
    """Return the arguments of a call, and the new archives that they need.

    Raises InvalidError for an argument that cannot be pickled.
    """
    if not kwargs and _SCALARS.issuperset(map(type, args)):
        try:
            plain = PLAIN_CALL + _pack(args)
        except (OverflowError, UnicodeEncodeError):
            plain = b""
        if 0 < len(plain) < BUFFER_BYTES_MIN or (plain and pickled is None):
            return plain, []
    arguments = (pickled or pickled_whole)((tuple(args), kwargs), "an argument")
    return arguments.data, modules.add(arguments.modules)


def pickled_whole(value: object, subject: str, main: MainContext | None = None) -> Pickle:
    """Return the pickle of a value with everything in it."""
    file = io.BytesIO()
    pickler = CallPickler(file, main=main)
    with named_errors(subject):
        pickler.dump(value)
    return Pickle(PICKLED_CALL + file.getvalue(), pickler.modules, pickler.names)


@contextmanager
def named_errors(subject: str, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of pickling into an InvalidError about ``subject``, except ``others``.

    A value may raise SystemExit or KeyboardInterrupt. In the main thread they may come from elsewhere.
    """
    try:
        yield
    except others:
        raise
    except InvalidError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        raise InvalidError(
            f"{subject} cannot be sent to a worker: {_reason(error)}. Send data, and open files, locks and "
            "connections in the function"
        ) from error


def _reason(error: BaseException) -> str:
    try:
        return str(error) if isinstance(error, Exception) else f"it raised {error!r}"
    except BaseException:  # noqa: BLE001 - code of the error's class
        return f"it raised {type(error).__name__}"


# -- functions that need not be sent again ----------------------------------------------------------
_FIXED: Final = (int, float, str, bytes, bool, type(None), type, BuiltinFunctionType, ModuleType)


def _is_constant(value: object, main: dict[str, object], depth: int) -> bool:
    """Return True if the pickle of a function is the same at each call.

    It is not if the function refers to something that can change: a list in a global, an attribute of its
    object, a cell. Globals of the main module are not in the pickle.
    """
    if isinstance(value, _FIXED):
        return True
    if depth > 4 or not isinstance(value, FunctionType):
        return False
    parts = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    try:
        parts += [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:
        return False
    names = value.__globals__
    if names is not main:
        parts += [names[name] for name in value.__code__.co_names if name in names]
    return not value.__dict__ and all(part is value or _is_constant(part, main, depth + 1) for part in parts)
