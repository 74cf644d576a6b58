"""A program in a sandbox as its owner sees it, and the operations of both faces on it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal as signals
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from dios.client.plain_text import plain
from dios.client.sync.node import Node, Task
from dios.errors import ClosedError, DiosError, InvalidError, NoSuchTaskError, ProtocolError, TimeLimitError
from dios.lib.amounts import seconds_of
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError
from dios.lib.sandbox.processes.channels import Channel, ProgramOutput, open_channel
from dios.lib.sandbox.processes.records import (
    ROWS_MAX,
    AttachProgram,
    ConnectPort,
    Control,
    Ended,
    EndInput,
    Failed,
    ListPrograms,
    Order,
    Programs,
    Record,
    ResizeTerminal,
    SendSignal,
    Started,
    StartProgram,
    Streams,
    TerminalSize,
    WatchFiles,
)
from dios.lib.sandbox.protocol import STDERR, STDOUT
from dios.lib.sandbox.result import ProgramResult, SandboxFailure, cut_text
from dios.lib.sandbox.steps import Steps, Wait, Write, call
from dios.wire.types import SandboxUse

T = TypeVar("T")

ProgramInput: TypeAlias = "bytes | str | Iterable[bytes]"
"""The standard input of a program: bytes, text, or pieces of bytes, such as an open binary file."""

_NUMBER_BITS: Final = 32
_SIGNAL_MAX: Final = 64
_PORT_MAX: Final = 65_535
_COUNT_MAX: Final = 65_535
"""The largest number of arguments in a record."""
_CONTROL_S: Final = 10.0
"""A session reads its orders within this time."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """A program that ``start`` began, as the sandbox describes it.

    ``exit_code`` is None while it runs; a program that has ended is listed until its output was read.
    ``is_attached`` is True while a handle has its streams, ``has_terminal`` if it was started with ``pty``.
    """

    id: str
    program: str
    argument_count: int
    exit_code: int | None
    is_attached: bool
    has_terminal: bool


class KeptOutput:
    """The output of a program up to a bound, for each of its two streams."""

    def __init__(self, bytes_max: int, show: Callable[[int, bytes], None] | None = None) -> None:
        self._bytes_max: Final = bytes_max
        self._show: Final = show
        self._data: Final = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, part: ProgramOutput) -> None:
        """Keep a piece, and show it."""
        kept = self._data[part.stream]
        kept += part.data[: max(0, self._bytes_max + 1 - len(kept))]
        if self._show is not None:
            self._show(STDOUT if part.stream == "stdout" else STDERR, part.data)

    def texts(self) -> tuple[str, str]:
        """Return standard output and standard error as text."""
        stdout, stderr = (cut_text(bytes(data), self._bytes_max) for data in self._data.values())
        return stdout, stderr


class ProcessOps:
    """A program in a sandbox, and its streams."""

    def __init__(self, node: Node, task: Task, number: int, channel: Channel, output_bytes: int) -> None:
        self.node: Final = node
        self._task: Final = task
        self._number: Final = number
        self._channel: Final = channel
        self._output_bytes: Final = output_bytes
        self._code: int | None = None

    @property
    def id(self) -> str:
        """The id of the program in its sandbox, in the list of programs and in the audit log."""
        return program_id(self._number)

    @property
    def returncode(self) -> int | None:
        """The exit status, or the negative number of a signal; None until ``wait`` has returned it."""
        return self._code

    def shown(self, kind: str) -> str:
        """Return the text for a handle of this kind."""
        state = "open" if self._code is None else f"ended with {self._code}"
        return f"<{kind} {self.id} {state}>"

    def write_op(self, data: bytes | str, timeout: float | None = None) -> Steps[None]:
        """Write to the standard input, and wait while the program does not read it.

        Raises ClosedError if the program reads no more, TimeLimitError if it did not read within ``timeout``
        seconds: then a part may have been written.
        """
        target, content = self._channel.input, encoded(data)
        # A program that ends because of its input may do so before this returns.
        fits = not target.closed and not target.peer_closed and target.room >= len(content)
        with contextlib.suppress(*([ClosedError] if fits else [])):
            yield Write(target, content, _seconds(timeout))

    def end_input_op(self) -> Steps[None]:
        """Close the standard input; a program with a terminal gets the letter for that."""
        yield from self._control(EndInput())

    def read_op(self, timeout: float | None = None) -> Steps[ProgramOutput | None]:
        """Return the next piece of output, or None at its end.

        Output that is not read stays in the program, which then waits. Raises TimeLimitError if none came
        within ``timeout`` seconds.
        """
        return (yield from self._channel.part(_seconds(timeout)))

    def wait_op(self, timeout: float | None = None) -> Steps[int]:
        """Wait for the end of the program, and return its exit status, or the negative number of a signal.

        Output stays to be read; a program that waits for that does not end. Raises TimeLimitError after
        ``timeout`` seconds, SandboxEndedError, and ProgramDetachedError if another handle has it.
        """
        if self._code is None:
            record = yield from self._channel.record(_seconds(timeout))
            if not isinstance(record, Ended):
                raise ProtocolError("the sandbox sent a record that was not due")
            self._code = record.status
            yield from record_end(self._task, self._number, record.status)
        return self._code

    def kill_op(self, signal: int = signals.SIGKILL) -> Steps[None]:
        """Send a signal to the program and its process group; nothing happens if it has ended."""
        if not 1 <= checked(signal, int, "a signal") <= _SIGNAL_MAX:
            raise InvalidError(f"a signal has a number from 1 to {_SIGNAL_MAX}, not {signal!r}")
        yield from self._control(SendSignal(int(signal)))

    def resize_op(self, rows: int, columns: int) -> Steps[None]:
        """Change the size of the terminal, in letters; a program without one gets nothing."""
        yield from self._control(ResizeTerminal(terminal_size((rows, columns))))

    def communicate_op(self, input: ProgramInput = b"", timeout: float | None = None) -> Steps[ProgramResult]:  # noqa: A002 - as in subprocess
        """Write the input, close it, read all output, and wait for the end.

        The bound ``output_bytes`` holds for the result. Raises TimeLimitError after ``timeout`` seconds; the
        program goes on then. Raises the errors of ``wait``.
        """
        kept = KeptOutput(self._output_bytes)
        return (yield from self.exchanged(input, timeout, kept))

    def exchanged(
        self, source: ProgramInput, timeout: float | None, kept: KeptOutput
    ) -> Steps[ProgramResult]:
        """Do the work of ``communicate``; ``kept`` gets the output as it comes."""
        deadline = None if timeout is None else time.monotonic() + (_seconds(timeout) or 0.0)
        pieces = _pieces(source)
        left, is_open = memoryview(b""), True
        channel = self._channel
        while True:
            while is_open:
                if not left:
                    piece = next(pieces, None)
                    if piece is None:
                        is_open = False
                        yield from self.end_input_op()
                        break
                    left = memoryview(piece)
                try:
                    room = channel.input.room
                    if not room:
                        break
                    yield Write(channel.input, bytes(left[:room]), 0)
                    left = left[room:]
                except ClosedError:
                    # It reads no more.
                    is_open = False
            if not channel.has_part and not channel.output.readable():
                ends = (channel.output, channel.input) if is_open else (channel.output,)
                yield Wait(ends, _left(deadline))
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeLimitError("the program did not end in time; it goes on")
                continue
            part = yield from channel.part(_left(deadline))
            if part is None:
                break
            kept.add(part)
        code = yield from self.wait_op(_left(deadline))
        return ProgramResult(code, *kept.texts())

    def leave_op(self) -> Steps[None]:
        """Make the sandbox close the streams, so that others who wait for them return."""
        yield from self._channel.leave()

    def close_op(self) -> Steps[None]:
        """Give up the streams; the program goes on, and ``attach`` returns another handle of it."""
        yield from self._channel.close()

    def _control(self, control: Control) -> Steps[None]:
        with contextlib.suppress(ClosedError):
            yield from self._channel.send(control, _CONTROL_S)


class SandboxPrograms:
    """The operations on the programs of one sandbox. They need a reference to its task."""

    def __init__(self, node: Node, task: Task, output_bytes: int) -> None:
        self._node: Final = node
        self._task: Final = task
        self._output_bytes: Final = output_bytes

    def start(
        self,
        arguments: tuple[str, ...],
        cwd: str | os.PathLike[str],
        env: Mapping[str, str] | None,
        pty: tuple[int, int] | None,
        timeout_s: float | None,
    ) -> Steps[tuple[int, Channel]]:
        """Start a program; return its number and the channel to it."""
        check_arguments(arguments)
        variables = variables_of(env)
        folder = path_of(cwd)
        size = None if pty is None else terminal_size(pty)
        number = yield from record_program(self._task, arguments)

        def order_of(streams: Streams) -> Order:
            return StartProgram(streams, number, list(arguments), folder, variables, size)

        try:
            channel = yield from self._begun(order_of, timeout_s)
        except GeneratorExit:
            raise
        except BaseException:
            yield from record_end(self._task, number, None)
            raise
        return number, channel

    def attach(self, id: str, timeout_s: float | None) -> Steps[tuple[int, Channel]]:  # noqa: A002 - as it is called
        """Return the number of a program that runs, and a new channel to it."""
        try:
            number = int(id, 16)
        except (TypeError, ValueError):
            raise InvalidError(f"{id!r} is no id of a program: processes() lists them") from None
        if not 0 <= number < 1 << _NUMBER_BITS:
            raise InvalidError(f"{id!r} is no id of a program: processes() lists them")
        return number, (yield from self._begun(lambda streams: AttachProgram(streams, number), timeout_s))

    def connect(self, port: int, timeout_s: float | None) -> Steps[Channel]:
        """Connect to a port on the loopback of the sandbox."""
        check_port(port)
        yield from call(self._task.record_use_op(SandboxUse.PORT, _fresh_number(), value=port))
        return (yield from self._begun(lambda streams: ConnectPort(streams, port), timeout_s))

    def watch(self, path: str | os.PathLike[str], timeout_s: float | None) -> Steps[Channel]:
        """Return a channel with the changes of files from now on."""
        place = path_of(path)
        return (yield from self._begun(lambda streams: WatchFiles(streams, place), timeout_s))

    def processes(self, timeout_s: float | None) -> Steps[list[ProgramInfo]]:
        """Return the programs of the sandbox."""
        channel = yield from self._open(ListPrograms)
        try:
            record = yield from channel.record(timeout_s)
        finally:
            yield from channel.close()
        if not isinstance(record, Programs):
            raise ProtocolError("the sandbox sent something else than its programs")
        return [
            ProgramInfo(
                program_id(row.number),
                plain(row.program),
                row.arguments,
                row.status,
                row.is_attached,
                row.has_terminal,
            )
            for row in record.rows
        ]

    def process(self, number: int, channel: Channel) -> ProcessOps:
        """Return the operations on a program."""
        return ProcessOps(self._node, self._task, number, channel, self._output_bytes)

    def _open(self, order_of: Callable[[Streams], Order]) -> Steps[Channel]:
        try:
            return (yield from open_channel(self._node, self._task, order_of))
        except NoSuchTaskError:
            raise SandboxEndedError("the sandbox has ended") from None

    def _begun(self, order_of: Callable[[Streams], Order], timeout_s: float | None) -> Steps[Channel]:
        channel = yield from self._open(order_of)
        try:
            record = yield from channel.record(timeout_s)
            _require_start(record)
        except GeneratorExit:
            raise
        except BaseException:
            yield from channel.close()
            raise
        return channel


def _require_start(record: Record) -> None:
    """Raise SandboxCodeError if an order failed."""
    if isinstance(record, Failed):
        failure = SandboxFailure(plain(record.kind), plain(record.message), "")
        raise SandboxCodeError(f"{failure.type}: {failure.message}", failure)
    if not isinstance(record, Started):
        raise ProtocolError("the sandbox sent a record that was not due")


# -- the audit log --------------------------------------------------------------------------------
def record_program(task: Task, arguments: tuple[str, ...]) -> Steps[int]:
    """Record that a program is started, and return its number. Raise the errors of the node."""
    number = _fresh_number()
    count = min(len(arguments) - 1, _COUNT_MAX)
    # Nothing starts in a sandbox that has ended.
    with contextlib.suppress(NoSuchTaskError):
        yield from call(task.record_use_op(SandboxUse.PROGRAM, number, arguments[0], count))
    return number


def record_end(task: Task, number: int, status: int | None) -> Steps[None]:
    """Record the end of a program. The node records the end of its sandbox itself."""
    with contextlib.suppress(DiosError):
        yield from call(task.record_use_op(SandboxUse.END, number, value=status))


def _fresh_number() -> int:
    return secrets.randbits(_NUMBER_BITS)


def program_id(number: int) -> str:
    """Return the id of a program."""
    return f"{number:08x}"


# -- arguments ------------------------------------------------------------------------------------
def checked(value: T, kind: type[T], subject: str) -> T:
    """Return a value. Raise InvalidError if the caller gave one of another type."""
    if not isinstance(value, kind):
        raise InvalidError(f"{subject} has a wrong type: {type(value).__name__}, and not {kind.__name__}")
    return value


def check_arguments(arguments: tuple[str, ...]) -> None:
    """Raise InvalidError unless these are a program and its arguments."""
    if not arguments or not all(type(argument) is str and "\0" not in argument for argument in arguments):
        raise InvalidError("exec and start have the name of a program and its arguments, which are texts")


def check_port(port: int) -> None:
    """Raise InvalidError for a number that is no port."""
    if not 1 <= checked(port, int, "a port") <= _PORT_MAX:
        raise InvalidError(f"a port is a number from 1 to {_PORT_MAX}, not {port!r}")


def variables_of(env: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return environment variables. Raise InvalidError for anything else."""
    if env is None:
        return None
    try:
        variables = dict(env)
    except (TypeError, ValueError):
        raise InvalidError("env has the names of environment variables and their values") from None
    return {
        checked(name, str, "a variable"): checked(value, str, "a variable")
        for name, value in variables.items()
    }


