"""The script of a program, as its workers run it: without what only the main program does."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NamedTuple

import msgspec

from dios.lib.executor.local_modules import is_of_library
from dios.limits import MIB

_SOURCE_BYTES_MAX: Final = 16 * MIB

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Script(msgspec.Struct, frozen=True, array_like=True):
    """A script for workers. The lines of its guarded part are empty, or all if no worker runs it."""

    source: str
    file: bytes
    package: str
    arguments: list[bytes]
    """These and the file may have bytes that are not UTF-8: ``text_of`` decodes them."""


class ReadScript(NamedTuple):
    """A script that was read."""

    text: bytes
    sent: Script
    names: ScriptNames | None
    """None for a script without a guard, which no worker runs."""


class ScriptNames(NamedTuple):
    """The global names of a script."""

    replayed: frozenset[str]
    """The names that the script binds in each worker, and nowhere else."""
    used: frozenset[str]
    """The names that functions and classes use, also in their definitions."""


def read_script(main: ModuleType) -> ReadScript | None:
    """Return the script that is the main module; None in a notebook, at a prompt, and for installed programs.

    One without ``if __name__ == "__main__"`` would do everything again in each worker: its source stays.
    """
    file = getattr(main, "__file__", None)
    if not isinstance(file, str) or hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    path = Path(file).absolute()
    try:
        if is_of_library(path) or path.stat().st_size > _SOURCE_BYTES_MAX:
            return None
        source = importlib.util.decode_source(path.read_bytes())
        tree = ast.parse(source, file)
        code = compile(source, file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    guards = [
        statement for statement in tree.body if isinstance(statement, ast.If) and _is_guard(statement.test)
    ]
    script = Script("", _bytes_of(file), main.__package__ or "", [])
    if not guards:
        return ReadScript(source.encode(), script, None)
    changed = {name for guard in guards for name in bound_names(guard.body)} | _declared_global(tree)
    other = [statement for statement in tree.body if statement not in guards]
    other += [statement for guard in guards for statement in guard.orelse]
    used = {*_used(code), *_used_in_definitions(tree)}
    names = ScriptNames(frozenset(bound_names(other)) - changed, frozenset(used))
    run = msgspec.structs.replace(script, source=_without_guarded(source, guards))
    return ReadScript(run.source.encode(), run, names)


def _bytes_of(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def with_arguments(script: Script) -> Script:
    """Return a script with the arguments that the program has now."""
    arguments = [_bytes_of(str(argument)) for argument in sys.argv]
    return msgspec.structs.replace(script, arguments=arguments)


def text_of(data: bytes) -> str:
    """Return the file of a script or one of its arguments as the program has it."""
    return data.decode(errors="surrogatepass")


def _is_guard(test: ast.expr) -> bool:
    """Return True for a condition that holds in the main program alone."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_guard, test.values))
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _without_guarded(source: str, guards: list[ast.If]) -> str:
    """Return a source with ``pass`` in place of the guarded statements; no line gets another number."""
    lines = [line.encode() for line in source.split("\n")]
    for guard in guards:
        first, last = guard.body[0], guard.body[-1]
        line = min([first.lineno, *(part.lineno for part in getattr(first, "decorator_list", ()))]) - 1
        lines[line] = lines[line][: first.col_offset] + b"pass"
        for number in range(line + 1, last.end_lineno or line + 1):
            lines[number] = b""
    return b"\n".join(lines).decode()


def bound_names(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind in their own namespace."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            yield node.name
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Lambda):
            continue
        waiting += ast.iter_child_nodes(node)


def _declared_global(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _used_in_definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the names in default arguments, decorators and bases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            parts = [*node.defaults, *node.kw_defaults]
        elif isinstance(node, _DEFINITIONS):
            parts = [*node.decorator_list, *getattr(node, "bases", ())]
        else:
            continue
        names = (name for part in parts if part is not None for name in ast.walk(part))
        yield from (name.id for name in names if isinstance(name, ast.Name))


def _used(code: CodeType) -> Iterator[str]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from part.co_names
            yield from _used(part)
