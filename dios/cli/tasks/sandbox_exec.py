"""A program in a sandbox, with the streams or the terminal of a command."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final, NoReturn

from dios.cli.common.output import bytes_output
from dios.errors import DiosError, InvalidError, TimeLimitError
from dios.lib.sandbox.process import SandboxProcess
from dios.lib.sandbox.running import RunningSandbox
from dios.limits import KIB

_PIECE_BYTES: Final = 16 * KIB
_SIGNAL_STATUS: Final = 128
_END_S: Final = 2.0
"""A program that was asked to end does so within this time."""
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


def run_program(
    box: RunningSandbox, command: Sequence[str], *, interactive: bool, terminal: bool, folder: str
) -> int:
    """Run a program with the streams of this process, and return the exit status for this command.

    With ``interactive`` it gets the standard input, with ``terminal`` a terminal of its own. Raise
    InvalidError for a terminal if the standard input is none.
    """
    if terminal:
        return _run_in_terminal(box, command, interactive=interactive, folder=folder)
    with _ended_by_signals():
        process = box.start(*command, cwd=folder)
        if interactive:
            _Input(process).start()
        else:
            process.stdin.close()
        while True:
            try:
                _copy_output(process)
                return _status(process.wait())
            except KeyboardInterrupt:
                process.kill(signal.SIGINT)
            except SystemExit:
                _end(process, signal.SIGTERM)
                raise


def _run_in_terminal(box: RunningSandbox, command: Sequence[str], *, interactive: bool, folder: str) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidError("--tty needs a terminal: the standard input or output is none. Leave it out")
    kind = os.environ.get("TERM", "")
    process = box.start(*command, cwd=folder, env={"TERM": kind} if kind else None, pty=_terminal_size())
    with _ended_by_signals(), _raw(0):
        try:
            input_thread = _Input(process, is_terminal=True) if interactive else None
            if input_thread is not None:
                input_thread.start()
            for _, data in process:
                _write_all(1, data)
            return _status(process.wait())
        except SystemExit:
            # As at the end of a terminal.
            _end(process, signal.SIGHUP)
            raise


def _copy_output(process: SandboxProcess) -> None:
    """Write output until it ends. A terminal gets harmless text."""
    targets = {"stdout": sys.stdout, "stderr": sys.stderr}
    for name, data in process:
        output = bytes_output(targets[name])
        output.write(data)
        output.flush()


def _end(process: SandboxProcess, number: int) -> None:
    """End a program by a signal, or by SIGKILL if it does not end, and drop its output."""
    with contextlib.suppress(DiosError):
        process.kill(number)
        try:
            process.wait(timeout=_END_S)
        except TimeLimitError:
            process.kill()
            process.wait(timeout=_END_S)
        while process.read(timeout=_END_S) is not None:
            pass


def _status(code: int) -> int:
    return code if code >= 0 else _SIGNAL_STATUS - code


def _terminal_size() -> tuple[int, int]:
    size = os.get_terminal_size(0)
    return max(1, size.lines), max(1, size.columns)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let signals that end this process leave the body by SystemExit, so that what follows it is done."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(_SIGNAL_STATUS + number)

    former = {number: signal.signal(number, leave) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Let a terminal pass every letter on; restore its settings at the end."""
    former = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)


class _Input:
    """Gives the standard input, and the sizes of the terminal, to a program, in a thread."""

    def __init__(self, process: SandboxProcess, *, is_terminal: bool = False) -> None:
        self._process: Final = process
        self._resized, self._resizing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if is_terminal:
            # A handler runs between two steps of the main thread, so it does no more than to wake the thread.
            signal.signal(signal.SIGWINCH, lambda *_: self._wake())

    def start(self) -> None:
        """Start the thread, which ends with this process."""
        threading.Thread(target=self._run, name="input", daemon=True).start()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._resizing, b"\0")

    def _run(self) -> None:
        # The program may end at any time.
        with contextlib.suppress(DiosError, OSError):
            while True:
                readable, _, _ = select.select([0, self._resized], [], [])
                if self._resized in readable:
                    os.read(self._resized, KIB)
                    self._process.resize(*_terminal_size())
                if 0 in readable:
                    data = os.read(0, _PIECE_BYTES)
                    if not data:
                        self._process.stdin.close()
                        return
                    self._process.stdin.write(data)
