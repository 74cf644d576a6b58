"""``dios sandbox``: runs code that nobody has read in sessions of its own, and lists and stops sessions."""

from __future__ import annotations

import base64
import codeop
import contextlib
import math
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

import typer
from msgspec import UNSET, UnsetType, field

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.failures import SHOWN_MAX
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    FAILED,
    Number,
    bytes_output,
    counted,
    say,
    span_text,
    table,
    time_text,
    write_file,
)
from dios.cli.common.results import NODE_OPTION, CommonOptions
from dios.cli.common.rows import Row
from dios.cli.tasks import sandbox_serve
from dios.cli.tasks.sandbox_completion import NameCompleter
from dios.cli.tasks.sandbox_exec import run_program
from dios.cli.tasks.sandbox_options import SandboxOptions
from dios.client.ops.status import Status
from dios.client.plain_text import plain, plain_lines
from dios.client.sync.node import Task
from dios.errors import DiosError, InvalidError
from dios.lib.sandbox.errors import SandboxCodeError, SessionForkError
from dios.lib.sandbox.link import family_of
from dios.lib.sandbox.protocol import Cell
from dios.lib.sandbox.result import SandboxFailure, SandboxResult, SandboxTable
from dios.lib.sandbox.running import RunningSandbox
from dios.lib.sandbox.sandbox import Sandbox

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Run code that nobody has read: it reaches its inputs, the installed packages and the origins of "
    "--network, and no other file, no other network, no other process.",
)

app.add_typer(sandbox_serve.app)
app.add_typer(sandbox_serve.key_app, name="key")

_EXAMPLES: Final = (
    "\b\nExamples:\n  dios sandbox run answer.py --input sales=sales.csv\n"
    "  dios sandbox run plot.py --input sales.parquet --figures pictures\n"
    "  dios sandbox run clean.py --input sales.csv --output clean.parquet\n"
    "  model-that-writes-code | dios sandbox run - --memory '512 MiB' --timeout 10 --json\n"
    "\f"
    "  dios sandbox run load.py --input sales.parquet --then first.py --then second.py\n"
    "  dios sandbox run weather.py --network https://api.example.org\n"
    "  dios sandbox run weather.py --network https://api.example.org "
    "--network-header https://api.example.org=X-Api-Key:API_KEY\n\n"
    "\b\nIn the code, the inputs are files:\n"
    '  import pandas\n  sales = pandas.read_csv("/inputs/sales")\n  sales.describe()\n\n'
    '\b\nLarge ones are opened without a copy by inputs["sales"].'
)

FIGURES_OPTION: Final[Path | None] = option(
    "--figures DIR", "Write figures of matplotlib to this directory, as PNG."
)


class SessionRow(Row, kw_only=True):
    """A session of a sandbox, and its family, which it shares with its forks."""

    fingerprint: str
    family: str | None
    pid: int
    state: str
    started_ns: int = field(name="started")
    principal: str


class StoppedSessionRow(SessionRow, kw_only=True):
    """A session to stop, and True if it was stopped."""

    stopped: bool


class TableRow(Row):
    """The first rows and columns of a data frame, and the numbers of all of them."""

    columns: list[str]
    rows: list[list[Cell]]
    row_count: int
    column_count: int


class SandboxRow(Row):
    """The result of code: figures are paths, or base64 without --figures.

    The output files come with --output, the results in forks, by file, with --then.
    """

    ok: bool
    stdout: str
    stderr: str
    value: str | None
    error: SandboxFailure | None
    tables: list[TableRow]
    figures: list[str]
    cpu_seconds: float
    peak_bytes: int
    outputs: dict[str, str] | UnsetType = UNSET
    then: dict[str, SandboxRow] | UnsetType = UNSET


