"""``dios debug``: repeats a task under pdb, connected to this terminal by two streams.

``dios.lib.debugger`` runs inside the task. Lines are edited here; only complete lines and interrupts are
sent.
"""

from __future__ import annotations

import contextlib
import readline
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.options import option
from dios.cli.common.output import BytesOutput, bytes_output, say, time_text
from dios.cli.common.results import CommonOptions
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.common.streams import INTERRUPTED
from dios.cli.tasks.control import TASK_ARGUMENT
from dios.cli.tasks.endings import cause_text, explain
from dios.cli.tasks.task_row import TaskRow
from dios.client.ops.status import Status
from dios.client.ops.usage import Description
from dios.client.plain_text import plain
from dios.client.sync.node import Console, Node, Reference, Stream, Task
from dios.errors import DiosError, EndOfStreamError, InvalidError, TimeLimitError
from dios.lib.debugger import ASK, END, HEAR, INTERRUPT, LABEL, LINE, TALK, TEXT
from dios.wire.types import Brand, Cause

_PROGRAM: Final = """\
import sys
from dios.lib.debugger import debug
sys.exit(debug(post_mortem={post_mortem}))
"""

_QUIET_SECONDS: Final = 0.02

app: Final = CommandApplication()


class DebugConversation:
    """One debugged task: writes its output to ``output`` and answers its prompts."""

    def __init__(self, node: Node, like: Task, output: BytesOutput, *, label: str, post_mortem: bool) -> None:
        self._node: Final = node
        self._output: Final = output
        self._talk: Final = node.create_stream()
        self._hear: Stream | None = node.create_stream()
        handed = {TALK: self._talk.restrict("read"), HEAR: self._hear.restrict("write")}
        source = _PROGRAM.format(post_mortem=post_mortem).encode()
        self.task: Final = node.run(source, like=like, inputs=handed, label=LABEL + label)
        self._console: Console | None = self.task.console()
        self._prompt: str | None = None
        self._interrupted = False
        self._pressed = False
        self._waiting = False

    def hold(self) -> Status:
        """Run until the task has ended, and return its status."""
        self._talk.writer  # noqa: B018 - the task waits for this end before it asks anything
        before = signal.signal(signal.SIGINT, self._press)
        try:
            while not self._turn():
                pass
            self._show_rest()
            return self.task.wait()
        finally:
            signal.signal(signal.SIGINT, before)

    # -- Ctrl-C -------------------------------------------------------------------------------------
    def _press(self, number: int, frame: FrameType | None) -> None:
        """Note Ctrl-C. Interrupt only waiting code, so that no message is received in part."""
        del number, frame
        self._pressed = True
        if self._waiting:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def _breakable(self) -> Iterator[None]:
        """Let Ctrl-C interrupt the body, also one pressed before it."""
        self._waiting = True
        try:
            if self._pressed:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = self._pressed = False

    def _interrupt(self) -> None:
        if self._interrupted:
            say(f"killing task {self.task.fingerprint}")
            self.task.kill()
            return
        self._interrupted = True
        say("interrupting the program; press Ctrl-C again to kill it")
        self._tell(INTERRUPT)

    # -- what comes from the task -------------------------------------------------------------------
    def _turn(self) -> bool:
        """Answer the open prompt, or wait for the next message. Return True if the task has ended."""
        if self._prompt is not None:
            self._answer(self._prompt)
            return False
        sources: list[Reference] = [self.task]
        sources += [source for source in (self._hear, self._console) if source is not None]
        try:
            with self._breakable():
                ready = self._node.select(sources)
        except KeyboardInterrupt:
            self._interrupt()
            return False
        if ready is self._hear:
            self._take()
        elif ready is self._console:
            self._show_console()
        return ready is self.task

    def _take(self) -> None:
        if self._hear is None:
            return
        try:
            message = self._hear.receive()
        except EndOfStreamError:
            self._hear = None
            return
        kind, data = message[:1], message[1:]
        if kind == TEXT:
            self._write(data)
        elif kind == ASK:
            self._prompt = data.decode(errors="replace")
            self._interrupted = False

    def _show_console(self) -> None:
        if self._console is None:
            return
        try:
            self._write(self._console.receive(timeout=0))
        except TimeLimitError:
            return
        except EndOfStreamError:
            self._console = None

    def _show_rest(self) -> None:
        """Show the remaining output of the ended task."""
        while self._hear is not None and self._node.select([self._hear], timeout=0) is not None:
            self._take()
        while self._console is not None:
            self._show_console()

    # -- what goes to it ----------------------------------------------------------------------------
    def _answer(self, prompt: str) -> None:
        # The program's output comes over another stream, and belongs before the prompt.
        while self._console is not None and self._node.select([self._console], timeout=_QUIET_SECONDS):
            self._show_console()
        try:
            with self._breakable():
                line = self._read_line(prompt)
        except KeyboardInterrupt:
            self._write(b"\n")
            if sys.stdin.isatty():
                return  # drop the typed text like a shell, and prompt again
            line = None
        self._prompt = None
        self._tell(END if line is None else LINE + line.encode(errors="replace"))

    def _read_line(self, prompt: str) -> str | None:
        """Return a line of input without its end, or None at the end of input."""
        if sys.stdin.isatty():
            try:
                return input(plain(prompt))
            except EOFError:
                self._write(b"\n")
                return None
        line = sys.stdin.readline()
        # Show the prompt and the answer in the transcript.
        self._write(f"{prompt}{line.rstrip()}\n".encode(errors="replace"))
        return line.rstrip("\n") if line else None

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(DiosError):
            # If the task has just ended, the next turn notices it.
            self._talk.send(message)

    def _write(self, data: bytes) -> None:
        self._output.write(data)
        self._output.flush()


