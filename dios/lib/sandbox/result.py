"""The result of one run in a sandbox: plain values alone, whose texts a hostile session may have made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from dios.client.ops.notebook_html import table
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox.harmless_html import harmless_html
from dios.lib.sandbox.protocol import Cell, DisplayKind, DisplayRecord, FailureRecord, Number, TableRecord

REFUSALS: Final = {
    "network": (
        "network",
        "A session has no network. Grant the origin (network=, --network), or give the data as an input.",
    ),
    "origin": (
        "a host that was not granted",
        "A session reaches the granted origins alone. Grant further origins with network= (--network).",
    ),
    "process": (
        "other processes",
        "A session starts no other program or process. Use a Python library instead, or threads.",
    ),
    "write": (
        "writing outside its folder",
        "A session writes files in /tmp, its working directory, and nowhere else. get() takes them out.",
    ),
    "file": (
        "files of the machine",
        "A session sees installed packages, /inputs and /tmp. Give the file as an input (inputs=, --input).",
    ),
    "input": (
        "a file in /inputs that is not there",
        (
            "An input of over a quarter of the memory is no file there: read inputs[...], or raise the memory"
            " (memory=, --memory). Give others as inputs (inputs=, --input)."
        ),
    ),
    "module": (
        "a module that is not there",
        "A session imports what is installed where the node runs. Own modules travel with put().",
    ),
    "memory": (
        "memory",
        "The session is at its memory limit. Raise it (memory=, --memory), or drop variables.",
    ),
    "threads": (
        "more threads",
        "A session has at most 256 threads, together with its forks, and no option permits more. End some.",
    ),
    "descriptors": (
        "more open files",
        "A session is at its limit of open files, and no option permits more. Close some.",
    ),
    "folder": (
        "more files",
        "Files in /tmp count as memory. Raise the limit (memory=, --memory), or delete files.",
    ),
    "call": (
        "a system call",
        "A pure task may not make this system call, and no option permits it: docs/calls.md.",
    ),
}
"""The refusals that a session can name: what was refused, and how to grant it."""


@dataclass(frozen=True, slots=True)
class SandboxFailure:
    """An exception of code in a session, as text.

    ``traceback`` has the lines of the cells. If the sandbox refused something, ``refused`` names it and
    ``remedy`` says how to grant it. ``ended`` is True if the session ended with it.
    """

    type: str
    message: str
    traceback: str
    refused: str | None = None
    remedy: str | None = None
    ended: bool = False

    def __str__(self) -> str:
        lines = [self.traceback.rstrip() or f"{self.type}: {self.message}"]
        if self.refused is not None:
            lines.append(f"The sandbox refused: {self.refused}. {self.remedy}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SandboxTable:
    """The first rows and columns of a data frame; ``row_count`` and ``column_count`` are those of all."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    row_count: int
    column_count: int

    def _repr_html_(self) -> str:
        """Return the rows for a notebook."""
        title = f"the first {len(self.rows)} of {self.row_count} rows, {self.column_count} columns"
        return table(title, self.columns, self.rows)


@dataclass(frozen=True, slots=True)
class SandboxDisplay:
    """A value that code shows while it runs, in the forms that it has.

    ``html`` is rebuilt from a list of elements, without scripts and addresses. ``png`` and ``jpeg`` are
    pictures. ``is_value`` is True for the value of the last expression. ``update`` is True for one that takes
    the place of those with the same ``id``. With ``clear`` there is no value: what was shown goes, with
    ``wait`` when the next value or text comes.
    """

    text: str = ""
    html: str = ""
    png: bytes = b""
    jpeg: bytes = b""
    table: SandboxTable | None = None
    id: str = ""
    update: bool = False
    is_value: bool = False
    clear: bool = False
    wait: bool = False


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The output and the values of one run.

    ``value_repr`` is the value of the last expression, None if there is none; ``value_table`` is the same
    value if it is a data frame, and also the last one of ``tables``. ``figures`` are PNG pictures.
    ``cpu_seconds`` and ``peak_bytes`` are the measurements of the session itself, so hostile code can choose
    them; the limits are enforced by the node.
    """

    stdout: str
    stderr: str
    value_repr: str | None = None
    error: SandboxFailure | None = None
    figures: tuple[bytes, ...] = ()
    tables: tuple[SandboxTable, ...] = ()
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    value_table: SandboxTable | None = None

    @property
    def ok(self) -> bool:
        """Return True if the code raised nothing."""
        return self.error is None


def failure_of(record: FailureRecord) -> SandboxFailure:
    """Return an exception from a session, with the texts of this side about a refusal."""
    refused, remedy = REFUSALS.get(record.refused, (None, None))
    return SandboxFailure(record.type, record.message, record.traceback, refused, remedy)


def table_of(record: TableRecord) -> SandboxTable:
    """Return a table from a session."""
    return SandboxTable(
        tuple(record.columns), tuple(map(tuple, record.rows)), record.row_count, record.column_count
    )


def display_of(record: DisplayRecord, table: TableRecord | None) -> SandboxDisplay:
    """Return a value that a session shows."""
    return SandboxDisplay(
        text=record.text,
        html=harmless_html(record.html),
        png=record.png,
        jpeg=record.jpeg,
        table=None if table is None else table_of(table),
        id=record.id,
        update=record.kind is DisplayKind.UPDATE,
        is_value=record.kind is DisplayKind.VALUE,
    )


def cut_text(data: bytes, bytes_max: int) -> str:
    """Return output as text, cut at a bound with a notice."""
    text = data[:bytes_max].decode(errors="backslashreplace")
    return text + cut_notice(bytes_max) if len(data) > bytes_max else text


def cut_notice(bytes_max: int) -> str:
    """Return the text in the place of output over the bound."""
    return f"\n[output over {bytes_max:,} bytes, the bound output_bytes, is cut]\n"


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The end of a program that ran in an image, and its output.

    ``exit_code`` is its status, or the negative number of the signal that ended it; None if it was stopped at
    its time limit, or the session ended: then ``error`` has the reason.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    error: SandboxFailure | None = None

    @property
    def ok(self) -> bool:
        """True if the program ended with the status 0."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class SandboxFile:
    """A file in a sandbox, as the sandbox describes it: its name, kind, size in bytes, and permissions.

    ``kind`` is "file", "folder", "link" or "other". Letters of the name that cannot be printed are escaped.
    """

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: Number
    mode: Annotated[int, Meta(ge=0, le=0o7777)]


def files_of(rows: object) -> list[SandboxFile]:
    """Return the files of a folder as a session describes them. Raise UntrustedResultError for others."""
    try:
        files = msgspec.convert(rows, list[SandboxFile])
    except msgspec.ValidationError as error:
        raise UntrustedResultError(f"the session sent something else than files: {error}") from None
    for file in files:
        if file.name in {"", ".", ".."} or "/" in file.name or not file.name.isprintable():
            raise UntrustedResultError(f"the session sent a file with the name {file.name[:200]!r}")
    return files
