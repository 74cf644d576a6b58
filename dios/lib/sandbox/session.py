"""The program of a session: a pure task that runs cells one after the other and keeps their variables."""

from __future__ import annotations

import ast
import builtins
import contextlib
import errno
import io
import keyword
import linecache
import os
import pickle
import resource
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Final, NoReturn, TextIO, cast

import msgspec

from dios.client.blob_file import BlobFile
from dios.client.ops.batches import Pending, together
from dios.client.plain_text import plain
from dios.client.sync.node import Node, Reference, Stream, connect
from dios.client.task_files import IN_IMAGE, TaskFiles
from dios.errors import ClosedError, EndOfStreamError, NotSupportedError
from dios.host.confinement.private_folder import TEMPORARY
from dios.lib.counters import show_counters
from dios.lib.executor import frames
from dios.lib.executor.archives import install
from dios.lib.executor.call_pickles import PLAIN_CALL, Arguments
from dios.lib.executor.frames import Function
from dios.lib.executor.values import encode_result
from dios.lib.sandbox import display, forking, notebook_display, protocol
from dios.lib.sandbox.bounds import COMPLETIONS_MAX, NAME_CHARS_MAX, SandboxBounds
from dios.lib.sandbox.failures import CELL, clean, described, undescribed
from dios.lib.sandbox.protocol import (
    Answer,
    Begin,
    CallFunction,
    CompleteName,
    DescribeName,
    DisplayRecord,
    FailureRecord,
    ForkSession,
    GetFile,
    GetValue,
    ListFolder,
    MakeFolder,
    MakeLink,
    Order,
    PutFile,
    PutValue,
    RemovePath,
    RunCell,
    RunProgram,
    SendChanges,
    SessionTask,
)
from dios.limits import KIB

if TYPE_CHECKING:
    from dios.client.sync.connection import Connection
    from dios.lib.sandbox.cell_loop import CellLoop
    from dios.transport.rings.waiting import RingReader, RingWriter

PROGRAM: Final = "from dios.lib.sandbox.session import serve\nserve()\n"

_PART_BYTES: Final = 8 * KIB
_PLAIN: Final = PLAIN_CALL

_COROUTINE: Final = 0x80
"""The flag of code that makes a coroutine: ``inspect`` takes time to load."""

_orders: Final = msgspec.msgpack.Decoder(Order)


def serve() -> None:
    """Run as a session until the sandbox closes its streams."""
    node = connect()
    session = _Session(node)
    place_inputs(node)
    if node.arguments:
        # It takes some time to load, and most sessions have no network.
        from dios.lib.sandbox.network import sockets  # noqa: PLC0415

        sockets.install(node)
        session.renew_network = sockets.renew
    while True:
        try:
            session.run()
        except (ClosedError, EndOfStreamError):
            return  # the sandbox needs this session no more
        except _ForkedError:
            continue


def obey(node: Node, *, listens: bool) -> None:
    """Obey the orders in the streams of a task. Raise EndOfStreamError after the last.

    A session that does not listen has no thread, and cannot be interrupted.
    """
    _Session(node).run(listens=listens)


def place_inputs(node: Node) -> None:
    """Copy inputs to ``/inputs``, if they leave most of the memory free and the task can write there.

    Raises NotPermittedError if an input has a label that the session's streams may not carry.
    """
    bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        room = os.statvfs("/" if IN_IMAGE else TEMPORARY)
    except OSError:
        return
    free = room.f_bavail * room.f_frsize // 2
    free = free if bound == resource.RLIM_INFINITY else min(free, bound // 4)
    labels = []
    for handle in node.inputs:
        if handle.label.startswith("."):
            continue
        show_counters(handle)
        if handle.size <= free:
            labels.append(handle.label)
            free -= handle.size
    if labels:
        # Machines that cannot confine tasks fully have no such folder; inputs[...] works there, too.
        with contextlib.suppress(NotSupportedError):
            TaskFiles(node, labels, ()).place()
        # They are files now. The mappings that the client keeps would refuse a fork.
        page = cast("Connection", node.link).page
        if page is not None:
            page.drop_kept()


class Inputs(Mapping[str, BlobFile]):
    """The inputs of a sandbox in its session: ``inputs["sales"]`` opens one of them as a file."""

    def __init__(self) -> None:
        self._handles: dict[str, Reference] = {}

    def use(self, node: Node) -> None:
        """Open the inputs of this task from now on."""
        self._handles = {handle.label: handle for handle in node.inputs if not handle.label.startswith(".")}

    def __getitem__(self, name: str) -> BlobFile:
        handle = self._handles.get(name)
        if handle is None:
            known = ", ".join(map(repr, self)) or "none"
            raise KeyError(f"{name!r} is no input of this sandbox; its inputs: {known}")
        return handle.open()

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        return f"<inputs: {', '.join(self) or 'none'}>"


class _Output(io.RawIOBase):
    """Standard output or standard error of a session: bytes go to the sandbox, up to the bound."""

    def __init__(self, session: _Session, stream: int) -> None:
        self._session: Final = session
        self._stream: Final = stream

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override]  # no other types come
        """Send bytes, and return their number."""
        part = bytes(data[:_PART_BYTES])
        self._session.show(self._stream, part)
        return len(part)


