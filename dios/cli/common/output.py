"""The output of commands: tables that fit the terminal, JSON, progress, and errors with the next step.

This is the only place that turns a ``DiosError`` into text and an exit status.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import errno
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TextIO, TypeAlias

import msgspec
import typer

from dios import errors, limits
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.common.streams import INTERRUPTED, drop_output
from dios.client.plain_text import plain, plain_lines
from dios.client.written_files import naming
from dios.errors import DiosError

if TYPE_CHECKING:
    from rich.console import Console

# Rich takes longer to import than most commands take to run, so it is imported where something is drawn.

FAILED: Final = 1
NOT_RUNNING: Final = 3
RUN_FAILED: Final = 125
"""The status of a command that ends with its task's status, if the command itself failed."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
OF_EVERYTHING: Final = _FULL | {errno.EROFS, errno.EMFILE, errno.ENFILE}
"""Errors of this machine that a command has with every file that it writes."""
STEPS_SHOWN_MIN: Final = 200
ROWS_PER_PAGE: Final = 1_000
"""The rows of a table that are in memory at a time."""

_NEXT: Final[dict[type[DiosError], str]] = {
    errors.UnreachableError: "`dios-node status` says whether a node runs",
    errors.NotPermittedError: "`dios group ls` shows the groups in your keyring; "
    "`dios audit --outcome denied` shows what was refused",
    errors.StaleError: "it was deleted; `dios ls` shows what there is",
    errors.Conflict: "somebody else worked on it at the same time; run the command again",
    errors.Busy: "somebody else works on it; run the command again",
    errors.LimitError: "`dios limits` shows use and limits, whoever runs the node sets them; "
    "a task that says what it needs (--memory, --cpu-seconds) sets no more aside",
    errors.NoSpaceError: "free space on the disk of the node's data directory",
    errors.OutOfMemoryError: "`dios ps` shows what runs; end something, "
    "or start the node with more --task-memory-bytes",
    errors.DamagedError: "`dios audit verify` checks the audit log; the node's log says more",
    errors.NoSuchTaskError: "`dios ps --all` shows the tasks that the node still knows",
    errors.NotExecutableError: "a program is a UTF-8 Python file (`dios run --help`); see `dios doctor`, too",
    errors.NotSupportedError: "`dios-node status` shows what this machine can enforce",
    errors.TimeLimitError: "the node's log says more; `dios-node stop` ends also a node that hangs",
    errors.ClosedError: "`dios-node status` says whether the node still runs; what was acknowledged is kept",
    errors.ProtocolError: "client and node differ in version; update the older one",
}


Cells: TypeAlias = Mapping[str, str | float | None]
"""The cells of a line of a table by the headings of its columns. Numbers are at the right; None is a dash."""


class Number(str):
    """The text of a number, which tables show at the right of its column."""

    __slots__ = ()


def out() -> Console:
    """Return a console for results, bound to the current standard output."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(highlight=False, soft_wrap=False)


def err() -> Console:
    """Return a console for notices, progress and errors, bound to the current standard error."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Write a line for the user to standard error; control characters in it are escaped."""
    sys.stderr.write(plain_lines(text) + "\n")
    sys.stderr.flush()


def write_line(text: str) -> None:
    """Write a line of a result to standard output; control characters in it are escaped."""
    sys.stdout.write(plain_lines(text) + "\n")


def write_json(value: object) -> None:
    """Write a JSON document to standard output."""
    sys.stdout.write(_json_text(value) + "\n")


def write_json_line(value: object) -> None:
    """Write a JSON document on one line, at once."""
    sys.stdout.write(json.dumps(value, default=_plain_value) + "\n")
    sys.stdout.flush()


def write_json_list(values: Iterable[object]) -> None:
    """Write a JSON array as ``write_json`` does, with one value in memory at a time."""
    written = False
    for value in values:
        sys.stdout.write(",\n" if written else "[\n")
        written = True
        lines = _json_text(value).split("\n")
        sys.stdout.write("\n".join(f"  {line}" for line in lines))
    sys.stdout.write("\n]\n" if written else "[]\n")


def _json_text(value: object) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain_value)
    # JSON itself escapes only some of the characters that control a terminal.
    return "\n".join(line if line.isprintable() else _escaped_json(line) for line in text.split("\n"))


