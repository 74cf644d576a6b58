"""The main module of a worker: the script of the program is run in it, and definitions of names follow."""

from __future__ import annotations

import ast
import contextlib
import copyreg
import io
import linecache
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from types import ModuleType
from typing import Final, cast

from dios.errors import InvalidError
from dios.lib.executor.call_data import NeedsDataError
from dios.lib.executor.main_module import (
    ALWAYS,
    IF_DIFFERENT,
    MAIN,
    REMOVED,
    UNSENDABLE,
    Definition,
    ProcessMain,
    failures,
    main_attribute,
)
from dios.lib.executor.main_names import large_definition, pickled_definition
from dios.lib.executor.script import Script, bound_names, text_of
from dios.lib.executor.sole_references import is_alone
from dios.limits import MIB

_NOT_MAIN: Final = "__mp_main__"
"""The name that a script sees in its conditions, as in a process that multiprocessing has started."""

_ABSENT: Final = object()

_CONTAINERS: Final = frozenset({dict, OrderedDict, Counter, defaultdict, list, set, bytearray, deque})
"""Types whose values consist of their parts. A class below one of them may have other state as well."""

_OF_OBJECT: Final = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__setattr__")
"""The methods of a class that change or describe the state of its objects in a way of their own."""

_running: Final[list[str]] = []


def running_script() -> str:
    """Return the file of the script that this worker runs at the moment; empty if there is none."""
    return _running[0] if _running else ""


class _Conditions(ast.NodeTransformer):
    """Gives comparisons of ``__name__`` in a script the name of a module that is not the main program."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        """Replace the name in a comparison."""
        sides = [
            ast.copy_location(ast.Constant(_NOT_MAIN), side)
            if isinstance(side, ast.Name) and side.id == "__name__"
            else side
            for side in (node.left, *node.comparators)
        ]
        node.left, node.comparators = sides[0], sides[1:]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Leave functions as they are."""
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        """Leave functions as they are."""
        return node


class WorkerMain(ProcessMain):
    """The main module of this worker, which begins empty."""

    def __init__(self) -> None:
        self._module: Final = ModuleType(MAIN)
        sys.modules[MAIN] = sys.modules[_NOT_MAIN] = self._module

    def run_script(self, script: Script) -> None:
        """Run a script, whose conditions on ``__name__`` are those of a module.

        A statement that fails here, such as the opening of a file, is left out: calls that need its names get
        them by value.
        """
        source, file = script.source, text_of(script.file)
        self._module.__file__, self._module.__package__ = file, script.package
        sys.argv[:] = map(text_of, script.arguments)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = cast("ast.Module", _Conditions().visit(ast.parse(source, file)))
        self._module.__doc__ = ast.get_docstring(tree)
        future = [
            part for part in tree.body if isinstance(part, ast.ImportFrom) and part.module == "__future__"
        ]
        _running.append(file)
        try:
            for statement in tree.body:
                self._run(ast.Module([*future, statement], []), file)
        finally:
            _running.clear()

    def _run(self, part: ast.Module, file: str) -> None:
        try:
            exec(compile(part, file, "exec", dont_inherit=True), self.namespace)  # noqa: S102 - the program's own script
        except BaseException as error:  # noqa: BLE001 - SystemExit as well: calls need the rest of the script
            failures.update((name, error) for name in bound_names(part.body) if name not in self.namespace)

    def define(self, definition: Definition, buffers: Sequence[memoryview] | None = None) -> None:
        """Set names, or attributes of classes, by the rule of their definition.

        ``buffers`` are the parts that the pickle of large data leaves out. If it fails, the names are absent:
        a value that the script made here is not that of the program.
        """
        if definition.rule == UNSENDABLE:
            failures.update(dict.fromkeys(definition.names, _reason(definition)))
            return
        try:
            if definition.rule == REMOVED:
                raise _reason(definition)  # noqa: TRY301 - the names are absent, as after other failures
            present = [vars(_holder(name)).get(_attribute(name), _ABSENT) for name in definition.names]
            if any(value is _ABSENT for value in present) or self._is_replaced(definition, present, buffers):
                loaded = _Unpickler(io.BytesIO(definition.data), buffers=buffers).load()
                for place, name in enumerate(definition.names):
                    is_data = definition.rule == IF_DIFFERENT
                    if not is_data or not self._is_changed(name, present[place], loaded, place):
                        setattr(_holder(name), _attribute(name), loaded[place])
            for name in definition.names:
                failures.pop(name, None)
        except BaseException as error:  # noqa: BLE001 - the calls that need the names report it
            for name in definition.names:
                failures[name] = error
                with contextlib.suppress(Exception):
                    delattr(_holder(name), _attribute(name))

    def bind(self, name: str, value: object) -> None:
        """Set a name, or an attribute of a class, to a value that came with a call."""
        setattr(_holder(name), _attribute(name), value)

    def _is_changed(self, name: str, present: object, loaded: list[object], place: int) -> bool:
        """Return True after changing a value in place; False if the name must be set.

        It must if the program has the loaded value under another name too, if parts of the loaded value refer
        to it, or if the program has two values where the script of this worker made one for two names.
        """
        first = next((other for other, value in self.namespace.items() if value is present), name)
        return first == name and is_alone(loaded, place) and _changed_in_place(present, loaded[place])

    def _is_replaced(
        self, definition: Definition, values: list[object], buffers: Sequence[memoryview] | None
    ) -> bool:
        if definition.rule != IF_DIFFERENT:
            return definition.rule == ALWAYS
        try:
            if buffers is None:
                return pickled_definition(self, definition.names, values).data != definition.data
            present = large_definition(self, definition.names, values)
        except (NeedsDataError, InvalidError):
            return True
        return present.data != definition.data or not _are_equal(present.buffers, buffers)


