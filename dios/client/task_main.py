"""The first line of a task's process after lock-down: wait for the Welcome, then be the program.

Not for: confining the process, which is done before (``dios.host``), or judging its end, which the node does
from outside. A child of the pool waits in ``main`` until there is a task for it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import linecache
import select
import socket
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Final

from dios.client.program import Program, decode_program
from dios.client.sync import node as sync_node
from dios.client.sync.connection import Connection
from dios.client.warm_up import rehearse
from dios.errors import ClosedError, NotExecutableError
from dios.limits import TASK_WELCOME_WAIT_MS
from dios.transport.unix.client import ClientChannel

TASK_SOCKET: Final = 3
"""The one descriptor beside console and null that a task inherits."""

FAILED: Final = 1
"""Exit status of a task that an exception ended."""

_MAIN: Final = "__main__"
DEFAULT_FILE: Final = "<task>"
"""What a traceback calls a program without a label."""


def main() -> int:
    """Be a task: returns its exit status, or raises the SystemExit of its program."""
    connection = Connection(ClientChannel(socket.socket(fileno=TASK_SOCKET)))
    if not _welcome_is_near(connection):
        rehearse()
    try:
        welcome = connection.welcome()
    except ClosedError:
        return 0  # the node needs this child of its pool no more
    node = sync_node.enter_task(connection, welcome)
    if node.executable is None:
        raise NotExecutableError("the node sent no program")
    program = decode_program(node.executable.read_bytes())
    return run_program(program, node.label or DEFAULT_FILE, node.arguments)


def _welcome_is_near(connection: Connection) -> bool:
    """Whether this child was made for a task that is here already, and not for the pool."""
    return bool(select.select([connection.fileno()], [], [], TASK_WELCOME_WAIT_MS / 1000)[0])


def run_program(program: Program, file: str, arguments: Sequence[str]) -> int:
    """Run a program as ``__main__``; a traceback shows its lines under ``file``.

    Returns 0, or 1 after printing the traceback of an exception that left the program; its SystemExit is
    raised on.
    """
    module = become(program, file, arguments)
    try:
        exec(compiled(program.main, file), module.__dict__)  # noqa: S102 - the task is here to run it
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever left the program is shown, never handled
        tell(error, {__file__})
        return FAILED
    return 0


def become(program: Program, file: str, arguments: Sequence[str]) -> ModuleType:
    """Give this process the arguments, the modules and the ``__main__`` of a program; answers the last."""
    sys.argv[:] = [file, *arguments]
    sys.meta_path.insert(0, _OwnModules(program.modules))
    module = ModuleType(_MAIN)
    module.__file__ = file
    sys.modules[_MAIN] = module
    return module


def tell(error: BaseException, ours: Collection[str]) -> TracebackType | None:
    """Print the traceback of an exception that left the program, and answer it, without our own frames.

    ``ours`` are the files of the frames above the program's first, which say nothing to its author.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.stdout.flush()
    if trace is None:
        # A program that does not compile has no frames; the node knows an exception by this line.
        sys.stderr.write("Traceback (most recent call last):\n")
    traceback.print_exception(error)
    return trace


def compiled(source: str, file: str) -> CodeType:
    """The code of a source, whose lines a traceback and a debugger find under ``file``."""
    # An entry without a time of change is never checked against a disk that the task cannot see.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec", dont_inherit=True)


class _OwnModules:
    """Finds and loads the modules that came with the program."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources: Final = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of one of our modules; a name with others below it is a package."""
        del path, target  # the name says all
        is_package = any(other.startswith(name + ".") for other in self._sources)
        if name not in self._sources and not is_package:
            return None
        file = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        return importlib.util.spec_from_loader(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python make the module itself."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's source, or nothing for a package that is only a name."""
        spec = module.__spec__
        file = (spec.origin if spec is not None else None) or module.__name__
        module.__file__ = file
        source = self._sources.get(module.__name__, "")
        exec(compiled(source, file), module.__dict__)  # noqa: S102 - the same
