"""The main function of a task's process: wait for the Welcome, then run the program.

A child of the pool waits in ``main`` until there is a task for it. ``dios.host`` has sandboxed the process
before.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import linecache
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import CodeType, ModuleType, TracebackType
from typing import Final, cast

import msgspec

from dios.client.device_variables import device_variables
from dios.client.program import Program, decode_program
from dios.client.sync import node as sync_node
from dios.client.sync.connection import Connection
from dios.client.tracing.contexts import context_in
from dios.client.warm_up import rehearse
from dios.client.welcome import receive_welcome
from dios.errors import ClosedError, DiosError, NotExecutableError
from dios.limits import MIB, TASK_WELCOME_WAIT_MS
from dios.transport.unix.client import ClientChannel
from dios.wire.messages import Reference

TASK_SOCKET: Final = 3
"""The one descriptor, in addition to console and null, that a task inherits."""

FAILED: Final = 1
"""The exit status of a task that an exception ended."""

_MAIN: Final = "__main__"
DEFAULT_FILE: Final = "<task>"
"""The file name in tracebacks of a program without a label."""


def main(rehearsal: Callable[[], None] = rehearse) -> int:
    """Run as a task: return its exit status, or raise the SystemExit of its program.

    ``rehearsal`` is called in a process that has no task yet.
    """
    channel = ClientChannel(socket.socket(fileno=TASK_SOCKET))
    if not _welcome_is_near(channel):
        rehearsal()
    try:
        welcome, page = receive_welcome(channel)
    except ClosedError:
        return 0  # the node does not need this child of its pool any more
    sync_node.enter_task_later(channel, welcome, page)
    _set_memory_variable()
    os.environ.update(device_variables(welcome.devices))
    if welcome.executable is None:
        raise NotExecutableError("the node sent no program")
    content = welcome.program
    program = decode_program(_read_program() if content is None else content)
    if program.traceparent:
        os.environ["TRACEPARENT"] = program.traceparent
    if welcome.outputs:
        _record_if_traced(welcome.outputs[-1])
    run: Callable[[], int] = partial(run_program, program, welcome.label or DEFAULT_FILE, welcome.arguments)
    if program.native:
        run = partial(_become_native, program.native, welcome.arguments)
    if program.wasm:
        program, run = _module_of(program, sync_node.connect())
    return _with_files(sync_node.connect(), program, run) if program.inputs or program.outputs else run()


def _record_if_traced(output: Reference) -> None:
    """Record the calls of this task if the program that started it is traced, which the last output says."""
    context = context_in(output.label)
    if context is not None and context.sampled:
        # Most tasks are not traced.
        from dios.client.tracing.task_recorder import record_until_the_end  # noqa: PLC0415

        os.environ["TRACEPARENT"] = context.traceparent
        record_until_the_end(context, output)


def _read_program() -> bytes:
    """Read the program of this task, which was too large for the Welcome, or elsewhere."""
    executable = sync_node.connect().executable
    return b"" if executable is None else executable.read_bytes()


def enter_as_fork() -> sync_node.Node:
    """Return the node of a process that was forked from another task, and has got a socket of its own.

    Raise ClosedError if the node does not need it any more.
    """
    connection = Connection(ClientChannel(socket.socket(fileno=TASK_SOCKET)))
    welcome = connection.welcome()
    os.environ.update(device_variables(welcome.devices))
    return sync_node.enter_task(connection, welcome)


def leave_origin(node: sync_node.Node) -> None:
    """Release what a fork has of the connection of its origin, which goes on with it."""
    node.abandon_ends()
    connection = cast("Connection", node.link)
    if connection.page is not None:
        connection.page.close()


def _set_memory_variable() -> None:
    """Set the variable from which Polars reads how much memory there is to the memory limit of this task.

    A pure task has no /proc/meminfo. Polars would assume that there is no memory, and write and read each
    part of its data as a file.
    """
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit != resource.RLIM_INFINITY:
        os.environ["POLARS_OVERRIDE_TOTAL_MEMORY_MB"] = str(limit // MIB)


def _module_of(program: Program, node: sync_node.Node) -> tuple[Program, Callable[[], int]]:
    """Return the program of a WebAssembly module, whose labelled outputs are files, and its run."""
    from dios.client.wasm.program import labels_of_files, run_module  # noqa: PLC0415 - most are Python

    # Its inputs are not copied: the module opens the objects themselves.
    files = msgspec.structs.replace(program, inputs=(), outputs=labels_of_files(node.outputs))
    return files, partial(run_module, program.wasm, node, node.label or DEFAULT_FILE)


def _become_native(name: str, arguments: Sequence[str]) -> int:
    """Become a native program of the node's settings. Return 1, and print the reason, if that fails."""
    path = f"/programs/{name}"
    # The program would inherit what Python ignores.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # The node takes the end of the connection for the end of the task.
    os.set_inheritable(TASK_SOCKET, True)
    try:
        os.execv(path, [name, *arguments])  # noqa: S606 - a program of the settings
    except OSError as error:
        reason = error.strerror
        if not os.path.lexists(path):
            reason = (
                "this node has no program of that name for pure tasks. Its owner adds one with "
                "[programs.NAME] in its settings, on a machine that has all mechanisms of `dios doctor`"
            )
        sys.stderr.write(f"cannot run the native program {name}: {reason}\n")
        sys.stderr.flush()
    return FAILED