class _ForkedError(BaseException):
    """Raised in a fork, to leave the stack of its origin."""


class _Session:
    def __init__(self, node: Node) -> None:
        self._inputs: Final = Inputs()
        self._enter(node)
        self._bounds = SandboxBounds()
        self._main: Final = ModuleType("__main__")
        self._cells = 0
        self._present = 0
        self._wanted = 0
        self._interruptible = False
        self._postponed = False
        self.renew_network: Callable[[Node], None] | None = None
        """Called in a fork, which has a gateway of its own; None without a network."""
        self._streams: Final[list[TextIO]] = []
        self._left: Final = dict.fromkeys((protocol.STDOUT, protocol.STDERR), 0)
        self._loop: CellLoop | None = None
        """The event loop of the cells with ``await``, once there was one."""
        self._shown = display.DisplayedValues(self._bounds, self._warn)
        self._display: Final = notebook_display.Display(self._send_display, self._clear)

        sys.modules["__main__"] = self._main
        shown = {"display": self._display.display, "clear_output": self._display.clear_output}
        self._main.__dict__.update({"inputs": self._inputs, **shown})
        display.prepare()
        notebook_display.install(self._display)

    def _enter(self, node: Node) -> None:
        """Use the streams and inputs of a task: of the own one, or in a fork of the new one."""
        self._node = node
        orders, answers, interrupts = (
            cast("Stream", node.input(label))
            for label in (protocol.ORDERS, protocol.ANSWERS, protocol.INTERRUPTS)
        )
        reading: tuple[Pending[RingReader], ...] = Pending(), Pending()
        writing: Pending[RingWriter] = Pending()
        # In one message.
        cast("Connection", node.link).run(
            together(
                [orders.reader_op(), interrupts.reader_op(), answers.writer_op()],
                cast("Sequence[Pending[object]]", [*reading, writing]),
            )
        )
        self._orders, self._interrupts = (pending.result() for pending in reading)
        self._answers = writing.result()
        self._inputs.use(node)
        self._buffer = frames.FrameBuffer()
        # A thread of a cell may print while another one sends.
        self._sending = threading.Lock()
        self._sends = 0
        self._thread = threading.get_ident()
        self._own: set[forking.OpenFile] = set()

    def run(self, *, listens: bool = True) -> None:
        """Obey orders. Raise _ForkedError in a fork, whose caller then calls this method again."""
        self._renew_streams()
        if listens:
            begun = threading.Event()
            arguments = self._interrupts, begun
            threading.Thread(target=self._listen, args=arguments, name="interrupts", daemon=True).start()
            begun.wait()
        self._own = forking.descriptors()
        if IN_IMAGE and listens:
            # Sessions without an image start no programs.
            from dios.lib.sandbox.processes import supervisor  # noqa: PLC0415 - see above

            supervisor.start(self._node)
        self.send(protocol.READY)
        while True:
            for _, body in self._buffer.feed(self._orders.read()):
                self._obey(_orders.decode(body))

    def send(self, kind: int, *parts: bytes) -> None:
        """Send one frame; an interrupt waits until it is sent."""
        ours = threading.get_ident() == self._thread
        self._sends += ours
        try:
            data = frames.frame(kind, *parts)
            with self._sending:
                self._answers.write(data)
        finally:
            self._sends -= ours
        if ours and self._postponed and not self._sends:
            self._postponed = False
            self._raise_if_wanted()

    def show(self, stream: int, data: bytes) -> None:
        """Send output, up to the bound."""
        part = data[: self._left[stream]]
        self._left[stream] -= len(part)
        if part:
            self.send(protocol.OUTPUT, bytes([stream]), part)

    # -- interrupts -------------------------------------------------------------------------------
    def _listen(self, interrupts: RingReader, begun: threading.Event) -> None:
        """Turn the numbers of orders that come into signals to the thread that obeys them."""
        forking.begin_interrupts_thread()
        begun.set()
        while True:
            try:
                number = int.from_bytes(interrupts.receive(), "little")
            except (ClosedError, EndOfStreamError):
                return
            # An interrupt may overtake its order, which then finds it at its begin.
            self._wanted = number
            if number == self._present:
                forking.interrupt(self._thread)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if self._sends:
            self._postponed = True
        else:
            self._raise_if_wanted()

    def _raise_if_wanted(self) -> None:
        if self._interruptible and self._wanted == self._present:
            self._wanted = 0
            raise KeyboardInterrupt("the run was interrupted")

    # -- orders -----------------------------------------------------------------------------------
    def _obey(self, order: Order) -> None:
        task = order.task
        if isinstance(task, Begin):
            self._bounds = task.bounds
            return
        if isinstance(task, ForkSession):
            self._fork(order.number)
            return
        self._renew_streams()
        self._shown = display.DisplayedValues(self._bounds, self._warn)
        self._display.begin(self._shown, is_shown=isinstance(task, RunCell) and task.displays)
        # One byte over the bound shows the other side that something is missing.
        self._left.update(dict.fromkeys(self._left, self._bounds.output_bytes + 1))
        # Code of an earlier cell may have replaced the handler.
        signal.signal(signal.SIGINT, self._interrupted)
        self._postponed, self._present = False, order.number
        began = time.process_time_ns()
        answer, failure = Answer(), None
        try:
            answer = self._uninterrupted(lambda: self._done(task))
        except BaseException as error:  # noqa: BLE001 - whatever the code raises is described
            failure = self._failure(error)
        self._present = 0
        self._flush()
        used = time.process_time_ns() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        shown = self._shown
        answer = msgspec.structs.replace(
            answer,
            number=order.number,
            failure=failure,
            figures=shown.figures,
            tables=[msgspec.Raw(msgspec.msgpack.encode(table)) for table in shown.tables],
            cpu_ns=used,
            peak_bytes=peak,
        )
        try:
            self.send(protocol.DONE, msgspec.msgpack.encode(answer))
        except MemoryError:
            failure = FailureRecord("MemoryError", "no memory is left for the answer", "", "memory")
            self.send(protocol.DONE, msgspec.msgpack.encode(Answer(order.number, failure=failure)))

    def _fork(self, number: int) -> None:
        """Fork, and answer in the origin. Raise _ForkedError in the fork."""
        self._flush()
        failure = None
        try:
            self._close_loop()
            if self.renew_network is not None:
                _require_no_connections()
            is_fork = forking.fork(self._node, self._own, self._main.__dict__)
        except Exception as error:  # noqa: BLE001 - the session goes on
            failure = described(error)
        else:
            if is_fork:
                self._become_fork()
        self.send(protocol.DONE, msgspec.msgpack.encode(Answer(number, failure=failure)))

    def _close_loop(self) -> None:
        """Close the event loop, which a fork would share. Raise NotForkableError if it has tasks."""
        if self._loop is None:
            return
        tasks = self._loop.unfinished()
        if tasks:
            raise forking.NotForkableError(
                f"it has tasks of asyncio that have not ended ({', '.join(tasks[:5])}): await or cancel them"
            )
        loop, self._loop = self._loop, None
        loop.close()

    def _become_fork(self) -> NoReturn:
        """Take up the task of the fork, in a process that is one; nothing here returns to its origin."""
        try:
            self._enter(forking.enter())
            if self.renew_network is not None:
                self.renew_network(self._node)
            self._wanted = self._present = 0
        except BaseException:  # noqa: BLE001 - the stack and the streams are those of the origin
            os._exit(1)
        raise _ForkedError

    def _uninterrupted(self, function: Callable[[], Answer]) -> Answer:
        """Call a function that an interrupt may stop; after it, none comes."""
        try:
            self._interruptible = True
            return function()
        finally:
            self._interruptible = False

    def _failure(self, error: BaseException) -> FailureRecord:
        records: list[FailureRecord] = []

        def describe() -> Answer:
            records.append(described(error))
            if not isinstance(error, KeyboardInterrupt):
                self._shown.take_figures()
            return Answer()

        try:
            self._uninterrupted(describe)
        except BaseException:  # noqa: BLE001 - the code of the exception raised, or was interrupted
            records = records or [undescribed(error)]
        return records[0]

    def _done(self, task: SessionTask) -> Answer:
        self._raise_if_wanted()
        variables = self._main.__dict__
        if isinstance(task, RunCell):
            return self._run_cell(task.source)
        if isinstance(task, PutValue):
            install(task.modules)
            (value,), _ = _decoded(task.data)
            variables[task.name] = value
            return Answer()
        if isinstance(task, PutFile):
            with open(task.path, "wb", opener=opened_file) as file:
                file.write(task.data)
                if task.mode is not None:
                    os.fchmod(file.fileno(), task.mode)
            return Answer()
        if isinstance(task, GetFile):
            with open(task.path, "rb", opener=opened_file) as file:
                return self._value(file.read(self._bounds.value_bytes + 1))
        if isinstance(task, RunProgram):
            # Sessions without an image start none.
            from dios.lib.sandbox.programs import run_program  # noqa: PLC0415 - see above

            return self._value(run_program(task, self.show))
        if isinstance(task, SendChanges):
            # Few sessions are asked for them.
            from dios.lib.sandbox.changes import send_changes  # noqa: PLC0415 - see above

            send_changes(lambda data: self.send(protocol.FILES, data))
            return Answer()
        if isinstance(task, ListFolder | RemovePath | MakeFolder | MakeLink):
            return self._value(_changed(task))
        if isinstance(task, GetValue):
            return self._value(variables[self._known(task.name)])
        if isinstance(task, CompleteName):
            return self._value(_completions(variables, task.text))
        if isinstance(task, DescribeName):
            # It takes time to load, and most sessions do not need it.
            from dios.lib.sandbox.descriptions import described_value  # noqa: PLC0415

            value = _attribute(variables, task.text)
            return self._value(described_value(task.text, value, source=task.source))
        assert isinstance(task, CallFunction), "the others are above"  # noqa: S101 - by the type
        install(task.modules)
        arguments, named = _decoded(task.data)
        function = cast("Function[object]", variables[self._known(task.function)])
        return self._value(function(*arguments, **named))

    def _known(self, name: str) -> str:
        if name not in self._main.__dict__:
            raise NameError(f"the session has no variable {name!r}")
        return name

    def _value(self, value: object) -> Answer:
        data = encode_result(value)
        if len(data) > self._bounds.value_bytes:
            raise OverflowError(
                f"the value has {len(data):,} bytes, over {self._bounds.value_bytes:,}: take a part of it, or"
                " raise the bound value_bytes"
            )
        return Answer(data=data)

    # -- cells ------------------------------------------------------------------------------------
    def _run_cell(self, source: str) -> Answer:
        self._cells += 1
        file = f"{CELL}{self._cells}>"
        # An entry without a modification time is never compared with a disk.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        statements, expression = _compiled(source, file)
        variables = self._main.__dict__
        is_async = bool((statements.co_flags | (expression.co_flags if expression else 0)) & _COROUTINE)
        self._evaluated(statements, is_async=is_async)
        text, is_table = None, False
        if expression is not None:
            value = self._evaluated(expression, is_async=is_async)
            if value is not None:
                variables["_"] = value
                count = len(self._shown.tables)
                is_table = self._shown.take_table(value) and len(self._shown.tables) > count
                text = display.shown_value(value, self._bounds)
                if self._display.is_shown and not is_table:
                    self._display.show_value(value)
        self._shown.take_figures()
        return Answer(value_repr=text, ends_with_table=is_table)

    def _evaluated(self, code: CodeType, *, is_async: bool) -> object:
        """Run the code of a cell, or of its last expression, and return the value.

        The code of a cell with ``await`` runs on the event loop, also the part without.
        """
        if not is_async:
            value: object = eval(code, self._main.__dict__)  # noqa: S307 - the session is here to run it
            return value
        if self._loop is None:
            # Most sessions do not need it.
            from dios.lib.sandbox.cell_loop import CellLoop  # noqa: PLC0415

            self._loop = CellLoop()
        return self._loop.run(self._coroutine(code))

    async def _coroutine(self, code: CodeType) -> object:
        value: object = eval(code, self._main.__dict__)  # noqa: S307 - the same
        if code.co_flags & _COROUTINE:
            return await cast("Coroutine[object, object, object]", value)
        return value

    def _send_display(self, record: DisplayRecord) -> None:
        self._flush()
        self.send(protocol.DISPLAY, msgspec.msgpack.encode(record))

    def _clear(self, data: bytes) -> None:
        self._flush()
        self.send(protocol.CLEAR, data)

    # -- output -----------------------------------------------------------------------------------
    def _renew_streams(self) -> None:
        """Make standard output and standard error, unless they are there and open."""
        if not self._streams or not all(map(_is_open, self._streams)):
            self._streams[:] = [
                io.TextIOWrapper(
                    io.BufferedWriter(_Output(self, stream), _PART_BYTES),  # type: ignore[type-var]  # see write
                    "utf-8",
                    "backslashreplace",
                    line_buffering=True,
                )
                for stream in self._left
            ]
        sys.stdout, sys.stderr = self._streams
        # Empty, and open although exit() closes it.
        sys.stdin = io.StringIO()

    def _flush(self) -> None:
        for stream in self._streams:
            try:
                stream.flush()
            except Exception:  # noqa: BLE001 - the code closed or detached it: the next run gets new ones
                self._streams.clear()
                return

    def _warn(self, text: str) -> None:
        sys.stderr.write(clean(f"[sandbox] {text}", 1000) + "\n")


