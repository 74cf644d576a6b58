"""The main module of a worker: the script of the program is run in it, and definitions of names follow."""

from __future__ import annotations

import ast
import io
import linecache
import pickle
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import ModuleType
from typing import Final, cast

from dios.errors import InvalidError
from dios.lib.executor.call_data import NeedsDataError
from dios.lib.executor.main_module import (
    ALWAYS,
    IF_DIFFERENT,
    MAIN,
    UNSENDABLE,
    Definition,
    ProcessMain,
    failures,
    main_attribute,
)
from dios.lib.executor.main_names import pickled_definition
from dios.lib.executor.script import Script, bound_names

_NOT_MAIN: Final = "__mp_main__"
"""The name that a script sees in its conditions, as in a process that multiprocessing has started."""

_ABSENT: Final = object()

_running: Final[list[str]] = []


def running_script() -> str:
    """Return the file of the script that this worker runs at the moment; empty if there is none."""
    return _running[0] if _running else ""


class _Discard(io.TextIOBase):
    """The output of a script that runs in a worker: the program has shown it already."""

    def write(self, text: str, /) -> int:
        """Drop a text."""
        return len(text)


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
        source, file = script.source, script.file
        self._module.__file__, self._module.__package__ = file, script.package
        sys.argv[:] = script.arguments
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = cast("ast.Module", _Conditions().visit(ast.parse(source, file)))
        self._module.__doc__ = ast.get_docstring(tree)
        future = [
            part for part in tree.body if isinstance(part, ast.ImportFrom) and part.module == "__future__"
        ]
        _running.append(file)
        try:
            with redirect_stdout(_Discard()), redirect_stderr(_Discard()):
                for statement in tree.body:
                    self._run(ast.Module([*future, statement], []), file)
        finally:
            _running.clear()

    def _run(self, part: ast.Module, file: str) -> None:
        try:
            exec(compile(part, file, "exec", dont_inherit=True), self.namespace)  # noqa: S102 - the program's own script
        except BaseException as error:  # noqa: BLE001 - SystemExit as well: calls need the rest of the script
            failures.update((name, error) for name in bound_names(part.body) if name not in self.namespace)

    def define(self, definition: Definition) -> None:
        """Set a name, or an attribute of a class, by the rule of its definition."""
        owner, _, name = definition.name.rpartition(".")
        try:
            if definition.rule == UNSENDABLE:
                failures[name] = InvalidError(definition.data.decode())
                return
            holder = main_attribute(owner) if owner else self._module
            present = vars(holder).get(name, _ABSENT)
            if present is _ABSENT or self._is_replaced(definition, present):
                value = _Unpickler(io.BytesIO(definition.data)).load()
                if definition.rule != IF_DIFFERENT or not _changed_in_place(present, value):
                    setattr(holder, name, value)
        except BaseException as error:  # noqa: BLE001 - the calls that need the name report it
            failures.setdefault(definition.name, error)

    def bind(self, name: str, value: object) -> None:
        """Set a name to a large value, unless it has an equal one from the script."""
        if name not in self.namespace or pickle.dumps(self.namespace[name], 5) != pickle.dumps(value, 5):
            self.namespace[name] = value

    def _is_replaced(self, definition: Definition, value: object) -> bool:
        if definition.rule != IF_DIFFERENT:
            return definition.rule == ALWAYS
        try:
            return pickled_definition(self, definition.name, value)[0] != definition.data
        except (NeedsDataError, InvalidError):
            return True


class _Unpickler(pickle.Unpickler):
    """Loads a definition, in the sandbox, from its caller."""

    def persistent_load(self, name: str) -> object:
        """Return the value of another name."""
        return main_attribute(name)


def _changed_in_place(present: object, value: object) -> bool:
    """Give a value that parts of the script may hold the content of another; return False if it stays."""
    if type(present) is not type(value):
        return False
    if isinstance(present, dict | set):
        present.clear()
        present.update(cast("dict[object, object]", value))
    elif isinstance(present, list):
        present[:] = cast("list[object]", value)
    elif getattr(type(present), "__setattr__", None) is object.__setattr__ and hasattr(present, "__dict__"):
        present.__dict__.clear()
        present.__dict__.update(value.__dict__)
    else:
        return False
    return True


def explain(error: BaseException) -> None:
    """Add the reason why a name is missing in this worker to the error of its absence."""
    if isinstance(error, NameError) and error.name in failures:
        reason = failures[error.name]
        error.add_note(f"{error.name} is not in this worker: {type(reason).__name__}: {reason}")