def terminal_size(size: tuple[int, int]) -> TerminalSize:
    """Return the size of a terminal. Raise InvalidError for anything else."""
    rows, columns = checked(size, tuple, "a terminal")
    if not all(1 <= checked(number, int, "a terminal") <= ROWS_MAX for number in (rows, columns)):
        raise InvalidError(
            f"a terminal has a number of rows and of columns from 1 to {ROWS_MAX}, not {size!r}"
        )
    return TerminalSize(rows, columns)


def path_of(path: str | os.PathLike[str]) -> str:
    """Return a path as text. Raise InvalidError for anything else."""
    try:
        return checked(os.fspath(path), str, "a path")
    except TypeError as error:
        raise InvalidError(f"a path is a text or an object for one: {error}") from None


def encoded(data: bytes | str) -> bytes:
    """Return bytes, or those of a text. Raise InvalidError for anything else."""
    try:
        return data.encode() if isinstance(data, str) else bytes(memoryview(data))
    except UnicodeEncodeError as error:
        raise InvalidError(f"the text cannot be sent, because UTF-8 has no such character: {error}") from None
    except TypeError:
        raise InvalidError(f"an argument has a wrong type: {type(data).__name__} is no bytes") from None


def _pieces(source: ProgramInput) -> Iterator[bytes]:
    if isinstance(source, bytes | str):
        yield encoded(source)
        return
    try:
        pieces = iter(source)
    except TypeError:
        raise InvalidError(
            f"an argument has a wrong type: the input is bytes, text or pieces, not {type(source).__name__}"
        ) from None
    for piece in pieces:
        yield encoded(piece)


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None else 0.0 if timeout == 0 else seconds_of(timeout, "timeout")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