def opened_file(path: str, flags: int) -> int:
    """Open a file without waiting. Raise OSError for a pipe, which another process must open, too."""
    number = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if stat.S_ISFIFO(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.ENXIO, "this is a pipe, and no file", path)
    return number


def _changed(task: ListFolder | RemovePath | MakeFolder | MakeLink) -> list[dict[str, object]]:
    """Do something with files; the result has the files of a folder."""
    if isinstance(task, MakeFolder):
        os.makedirs(task.path, exist_ok=True)  # noqa: PTH103 - as short as the code of a cell would be
        return []
    if isinstance(task, MakeLink):
        os.symlink(task.target, task.path)  # noqa: PTH211 - the same
        return []
    if isinstance(task, ListFolder):
        with os.scandir(task.path) as entries:
            return [_described_file(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    if os.path.isdir(task.path) and not os.path.islink(task.path):  # noqa: PTH112, PTH114 - the same
        shutil.rmtree(task.path)
    else:
        os.unlink(task.path)  # noqa: PTH108 - the same
    return []


def _described_file(entry: os.DirEntry[str]) -> dict[str, object]:
    info = entry.stat(follow_symlinks=False)
    kind = (
        "link"
        if entry.is_symlink()
        else "folder"
        if entry.is_dir()
        else "file"
        if entry.is_file()
        else "other"
    )
    return {"name": plain(entry.name), "kind": kind, "size": info.st_size, "mode": info.st_mode & 0o7777}


def _is_open(stream: TextIO) -> bool:
    try:
        return not stream.closed
    except ValueError:
        return False  # it was detached from its buffer


def _require_no_connections() -> None:
    """Raise NotForkableError if code of the session has connections: a fork has not the threads for them."""
    from dios.lib.sandbox.network import sockets  # noqa: PLC0415 - a session with a network has it loaded

    connections = sockets.open_connections()
    if connections:
        raise forking.NotForkableError(
            f"it has open connections ({', '.join(connections)}): close them, or the session or client of the"
            " library that keeps them, or read their answers to the end"
        )


def _completions(variables: dict[str, object], text: str) -> list[str]:
    """Return the names that begin with a dotted name; those with underscores only if it asks for them."""
    owner, dot, begin = text.rpartition(".")
    if dot:
        known = {name for name in dir(_attribute(variables, owner)) if type(name) is str}
    else:
        known = {*variables, *dir(builtins), *keyword.kwlist}
    names = sorted(
        name
        for name in known
        if name.startswith(begin) and name.isidentifier() and (begin or not name.startswith("_"))
    )
    return [owner + dot + name for name in names if len(text) + len(name) <= NAME_CHARS_MAX][:COMPLETIONS_MAX]


def _attribute(variables: dict[str, object], dotted: str) -> object:
    """Return the value of a dotted name."""
    first, *others = dotted.split(".")
    value = variables[first] if first in variables else getattr(builtins, first)
    for name in others:
        value = getattr(value, name)
    return value


def _compiled(source: str, file: str) -> tuple[CodeType, CodeType | None]:
    """Return the code of a cell, and of its last expression if it ends with one.

    Code with ``await`` outside of a function is that of a coroutine.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, file, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module), "by the flags"  # noqa: S101 - for the types
    last = tree.body[-1] if tree.body else None
    # A semicolon at the end hides the value, as in a notebook.
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        return compile(tree, file, "exec", flags, dont_inherit=True), None
    del tree.body[-1]
    expression = ast.Expression(last.value)
    return (
        compile(tree, file, "exec", flags, dont_inherit=True),
        compile(expression, file, "eval", flags, dont_inherit=True),
    )


def _decoded(data: bytes) -> Arguments:
    """Return arguments that the sandbox sent."""
    if data[:1] == _PLAIN:
        return tuple(msgspec.msgpack.decode(data[1:])), {}
    return cast("Arguments", pickle.loads(data[1:]))  # noqa: S301 - from the caller, in the sandbox
