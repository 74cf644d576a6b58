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
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import msgspec

from dios.errors import InvalidError
from dios.lib.executor import frames
from dios.lib.executor.blobs import BUFFER_BYTES_MIN, create_blob
from dios.lib.executor.call_data import BytesFile, InlinePickler, NeedsDataError, StoredNames
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
from dios.lib.executor.results.reader import BUFFERS_MAX
from dios.lib.executor.script import read_script, with_arguments
from dios.lib.executor.values import Encoded, ResultKind
from dios.limits import GIB, MIB

if TYPE_CHECKING:
    from dios.lib.executor.frames import Function
    from dios.lib.executor.local_modules import LocalModules
    from dios.lib.executor.stored_values import DataStore, StoredBlob

_DATA_BYTES_MAX: Final = MIB
"""Data up to this size are sent to each worker, and more with the calls that need them."""
_SEARCHED_BYTES_MAX: Final = 16 * MIB
"""Data up to this size, without their arrays and bytes, are searched for parts that other data have too."""
_STORED_BYTES_MAX: Final = GIB
_CODE_BYTES_MAX: Final = 64 * MIB
"""The size of a function or a class with the values in it."""

_NEVER_SENT: Final = Definition((), UNSENDABLE, b"")

_SCALARS: Final = (int, float, complex, str, bytes, bool, type(None), ModuleType)
_CODE: Final = (type, FunctionType, CACHED)
_NOT_SHARED: Final = (type, FunctionType, ModuleType, enum.Enum)
_IMMUTABLE: Final = (int, float, complex, str, bytes, tuple, frozenset)
_HEAP_TYPE: Final = 1 << 9
"""The flag of a class that Python code has made, whose objects may have slots."""
_WITHOUT_STATE: Final = 2
"""The parts of an object for pickle: a function and its arguments."""

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
    names: tuple[str, ...] = ()
    """This name and those that were defined together with it."""
    is_large: bool = False
    is_searched: bool = False
    """True for large data with known parts."""
    blob: StoredBlob | None = None