def _plain_value(value: object) -> object:
    """Return a dataclass or Struct as a dictionary, as its schema says; anything else as text."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value, enc_hook=str)
    return str(value)


def _escaped_json(line: str) -> str:
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in line)


def write_file(path: Path, content: str | bytes, *, is_new: bool = False) -> None:
    """Write a file that the user named; with ``is_new`` one that exists is an error. Errors name it."""
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    with naming(path), path.open("xb" if is_new else "wb") as file:
        file.write(data)


class BytesOutput(Protocol):
    """The destination of a task's output or an object's bytes."""

    def write(self, data: bytes | memoryview[int], /) -> object:
        """Write all of the bytes."""

    def flush(self) -> object:
        """Show everything that was written."""


class _TerminalOutput:
    """A terminal that shows bytes of others as text, with everything that could control it escaped.

    A carriage return ends a line, so that nothing is hidden by writing over it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._decoder: Final = io.IncrementalNewlineDecoder(decoder, translate=True)

    def write(self, data: bytes | memoryview[int], /) -> None:
        text = plain_lines(self._decoder.decode(data))
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def flush(self) -> None:
        self._stream.flush()


def bytes_output(stream: TextIO) -> BytesOutput:
    """Return the destination for bytes of others: a terminal gets harmless text, anything else the bytes."""
    return _TerminalOutput(stream) if stream.isatty() else stream.buffer


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), whole: bool = False
) -> None:
    """Write rows under headings: fitted to the width of a terminal, at full length elsewhere.

    On a terminal only the first column is folded; with ``whole`` nothing is. Many rows are written a page of
    ROWS_PER_PAGE at a time, so that memory does not grow with them; a page is at least as wide as the one
    before it.
    """
    listed = iter(rows)
    heads = [columns]
    widths = [len(column) for column in columns]
    while (page := [[plain(cell) for cell in row] for row in islice(listed, ROWS_PER_PAGE)]) or heads:
        for cells in page:
            widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
        if whole or not sys.stdout.isatty():
            _write_page(columns, [*heads, *page], widths, right)
        else:
            # Only the pages of a long table must have columns of the same width.
            long = not heads or len(page) == ROWS_PER_PAGE
            _print_page(columns, page, widths if long else None, right, headed=bool(heads))
        heads = []


def _write_page(
    columns: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int], right: Sequence[str]
) -> None:
    for row in rows:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, columns, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _print_page(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    widths: Sequence[int] | None,
    right: Sequence[str],
    *,
    headed: bool,
) -> None:
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    shown = Table(box=None, pad_edge=False, header_style="bold", show_header=headed)
    for place, name in enumerate(columns):
        first = not place
        shown.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=not first,
            min_width=None if first or widths is None else widths[place],
        )
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    out().print(shown)


def table_of(lines: Iterable[Cells], *, whole: bool = False) -> bool:
    """Write a table of these lines, and return False if there are none; see ``table``."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return False
    right = [name for name, cell in first.items() if isinstance(cell, int | float | Number)]
    rows = (["-" if cell is None else str(cell) for cell in line.values()] for line in chain([first], rest))
    table(list(first), rows, right=right, whole=whole)
    return True


def write_facts(facts: Cells) -> None:
    """Write named values, one per line; a value of None is left out."""
    listed = {name: str(value) for name, value in facts.items() if value is not None}
    width = max(map(len, listed), default=0)
    for name, value in listed.items():
        sys.stdout.write(f"{name.ljust(width)}  {plain(value)}\n")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number of things: ``1 file``, ``2 files``; ``plural`` is for nouns with another ending."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size_text(size: int) -> Number:
    """Format a size: ``17 B``, ``3.2 MiB``."""
    for unit, bytes_each in (("GiB", limits.GIB), ("MiB", limits.MIB), ("KiB", limits.KIB)):
        if size >= bytes_each:
            return Number(f"{size / bytes_each:.1f} {unit}")
    return Number(f"{size} B")


def time_text(time_ns: int) -> str:
    """Format a time in local time, to the second."""
    if not time_ns:
        return "-"
    return datetime.fromtimestamp(time_ns / 1e9, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span_text(span_ns: int) -> Number:
    """Format a duration: ``0.3 s``, ``2 min 05 s``, ``3 h 02 min``."""
    seconds = max(0, span_ns) / 1e9
    if seconds < 60:
        return Number(f"{seconds:.1f} s")
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return Number(f"{minutes} min {rest:02} s")
    hours, minutes = divmod(minutes, 60)
    return Number(f"{hours} h {minutes:02} min")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone, unless ``yes``; any answer but yes ends the command.

    Raises InvalidError if nobody can be asked, because standard input is no terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise errors.InvalidError(f"this would {question}, for good. Confirm with --yes.")
    if not typer.confirm(f"{question}?", err=True):
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def transfer(label: str, total: int, *, steps: int = 1) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for bytes, only on a terminal and only for large transfers.

    Yield a function that is called with the number of bytes moved. ``steps`` is the number of objects.
    """
    if not sys.stderr.isatty() or (total < 8 * limits.MIB and steps < STEPS_SHOWN_MIN):
        yield lambda _: None
        return
    from rich.progress import (  # noqa: PLC0415 - see above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
    )
    with progress:
        bar = progress.add_task(plain(label), total=total)
        yield lambda size: progress.advance(bar, size)


