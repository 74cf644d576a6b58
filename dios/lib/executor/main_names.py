"""The names of a program's main module that its calls need, and their definitions for workers.

Workers run the script of the program, so they have its functions, classes, caches and locks as it has them.
They get the values that the main program has changed before its first call. Without a script, in a notebook,
they get each name that a call needs by value, and again when it has changed. ADR 0132 has the reasons.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import enum
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import msgspec

from dios.errors import InvalidError
from dios.lib.executor import frames
from dios.lib.executor.call_data import BytesFile, InlinePickler, NeedsDataError, stored_reference
from dios.lib.executor.call_pickles import named_errors
from dios.lib.executor.main_module import (
    ALWAYS,
    CACHED,
    IF_DIFFERENT,
    IF_MISSING,
    MAIN,
    REMOVED,
    UNSENDABLE,
    BoundNamespace,
    Definition,
    MainContext,
    cached,
    names_in,
    new_variable,
    qualname_in,
)
from dios.lib.executor.script import read_script, with_arguments
from dios.limits import MIB

if TYPE_CHECKING:
    from dios.lib.executor.frames import Function
    from dios.lib.executor.local_modules import LocalModules
    from dios.lib.executor.references import ValueReference
    from dios.lib.executor.stored_values import DataStore

_DATA_BYTES_MAX: Final = MIB
"""Data up to this size are sent to each worker, and more with the calls that need them."""
_CODE_BYTES_MAX: Final = 64 * MIB
"""The size of a function or a class with the values in it."""

_NEVER_SENT: Final = Definition("", UNSENDABLE, b"")

_SCALARS: Final = (int, float, complex, str, bytes, bool, type(None), ModuleType)
_CONTAINERS: Final = (list, dict, set, bytearray, deque)
_CODE: Final = (type, FunctionType, CACHED)
_NOT_SHARED: Final = (type, FunctionType, ModuleType, enum.Enum)

_NEW: Final[dict[type, Callable[[object], tuple[object, tuple[object, ...]]]]] = {
    _thread.LockType: lambda _: (_thread.allocate_lock, ()),
    _thread.RLock: lambda _: (threading.RLock, ()),
    threading.local: lambda _: (threading.local, ()),
    ContextVar: lambda variable: (new_variable, _variable(cast("ContextVar[object]", variable))),
}
"""The parts of a process that a worker makes for itself."""
_WITH_LOCKS: Final = (type, FunctionType, *_NEW, threading.Condition, threading.Event, threading.Semaphore)


@dataclass(slots=True)
class _Sent:
    """The value that workers were sent under a name."""

    value: object = None
    state: object = None
    needs: set[str] = field(default_factory=set)
    is_large: bool = False
    stored: ValueReference[object] | None = None


class MainNames:
    """The main module of this program for the calls of one executor."""

    def __init__(self, modules: LocalModules) -> None:
        main = sys.modules[MAIN]
        self.namespace: Final = vars(main)
        self.log: Final[list[bytes]] = []
        """Frames for workers, each of which gets all in this order. Those that no worker needs are empty."""
        self._history: Final = _History()
        self._modules: Final = modules
        self._script: Final = read_script(main)
        self._names: Final = None if self._script is None else self._script.names
        self._is_taken = False
        self._lock: Final = threading.RLock()
        self._sent: Final[dict[str, _Sent]] = {}
        self._in_progress: Final[set[str]] = set()
        self._taken: Final[dict[str, Definition | None]] = {}
        """The latest definitions of the script's data, None for data that are sent with each call."""
        self._settled: Final[set[str]] = set()
        """The names that never change for the workers, nor do the names that they need."""

    def take(self) -> None:
        """Take the script, and the values that its functions use, as they are before the first call."""
        with self._lock:
            if self._is_taken:
                return
            self._is_taken = True
            try:
                self._take_script()
            except BaseException:
                # Ctrl-C: the next call begins again. No worker has got anything.
                self._is_taken = False
                for kept in (self.log, self._sent, self._taken, self._settled):
                    kept.clear()
                self._history.clear()
                raise

    def _take_script(self) -> None:
        if self._script is not None:
            self._modules.add_imports(self._script.text, self._script.sent.package)
            sent = with_arguments(self._script.sent)
            self.log.append(frames.frame(frames.SCRIPT, msgspec.msgpack.encode(sent)))
        for name, value in self._used_data():
            if "." in name:
                self._define_data(name, value)
            else:
                # The calls that need a name which cannot be sent fail, and no others.
                with contextlib.suppress(InvalidError):
                    self._need(name, set())

    def renew(self) -> None:
        """Take the values again that have changed since ``take``."""
        with self._lock:
            for name, value in self._used_data() if self._is_taken else ():
                present = self._sent.get(name, _Sent())
                sent = self._define_data(name, value)
                if "." not in name:
                    self._sent[name] = sent
                if sent.is_large != present.is_large:
                    self._settled.clear()

    def need(self, name: str) -> frozenset[str]:
        """Define a name in the workers, with all names that it needs. Return those that are too large for it.

        Raises InvalidError for a value that cannot be sent, where no script makes it.
        """
        if name in self._settled:
            return frozenset()
        with self._lock:
            self.take()
            seen: set[str] = set()
            self._need(name, seen)
            present = seen & self._sent.keys()
            large = frozenset(other for other in present if self._sent[other].is_large)
            values = ((other, self.namespace.get(other)) for other in present)
            if not large and not self._in_progress and all(self._is_replayed(*pair) for pair in values):
                self._settled.add(name)
            return large

    def is_current(self, function: Function[object], qualname: str, names: set[str]) -> bool:
        """Return True if the pickle of a function that has a name still holds; define what has changed."""
        return qualname_in(self.namespace, function) == qualname and not any(map(self.need, names))

    def is_in_progress(self, name: str) -> bool:
        """Return True while the definition of a name is made."""
        return name in self._in_progress

    def stored(self, name: str, store: DataStore) -> ValueReference[object] | None:
        """Return a large value of the script in a blob; None for one that is sent with each call."""
        sent = self._sent[name]
        if self._names is not None and sent.stored is None:
            try:
                sent.stored = stored_reference(store, self.namespace[name], self)
            except InvalidError:  # it has futures or references
                return None
        return sent.stored

    # -- with the lock ----------------------------------------------------------------------------
    def _used_data(self) -> Iterator[tuple[str, object]]:
        """Yield the names of data that functions of the script use, and the attributes of its classes."""
        used = frozenset() if self._names is None else self._names.used
        for name in sorted(used & self.namespace.keys()):
            value = self.namespace[name]
            if issubclass(type(value), type) and qualname_in(self.namespace, value) == name:
                for attribute, part in _data_of(value):
                    yield f"{name}.{attribute}", part
            elif not self._is_code(value):
                yield name, value

    def _need(self, name: str, seen: set[str]) -> None:
        if name in seen or name not in self.namespace:
            return
        seen.add(name)
        value, former = self.namespace[name], self._sent.get(name)
        sent = former
        if sent is None or self._has_changed(name, sent, value):
            # A value may refer to itself by its name.
            self._sent[name] = _Sent()
            self._in_progress.add(name)
            try:
                sent = self._sent[name] = self._define(name, value, is_new=former is None)
            except BaseException:
                # Workers have what they had.
                del self._sent[name]
                if former is not None:
                    self._sent[name] = former
                raise
            finally:
                self._in_progress.discard(name)
        for other in sent.needs:
            self._need(other, seen)

    def _is_replayed(self, name: str, value: object) -> bool:
        """Return True for what the script alone decides, which workers run."""
        return self._names is not None and (name in self._names.replayed or not self._is_code(value))

    def _has_changed(self, name: str, sent: _Sent, value: object) -> bool:
        if self._is_replayed(name, value) or sent.state is None:
            return False
        return sent.value is not value or sent.state != self._state_of(name, value)

    def _state_of(self, name: str, value: object) -> object:
        """Return something that is different after a change of a value: its parts or its pickle."""
        if isinstance(value, _SCALARS):
            return True
        if isinstance(value, FunctionType):
            return value.__code__, value.__defaults__, value.__kwdefaults__
        if isinstance(value, type):
            return {key: id(part) for key, part in vars(value).items()}
        try:
            return pickled_definition(self, name, value).data
        except NeedsDataError:
            return b""

    def _define(self, name: str, value: object, *, is_new: bool) -> _Sent:
        """Define a name by value, as far as workers do not have it from the script."""
        if not self._is_code(value):
            if self._names is not None:
                return self._define_data(name, value)
            rule = IF_MISSING if is_new else ALWAYS
        else:
            rule = IF_MISSING if self._is_replayed(name, value) else ALWAYS
        if isinstance(value, ModuleType) and rule == IF_MISSING:
            return _Sent()
        sent = _Sent(value)
        try:
            pickled = self._pickled(name, value)
        except NeedsDataError:
            return _Sent(is_large=True, state=b"")
        except InvalidError:
            # The script has it.
            if not self._is_replayed(name, value):
                raise
            sent.needs = set(names_in(value)) & self.namespace.keys()
        else:
            sent.needs = pickled.names
            self._append(Definition(name, rule, pickled.data), pickled.loaded)
        sent.state = self._state_of(name, value)
        return sent

    def _define_data(self, name: str, value: object) -> _Sent:
        """Define data that the script may make as well."""
        sent = _Sent()
        try:
            pickled = self._pickled(name, value)
        except NeedsDataError:
            sent.is_large = True
            self._taken[name] = None
        except InvalidError as error:
            former = self._taken.get(name, _NEVER_SENT)
            is_first = former is not None and former.rule == UNSENDABLE
            rule = UNSENDABLE if is_first else REMOVED
            self._append_data(Definition(name, rule, str(error).encode(errors="replace")), set())
        else:
            sent.needs = pickled.names
            self._append_data(Definition(name, IF_DIFFERENT, pickled.data), pickled.loaded)
        return sent

    def _append_data(self, definition: Definition, loaded: set[str]) -> None:
        if self._taken.get(definition.name) != definition:
            self._taken[definition.name] = definition
            self._append(definition, loaded)

    def _pickled(self, name: str, value: object) -> PickledDefinition:
        pickled = pickled_definition(self, name, value)
        modules = set(pickled.modules)
        if self._script is None and isinstance(value, FunctionType):
            # No source shows its imports.
            modules |= {part.argval for part in dis.get_instructions(value) if part.opname == "IMPORT_NAME"}
        self._modules.add(modules)
        return pickled

    def _is_code(self, value: object) -> bool:
        code = (ModuleType, type, FunctionType)
        return issubclass(type(value), code) or bool(qualname_in(self.namespace, value))

    def _append(self, definition: Definition, loaded: set[str]) -> None:
        """Add a definition to the log, and remove those that no worker needs any more."""
        unneeded = self._history.add(len(self.log), definition.name, loaded)
        self.log.append(frames.frame(frames.DEFINE, msgspec.msgpack.encode(definition)))
        for place in unneeded:
            self.log[place] = b""


