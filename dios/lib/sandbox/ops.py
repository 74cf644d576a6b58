"""The operations of a sandbox, written once for both faces as generators of ``steps``.

The name of an operation ends in ``_op``; the faces drop the ending. ``sandbox`` and ``async_sandbox`` take
the steps, and run the operations of one session one after the other.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from dios.client.ops.attributes import Handle
from dios.client.ops.nodes import isolation_of
from dios.client.sync.node import Node, Reference
from dios.errors import (
    DiosError,
    InvalidError,
    NotSupportedError,
    ProtocolError,
    TimeLimitError,
    TooLargeError,
)
from dios.lib.amounts import memory_of, seconds_of
from dios.lib.executor.call_pickles import encode_arguments
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.results.forms import DecodeTimeoutError
from dios.lib.executor.values import decode_result
from dios.lib.sandbox.bounds import (
    COMPLETIONS_MAX,
    DESCRIPTION_CHARS_MAX,
    NAME_CHARS_MAX,
    SandboxBounds,
)
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError, SessionForkError
from dios.lib.sandbox.link import GRACE_S, OrderOutcome, SessionLink, Show, Sink
from dios.lib.sandbox.network.grant import NetworkGrant, NetworkHeaders
from dios.lib.sandbox.processes.handles import (
    KeptOutput,
    ProcessOps,
    ProgramInfo,
    ProgramInput,
    SandboxPrograms,
    check_arguments,
    encoded,
    path_of,
    record_end,
    record_program,
    variables_of,
)
from dios.lib.sandbox.processes.records import STATUS_MAX, STATUS_MIN
from dios.lib.sandbox.protocol import (
    STDOUT,
    Answer,
    CallFunction,
    CompleteName,
    DescribeName,
    GetFile,
    GetValue,
    ListFolder,
    MakeFolder,
    MakeLink,
    PutFile,
    PutValue,
    RemovePath,
    RunCell,
    RunProgram,
    SendChanges,
    SessionTask,
)
from dios.lib.sandbox.result import (
    ProgramResult,
    SandboxDisplay,
    SandboxFailure,
    SandboxFile,
    SandboxResult,
    cut_notice,
    cut_text,
    failure_of,
    files_of,
    table_of,
)
from dios.lib.sandbox.steps import Steps, call, each_side_by_side
from dios.limits import ENVIRONMENT_BYTES_MAX, IMAGE_DEPTH_MAX, IMAGE_ENTRIES_MAX, SANDBOX_FORKS_MAX
from dios.wire.environments import digest_of
from dios.wire.messages import Limits
from dios.wire.types import Isolation, NameKind, ObjectType

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncReference
    from dios.lib.images.change_archives import ChangeArchive

Input: TypeAlias = "str | Path | bytes | Reference | AsyncReference"

_INPUT_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_DOTTED_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.?")
_INTERRUPTED: Final = "KeyboardInterrupt"
_TIMED_OUT: Final = "TimeoutError"
_ENDED: Final = "SandboxEnded"
_MODE_BITS: Final = 0o777
NOT_OPEN: Final = "this sandbox is not open: use it in an `async with` statement"


class _Shared:
    """The references to inputs that a sandbox and its forks have in common."""

    def __init__(self) -> None:
        self.held: Final[list[Reference]] = []
        self._users = 1
        self._lock: Final = threading.Lock()

    def join(self) -> None:
        """Count another sandbox."""
        with self._lock:
            self._users += 1

    def leave(self) -> bool:
        """Count one less; return True if none is left."""
        with self._lock:
            self._users -= 1
            return not self._users


class SandboxOps:
    """The session of a sandbox, what was given to it, and its operations."""

    def __init__(
        self,
        inputs: Mapping[str, Input] | None,
        memory: int | str | None,
        cpu_seconds: float | None,
        timeout: float | None,
        bounds: SandboxBounds | None,
        template: str = "",
        network: Iterable[str] = (),
        network_ca: str | Path | bytes | None = None,
        network_headers: NetworkHeaders | None = None,
        *,
        forkable: bool = False,
        has_image: bool = False,
        isolation: str = "kernel",
    ) -> None:
        grant = NetworkGrant(network, network_ca, network_headers)
        self._grant: Final = grant if grant.origins else None
        self._template = template
        self._forkable: Final = forkable
        self._has_image: Final = has_image
        self._isolation: Final = isolation_of(isolation)
        if self._isolation is Isolation.GVISOR and (forkable or template):
            raise InvalidError(
                "a sandbox in gVisor has no template and cannot be forked: leave out template= and forkable=,"
                " or isolation="
            )
        self._image_name = ""
        """The environment of the image; its changes at the start are in ``_changes``, if there are some."""
        self._changes: ChangeArchive | None = None
        self._bounds: Final = bounds or SandboxBounds()
        self._timeout: Final = None if timeout is None else seconds_of(timeout, "timeout")
        self._limits: Final = Limits(
            memory_bytes=0 if memory is None else memory_of(memory),
            cpu_ms=0 if cpu_seconds is None else math.ceil(1000 * seconds_of(cpu_seconds, "cpu_seconds")),
        )
        self._given: Final = dict(inputs or {})
        for name in self._given:
            if not _INPUT_NAME.fullmatch(name):
                raise InvalidError(f"an input's name has letters, digits, '_', '-' and '.', not {name!r}")
        self._modules = LocalModules()
        self._shared = _Shared()
        self._node: Node
        self._inputs: Mapping[str, Reference] = {}
        self._link: SessionLink | None = None
        self._closed = False
        self._is_left = False
        self._is_paused = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'ended' if self.ended else 'open'}>"

    @property
    def ended(self) -> str:
        """Return the reason why the session ended; empty while it runs. ``reset`` starts a fresh one."""
        if self._link is None:
            return "it was closed" if self._closed else "it was not started"
        return self._link.ended

    @property
    def paused(self) -> bool:
        """Return True between ``pause`` and ``resume``."""
        return self._is_paused

    def open_op(self, node: Node) -> Steps[None]:
        """Send the inputs to the node, and start the session there."""
        self._node = node
        inputs: dict[str, Reference] = {}
        for name, given in self._given.items():
            if isinstance(given, Handle):
                inputs[name] = cast("Reference", given)
                continue
            inputs[name] = yield from call(
                node.create_op(ObjectType.SHMEM_BLOB, data=_bytes_of(given), naming=NameKind.ANONYMOUS)
            )
            self._shared.held.append(inputs[name])
        self._inputs = inputs
        yield from self._start()

    def run_op(
        self,
        source: str,
        *,
        on_output: Callable[[str, str], None] | None = None,
        on_display: Callable[[SandboxDisplay], None] | None = None,
    ) -> Steps[SandboxResult]:
        """Run code as a cell of a notebook, and return its output, its last value and its exception.

        At the time limit the code is interrupted, and the session keeps its variables; one that does not
        stop is ended. Then, and if the session ends by itself, the result says so in ``error``, with
        ``ended``. Raises SandboxEndedError if it had ended before.

        ``on_output`` is called with "stdout" or "stderr" and a text whenever the code has printed, as far as
        ``bounds`` admit; the result has the whole text, too. An exception of it interrupts the code.

        ``on_display`` is called in the same way with what the code gives to ``display``, in the forms of a
        notebook, with its calls of ``clear_output``, and with a last value that has such forms. Otherwise the
        texts of these values are output, and the result has their tables.
        """
        link = self._running()
        done = yield from link.exchange(
            RunCell(source, on_display is not None),
            self._timeout,
            _text_parts(on_output, self._bounds.output_bytes),
            on_display,
        )
        stdout, stderr = link.take_printed()
        answer, records = done.answer or (Answer(), [])
        tables = tuple(map(table_of, records))
        return SandboxResult(
            stdout=self._text(stdout),
            stderr=self._text(stderr),
            value_repr=answer.value_repr,
            error=self._error(link, done, self._timeout),
            figures=tuple(answer.figures),
            tables=tables,
            cpu_seconds=answer.cpu_ns / 1e9,
            peak_bytes=answer.peak_bytes,
            value_table=tables[-1] if tables and answer.ends_with_table else None,
        )

    def exec_op(
        self,
        *arguments: str,
        stdin: ProgramInput = b"",
        cwd: str | os.PathLike[str] = "",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_output: Callable[[str, str], None] | None = None,
    ) -> Steps[ProgramResult]:
        """Run a program of the image, and return its exit status and its output.

        ``arguments`` are the program, by a path or a name in PATH, and its arguments; no shell reads them.
        ``stdin`` is its input: bytes, text, or pieces of bytes, such as those of an open binary file, which
        go to it one after the other. ``cwd`` is its working directory. ``env`` are variables in addition
        to those of the image. ``timeout`` are the seconds until it is killed, if that is less than the time
        of an operation. ``on_output`` is called as in ``run``. Processes that the program leaves go on,
        without its streams.

        Raises InvalidError without an image, SandboxCodeError for a program that cannot be started,
        SandboxEndedError if the session had ended before.
        """
        programs = self._programs()
        check_arguments(arguments)
        variables, folder = variables_of(env), path_of(cwd)
        link = self._running()
        limit_s = self._limit(None if timeout is None else seconds_of(timeout, "timeout"))
        show = _text_parts(on_output, self._bounds.output_bytes)
        if not isinstance(stdin, bytes | str):
            process = programs.process(*(yield from programs.start(arguments, cwd, env, None, limit_s)))
            return (yield from self._exchanged(process, stdin, limit_s, show))
        order = RunProgram(list(arguments), encoded(stdin), folder, variables)
        number = yield from record_program(link.running_task, arguments)
        code: int | None = None
        try:
            done = yield from link.exchange(order, limit_s, show)
            result = self._program_result(link, done, limit_s)
            code = result.exit_code
        finally:
            yield from record_end(link.running_task, number, code)
        return result

    def _program_result(self, link: SessionLink, done: OrderOutcome, limit_s: float | None) -> ProgramResult:
        stdout, stderr = (self._text(data) for data in link.take_printed())
        failure = self._error(link, done, limit_s)
        if failure is not None:
            if not failure.ended and failure.type not in {_TIMED_OUT, _INTERRUPTED}:
                raise SandboxCodeError(f"{failure.type}: {failure.message}", failure)
            return ProgramResult(None, stdout, stderr, failure)
        code = self._decoded(b"" if done.answer is None else done.answer.answer.data)
        if type(code) is not int or not STATUS_MIN <= code <= STATUS_MAX:
            raise UntrustedResultError("the session sent something else than an exit status")
        return ProgramResult(code, stdout, stderr)

    def _exchanged(
        self, process: ProcessOps, source: ProgramInput, limit_s: float | None, show: Show | None
    ) -> Steps[ProgramResult]:
        """Give a program its input piece by piece, and return its end; kill it at its time limit."""
        kept = KeptOutput(self._bounds.output_bytes, show)
        try:
            return (yield from process.exchanged(source, limit_s, kept))
        except TimeLimitError:
            message = f"the run was interrupted after {limit_s:g} s, its time limit (timeout=)"
            return ProgramResult(None, *kept.texts(), SandboxFailure(_TIMED_OUT, message, ""))
        finally:
            if process.returncode is None:
                with contextlib.suppress(DiosError):
                    yield from process.kill_op()
                    yield from process.wait_op(GRACE_S)
                    while (yield from process.read_op(GRACE_S)) is not None:
                        # A program whose output was read is listed no more.
                        pass
            yield from process.close_op()

    def start_op(
        self,
        *arguments: str,
        cwd: str | os.PathLike[str] = "",
        env: Mapping[str, str] | None = None,
        pty: tuple[int, int] | None = None,
    ) -> Steps[ProcessOps]:
        """Start a program of the image, and return a handle of it; it runs next to cells and other programs.

        ``arguments``, ``cwd`` and ``env`` are as in ``exec``. With ``pty``, the numbers of rows and columns,
        its streams are a terminal. The program ends with the sandbox.

        Raises InvalidError without an image, SandboxCodeError for a program that cannot be started, or if
        there are too many, and SandboxEndedError.
        """
        programs = self._programs()
        return programs.process(*(yield from programs.start(arguments, cwd, env, pty, self._timeout)))

    def attach_op(self, id: str) -> Steps[ProcessOps]:  # noqa: A002 - as it is called
        """Return a handle of a program by its id, in place of the one that has it; see ``processes``.

        Raises SandboxCodeError if there is no such program any more, SandboxEndedError.
        """
        programs = self._programs()
        return programs.process(*(yield from programs.attach(id, self._timeout)))

    def processes_op(self) -> Steps[list[ProgramInfo]]:
        """Return the programs that ``start`` began and that run, or whose output was not read yet."""
        return (yield from self._programs().processes(self._timeout))

    def _programs(self) -> SandboxPrograms:
        if not self._has_image:
            raise InvalidError("only a sandbox with an image has programs: make it with image=")
        return SandboxPrograms(self._node, self._running().running_task, self._bounds.output_bytes)

    def read_file_op(self, path: str | os.PathLike[str]) -> Steps[bytes]:
        """Return the bytes of a file. Raise SandboxCodeError if it cannot be read, or is over a bound."""
        content = self._decoded((yield from self._value(GetFile(path_of(path)))))
        if type(content) is not bytes:
            raise UntrustedResultError(f"the session sent a {type(content).__name__} for the file {path!s}")
        return content

    def write_file_op(self, path: str | os.PathLike[str], data: bytes | str) -> Steps[None]:
        """Write a file, in the place of an earlier one. Raise SandboxCodeError if that fails."""
        yield from self._value(PutFile(path_of(path), encoded(data)))

    def list_folder_op(self, path: str | os.PathLike[str] = ".") -> Steps[list[SandboxFile]]:
        """Return the files in a folder, by their names. Raise SandboxCodeError if it cannot be read."""
        return files_of(self._decoded((yield from self._value(ListFolder(path_of(path))))))

    def make_folder_op(self, path: str | os.PathLike[str]) -> Steps[None]:
        """Make a folder with those above it. Raise SandboxCodeError if that fails."""
        yield from self._value(MakeFolder(path_of(path)))

    def remove_path_op(self, path: str | os.PathLike[str]) -> Steps[None]:
        """Remove a file, or a folder with its files. Raise SandboxCodeError if that fails."""
        yield from self._value(RemovePath(path_of(path)))

    def upload_op(self, local: str | os.PathLike[str], path: str | os.PathLike[str]) -> Steps[None]:
        """Write a local file or a folder with all in it to ``path``, with permissions and symbolic links.

        A folder may be there already, and a file is replaced. Links are not followed. Raises InvalidError for
        something else than a file, folder or link, OSError for one that cannot be read, and SandboxCodeError
        if the session cannot write it.
        """
        top, target = Path(local), path_of(path)
        if not top.is_dir():
            yield from self._upload_file(top, target)
            return
        yield from self.make_folder_op(target)
        for folder, folders, names in os.walk(top):
            below = os.path.relpath(folder, top)
            place = target if below == "." else f"{target}/{below}"
            for name in sorted(folders):
                if Path(folder, name).is_symlink():
                    yield from self._upload_file(Path(folder, name), f"{place}/{name}")
                else:
                    yield from self.make_folder_op(f"{place}/{name}")
            for name in sorted(names):
                yield from self._upload_file(Path(folder, name), f"{place}/{name}")

    def _upload_file(self, local: Path, path: str) -> Steps[None]:
        info = local.lstat()
        if stat.S_ISLNK(info.st_mode):
            yield from self._value(MakeLink(path, str(local.readlink())))
        elif stat.S_ISREG(info.st_mode):
            yield from self._value(PutFile(path, local.read_bytes(), info.st_mode & _MODE_BITS))
        else:
            raise InvalidError(f"{local} is no file, folder or link: it cannot be uploaded")

    def download_op(self, path: str | os.PathLike[str], local: str | os.PathLike[str]) -> Steps[list[str]]:
        """Write the files of a folder to a new local folder. Return the paths of what was left out.

        That are symbolic links and other special files: a link of a sandbox could lead anywhere here. Raises
        OSError if there is something at ``local``, TooLargeError over the bounds of an image, and
        SandboxCodeError for a file that cannot be read, or is over the bound ``value_bytes``.
        """
        target = Path(local)
        target.mkdir()
        left_out: list[str] = []
        folders, files, size = [(path_of(path), target)], 0, 0
        while folders:
            source, folder = folders.pop()
            for row in (yield from self.list_folder_op(source)):
                files += 1
                place = f"{source}/{row.name}"
                depth = len(folder.relative_to(target).parts)
                if files > IMAGE_ENTRIES_MAX or size > ENVIRONMENT_BYTES_MAX or depth > IMAGE_DEPTH_MAX:
                    raise TooLargeError(
                        "the folder of the sandbox is too large, or too deep: take a part of it"
                    )
                if row.kind == "folder":
                    (folder / row.name).mkdir()
                    folders.append((place, folder / row.name))
                elif row.kind == "file":
                    data = yield from self.read_file_op(place)
                    size += len(data)
                    (folder / row.name).write_bytes(data)
                    (folder / row.name).chmod(row.mode & _MODE_BITS)
                else:
                    left_out.append(place)
        return left_out

    def put_op(self, name: str, value: object) -> Steps[None]:
        """Set a variable of the session to a copy of a value; ``put("data.csv", bytes)`` writes a file there.

        Raises InvalidError for a value that cannot be sent, SandboxCodeError if the session cannot load or
        write it, SandboxEndedError.
        """
        if not name.isidentifier():
            if not isinstance(value, bytes):
                raise InvalidError(f"{name!r} is no name of a variable, and a file there is of bytes")
            yield from self._value(PutFile(name, value))
            return
        data, modules = encode_arguments((value,), {}, self._modules)
        yield from self._value(PutValue(name, data, modules))

    def get_op(self, name: str) -> Steps[object]:
        """Return a copy of the value of a variable; ``get("out.csv")`` returns the bytes of a file there.

        A value is of a type that an executor accepts as a result, otherwise this raises UntrustedResultError.
        Raises SandboxCodeError for a name that does not exist or a value over the bound ``value_bytes``,
        SandboxEndedError.
        """
        if name.isidentifier():
            return self._decoded((yield from self._value(GetValue(name))))
        return (yield from self.read_file_op(name))

    def call_op(self, function: str, /, *args: object, **kwargs: object) -> Steps[object]:
        """Call a function of the session, and return a copy of its value, with the same rules as ``get``.

        An exception of the function is the ``failure`` of a SandboxCodeError. Text that it prints is in the
        result of the next run.
        """
        data, modules = encode_arguments(args, kwargs, self._modules)
        return self._decoded((yield from self._value(CallFunction(function, data, modules))))

    def complete_op(self, text: str, *, timeout: float | None = None) -> Steps[list[str]]:
        """Return the names that complete a dotted name such as ``math.sq``, with what is before the last dot.

        ``timeout`` are the seconds for this, if it is less than that of a run: the attributes of an object
        may be the work of code. Raises the errors of ``get``; InvalidError for a text that is no dotted name.
        """
        limit_s = None if timeout is None else seconds_of(timeout, "timeout")
        if len(text) > NAME_CHARS_MAX or not _DOTTED_NAME.fullmatch(text):
            raise InvalidError(f"{text!r} is no name, and no dotted name, to complete")
        names = self._decoded((yield from self._value(CompleteName(text), limit_s)))
        if not isinstance(names, list) or len(names) > COMPLETIONS_MAX:
            raise UntrustedResultError("the session sent something else than names")
        if not all(type(name) is str and name.startswith(text) and _is_name(name) for name in names):
            raise UntrustedResultError("the session sent something else than names")
        return names

    def describe_op(self, text: str, *, source: bool = False, timeout: float | None = None) -> Steps[str]:
        """Return the type, signature and documentation of a dotted name; with ``source`` also its source.

        Raises the errors of ``complete``.
        """
        limit_s = None if timeout is None else seconds_of(timeout, "timeout")
        if len(text) > NAME_CHARS_MAX or not _DOTTED_NAME.fullmatch(text) or text.endswith("."):
            raise InvalidError(f"{text!r} is no name, and no dotted name, to describe")
        description = self._decoded((yield from self._value(DescribeName(text, source), limit_s)))
        if type(description) is not str or len(description) > DESCRIPTION_CHARS_MAX:
            raise UntrustedResultError("the session sent something else than a description")
        return description

    def interrupt(self) -> bool:
        """Stop the present run, from another thread or async task; the session keeps its variables.

        It does not wait. The code gets a KeyboardInterrupt, which it could catch. Return False if nothing
        runs.
        """
        link = self._link
        return link is not None and link.interrupt()

    def pause_op(self) -> Steps[None]:
        """Stop all processes of the session until ``resume``; a second call does nothing.

        It keeps its memory and its files, and counts for the limits of its principal. Other calls raise
        InvalidError until then, except for ``reset`` and ``close``. The node records it in the audit log.
        Raises SandboxEndedError.
        """
        if not self._is_paused:
            yield from self._signalled(self._running(), is_paused=True)

    def resume_op(self) -> Steps[None]:
        """Let a session go on that ``pause`` has stopped; do nothing for another one.

        Raises SandboxEndedError if it ended meanwhile.
        """
        if self._is_paused:
            self._is_paused = False
            yield from self._signalled(self._running(), is_paused=False)

    def _signalled(self, link: SessionLink, *, is_paused: bool) -> Steps[None]:
        task = link.running_task
        is_there = yield from call(task.pause_op() if is_paused else task.resume_op())
        if not is_there:
            # Another program may have let it go on.
            yield from link.end_with_task()
            self._running()
        self._is_paused = is_paused

    def reset_op(self) -> Steps[None]:
        """Start a fresh session, with the same inputs and limits and without variables.

        Raises the errors of the constructor.
        """
        if self._closed:
            raise SandboxEndedError("this sandbox was closed: make a new one")
        if self._link is None:
            raise InvalidError(NOT_OPEN)
        yield from self._link.close()
        yield from self._start()

    def fork_op(self, other: SandboxOps) -> Steps[None]:
        """Fork the session, and give the fork to ``other``, a shallow copy of this sandbox."""
        origin = self._running()
        if not self._forkable:
            raise SessionForkError("the session cannot be forked: make the sandbox with forkable=True")
        # A gateway of its own, so that its requests are recorded as those of the fork.
        link = SessionLink(self._bounds, self._grant)
        yield from link.start_as_fork(self._node, origin, self._inputs, self._timeout)
        self._shared.join()
        vars(other).update(_link=link, _modules=self._modules.copy())

    def freeze_op(self) -> Steps[ChangeArchive]:
        """Return the files that differ from the image, as they are now.

        All processes but the session are stopped meanwhile. Raises InvalidError without an image,
        NotSupportedError in gVisor, SandboxCodeError if a file cannot be read, or the changes are over a
        bound, and SandboxEndedError.
        """
        if not self._has_image:
            raise InvalidError("only a sandbox with an image has a state of its files: make it with image=")
        if self._isolation is Isolation.GVISOR:
            raise NotSupportedError(
                "a sandbox in gVisor has no snapshots and no forks, because its kernel keeps changed files "
                "to itself: leave out isolation="
            )
        # Most sandboxes have no image.
        from dios.lib.environments.archives import building_folder  # noqa: PLC0415 - see above
        from dios.lib.images.change_archives import ReceivedChanges, kept_changes  # noqa: PLC0415 - the same

        with building_folder() as folder:
            target = folder / "archive"
            with target.open("wb") as file:
                received = ReceivedChanges(file, digest_of(self._image_name))
                yield from self._value(SendChanges(), sink=received.add)
                try:
                    digest = received.end()
                except ProtocolError as error:
                    raise UntrustedResultError(
                        f"the session sent no changed files: {error.message}"
                    ) from None
            return kept_changes(target, digest, self._changes)

    def restart_op(self, other: SandboxOps, changes: ChangeArchive) -> Steps[None]:
        """Start a session that begins with changed files, in ``other``, a shallow copy of this sandbox."""
        vars(other).update(_link=None, _changes=changes, _template=changes.name, _shared=self._shared)
        self._shared.join()
        yield from other._start()

    def kill_op(self) -> Steps[None]:
        """End the session, while an operation runs, too."""
        self._closed = True
        if self._link is not None:
            yield from self._link.kill()

    def close_op(self) -> Steps[bool]:
        """End the session, and drop what the node holds for the sandbox.

        Return True if no fork of it uses the node any more.
        """
        self._closed = True
        is_last = not self._is_left and self._shared.leave()
        self._is_left = True
        held = [reference.close_op() for reference in self._shared.held] if is_last else []
        if is_last:
            self._shared.held.clear()
        if self._link is not None:
            yield from self._link.close(*held)
        else:
            with contextlib.suppress(DiosError):
                yield from each_side_by_side(held)
        return is_last

    # -- parts ------------------------------------------------------------------------------------
    def _start(self) -> Steps[None]:
        # A fresh session has no modules yet.
        self._modules = LocalModules()
        self._is_paused = False
        self._link = SessionLink(self._bounds, self._grant)
        yield from self._link.start(
            self._node,
            self._inputs,
            self._limits,
            self._template,
            forkable=self._forkable,
            isolation=self._isolation,
        )

    def _running(self) -> SessionLink:
        link = self._link
        if self._closed:
            raise SandboxEndedError("this sandbox was closed: make a new one")
        if link is None:
            raise InvalidError(NOT_OPEN)
        if link.ended:
            raise SandboxEndedError(f"the session ended: {link.ended}. reset() starts a fresh one")
        if self._is_paused:
            raise InvalidError("the sandbox is paused: resume() lets it go on")
        return link

    def _value(
        self, order: SessionTask, timeout: float | None = None, sink: Sink | None = None
    ) -> Steps[bytes]:
        link = self._running()
        limit_s = self._limit(timeout)
        done = yield from link.exchange(order, limit_s, sink=sink)
        failure = self._error(link, done, limit_s)
        if failure is not None:
            if failure.ended:
                raise SandboxEndedError(failure.message)
            if failure.type == UntrustedResultError.__name__:
                # The session refuses most such values itself, with the reason.
                raise UntrustedResultError(failure.message)
            raise SandboxCodeError(f"{failure.type}: {failure.message}", failure)
        return b"" if done.answer is None else done.answer.answer.data

    def _limit(self, timeout: float | None) -> float | None:
        limits = [limit for limit in (self._timeout, timeout) if limit is not None]
        return min(limits, default=None)

    def _error(self, link: SessionLink, done: OrderOutcome, limit_s: float | None) -> SandboxFailure | None:
        if link.ended:
            message = f"the session ended: {link.ended}. Its variables are lost; reset() starts a fresh one"
            return SandboxFailure(_ENDED, message, "", ended=True)
        failure = done.answer.answer.failure if done.answer is not None else None
        if failure is None:
            return None
        sandbox_failure = failure_of(failure)
        if done.late and limit_s is not None and sandbox_failure.type == _INTERRUPTED:
            message = f"the run was interrupted after {limit_s:g} s, its time limit (timeout=)"
            lines = sandbox_failure.traceback.rstrip().rpartition("\n")[0]
            return SandboxFailure(_TIMED_OUT, message, f"{lines}\n{_TIMED_OUT}: {message}\n")
        return sandbox_failure

    def _decoded(self, data: bytes) -> object:
        """Return a value that the session sent, within the time limit of a run."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        try:
            # Writable memory, so that arrays are writable.
            return decode_result(bytearray(data), trust=False, deadline=deadline)
        except DecodeTimeoutError:
            message = f"the value was not decoded within {self._timeout:g} s, the time limit (timeout=)"
            raise SandboxCodeError(message, SandboxFailure(_TIMED_OUT, message, "")) from None

    def _text(self, data: bytes) -> str:
        return cut_text(data, self._bounds.output_bytes)