@app.command(epilog=_EXAMPLES, json=SandboxRow)
def run(
    file: str = argument("FILE", "Python code; - reads standard input."),
    *,
    options: SandboxOptions,
    figures: Path | None = FIGURES_OPTION,
    outputs: list[str] | None = option(
        "-o --output [FILE=]PATH",
        "Copy a file that the code of FILE wrote to this path, if it succeeded; repeat for more.",
    ),
    then: list[str] | None = option(
        "--then FILE", "Then run this file in a fork of the session; repeat for more."
    ),
    common: CommonOptions,
) -> None:
    """Run a file, and show its output, the value of its last expression, data frames and figures.

    Each file of --then continues with the variables and files of the first one, and sees nothing of the
    others. If the first file raises, they are not run.

    If the code raises, its traceback is shown with what the sandbox refused, and the exit status is 1.
    Without a running node the command starts a private one for itself.
    """
    source = _source(file)
    others = {name: _source(name) for name in then or ()}
    places = _given_outputs(outputs)
    pictures = _Pictures(figures)
    with options.sandbox(Sandbox, node=common.node, forkable=bool(others)) as box:
        result = box.run(source)
        row = _shown(result, pictures, common)
        if result.ok:
            _copy_out(box, places)
            if places:
                row.outputs = {name: str(path) for name, path in places.items()}
        forks: dict[str, SandboxRow] = {}
        for name, fork_source in others.items() if row.ok else ():
            with box.fork() as fork:
                result = fork.run(fork_source)
            if not common.as_json:
                say(f"-- {plain(name)}")
            forks[name] = _shown(result, pictures, common)
    if others:
        row.then = forks
    common.print_row(row)
    if not all(ended.ok for ended in (row, *forks.values())):
        raise typer.Exit(FAILED)


def _shown(result: SandboxResult, pictures: _Pictures, common: CommonOptions) -> SandboxRow:
    """Return a result as a row; without ``--json``, show it as text as well."""
    paths = pictures.write(result.figures)
    if not common.as_json:
        _show(result, paths)
    return SandboxRow.of(
        result,
        value=result.value_repr,
        tables=[
            TableRow.of(frame, rows=[list(map(_number, row)) for row in frame.rows])
            for frame in result.tables
        ],
        figures=paths or [base64.b64encode(figure).decode() for figure in result.figures],
    )


@app.command(
    epilog="\b\nExamples:\n  dios sandbox shell --input sales=sales.csv\n  >>> import pandas\n"
    '  >>> sales = pandas.read_csv("/inputs/sales")\n  >>> sales.head()\n  >>> %reset\n\n'
    "  echo 'print(1 + 1)' | dios sandbox shell"
)
def shell(
    *,
    options: SandboxOptions,
    figures: Path | None = FIGURES_OPTION,
    forkable: bool = option("--forkable", "Permit %fork, to try something and to go back."),
    node: str | None = NODE_OPTION,
) -> None:
    """A prompt for Python in a session that keeps its variables.

    Tab completes the names of the session. Ctrl-C stops the code that runs and keeps the variables, %reset
    starts a fresh session, Ctrl-D ends it.
    With --forkable, %fork goes on in a fork of the session, and %back ends the fork and returns to the state
    before it. Input that is not typed is run as one piece.
    """
    with options.sandbox(Sandbox, node=node, forkable=forkable) as box:
        ok = _converse(box, _Pictures(figures))
        if not sys.stdin.isatty() and not ok:
            raise typer.Exit(FAILED)


def _converse(first: Sandbox, pictures: _Pictures) -> bool:
    """Run what is typed; return True if the last run succeeded."""
    # The last one is the present one; each of them is a fork of the one before.
    boxes = [first]
    typed = sys.stdin.isatty()
    ok = True
    try:
        if typed:
            NameCompleter(lambda: boxes[-1], _COMMANDS).install()
        for source in _typed_cells() if typed else iter((sys.stdin.read(),)):
            box = boxes[-1]
            if typed and box.ended:
                # By a completion.
                say(f"the session ended: {box.ended}")
                _renew(box)
            if source.strip() in _COMMANDS:
                _obey(source.strip(), boxes)
                continue
            try:
                result = box.run(source)
            except KeyboardInterrupt:
                if not typed:
                    raise
                say("KeyboardInterrupt")
            else:
                ok = result.ok
                _show(result, pictures.write(result.figures))
            if typed and box.ended:
                _renew(box)
    finally:
        for forked in boxes[1:]:
            forked.close()
    return ok