class _History:
    """The places of definitions in a log. An older one of a name stays while others need it."""

    def __init__(self) -> None:
        self._latest: Final[dict[str, int]] = {}
        self._loaded: Final[dict[int, set[str]]] = {}
        """The names that must be there when a definition is loaded."""
        self._users: Final[dict[str, set[int]]] = {}
        """The same by the names."""
        self._replaced: Final[dict[int, tuple[str, int]]] = {}
        """The name of each older definition that stays, and the place of the next one of this name."""

    def add(self, place: int, name: str, loaded: set[str]) -> list[int]:
        """Add the definition of a name, and return the places of those that are not needed any more."""
        owner, _, _ = name.rpartition(".")
        self._loaded[place] = loaded | ({owner} if owner else set())
        for other in self._loaded[place]:
            self._users.setdefault(other, set()).add(place)
        former = self._latest.get(name)
        self._latest[name] = place
        if former is not None:
            self._replaced[former] = name, place
        unneeded: list[int] = []
        while (last := next(filter(self._is_unneeded, self._replaced), None)) is not None:
            unneeded.append(last)
            del self._replaced[last]
            for other in self._loaded.pop(last):
                self._users[other].discard(last)
        return unneeded

    def clear(self) -> None:
        """Forget all definitions."""
        for kept in (self._latest, self._loaded, self._users, self._replaced):
            kept.clear()

    def _is_unneeded(self, place: int) -> bool:
        name, following = self._replaced[place]
        return not any(place < user < following for user in self._users.get(name, ()))