@contextlib.contextmanager
def waiting(action: str) -> Iterator[None]:
    """Show a spinner during a wait, only on a terminal."""
    if sys.stderr.isatty():
        from rich.text import Text  # noqa: PLC0415 - see above

        with err().status(Text(plain(action))):
            yield
    else:
        yield


@contextlib.contextmanager
def progress(action: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with a changing text, only on a terminal. Yield a thread-safe function to change it."""
    if sys.stderr.isatty():
        from rich.text import Text  # noqa: PLC0415 - see above

        with err().status(Text(plain(action))) as status:
            yield lambda word: status.update(Text(plain(f"{action}: {word}")))
    else:
        yield lambda _: None


def next_step(error: BaseException) -> str:
    """Return advice for an error; empty if its message contains it."""
    if isinstance(error, errors.UnreachableError | errors.DamagedError) and "`dios" in error.message:
        return ""
    if isinstance(error, errors.UnreachableError) and error.call:
        # A node sent this error, so it runs: another node does not answer.
        elsewhere = ", and `dios stat` where else the object is" if error.fingerprint else ""
        return f"`dios node ls` shows which nodes there are{elsewhere}"
    if isinstance(error, errors.NotPermittedError) and not error.call:
        # No node refused a call: the error is about sockets, files or tokens, not about groups.
        return ""
    for kind in type(error).__mro__:
        if issubclass(kind, DiosError) and kind in _NEXT:
            return _NEXT[kind]
    return ""


def report(error: DiosError, *, as_json: bool, doing: str, hint: str | None = None) -> None:
    """Show an error on standard error, with the next command if there is one, or as one line of JSON.

    ``hint`` replaces the advice of ``next_step``.
    """
    hint = next_step(error) if hint is None else hint
    if as_json:
        told = {
            "error": error.code.name,
            "message": error.message,
            "call": error.call,
            "object": error.fingerprint,
            "next": hint,
        }
        sys.stderr.write(json.dumps(told) + "\n")
        return
    place = " ".join(part for part in (error.call, error.fingerprint and f"on {error.fingerprint}") if part)
    say(f"{doing}: {error.message}")
    if place:
        say(f"  where: {place}, {error.code.name}")
    if hint:
        say(f"  next:  {hint}")


@contextlib.contextmanager
def reporting(doing: str, *, as_json: bool = False, status: int = FAILED) -> Iterator[None]:
    """Run a command's body; an expected failure ends it with a message and ``status``.

    ``doing`` is the command as the user typed it. A closed pipe, Ctrl-C, SIGTERM and a closed terminal end it
    quietly, after everything that it had begun was cleaned up.
    """
    try:
        with stopped_by_signals():
            yield
            sys.stdout.flush()
    except DiosError as error:
        report(error, as_json=as_json, doing=doing)
        raise typer.Exit(status) from None
    except BrokenPipeError:
        # The reader of the output has enough.
        drop_output()
        raise typer.Exit(FAILED) from None
    except OSError as error:
        # Whatever else a command writes is written within ``naming``.
        place = error.filename or ("standard output" if error.errno in _FULL else "")
        told = errors.DamagedError(f"{place}: {error.strerror or error}".removeprefix(": "))
        if error.errno in _FULL:
            drop_output()
        # The error is of this machine, and not of a node that a hint could be about.
        report(told, as_json=as_json, doing=doing, hint="")
        raise typer.Exit(status) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Stopped as stopped:
        raise typer.Exit(stopped.exit_status) from None
