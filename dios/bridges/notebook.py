"""Cells of a notebook as sandboxed tasks: ``%load_ext dios``, then ``%%task -i data -o total``.

The code of such a cell runs in a pure task with its inputs and the installed packages. Its outputs come back
like the results of ``dios.Executor``: built-in types, arrays and tables, and nothing that runs code here.
"""

from __future__ import annotations

import argparse
import itertools
import keyword
import shlex
from collections.abc import MutableMapping, Sequence
from typing import Final, NoReturn, Protocol

from IPython.core.error import UsageError

from dios.bridges.notebook_worker import CellResult, run_cell
from dios.client.ops.scheduling import work
from dios.client.plain_text import plain_lines
from dios.client.sync.node import Node, connect_or_start
from dios.errors import DiosError
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.executor import Executor
from dios.limits import GIB, KIB, MIB
from dios.wire.messages import Limits

_SIZES: Final = {"": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB}

_USAGE: Final = """Run the cell in a sandboxed task: %%task -i NAMES -o NAMES

  -i, --input NAMES    variables that the cell gets, like a,b; it sees no others
  -o, --output NAMES   variables that come back when the cell ends
  --memory SIZE        memory limit of the task, like 1GiB; in a cluster it is reserved
  --cpus NUMBER        processors to reserve in a cluster
  --on NAME            the node that runs it
  --node PLACE         the node to connect to (a data directory or a socket)
"""


class Shell(Protocol):
    """The shell of IPython, as far as it is used here."""

    user_ns: MutableMapping[str, object]

    def register_magic_function(self, func: object, magic_kind: str, magic_name: str) -> None:
        """Make a function available as a magic."""


class CellFailedError(RuntimeError):
    """An exception left a cell in its task. The traceback in the notebook is that of the cell."""

    def __init__(self, report: str) -> None:
        self.report: Final = report
        super().__init__(report.strip().rpartition("\n")[2])

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        return self.report.rstrip("\n").split("\n")


class _Options(argparse.Namespace):
    input: list[str]
    output: list[str]
    cpus: float
    memory: int
    host: str
    node: str | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%task: {message}\n\n{_USAGE}")


class TaskMagic:
    """The magic ``%%task`` of one shell, with a warm worker for each combination of its options."""

    def __init__(self, shell: Shell) -> None:
        self._shell: Final = shell
        self._executors: Final[dict[tuple[object, ...], Executor]] = {}
        self._opened: Final[dict[str | None, Node]] = {}
        self._numbers: Final = itertools.count(1)
        self._parser: Final = _parser()

    def run(self, line: str, cell: str) -> None:
        """Run a cell; raises CellFailedError with the cell's traceback, and the errors of an executor."""
        try:
            options = self._parser.parse_args(shlex.split(line), namespace=_Options())
        except ValueError as error:
            raise UsageError(f"%%task: {error}\n\n{_USAGE}") from None
        missing = [name for name in options.input if name not in self._shell.user_ns]
        if missing:
            raise UsageError(f"%%task: not defined here: {', '.join(missing)}. Set it, or leave it out.")
        inputs = {name: self._shell.user_ns[name] for name in options.input}
        outputs = tuple(options.output)
        title = f"<task cell {next(self._numbers)}>"
        key = (options.cpus, options.memory, options.host, options.node)
        try:
            outcome = self._executor(key, options).submit(run_cell, cell, title, inputs, outputs).result()
            values = checked(outcome, outputs)
        except CellFailedError:
            raise
        except Exception as error:
            # The executor may have ended, or its worker be at a limit: the next cell gets a fresh one.
            self._drop(key)
            raise CellFailedError(_harmless(f"{type(error).__name__}: {error}")) from error
        except BaseException:
            self._drop(key)
            raise
        self._shell.user_ns.update(values)

    def _drop(self, key: tuple[object, ...]) -> None:
        executor = self._executors.pop(key, None)
        if executor is not None:
            executor.kill_workers()

    def _executor(self, key: tuple[object, ...], options: _Options) -> Executor:
        executor = self._executors.get(key)
        if executor is None:
            node = self._node(options.node)
            # A node that is alone has no scheduler, which could reserve something.
            reserves = node.self.node and (options.cpus or options.memory)
            executor = self._executors[key] = Executor(
                1,
                node=node,
                host=options.host or None,
                work=work(cpus=options.cpus, memory=options.memory) if reserves else None,
                limits=Limits(memory_bytes=options.memory) if options.memory else None,
            )
        return executor

    def _node(self, place: str | None) -> Node:
        opened = self._opened.get(place)
        if opened is not None:
            try:
                opened.self.stat()
            except DiosError:
                # The node was stopped or started again meanwhile.
                self._opened.pop(place).close()
                opened = None
        if opened is None:
            opened = self._opened[place] = connect_or_start(place, pool_size=1)
        return opened

    def close(self) -> None:
        """End the workers."""
        while self._executors:
            self._executors.popitem()[1].shutdown()
        while self._opened:
            self._opened.popitem()[1].close()


def checked(outcome: object, outputs: Sequence[str]) -> dict[str, object]:
    """Return the outputs in the result of a worker, which may be hostile and send something else.

    Raises CellFailedError if the cell failed, UntrustedResultError if the result is not one of a cell.
    """
    if type(outcome) is tuple and len(outcome) == 2:
        values, report = outcome
        if type(report) is str and report:
            raise CellFailedError(_harmless(report))
        if type(values) is dict and type(report) is str and set(values) == set(outputs):
            return {name: values[name] for name in outputs}
    raise UntrustedResultError(
        "the worker returned something else than the outputs of the cell. Do not use what it sent."
    )


def _harmless(report: str) -> str:
    """Return a report without letters that could control a terminal."""
    return plain_lines("\n".join(report.splitlines()).expandtabs())


def _parser() -> _Parser:
    parser = _Parser(prog="%%task", add_help=False, allow_abbrev=False)
    parser.add_argument("-i", "--input", type=_names, action="extend", default=[])
    parser.add_argument("-o", "--output", type=_names, action="extend", default=[])
    parser.add_argument("--cpus", type=float, default=0.0)
    parser.add_argument("--memory", type=_bytes, default=0)
    parser.add_argument("--on", "--host", dest="host", default="")
    parser.add_argument("--node", default=None)
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise argparse.ArgumentTypeError(f"{name!r} is not the name of a variable")
    return names


def _bytes(text: str) -> int:
    number = text.rstrip("BbKkMmGgIi ")
    unit = _SIZES.get(text[len(number) :].strip().upper())
    if not number.isdecimal() or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 512MiB")
    return int(number) * unit


_loaded: Final[dict[int, TaskMagic]] = {}
"""The magic of each shell, by the identity of the shell."""


def load(shell: Shell) -> None:
    """Add ``%%task`` to a shell."""
    magic = _loaded[id(shell)] = TaskMagic(shell)

    def task(line: str, cell: str) -> None:
        magic.run(line, cell)

    task.__doc__ = _USAGE
    shell.register_magic_function(task, magic_kind="cell", magic_name="task")


def unload(shell: Shell) -> None:
    """End the workers of a shell's cells."""
    magic = _loaded.pop(id(shell), None)
    if magic is not None:
        magic.close()


__all__ = ["CellFailedError", "CellResult", "TaskMagic", "checked", "load", "unload"]
