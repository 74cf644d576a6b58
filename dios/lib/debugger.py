"""Python's debugger over two streams, inside a task: ``dios debug`` runs it in place of a program.

The task repeats another task. After that task's inputs it has three more, which are removed before the
program runs, so that the program finds exactly its first inputs. ``dios.cli.tasks.debug`` is the terminal.
"""

from __future__ import annotations

import _thread
import bdb
import linecache
import pdb  # noqa: T100 - it is what this module offers
import queue
import signal
import sys
import threading
import traceback
from types import CodeType, FrameType, TracebackType
from typing import Final

from msgspec.structs import replace

from dios.client import task_main
from dios.client.program import Program, decode_program
from dios.client.sync import node
from dios.client.sync.node import Stream
from dios.errors import DiosError, InvalidError
from dios.limits import INLINE_BYTES_MAX
from dios.wire.messages import Welcome

LABEL: Final = "debug "
"""The beginning of the new task's label; the rest is the label of the first task."""

TALK: Final = "dios debug: to the task"
HEAR: Final = "dios debug: from the task"

TEXT: Final = b"t"
ASK: Final = b"?"
"""Kinds of messages from the task: text to show, and a prompt, which expects one message."""

LINE: Final = b"l"
END: Final = b"e"
INTERRUPT: Final = b"i"
"""Kinds of messages to the task: a line, the end of lines, and a request to stop."""

PROMPT_MAX: Final = 200
"""The number of shown characters of a prompt: the last ones."""

_EXTRA_INPUTS: Final = 3
_BY_HAND: Final = "this is run by `dios debug`, not by hand"
_OURS: Final = frozenset({__file__, task_main.__file__, bdb.__file__, pdb.__file__})


class Terminal:
    """The user's terminal at the other end of two streams: lines in, text out."""

    def __init__(self, talk: Stream, hear: Stream) -> None:
        self._talk: Final = talk
        self._hear: Final = hear
        self._line = ""
        self._lines: Final[queue.SimpleQueue[str]] = queue.SimpleQueue()
        self._waiting = False
        # Attached by the thread that makes calls: the other one only waits at the ring.
        self._writer: Final = hear.writer
        self._reader: Final = talk.reader
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = self._reader.receive()
            except DiosError:
                message = END
            if message[:1] == LINE:
                self._lines.put(message[1:].decode(errors="replace") + "\n")
            elif message[:1] == INTERRUPT:
                if not self._waiting:
                    _thread.interrupt_main()
            else:
                self._lines.put("")
                return

    def write(self, text: str) -> int:
        """Show text; a part after the last newline waits for more text or for a question."""
        *whole, self._line = (self._line + text).split("\n")
        if whole:
            self._send(TEXT, "\n".join(whole) + "\n")
        return len(text)

    def flush(self) -> None:
        """Do nothing: complete lines are already sent."""

    def readline(self) -> str:
        """Ask for a line, with the unfinished line as prompt; return "" at the end of lines."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._waiting = True
        self._send(ASK, self._line)
        self._line = ""
        line = self._lines.get()
        self._waiting = False
        return line

    def _send(self, kind: bytes, text: str) -> None:
        # A prompt longer than a message would ask twice.
        data = text[-PROMPT_MAX:].encode(errors="replace") if kind == ASK else text.encode(errors="replace")
        try:
            for start in range(0, max(len(data), 1), INLINE_BYTES_MAX):
                self._writer.send(kind + data[start : start + INLINE_BYTES_MAX])
        except DiosError:
            # The terminal is gone: the next question gets the end of lines.
            return


class Debugger(pdb.Pdb):
    """pdb over a terminal, for a program whose source is on no disk; it steps over the client as over C."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(
            stdin=terminal,  # type: ignore[arg-type] # it has what pdb uses
            stdout=terminal,  # type: ignore[arg-type] # the same
            skip=["dios.*"],
            nosigint=True,
            readrc=False,
        )

    def canonic(self, filename: str) -> str:
        """Return a file's name for breakpoints; a file that is only in memory keeps its name."""
        return filename if filename in linecache.cache else super().canonic(filename)

    def lookupmodule(self, filename: str) -> str | None:
        """Return the file of an argument of ``break``."""
        return filename if filename in linecache.cache else super().lookupmodule(filename)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the program's frames, without those of dios."""
        stack, index = super().get_stack(f, t)
        ours = [place for place, (frame, _) in enumerate(stack) if frame.f_code.co_filename in _OURS]
        start = ours[-1] + 1 if ours and ours[-1] + 1 < len(stack) else 0
        return stack[start:], max(index - start, 0)

    def step_through(self, code: CodeType, namespace: dict[str, object]) -> None:
        """Run a program, stopping before its first line."""
        self.reset()
        sys.settrace(self.trace_dispatch)
        try:
            exec(code, namespace)  # noqa: S102 - the task is here to run it
        finally:
            sys.settrace(None)

    def look_at(self, trace: TracebackType | None) -> None:
        """Take commands at the place where an exception was raised."""
        self.reset()
        self.interaction(None, trace)

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """Take commands at the present place of the program, after Ctrl-C at the user's terminal."""
        del number
        self.message("\nThe program was interrupted; `continue` lets it go on.")
        self.set_trace(frame)

    def do_run(self, arg: str) -> None:
        """Refuse to restart: the user quits and types `dios debug` again."""
        del arg
        self.error("a task runs once. Quit, and type `dios debug` again.")

    do_restart = do_run