def _with_files(node: sync_node.Node, program: Program, run: Callable[[], int]) -> int:
    """Run a program that finds inputs and outputs as files; a success ends with the outputs' publication."""
    # Most programs want none.
    from dios.client.task_files import TaskFiles  # noqa: PLC0415

    status = FAILED

    def publish() -> None:
        if status:
            return
        try:
            files.publish()
        except Exception as error:  # noqa: BLE001 - whatever it is, the task must not end as a success
            sys.stderr.write(f"cannot store the outputs: {error}\n")
            sys.stderr.flush()
            os._exit(FAILED)

    try:
        files = TaskFiles(node, program.inputs, program.outputs)
        files.place()
    except DiosError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    # Registered first, and so called last: exit functions of the program may still write its files.
    atexit.register(publish)
    try:
        status = run()
    except SystemExit as end:
        status = 0 if end.code in {None, 0} else FAILED
        raise
    return status


def _welcome_is_near(channel: ClientChannel) -> bool:
    """Return True if this child was created for a present task, and not for the pool."""
    return bool(select.select([channel.fileno()], [], [], TASK_WELCOME_WAIT_MS / 1000)[0])


def run_program(program: Program, file: str, arguments: Sequence[str]) -> int:
    """Run a program as ``__main__``; tracebacks show its lines under ``file``.

    Returns 0, or 1 after printing the traceback of an exception that left the program; its SystemExit is
    not caught.
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
    """Give this process the arguments, the modules and the ``__main__`` of a program; return the last."""
    sys.argv[:] = [file, *arguments]
    sys.meta_path.insert(0, _OwnModules(program.modules))
    module = ModuleType(_MAIN)
    module.__file__ = file
    sys.modules[_MAIN] = module
    return module


def add_modules(sources: Mapping[str, str]) -> None:
    """Let this process import further modules, from their sources."""
    for finder in sys.meta_path:
        if isinstance(finder, _OwnModules):
            finder.add(sources)
            return
    sys.meta_path.insert(0, _OwnModules(sources))


def tell(error: BaseException, ours: Collection[str]) -> TracebackType | None:
    """Print the traceback of an exception that left the program, and return it, without dios frames.

    ``ours`` are the files of the frames above the program's first, which are useless for its author.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.stdout.flush()
    if trace is None:
        # A program that does not compile has no frames; the node detects an exception by this line.
        sys.stderr.write("Traceback (most recent call last):\n")
    traceback.print_exception(error)
    return trace


def compiled(source: str, file: str) -> CodeType:
    """Return the compiled source, with lines that tracebacks and debuggers find under ``file``."""
    # An entry without a modification time is never compared with a disk that the task cannot read.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec", dont_inherit=True)


class _OwnModules:
    """Finds and loads the modules of the program."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources: Final = dict(sources)

    def add(self, sources: Mapping[str, str]) -> None:
        """Find these modules as well."""
        self._sources.update(sources)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of one of the modules; a name with others below it is a package."""
        del path, target  # the name suffices
        is_package = any(other.startswith(name + ".") for other in self._sources)
        if name not in self._sources and not is_package:
            return None
        file = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        return importlib.util.spec_from_loader(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python create the module itself."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's source; a package without a source is empty."""
        spec = module.__spec__
        file = (spec.origin if spec is not None else None) or module.__name__
        module.__file__ = file
        source = self._sources.get(module.__name__, "")
        exec(compiled(source, file), module.__dict__)  # noqa: S102 - the same