def _renew(box: Sandbox) -> None:
    box.reset()
    say("this is a fresh session, without variables")


_COMMANDS: Final = frozenset({"%reset", "%fork", "%back"})


def _obey(command: str, boxes: list[Sandbox]) -> None:
    """Obey a command of the shell."""
    try:
        if command == "%reset":
            boxes[-1].reset()
        elif command == "%fork":
            boxes.append(boxes[-1].fork())
            say(f"this is a fork; %back returns to the state before it ({len(boxes) - 1})")
        elif len(boxes) == 1:
            say("this is no fork: there is no state before it")
        else:
            boxes.pop().close()
            say("this is the state before the fork")
    except SessionForkError as error:
        hint = "start the shell with --forkable" if "forkable=True" in error.message else error.message
        say(f"cannot fork: {hint}")


@app.command(
    "exec",
    context_settings={"allow_interspersed_args": False},
    examples="dios sandbox exec 3f9a ls -l /tmp\ndios sandbox exec -it 3f9a sh\n"
    "echo 'select 1' | dios sandbox exec -i 3f9a sqlite3 data.db",
)
def run_in(
    session: str = argument("SESSION", "The beginning of a fingerprint; see `dios sandbox ls`."),
    command: list[str] = argument("COMMAND...", "A program of its image, and the arguments."),
    *,
    interactive: bool = option("-i --interactive", "Give it the standard input."),
    terminal: bool = option("-t --tty", "Give it a terminal."),
    folder: str = option("-w --workdir DIR", "Its working directory."),
    node: str | None = NODE_OPTION,
) -> None:
    """Run a program in a sandbox with an image that another of your programs has opened.

    The exit status is that of the program; 128 and the number of a signal that ended it. With --tty every
    letter goes to the program, Ctrl-C too; when this command is killed, so is the program.
    """
    with RunningSandbox(session, node=node) as box:
        raise typer.Exit(run_program(box, command, interactive=interactive, terminal=terminal, folder=folder))