class _TogetherError(Exception):
    """The value of a name points at one whose definition is in progress: they must be defined together."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name: Final = name
        self.names: Final[set[str]] = set()
        """The names in between."""


class _ApartError(Exception):
    """The values of some names can no longer be sent together."""


class _Parts:
    """The parts of the values that are defined in one step, and the names that share one."""

    def __init__(self) -> None:
        self.names: Final[set[str]] = set()
        self.joined: Final[set[str]] = set()
        """The names that turned out to belong together."""
        self.overlaps: Final[list[set[str]]] = []
        self._owners: Final[dict[int, tuple[object, str]]] = {}

    def add(self, names: tuple[str, ...], parts: Iterable[object]) -> None:
        """Add the parts of the values of some names."""
        for part in parts:
            _, owner = self._owners.setdefault(id(part), (part, names[0]))
            if owner not in names and _has_state(part):
                self.overlaps.append({owner, *names})


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
        self._in_progress: Final[list[tuple[str, ...]]] = []
        self._together: Final[dict[str, tuple[str, ...]]] = {}
        """The names that are defined at once, because their values point at each other or share a part."""
        self._parts: _Parts | None = None
        """The parts of the values that are being defined; None if no definition is in progress."""
        self._versions: Final[Counter[str]] = Counter()
        """The numbers of definitions in the log."""
        self._loaded: Final[dict[str, dict[str, int]]] = {}
        """For each name those whose values are parts of its own, with their versions when it was defined."""
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
                for kept in (self.log, self._sent, self._together, self._taken, self._settled, self._loaded):
                    kept.clear()
                self._history.clear()
                raise

    def _take_script(self) -> None:
        if self._script is not None:
            self._modules.add_imports(self._script.text, self._script.sent.package)
            sent = with_arguments(self._script.sent)
            self.log.append(frames.frame(frames.SCRIPT, msgspec.msgpack.encode(sent)))
        self._define_all(self._define_used)

    def renew(self) -> None:
        """Take the values again that have changed since ``take``."""
        with self._lock:
            if self._is_taken:
                self._settled.clear()
                for name in self._used_data():
                    self._sent.pop(name, None)
                self._define_all(self._define_used)

    def need(self, name: str) -> frozenset[str]:
        """Define a name in the workers, with all names that it needs. Return those that are too large for it.

        Raises InvalidError for a value that cannot be sent, where no script makes it.
        """
        if name in self._settled:
            return frozenset()
        with self._lock:
            self.take()
            seen: set[str] = set()

            def define() -> None:
                seen.clear()
                self._need(name, seen)

            self._define_all(define)
            present = seen & self._sent.keys()
            large = frozenset(other for other in present if self._sent[other].is_large)
            if not large and not self._in_progress and all(map(self._is_replayed, present)):
                self._settled.add(name)
            return large

    def is_current(self, function: Function[object], qualname: str, names: set[str]) -> bool:
        """Return True if the pickle of a function that has a name still holds; define what has changed."""
        return qualname_in(self.namespace, function) == qualname and not any(map(self.need, names))

    def is_in_progress(self, name: str) -> bool:
        """Return True while the definition of a name is made, of which the present value gets a copy.

        Raises an exception of this module if both can be defined together.
        """
        if not any(name in names for names in self._in_progress):
            return False
        if self._can_join(self._in_progress[-1]):
            raise _TogetherError(name)
        return True

    def stored(self, names: Iterable[str], store: DataStore) -> list[StoredNames]:
        """Return the large values of the script in blobs, in an order in which workers can set them.

        Those that are sent with each call are missing.
        """
        with self._lock:
            stored: dict[tuple[str, ...], StoredNames] = {}
            if self._names is not None:
                for name in sorted(names):
                    self._store(name, store, stored)
            return list(stored.values())

    def value(self, name: str) -> object:
        """Return the value of a name, or of an attribute of a class."""
        owner, _, attribute = name.rpartition(".")
        return vars(self.namespace[owner])[attribute] if owner else self.namespace[name]

    # -- with the lock ----------------------------------------------------------------------------
    def _define_all(self, define: Callable[[], None]) -> None:
        """Define names, and again together those whose values turn out to share a part."""
        if self._parts is not None:
            define()
            return
        self._parts = parts = _Parts()
        try:
            define()
            while parts.overlaps:
                joined = parts.joined
                overlaps = parts.overlaps
                self._parts = parts = _Parts()
                parts.joined.update(joined)
                for names in overlaps:
                    self._join(names)
                define()
        finally:
            self._parts = None

    def _join(self, names: set[str]) -> None:
        assert self._parts is not None, "the caller has begun"  # noqa: S101 - for the types
        everything = {other for name in names for other in self._together.get(name, (name,))}
        self._together.update(dict.fromkeys(everything, tuple(sorted(everything))))
        self._parts.joined.update(everything)

    def _define_used(self) -> None:
        """Define the data that functions of the script use, and the attributes of its classes."""
        assert self._parts is not None, "the caller has begun"  # noqa: S101 - for the types
        for name in self._used_data():
            # The calls that need a name which cannot be sent fail, and no others.
            if name not in self._parts.names:
                with contextlib.suppress(InvalidError):
                    self._define_now(name)

    def _used_data(self) -> Iterator[str]:
        used = frozenset() if self._names is None else self._names.used
        for name in sorted(used & self.namespace.keys()):
            yield from self._attributes(name)
            if not self._is_code(name):
                yield name

    def _attributes(self, name: str) -> Iterator[str]:
        """Yield the names of the data in a class of the script."""
        value = None if self._names is None else self.namespace.get(name)
        if issubclass(type(value), type) and qualname_in(self.namespace, value) == name:
            yield from (f"{name}.{attribute}" for attribute in _data_of(cast("type", value)))

    def _store(self, name: str, store: DataStore, stored: dict[tuple[str, ...], StoredNames]) -> None:
        """Store a large value, after those that it has as parts."""
        sent = self._sent.get(name)
        if sent is None or not sent.is_large or sent.names in stored:
            return
        for part in sorted(sent.needs.difference(sent.names)):
            self._store(part, store, stored)
        if sent.blob is None:
            try:
                values = list(map(self.value, sent.names))
                pickled = large_definition(self, sent.names, values, by_name=sent.is_searched)
            except (InvalidError, NeedsDataError):  # it has futures or references
                return
            blob = create_blob(store.node, Encoded(ResultKind.PICKLE, pickled.data, pickled.buffers).parts())
            kept = store.keep(blob)
            for other in sent.names:
                self._sent[other].blob = kept
        assert sent.blob is not None, "it is stored"  # noqa: S101 - for the types
        stored[sent.names] = StoredNames(sent.names, sent.blob)

    def _need(self, name: str, seen: set[str]) -> None:
        if name in seen or name.partition(".")[0] not in self.namespace:
            return
        seen.add(name)
        if any(name in names for names in self._in_progress):
            # A value may refer to itself by its name.
            return
        if name not in self._sent or self._has_changed(name):
            self._define_now(name)
        for other in {*self._sent[name].needs, *self._attributes(name)}:
            self._need(other, seen)

    def _define_now(self, name: str) -> None:
        """Define a name, with those that must be defined together with it."""
        while True:
            names = self._together.get(name, (name,))
            self._in_progress.append(names)
            try:
                sent = self._define(names)
            except _TogetherError as error:
                if self._can_join(names):
                    error.names.update(names)
                if error.name not in names:
                    raise
                self._join(error.names)
            except _ApartError:
                for other in names:
                    del self._together[other]
            else:
                self._sent.update(sent)
                if self._parts is not None:
                    self._parts.names.update(names)
                return
            finally:
                self._in_progress.pop()

    def _can_join(self, names: tuple[str, ...]) -> bool:
        """Return True for names that a worker gets by value, in one definition if needed."""
        return self._names is None or not any(map(self._is_code, names))

    def _is_replayed(self, name: str) -> bool:
        """Return True for what the script alone decides, which workers run."""
        return self._names is not None and (name in self._names.replayed or not self._is_code(name))

    def _has_changed(self, name: str) -> bool:
        names = self._together.get(name, (name,))
        sent = [self._sent[other] for other in names if other in self._sent]
        if any(part.names != names for part in sent) or len(sent) < len(names):
            return True
        if all(map(self._is_replayed, names)) or sent[0].state is None:
            return False
        if any(part.value is not self.value(other) for part, other in zip(sent, names, strict=True)):
            return True
        self._in_progress.append(names)
        try:
            # First the parts that have names: workers may get others now.
            for part in {part for other in names for part in self._loaded.get(other, ())}:
                self.need(part)
            state = self._state_of(names)
        except (_TogetherError, _ApartError, InvalidError):
            return True
        finally:
            self._in_progress.pop()
        return state != sent[0].state or self._has_old_parts(names)

    def _has_old_parts(self, names: tuple[str, ...]) -> bool:
        """Return True if workers were sent another value of a part since these names were defined."""
        return any(
            self._versions[part] != version
            for name in names
            for part, version in self._loaded.get(name, {}).items()
        )

    def _state_of(self, names: tuple[str, ...]) -> object:
        """Return something that is different after a change of values: their parts or their pickle."""
        value = self.value(names[0])
        if len(names) == 1 and isinstance(value, _SCALARS):
            return True
        if len(names) == 1 and isinstance(value, FunctionType):
            return value.__code__, value.__defaults__, value.__kwdefaults__
        if len(names) == 1 and isinstance(value, type):
            return {key: id(part) for key, part in vars(value).items()}
        try:
            return self._pickled(names).data
        except NeedsDataError:
            return b""

    def _define(self, names: tuple[str, ...]) -> dict[str, _Sent]:
        """Define names by value, as far as workers do not have them from the script."""
        if self._names is not None and not any(map(self._is_code, names)):
            return self._define_data(names)
        is_replayed = all(map(self._is_replayed, names))
        is_new = self._sent.keys().isdisjoint(names) and not any(map(self._is_code, names))
        rule = IF_MISSING if is_replayed or is_new else ALWAYS
        values = list(map(self.value, names))
        if rule == IF_MISSING and isinstance(values[0], ModuleType):
            return {name: _Sent(names=names) for name in names}
        try:
            pickled = self._pickled(names)
        except NeedsDataError:
            return {name: _Sent(names=names, is_large=True, state=b"") for name in names}
        except InvalidError:
            # The script has it.
            if not is_replayed:
                raise
            needs = {other for value in values for other in names_in(value)} & self.namespace.keys()
        else:
            needs = pickled.names
            self._add_modules(pickled, values)
            self._append(Definition(names, rule, pickled.data), pickled.loaded)
        state = self._state_of(names)
        return {name: _Sent(value, state, needs, names) for name, value in zip(names, values, strict=True)}

    def _define_data(self, names: tuple[str, ...]) -> dict[str, _Sent]:
        """Define data that the script may make as well."""
        try:
            pickled = self._pickled(names)
        except NeedsDataError:
            needs = self._searched(names)
            self._taken.update(dict.fromkeys(names))
            is_searched = needs is not None
            return {
                name: _Sent(needs=needs or set(), names=names, is_large=True, is_searched=is_searched)
                for name in names
            }
        except InvalidError as error:
            for name in names:
                former = self._taken.get(name, _NEVER_SENT)
                is_first = former is not None and former.rule == UNSENDABLE
                rule = UNSENDABLE if is_first else REMOVED
                self._append_data(Definition((name,), rule, str(error).encode(errors="replace")), set())
            return {name: _Sent(names=names) for name in names}
        self._add_modules(pickled, ())
        self._append_data(Definition(names, IF_DIFFERENT, pickled.data), pickled.loaded)
        return {name: _Sent(needs=pickled.names, names=names) for name in names}

    def _searched(self, names: tuple[str, ...]) -> set[str] | None:
        """Note the parts of large data, and return the names that they need; None if there are too many."""
        assert self._parts is not None, "the caller has begun"  # noqa: S101 - for the types
        values = list(map(self.value, names))
        try:
            pickled = large_definition(self, names, values, bytes_max=_SEARCHED_BYTES_MAX)
        except (InvalidError, NeedsDataError):
            return None
        self._add_modules(pickled, ())
        self._parts.add(names, pickled.parts)
        return pickled.names

    def _append_data(self, definition: Definition, loaded: set[str]) -> None:
        is_known = all(self._taken.get(name) == definition for name in definition.names)
        if not is_known or self._has_old_parts(definition.names):
            self._taken.update(dict.fromkeys(definition.names, definition))
            self._append(definition, loaded)

    def _pickled(self, names: tuple[str, ...]) -> PickledDefinition:
        assert self._parts is not None, "the caller has begun"  # noqa: S101 - for the types
        try:
            pickled = pickled_definition(self, names, list(map(self.value, names)))
        except (InvalidError, NeedsDataError) as error:
            is_stored = isinstance(error, NeedsDataError) and self._names is not None
            if is_stored or self._parts.joined.issuperset(names) or len(names) == 1:
                raise
            raise _ApartError from None
        if self._can_join(names):
            self._parts.add(names, pickled.parts)
        return pickled

    def _add_modules(self, pickled: PickledDefinition, values: Iterable[object]) -> None:
        modules = set(pickled.modules)
        for value in values if self._script is None else ():
            if isinstance(value, FunctionType):
                # No source shows its imports.
                steps = dis.get_instructions(value)
                modules |= {part.argval for part in steps if part.opname == "IMPORT_NAME"}
        self._modules.add(modules)

    def _is_code(self, name: str) -> bool:
        value = self.value(name)
        code = (ModuleType, type, FunctionType)
        return issubclass(type(value), code) or bool(qualname_in(self.namespace, value))

    def _append(self, definition: Definition, loaded: set[str]) -> None:
        """Add a definition to the log, and remove those that no worker needs any more."""
        self._versions.update(definition.names)
        versions = {part: self._versions[part] for part in loaded}
        self._loaded.update(dict.fromkeys(definition.names, versions))
        unneeded = self._history.add(len(self.log), definition.names, loaded)
        self.log.append(frames.frame(frames.DEFINE, msgspec.msgpack.encode(definition)))
        for place in unneeded:
            self.log[place] = b""


class _History:
    """The places of definitions in a log. An older one of a name stays while others need it."""

    def __init__(self) -> None:
        self._latest: Final[dict[str, int]] = {}
        self._names: Final[dict[int, tuple[str, ...]]] = {}
        self._loaded: Final[dict[int, set[str]]] = {}
        """The names that must be there when a definition is loaded."""
        self._users: Final[dict[str, set[int]]] = {}
        """The same by the names."""
        self._replaced: Final[dict[int, dict[str, int]]] = {}
        """Of each older definition that stays, the names that have a later one, and the places of these."""

    def add(self, place: int, names: tuple[str, ...], loaded: set[str]) -> list[int]:
        """Add the definition of some names, and return the places of those that are not needed any more."""
        owners = {owner for name in names if (owner := name.rpartition(".")[0])}
        self._names[place] = names
        self._loaded[place] = loaded | owners
        for other in self._loaded[place]:
            self._users.setdefault(other, set()).add(place)
        for name in names:
            former = self._latest.get(name)
            self._latest[name] = place
            if former is not None:
                self._replaced.setdefault(former, {})[name] = place
        unneeded: list[int] = []
        while (last := next(filter(self._is_unneeded, self._replaced), None)) is not None:
            unneeded.append(last)
            del self._replaced[last], self._names[last]
            for other in self._loaded.pop(last):
                self._users[other].discard(last)
        return unneeded

    def clear(self) -> None:
        """Forget all definitions."""
        for kept in (self._latest, self._names, self._loaded, self._users, self._replaced):
            kept.clear()

    def _is_unneeded(self, place: int) -> bool:
        following = self._replaced[place]
        return len(following) == len(self._names[place]) and not any(
            place < user < following[name] for name in following for user in self._users.get(name, ())
        )


def _data_of(cls: type) -> Iterator[str]:
    """Yield the names of the data among the attributes of a class."""
    for name, value in () if isinstance(cls, enum.EnumMeta) else list(vars(cls).items()):
        if not (name.startswith("__") or callable(value) or hasattr(type(value), "__get__")):
            yield name


def _is_mutable(kind: type) -> bool:
    """Return True for a type whose objects may be changed, as far as that shows."""
    if issubclass(kind, _NOT_SHARED):
        return False
    may_have_slots = bool(kind.__flags__ & _HEAP_TYPE) and not issubclass(kind, _IMMUTABLE)
    return _is_unhashable(kind) or kind.__dictoffset__ != 0 or may_have_slots


def _is_unhashable(kind: type) -> bool:
    """Return True for a type whose objects may be changed, so that they have no hash."""
    return getattr(kind, "__hash__", None) is None


def _has_state(value: object) -> bool:
    """Return True for a value that consists of more than a function and arguments by which pickle makes it.

    Otherwise it is made anew in any case, as an object for a name: a logger, a path.
    """
    if _is_unhashable(type(value)):
        return True
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - code of the value's class
        return True
    return isinstance(reduced, tuple) and len(reduced) > _WITHOUT_STATE


def _shared_values(namespace: dict[str, object], names: Container[str]) -> dict[int, str]:
    """Return the first names of values that can change, by their ids; without those of the definition."""
    shared: dict[int, str] = {}
    for other, value in list(namespace.items()):
        # Reading an attribute of a proxy may raise anything.
        if other != "__builtins__" and _is_mutable(type(value)):
            shared.setdefault(id(value), other)
    return {key: other for key, other in shared.items() if other not in names}


def _variable(variable: ContextVar[object]) -> tuple[object, ...]:
    try:
        return variable.name, Context().run(variable.get)
    except LookupError:
        return (variable.name,)


# -- pickles of definitions -------------------------------------------------------------------------
class PickledDefinition(NamedTuple):
    """The pickle of the values of names that are defined together."""

    data: bytes
    names: set[str]
    """The names of the main module that they need."""
    modules: set[str]
    loaded: set[str]
    """Those of the names that must be there when it is loaded."""
    parts: list[object]
    """The objects in it that may be changed."""
    buffers: list[memoryview]
    """The large parts of the data, which the pickle leaves out."""


def pickled_definition(
    main: MainContext, names: tuple[str, ...], values: Sequence[object]
) -> PickledDefinition:
    """Return the pickle of the list of the values of some names.

    Raises NeedsDataError for large data, and InvalidError for what cannot be pickled.
    """
    is_code = any(issubclass(type(value), _CODE) for value in values)
    pickler = _DefinitionPickler(
        _BoundedFile(_CODE_BYTES_MAX if is_code else _DATA_BYTES_MAX), main, names, values
    )
    content = list(values)
    subject = f"{' and '.join(names)} of the main module"
    try:
        with named_errors(subject, NeedsDataError, _TogetherError):
            pickler.dump(content)
    except NeedsDataError:
        if not is_code:
            raise
        raise InvalidError(
            f"{subject} cannot be sent to a worker: it has {_CODE_BYTES_MAX // MIB} MiB, a "
            "future or a reference in it. Give these to the function as arguments"
        ) from None
    return pickler.definition(content, [])


def large_definition(
    main: MainContext,
    names: tuple[str, ...],
    values: Sequence[object],
    *,
    bytes_max: int = _STORED_BYTES_MAX,
    by_name: bool = True,
) -> PickledDefinition:
    """Return the pickle of the list of the values of some names for a blob, with its large parts apart.

    Parts that have other names are references to these; copies without ``by_name``.
    Raises NeedsDataError for a pickle of more than ``bytes_max`` bytes and for data with futures or
    references, and InvalidError for what cannot be pickled.
    """
    pickler = _LargePickler(main, names, values, bytes_max, by_name=by_name)
    content = list(values)
    with named_errors(f"{' and '.join(names)} of the main module", NeedsDataError, _TogetherError):
        pickler.dump(content)
    return pickler.definition(content, pickler.buffers)


class _BoundedFile(BytesFile):
    """A pickle of at most ``bytes_max`` bytes in addition to the large bytes objects for ``take``.

    Without ``take``, a bytes object of ``bytes_max`` is too large.
    """

    def __init__(self, bytes_max: int, take: Callable[[bytes | bytearray], None] | None = None) -> None:
        super().__init__(self._taken, bytes_min=BUFFER_BYTES_MIN if take else bytes_max)
        self._take_large: Final = take
        self._left = bytes_max

    def write(self, data: bytes | bytearray) -> None:
        """Add a part of the pickle. Raise NeedsDataError if it is too large."""
        super().write(data)
        self._left -= len(data)
        if self._left < 0:
            raise NeedsDataError

    def _taken(self, data: bytes | bytearray) -> None:
        if self._take_large is None:
            raise NeedsDataError
        self._left += len(data)
        self._take_large(data)


class _DefinitionPickler(InlinePickler):
    """Pickles the values of some names by value, and the other names of the main module by name.

    Locks are parts of functions, of classes, and of what waits for something. A worker gets locks of its own.
    """

    def __init__(
        self, file: BytesFile, main: MainContext, names: tuple[str, ...], values: Sequence[object]
    ) -> None:
        super().__init__(file, main)
        self._file: Final = file
        self._names: Final = names
        self._context: Final = main
        self._shared: Final = _shared_values(main.namespace, names)
        self._is_code: Final = any(issubclass(type(value), _CODE) for value in values)
        self._has_locks: Final = any(issubclass(type(value), _WITH_LOCKS) for value in values)
        self.loaded: Final[set[str]] = set()

    def definition(self, content: list[object], buffers: list[memoryview]) -> PickledDefinition:
        """Return the pickle of ``content``, which is complete."""
        pickled_parts = (part for _, part in self.memo.copy().values() if part is not content)
        parts = [part for part in pickled_parts if _is_mutable(type(part))]
        return PickledDefinition(self._file.getvalue(), self.names, self.modules, self.loaded, parts, buffers)

    def is_named(self, qualname: str) -> bool:
        """Return True for what another definition makes."""
        name = qualname.partition(".")[0]
        if not super().is_named(qualname) or name in self._names:
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
        if name is None or self._context.is_in_progress(name) or not self._is_defined(name):
            return None
        self.names.add(name)
        self.loaded.add(name)
        return name

    def _is_defined(self, name: str) -> bool:
        """Have a name defined in the workers. Return False if they get it with the calls that need it."""
        return name not in self._context.need(name)

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


class _LargePickler(_DefinitionPickler):
    """The same for values in a blob: their large parts stay apart, and other large values have names, too."""

    def __init__(
        self,
        main: MainContext,
        names: tuple[str, ...],
        values: Sequence[object],
        bytes_max: int,
        *,
        by_name: bool,
    ) -> None:
        self.buffers: Final[list[memoryview]] = []
        self._by_name: Final = by_name
        super().__init__(_BoundedFile(bytes_max, self._take), main, names, values)

    def _take(self, data: bytes | bytearray) -> None:
        if len(self.buffers) >= BUFFERS_MAX:
            raise NeedsDataError
        self.buffers.append(memoryview(data))

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Return False for a large buffer after taking it."""
        try:
            view = buffer.raw()
        except BufferError:  # bytes that are not next to each other
            return True
        if view.nbytes < BUFFER_BYTES_MIN or len(self.buffers) >= BUFFERS_MAX:
            return True
        self.buffers.append(view)
        return False

    def persistent_id(self, value: object) -> str | None:
        """Return the name of a value, unless this pickle has copies."""
        return super().persistent_id(value) if self._by_name else None

    def _is_defined(self, name: str) -> bool:
        self._context.need(name)
        return True