def _data_of(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the data among the attributes of a class."""
    for name, value in () if isinstance(cls, enum.EnumMeta) else list(vars(cls).items()):
        if not (name.startswith("__") or callable(value) or hasattr(type(value), "__get__")):
            yield name, value


def _shared_values(namespace: dict[str, object], name: str) -> dict[int, str]:
    """Return the first names of values that can change, by their ids; without that of a definition itself."""
    shared: dict[int, str] = {}
    for other, value in list(namespace.items()):
        # Reading an attribute of a proxy may raise anything.
        kind = type(value)
        is_object = kind.__dictoffset__ != 0 and not issubclass(kind, _NOT_SHARED)
        if other != "__builtins__" and (is_object or issubclass(kind, _CONTAINERS)):
            shared.setdefault(id(value), other)
    return {key: other for key, other in shared.items() if other != name}


def _variable(variable: ContextVar[object]) -> tuple[object, ...]:
    try:
        return variable.name, Context().run(variable.get)
    except LookupError:
        return (variable.name,)


# -- pickles of definitions -------------------------------------------------------------------------
class PickledDefinition(NamedTuple):
    """The pickle of the value of a name."""

    data: bytes
    names: set[str]
    """The names of the main module that it needs."""
    modules: set[str]
    loaded: set[str]
    """Those of the names that must be there when it is loaded."""


def pickled_definition(main: MainContext, name: str, value: object) -> PickledDefinition:
    """Return the pickle of the value of a name.

    Raises NeedsDataError for large data, and InvalidError for what cannot be pickled.
    """
    is_code = issubclass(type(value), _CODE)
    file = _BoundedFile(_CODE_BYTES_MAX if is_code else _DATA_BYTES_MAX)
    pickler = _DefinitionPickler(file, main, name, value)
    try:
        with named_errors(f"{name} of the main module", NeedsDataError):
            pickler.dump(value)
    except NeedsDataError:
        if not is_code:
            raise
        raise InvalidError(
            f"{name} of the main module cannot be sent to a worker: it has {_CODE_BYTES_MAX // MIB} MiB, a "
            "future or a reference in it. Give these to the function as arguments"
        ) from None
    return PickledDefinition(file.getvalue(), pickler.names, pickler.modules, pickler.loaded)


class _BoundedFile(BytesFile):
    """The pickle of a value that is sent to each worker."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(self._refuse, bytes_min=bytes_max)
        self._left = bytes_max

    def write(self, data: bytes | bytearray) -> None:
        """Add a part of the pickle. Raise NeedsDataError if it is too large."""
        self._left -= len(data)
        if self._left < 0:
            raise NeedsDataError
        super().write(data)

    def _refuse(self, _data: bytes | bytearray) -> None:
        raise NeedsDataError


class _DefinitionPickler(InlinePickler):
    """Pickles the value of a name by value, and the other names of the main module by name.

    Locks are parts of functions, of classes, and of what waits for something. A worker gets locks of its own.
    """

    def __init__(self, file: BytesFile, main: MainContext, name: str, value: object) -> None:
        super().__init__(file, main)
        self._name: Final = name
        self._context: Final = main
        self._shared: Final = _shared_values(main.namespace, name)
        self._is_code: Final = issubclass(type(value), _CODE)
        self._has_locks: Final = issubclass(type(value), _WITH_LOCKS)
        self.loaded: Final[set[str]] = set()

    def is_named(self, qualname: str) -> bool:
        """Return True for what another definition makes."""
        name = qualname.partition(".")[0]
        if not super().is_named(qualname) or name == self._name:
            return False
        self.loaded.add(name)
        return True

    def brought(self, _names: frozenset[str]) -> BoundNamespace:
        """Return a namespace without values: the calls bring them."""
        return BoundNamespace(frozenset())

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Return True for a buffer in code, and for a small one."""
        return self._is_code or super().stays(buffer)

    def persistent_id(self, value: object) -> str | None:
        """Return the name of a value that has one: two names, or a default argument, may share it."""
        name = self._shared.get(id(value))
        if name is None or name in self._context.need(name) or self._context.is_in_progress(name):
            return None
        self.names.add(name)
        self.loaded.add(name)
        return name

    def reducer_override(self, value: object) -> object:
        """Return how a worker gets the parts that pickle does not know."""
        if self._has_locks and type(value) in _NEW:
            return _NEW[type(value)](value)
        if self._has_locks and type(value) is WeakKeyDictionary:
            return WeakKeyDictionary, ()  # the cache of a singledispatch
        reduced = super().reducer_override(value)
        if reduced is NotImplemented and isinstance(value, CACHED):
            return cached, (value.__wrapped__, value.cache_parameters())
        return reduced