@app.command(examples="dios sandbox forward 3f9a 8000\ndios sandbox forward 3f9a 8000 --local-port 8000")
def forward(
    session: str = argument("SESSION", "The beginning of a fingerprint; see `dios sandbox ls`."),
    port: int = argument("PORT", "The port of a server in the sandbox, at its own loopback address."),
    *,
    local_port: int = option("--local-port PORT", "The port at 127.0.0.1; 0 is any free one.", default=0),
    node: str | None = NODE_OPTION,
) -> None:
    """Forward a port of this machine to a server in a sandbox with an image, until Ctrl-C.

    It is at 127.0.0.1, and for you alone. The audit log has each connection.
    """
    with RunningSandbox(session, node=node) as box, box.forward(port, local_port=local_port) as forwarded:
        say(f"{forwarded.host}:{forwarded.port} leads to port {port} of the sandbox; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


@app.command("ls", examples="dios sandbox ls\ndios sandbox ls --json", json=[SessionRow])
def list_sessions(common: CommonOptions) -> None:
    """List the sessions of your sandboxes that run on a node, whichever of your programs holds them.

    A session and its forks are a family, which has the fingerprint of its first session.

    A program that found no node has a private one, whose sessions are not listed and end with the program.
    """
    with opened(common.node) as place:
        common.print_rows(
            _sessions(place),
            lambda session: {
                "SESSION": session.fingerprint,
                "FAMILY": family_of(session),
                "PID": Number(session.pid or "-"),
                "STATE": session.state.name.lower(),
                "STARTED": time_text(session.started_ns),
                "FOR": span_text(time.time_ns() - session.started_ns),
            },
            described=lambda session: SessionRow.of(session, family=family_of(session)),
            empty="no session of a sandbox runs; `dios sandbox shell` starts one",
        )


@app.command(
    examples="dios sandbox stop 3f9a\ndios sandbox stop 3f9a 41277\ndios sandbox stop --family 3f9a\n"
    "dios sandbox stop --all --json",
    json=[StoppedSessionRow],
)
def stop(
    sessions: list[str] | None = argument(
        "[SESSION]...", "The beginning of a fingerprint, or a process id; see `dios sandbox ls`."
    ),
    *,
    everything: bool = option("-a --all", "Stop all sessions that run."),
    family: bool = option("-f --family", "Stop the families of these sessions: their forks, too."),
    common: CommonOptions,
) -> None:
    """End sessions of your sandboxes at once; their variables and files are lost.

    The program that holds such a session learns that it was killed, and may start a fresh one. If an argument
    fits no session or several, nothing is stopped.
    """
    with opened(common.node) as place:
        if bool(sessions) == everything:
            raise InvalidError("name the sessions to stop, or give --all; `dios sandbox ls` lists them")
        running = _sessions(place)
        chosen = running if everything else _chosen(running, sessions or [], families=family)
        failed = {session.fingerprint: _stopped(place, session) for session in chosen}
        common.print_row(
            [
                StoppedSessionRow.of(
                    session, family=family_of(session), stopped=not failed[session.fingerprint]
                )
                for session in chosen
            ],
            *(
                f"session {mark} " + (f"was not stopped: {why}" if why else "stopped")
                for mark, why in failed.items()
            ),
            *(() if chosen else ("no session of a sandbox runs",)),
        )
        if any(failed.values()):
            raise typer.Exit(FAILED)


def _sessions(place: CommandContext) -> list[Status]:
    """Return the sessions that run on the asked node; a sandbox never starts one elsewhere."""
    tasks = place.node.tasks(local_only=True)
    sessions = [task for task in tasks if family_of(task) is not None and not task.ended]
    # The members of a family one below the other, in the order in which they started.
    began: dict[str | None, int] = {}
    for session in sessions:
        family = family_of(session)
        began[family] = min(session.started_ns, began.get(family, session.started_ns))
    return sorted(
        sessions, key=lambda status: (began[family_of(status)], family_of(status), status.started_ns)
    )


def _chosen(sessions: list[Status], texts: list[str], *, families: bool) -> list[Status]:
    """Return the sessions that texts name, or all of their families.

    Raise InvalidError for a text that fits none, or several.
    """
    chosen: dict[str, Status] = {}
    for text in texts:
        fitting = [
            session
            for session in sessions
            if text and (session.fingerprint.startswith(text.lower()) or str(session.pid) == text)
        ]
        # The first session of a family may have ended.
        members = [
            session for session in sessions if text and (family_of(session) or "").startswith(text.lower())
        ]
        if families and not fitting and len({family_of(session) for session in members}) == 1:
            fitting = members[:1]
        if not fitting:
            raise InvalidError(f"no session {text!r} of your sandboxes runs. `dios sandbox ls` lists them.")
        if len(fitting) > 1:
            listed = "".join(f"\n  {session.fingerprint}  {session.pid}" for session in fitting[:SHOWN_MAX])
            raise InvalidError(
                f"{text!r} fits {counted(len(fitting), 'session')}. Give more of the fingerprint:{listed}"
            )
        for member in sessions if families else fitting:
            if family_of(member) == family_of(fitting[0]):
                chosen[member.fingerprint] = member
    return list(chosen.values())


def _stopped(place: CommandContext, session: Status) -> str:
    """End a session; return the reason if that failed, otherwise an empty text."""
    try:
        task = None if session.name is None else place.node.find(session.name)
        if not isinstance(task, Task):
            return "the node does not keep it any more"
        task.kill()
    except DiosError as error:
        return error.message
    return ""


def _given_outputs(texts: list[str] | None) -> dict[str, Path]:
    """Return the paths of outputs by the names of files in the session. Raise InvalidError."""
    given: dict[str, Path] = {}
    for text in texts or ():
        name, is_named, path = text.partition("=")
        place = Path(path if is_named else text)
        name = name if is_named else place.name
        if not name or name in given:
            raise InvalidError(f"--output {text} names no file, or one that is named already")
        if place.is_dir() or not place.parent.is_dir():
            raise InvalidError(
                f"cannot write {place}: it is a directory, or the one that it is in is missing"
            )
        given[name] = place
    return given


def _copy_out(box: Sandbox, places: dict[str, Path]) -> None:
    for name, path in places.items():
        try:
            # Without a slash it could be the name of a variable.
            data = cast("bytes", box.get(name if "/" in name else f"./{name}"))
        except SandboxCodeError as error:
            raise InvalidError(f"cannot copy {name} out of the session: {error.message}") from None
        write_file(path, data)


def _source(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidError(f"{file} is no UTF-8 text, so it is no Python code: {error.reason}") from None


def _typed_cells() -> Iterator[str]:
    """Yield what a person types, statement by statement, until Ctrl-D."""
    say(
        "Python in a sandbox. Tab completes names, Ctrl-C stops the code that runs, %reset starts afresh, "
        "Ctrl-D ends it."
    )
    lines: list[str] = []
    while True:
        try:
            lines.append(input("... " if lines else ">>> "))
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            lines.clear()
            continue
        source = "\n".join(lines)
        if _is_complete(source):
            lines.clear()
            if source.strip():
                yield source


def _is_complete(source: str) -> bool:
    if source.startswith("%"):
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(source, "<typed>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return True  # the session says what is wrong


# -- output -------------------------------------------------------------------------------------------
class _Pictures:
    """Writes the figures of one command as figure-1.png and so on."""

    def __init__(self, directory: Path | None) -> None:
        self.directory: Final = directory
        self._count = 0

    def write(self, figures: tuple[bytes, ...]) -> list[str]:
        """Write figures, and return their paths; nothing without a directory."""
        if self.directory is None or not figures:
            return []
        self.directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for figure in figures:
            self._count += 1
            path = self.directory / f"figure-{self._count}.png"
            write_file(path, figure)
            paths.append(str(path))
        return paths


def _show(result: SandboxResult, pictures: Sequence[str]) -> None:
    """Show a result; on a terminal control characters of the code are escaped."""
    for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.flush()
        output = bytes_output(stream)
        output.write(text.encode())
        output.flush()
    for frame in result.tables:
        _show_table(frame)
    if result.value_repr is not None and result.value_table is None:
        sys.stdout.write(plain_lines(result.value_repr) + "\n")
    sys.stdout.flush()
    for path in pictures:
        say(f"figure: {path}")
    if result.figures and not pictures:
        count = len(result.figures)
        subject = "1 figure is" if count == 1 else f"{counted(count, 'figure')} are"
        say(f"{subject} not shown; --figures DIR writes figures to a directory")
    if result.error is not None:
        say(str(result.error))


def _show_table(frame: SandboxTable) -> None:
    columns = [plain(name) or " " for name in frame.columns]
    table(columns, [["" if cell is None else str(cell) for cell in row] for row in frame.rows])
    if len(frame.rows) < frame.row_count or len(frame.columns) < frame.column_count:
        say(f"({counted(frame.row_count, 'row')} and {counted(frame.column_count, 'column')} in all)")


def _number(cell: Cell) -> Cell:
    # JSON has neither infinities nor NaN.
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
