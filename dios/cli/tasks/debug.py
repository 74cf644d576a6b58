"""``dios debug``: a task once more, under pdb, with this terminal at the other end of two streams.

Not for: what runs inside the task (``dios.lib.debugger``). Lines are typed and edited here; nothing but them,
and the wish to interrupt, goes in.
"""

from __future__ import annotations

import contextlib
import readline
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, BinaryIO, Final

import typer

from dios.cli.common.context import opened
from dios.cli.common.output import (
    INTERRUPTED,
    JsonOption,
    NodeOption,
    plain,
    reporting,
    say,
    time_text,
    write_json,
)
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.tasks.control import TaskArgument, described
from dios.cli.tasks.endings import cause_text, explain
from dios.client.ops.status import Status
from dios.client.ops.usage import Description
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

app: Final = typer.Typer(rich_markup_mode=None)


class Conversation:
    """One debugged task: what it shows goes to ``output``, what it asks is answered from here."""

    def __init__(self, node: Node, like: Task, output: BinaryIO, *, label: str, post_mortem: bool) -> None:
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
        """Go on until the task has ended."""
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
        """Note Ctrl-C; only what waits for somebody is broken off, so that no message is half taken."""
        del number, frame
        self._pressed = True
        if self._waiting:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def _breakable(self) -> Iterator[None]:
        """What stands in the body is broken off by Ctrl-C, also by one that came before it."""
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
        say("interrupting the program; Ctrl-C again kills it")
        self._tell(INTERRUPT)

    # -- what comes from the task -------------------------------------------------------------------
    def _turn(self) -> bool:
        """Answer the question that is open, or wait for what comes; whether the task has ended."""
        if self._prompt is not None:
            self._answer(self._prompt)
            return False
        sources: list[Reference] = [self.task]
        sources += [one for one in (self._hear, self._console) if one is not None]
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
        """The task has ended: everything that it left to be shown."""
        while self._hear is not None and self._node.select([self._hear], timeout=0) is not None:
            self._take()
        while self._console is not None:
            self._show_console()

    # -- what goes to it ----------------------------------------------------------------------------
    def _answer(self, prompt: str) -> None:
        # What the program printed comes by another way, and belongs before the question.
        while self._console is not None and self._node.select([self._console], timeout=_QUIET_SECONDS):
            self._show_console()
        try:
            with self._breakable():
                line = self._read_line(prompt)
        except KeyboardInterrupt:
            self._write(b"\n")
            if sys.stdin.isatty():
                return  # what was typed is dropped, as in a shell, and the question stands
            line = None
        self._prompt = None
        self._tell(END if line is None else LINE + line.encode(errors="replace"))

    def _read_line(self, prompt: str) -> str | None:
        """A line of the person's, without its end; None when there are no more."""
        if sys.stdin.isatty():
            try:
                return input(prompt)
            except EOFError:
                self._write(b"\n")
                return None
        line = sys.stdin.readline()
        # Whoever reads the transcript sees what was asked, too.
        self._write(f"{prompt}{line.rstrip()}\n".encode(errors="replace"))
        return line.rstrip("\n") if line else None

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(DiosError):
            # A task that has just ended is met at the next look.
            self._talk.send(message)

    def _write(self, data: bytes) -> None:
        self._output.write(data)
        self._output.flush()


def differences(found: Description) -> list[str]:
    """What a repetition does not have as it was, in sentences."""
    told = ["the time, and whatever the program makes of it and of random numbers"]
    told += [
        f"input {plain(given.label or given.fingerprint)} was written since"
        for given in found.inputs
        if given.changed
    ]
    told += [
        f"output {plain(given.label or given.fingerprint)} is as the first run left it, and is written again"
        for given in found.outputs
    ]
    if not found.status.ended:
        told.append("the first run still goes on, beside this one")
    return told


def _announce(found: Description, *, post_mortem: bool) -> None:
    status = found.status
    label = plain(status.label) or "task"
    say(f"{label} ({status.fingerprint}) once more: same program, arguments, groups, inputs, limits, sandbox")
    say(f"  first run: {time_text(status.started_ns)}, {cause_text(status)}")
    for line in differences(found):
        say(f"  differs: {line}")
    if status.brand is Brand.LIMBO:
        say("  it runs outside the sandbox, as it did")
    say(
        "  it stops where an exception leaves it"
        if post_mortem
        else "  it stops before its first line; `c` goes on, `n` makes a step, `b 10` sets a breakpoint"
    )
    say("  Ctrl-C interrupts it, Ctrl-D ends it; `help` lists the commands of pdb")


@app.command(
    epilog="\b\nExamples:\n  dios debug job.py\n  dios debug 3f9a --step\n"
    "  printf 'where\\np total\\nq\\n' | dios debug job.py"
)
def debug(
    task: TaskArgument,
    *,
    post_mortem: Annotated[
        bool | None,
        typer.Option(
            "--post-mortem/--step",
            help="Run until an exception leaves it, or stop before the first line; default: "
            "--post-mortem when an exception ended the task.",
        ),
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a task once more under pdb, Python's debugger: the same code and inputs, in the same sandbox.

    It is a new task, called "debug LABEL", with everything that the first was handed, and writes to the same
    outputs. In a pipe, lines of the standard input are the commands. Exit status as of `dios run`.
    """
    with reporting("dios debug", as_json=as_json), opened(node) as place:
        handle, status = place.task(task)
        here = place.here()
        if here is not None and status.node not in {"", here.name}:
            raise InvalidError(
                f"it ran on {status.node}, and a run is repeated where it was; ask that node with --node, or "
                "run the program here: dios run --local"
            )
        found = place.node.describe(handle)
        if found.not_repeatable:
            raise InvalidError(f"it cannot be run as it was: {found.not_repeatable}")
        at_the_end = found.status.cause is Cause.EXCEPTION if post_mortem is None else post_mortem
        _announce(found, post_mortem=at_the_end)
        output = sys.stderr.buffer if as_json else sys.stdout.buffer
        conversation = Conversation(
            place.node, handle, output, label=found.status.label, post_mortem=at_the_end
        )
        ended = _attend(conversation)
        if as_json:
            write_json(described(ended))
        elif ended.cause not in {Cause.EXITED, Cause.EXCEPTION}:
            for line in explain(ended):
                say(line)
        raise typer.Exit(ended.exit_status)


def _attend(conversation: Conversation) -> Status:
    """Talk until the task has ended; what ends this command ends the task first."""
    readline.clear_history()
    try:
        with stopped_by_signals():
            return conversation.hold()
    except (KeyboardInterrupt, Stopped, OSError) as stopped:
        with contextlib.suppress(DiosError):
            conversation.task.kill()
        if isinstance(stopped, OSError):
            raise
        raise typer.Exit(stopped.exit_status if isinstance(stopped, Stopped) else INTERRUPTED) from None