def debug(*, post_mortem: bool) -> int:
    """Run as the debugged task: its program under pdb from the first line on, or from an exception on.

    Returns the exit status for the task; SystemExit of the program is not caught.
    """
    program, welcome, terminal = _set_scene()
    if program.wasm or program.native:
        terminal.write("pdb debugs programs in Python; this program is none.\n")
        return task_main.FAILED
    file = welcome.label or task_main.DEFAULT_FILE
    namespace = task_main.become(program, file, welcome.arguments).__dict__
    debugger = Debugger(terminal)
    signal.signal(signal.SIGINT, debugger.interrupted)
    sys.breakpointhook = lambda *_, **__: debugger.set_trace(sys._getframe(1))  # noqa: SLF001 - its caller's
    try:
        code = task_main.compiled(program.main, file)
        if post_mortem:
            exec(code, namespace)  # noqa: S102 - the task is here to run it
        else:
            debugger.step_through(code, namespace)
    except bdb.BdbQuit:
        return 0
    except SystemExit as end:
        terminal.write(f"The program ended itself, with {end.code!r}.\n")
        raise
    except BaseException as error:  # noqa: BLE001 - whatever left the program is what is looked at
        sys.settrace(None)
        trace = task_main.tell(error, _OURS)
        told = "".join(traceback.format_exception_only(error))
        terminal.write(f"{told}This left the program; you are where it was raised.\n")
        debugger.look_at(trace)
        return task_main.FAILED
    terminal.write("The program came to its end" + (", without an exception.\n" if post_mortem else ".\n"))
    return 0


def _set_scene() -> tuple[Program, Welcome, Terminal]:
    """Remove the debugger's inputs; from now on this task has the inputs of the repeated task."""
    inside = node.ambient()
    extra = () if inside is None else node.connect().inputs[-_EXTRA_INPUTS:]
    if inside is None or len(extra) < _EXTRA_INPUTS:
        raise InvalidError(_BY_HAND)
    talk, hear, program = extra
    if not isinstance(talk, Stream) or not isinstance(hear, Stream):
        raise InvalidError(_BY_HAND)
    connection, welcome = inside
    terminal = Terminal(talk, hear)
    first = replace(
        welcome,
        inputs=welcome.inputs[:-_EXTRA_INPUTS],
        executable=welcome.inputs[-1],
        label=welcome.label.removeprefix(LABEL),
    )
    node.enter_task(connection, first)
    return decode_program(program.read_bytes()), first, terminal