def differences(description: Description) -> list[str]:
    """Return sentences about what will differ from the first run."""
    told = ["the time, random numbers, and everything that depends on them"]
    told += [
        f"input {plain(given.label or given.fingerprint)} was written since"
        for given in description.inputs
        if given.changed
    ]
    told += [
        f"output {plain(given.label or given.fingerprint)} has the first run's data and is written again"
        for given in description.outputs
    ]
    if not description.status.ended:
        told.append("the first run is still running")
    return told


def _announce(description: Description, *, post_mortem: bool) -> None:
    status = description.status
    label = plain(status.label) or "task"
    say(f"{label} ({status.fingerprint}) again: same program, arguments, groups, inputs, limits, sandbox")
    say(f"  first run: {time_text(status.started_ns)}, {cause_text(status)}")
    for line in differences(description):
        say(f"  differs: {line}")
    if status.brand is Brand.LIMBO:
        say("  it runs outside the sandbox, like the first run")
    say(
        "  it stops at the exception that ends it"
        if post_mortem
        else "  it stops before its first line; `c` continues, `n` steps, `b 10` sets a breakpoint"
    )
    say("  Ctrl-C interrupts it, Ctrl-D ends it; `help` lists the commands of pdb")


@app.command(
    examples="dios debug job.py\ndios debug 3f9a --step\nprintf 'where\\np total\\nq\\n' | dios debug job.py",
    json=TaskRow,
)
def debug(
    task: str = TASK_ARGUMENT,
    *,
    post_mortem: bool | None = option(
        "--post-mortem/--step",
        "Stop at the exception that ends it, or before the first line; default: "
        "--post-mortem if an exception ended the task.",
    ),
    common: CommonOptions,
) -> None:
    """Repeat a task under pdb, Python's debugger: the same code and inputs, in the same sandbox.

    It is a new task with the label "debug LABEL". It gets the same objects as the first task and writes to
    the same outputs. In a pipe, the lines of standard input are the commands. Exit status like `dios run`.
    """
    with opened(common.node) as place:
        handle, status = place.task(task)
        here = place.here()
        if here is not None and status.node not in {"", here.name}:
            raise InvalidError(
                f"the task ran on {status.node} and can be repeated only there. Name that node with --node, "
                "or run the program here: dios run --here"
            )
        description = place.node.describe(handle)
        if description.not_repeatable:
            raise InvalidError(f"cannot repeat the task: {description.not_repeatable}")
        at_the_end = description.status.cause is Cause.EXCEPTION if post_mortem is None else post_mortem
        _announce(description, post_mortem=at_the_end)
        output = bytes_output(sys.stderr if common.as_json else sys.stdout)
        conversation = DebugConversation(
            place.node, handle, output, label=description.status.label, post_mortem=at_the_end
        )
        ended = _attend(conversation)
        expected = ended.cause in {Cause.EXITED, Cause.EXCEPTION}
        common.print_row(TaskRow.of_task(ended), *(() if expected else explain(ended)))
        raise typer.Exit(ended.exit_status)


def _attend(conversation: DebugConversation) -> Status:
    """Run the conversation until the task has ended; end the task first if this command is ended."""
    readline.clear_history()
    try:
        with stopped_by_signals():
            return conversation.hold()
    except DiosError:
        raise
    except (KeyboardInterrupt, Stopped, OSError) as stopped:
        with contextlib.suppress(DiosError):
            conversation.task.kill()
        if isinstance(stopped, OSError):
            raise
        raise typer.Exit(stopped.exit_status if isinstance(stopped, Stopped) else INTERRUPTED) from None