def _holder(name: str) -> object:
    """Return the module, or the class that has an attribute."""
    owner = name.rpartition(".")[0]
    return main_attribute(owner) if owner else sys.modules[MAIN]


def _attribute(name: str) -> str:
    return name.rpartition(".")[2]


def _reason(definition: Definition) -> InvalidError:
    return InvalidError(definition.data.decode())


class _Unpickler(pickle.Unpickler):
    """Loads a definition, in the sandbox, from its caller."""

    def persistent_load(self, name: str) -> object:
        """Return the value of another name."""
        return main_attribute(name)


def _changed_in_place(present: object, value: object) -> bool:
    """Give a value that parts of the script may hold the content of another; return False if it stays.

    Only the built-in containers, and objects whose state is their ``__dict__``, can be changed as a whole.
    """
    if type(present) is not type(value):
        return False
    if type(present) in _CONTAINERS:
        return _is_refilled(present, value)
    if not (_has_dict_alone(present) and _has_dict_alone(value)):
        return False
    vars(present).clear()
    vars(present).update(vars(value))
    return True


def _is_refilled(present: object, value: object) -> bool:
    """Return True after giving a container the parts of another one; False if its length is bounded."""
    if isinstance(present, list | bytearray):
        cast("list[object]", present)[:] = cast("list[object]", value)
        return True
    if isinstance(present, deque):
        if present.maxlen != cast("deque[object]", value).maxlen:
            return False
        present.clear()
        present.extend(cast("deque[object]", value))
        return True
    if isinstance(present, defaultdict):
        present.default_factory = cast("defaultdict[object, object]", value).default_factory
    container = cast("dict[object, object]", present)
    container.clear()
    container.update(cast("dict[object, object]", value))
    return True


def _has_dict_alone(value: object) -> bool:
    """Return True for an object that has a ``__dict__``, and no other state.

    Pickle describes it by its class and the dictionary then. An object that is equal to others by its state
    may be a key of a dictionary, which would not find it after a change.
    """
    kind = type(value)
    if any(getattr(kind, name, None) is not getattr(object, name, None) for name in _OF_OBJECT):
        return False
    if kind.__hash__ not in {object.__hash__, None} or kind in copyreg.dispatch_table:
        return False
    try:
        function, arguments, state, *items = cast("tuple[object, ...]", value.__reduce_ex__(2))
    except Exception:  # noqa: BLE001 - it has parts that pickle does not know
        return False
    has_dict = hasattr(value, "__dict__") and (state is None or type(state) is dict)
    return has_dict and function is copyreg.__newobj__ and arguments == (kind,) and not any(items)  # type: ignore[attr-defined]  # for pickle


def _are_equal(buffers: Sequence[memoryview], others: Sequence[memoryview]) -> bool:
    return list(map(len, buffers)) == list(map(len, others)) and all(
        buffer[place : place + MIB].tobytes() == other[place : place + MIB].tobytes()
        for buffer, other in zip(buffers, others, strict=True)
        for place in range(0, len(buffer), MIB)
    )


def explain(error: BaseException) -> None:
    """Add the reason why a name is missing in this worker to the error of its absence."""
    names = [error.name] if isinstance(error, NameError) else []
    if isinstance(error, AttributeError):
        is_class = issubclass(type(error.obj), type)
        kind = cast("type", error.obj) if is_class else type(error.obj)
        names = [f"{base.__qualname__}.{error.name}" for base in kind.__mro__ if base.__module__ == MAIN]
    for name in names:
        if name in failures:
            reason = failures[name]
            error.add_note(f"{name} is not in this worker: {type(reason).__name__}: {reason}")