def _text_parts(on_output: Callable[[str, str], None] | None, bytes_max: int) -> Show | None:
    """Return a function that decodes output for another one, and cuts it; a letter may come in two parts."""
    if on_output is None:
        return None
    make = codecs.getincrementaldecoder("utf-8")
    decoders = {"stdout": make("backslashreplace"), "stderr": make("backslashreplace")}
    left = dict.fromkeys(decoders, bytes_max)

    def show(stream: int, data: bytes) -> None:
        name = "stdout" if stream == STDOUT else "stderr"
        part = data[: left[name]]
        left[name] -= len(part)
        is_cut = len(part) < len(data)
        text = decoders[name].decode(part, is_cut) + (cut_notice(bytes_max) if is_cut else "")
        if text:
            on_output(name, text)

    return show


def checked_count(count: int | None) -> int:
    """Return the number of forks, 1 for None. Raise InvalidError for one that is out of range."""
    number = 1 if count is None else count
    if type(number) is not int or not 1 <= number <= SANDBOX_FORKS_MAX:
        raise InvalidError(f"the number of forks is from 1 to {SANDBOX_FORKS_MAX}, not {count!r}")
    return number


def _is_name(text: str) -> bool:
    return len(text) <= NAME_CHARS_MAX and all(part.isidentifier() for part in text.split("."))


def _bytes_of(given: str | Path | bytes) -> bytes | memoryview:
    if isinstance(given, bytes):
        return given
    with Path(given).open("rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            return b""  # an empty file cannot be mapped
