"""The records between a sandbox and its session; the frames are those of ``dios.lib.executor.frames``.

A session is hostile: its answers are decoded as exactly these types, and ``check_answer`` compares their
sizes with the bounds before anything uses them.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from dios.errors import ProtocolError
from dios.lib.executor.archives import Archive
from dios.lib.sandbox.bounds import (
    DISPLAY_ID_CHARS_MAX,
    HTML_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    SHOWN_MOST,
    TABLE_COLUMNS_MOST,
    TABLE_ROWS_MOST,
    TRACEBACK_CHARS_MAX,
    TYPE_CHARS_MAX,
    SandboxBounds,
)
from dios.lib.sandbox.pictures import is_jpeg, is_png

ORDERS: Final = ".orders"
"""The label of the stream to the session. Names of inputs do not begin with a dot."""
ANSWERS: Final = ".answers"
INTERRUPTS: Final = ".interrupts"
"""The label of the stream with the numbers of orders to interrupt."""

ORDER: Final = 1
"""To the session: an order."""
READY: Final = 2
"""From the session, once: it has started."""
OUTPUT: Final = 3
"""From the session: 1 or 2 as a byte, for standard output and standard error, and bytes."""
DONE: Final = 4
"""From the session: the answer to the present order."""

DISPLAY: Final = 5
"""From the session, in a run that shows values while it runs: one of them."""
CLEAR: Final = 6
"""From the session, the same: drop what was shown. The byte 1 means when the next value or text comes."""
FILES: Final = 7
"""From the session: bytes of the changed files, during the order for them alone."""

STDOUT: Final = 1
STDERR: Final = 2

_DISPLAY_ID: Final = re.compile(rf"[A-Za-z0-9_.-]{{0,{DISPLAY_ID_CHARS_MAX}}}")

T = TypeVar("T")

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Cell: TypeAlias = "str | int | float | bool | None"
Few: TypeAlias = Annotated[list[T], msgspec.Meta(max_length=SHOWN_MOST)]
Row: TypeAlias = Annotated[list[T], msgspec.Meta(max_length=TABLE_COLUMNS_MOST)]


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first order: the bounds."""

    bounds: SandboxBounds


class RunCell(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Run a cell. With ``displays`` it sends what it shows while it runs."""

    source: str
    displays: bool = False


class PutValue(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Set a variable, after the installation of packages that its value needs."""

    name: str
    data: bytes
    modules: list[Archive]


class GetValue(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Return the value of a variable."""

    name: str


class CallFunction(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Call a function of the session, after the installation of packages."""

    function: str
    data: bytes
    modules: list[Archive]


class PutFile(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Write a file, and set its permissions unless ``mode`` is None."""

    path: str
    data: bytes
    mode: int | None = None


class GetFile(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Return the bytes of a file."""

    path: str


class CompleteName(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Return the names that begin with a dotted name."""

    text: str


class ForkSession(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Fork; the fork has streams of its own, and sends READY there."""


class RunProgram(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Run a program, and return its exit status. ``variables`` None are those of the session.

    ``data`` is its standard input. An empty ``folder`` is the working directory of the session.
    """

    arguments: list[str]
    data: bytes
    folder: str
    variables: dict[str, str] | None


class ListFolder(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Return the names, kinds, sizes and modes of the files in a folder."""

    path: str


class RemovePath(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Remove a file, or a folder with its files."""

    path: str


class MakeFolder(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Make a folder, and those in which it is."""

    path: str


class DescribeName(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Return a description of a dotted name; with ``source`` also its source."""

    text: str
    source: bool


class SendChanges(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Send the files that were changed in the image, as frames of their own."""


class MakeLink(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Make a symbolic link with this text."""

    path: str
    target: str


SessionTask: TypeAlias = (
    RunCell
    | PutValue
    | GetValue
    | CallFunction
    | PutFile
    | GetFile
    | CompleteName
    | ForkSession
    | RunProgram
    | ListFolder
    | RemovePath
    | MakeFolder
    | DescribeName
    | SendChanges
    | MakeLink
)


class Order(msgspec.Struct, frozen=True, array_like=True):
    """One order, with the number that an interrupt names."""

    number: int
    task: Begin | SessionTask


class FailureRecord(msgspec.Struct, frozen=True, array_like=True):
    """An exception; ``refused`` is a key of ``dios.lib.sandbox.result.REFUSALS``, or empty."""

    type: str
    message: str
    traceback: str
    refused: str = ""


class TableRecord(msgspec.Struct, frozen=True, array_like=True):
    """The first rows and columns of a data frame, and the numbers of all of them."""

    columns: Row[str]
    rows: Annotated[list[Row[Cell]], msgspec.Meta(max_length=TABLE_ROWS_MOST)]
    row_count: Number
    column_count: Number


class DisplayKind(IntEnum):
    """The reason of a display."""

    NEW = 0
    UPDATE = 1
    """It takes the place of those with the same id."""
    VALUE = 2
    """It is the value of the cell."""


class DisplayRecord(msgspec.Struct, frozen=True, array_like=True):
    """A value in the forms that it has: at least as text."""

    kind: DisplayKind = DisplayKind.NEW
    text: str = ""
    html: str = ""
    png: bytes = b""
    jpeg: bytes = b""
    tables: Few[msgspec.Raw] = []
    """At most one."""
    id: str = ""

    @property
    def size(self) -> int:
        """Return the number of bytes that count for the bound; tables have bounds of their own."""
        return 4 * len(self.text) + 4 * len(self.html) + len(self.png) + len(self.jpeg)


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the order ``number``; ``data`` is the encoded value that it asked for.

    ``ends_with_table`` is True if the last table is the last value.
    """

    number: Number = 0
    value_repr: str | None = None
    failure: FailureRecord | None = None
    figures: Few[bytes] = []
    tables: Few[msgspec.Raw] = []
    data: bytes = b""
    cpu_ns: Number = 0
    peak_bytes: Number = 0
    ends_with_table: bool = False


class CheckedAnswer(NamedTuple):
    """An answer within the bounds, with its tables."""

    answer: Answer
    tables: list[TableRecord]


_answers: Final = msgspec.msgpack.Decoder(Answer)
_tables: Final = msgspec.msgpack.Decoder(TableRecord)
_displays: Final = msgspec.msgpack.Decoder(DisplayRecord)


def decoded_answer(body: bytes | memoryview, number: int, bounds: SandboxBounds) -> CheckedAnswer:
    """Return the answer to an order, within the bounds. Raise ProtocolError for anything else."""
    try:
        answer = _answers.decode(body)
        if answer.number != number:
            raise ProtocolError(f"it answers order {answer.number}, and not order {number}")
        wrong = _over(answer, bounds)
        tables: list[TableRecord] = []
        for raw in answer.tables if not wrong else ():
            # One after the other: a short table of many small values takes much more memory than bytes.
            table = _decoded_table(raw, bounds)
            if table is None:
                wrong = "a table is"
                break
            tables.append(table)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"it is no answer of a session: {error}") from None
    if wrong:
        raise ProtocolError(f"{wrong} over the bounds")
    return CheckedAnswer(answer, tables)


def decoded_display(
    body: bytes | memoryview, bounds: SandboxBounds
) -> tuple[DisplayRecord, TableRecord | None]:
    """Return a value that a run shows, and its table. Raise ProtocolError for anything else."""
    try:
        record = _displays.decode(body)
        tables = [_decoded_table(raw, bounds) for raw in record.tables[:1]]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"it is no value that a session shows: {error}") from None
    is_over = (
        len(record.text) > bounds.repr_chars
        or len(record.html) > HTML_CHARS_MAX
        or record.size > bounds.display_bytes
        or bool(record.png and not is_png(record.png))
        or bool(record.jpeg and not is_jpeg(record.jpeg))
        or _DISPLAY_ID.fullmatch(record.id) is None
        or len(record.tables) > 1
        or None in tables
    )
    if is_over:
        raise ProtocolError("a value that it shows is over the bounds")
    return record, tables[0] if tables else None


def _decoded_table(raw: msgspec.Raw, bounds: SandboxBounds) -> TableRecord | None:
    """Return a table; None if it is over the bounds."""
    if len(raw) > bounds.table_bytes:
        return None
    table = _tables.decode(raw)
    return None if _is_over(table, bounds) else table


def _over(answer: Answer, bounds: SandboxBounds) -> str:
    failure = answer.failure
    if len(answer.value_repr or "") > bounds.repr_chars:
        return "its value is"
    if len(answer.data) > bounds.value_bytes:
        return "its data are"
    if failure is not None and (
        len(failure.type) > TYPE_CHARS_MAX
        or len(failure.message) > MESSAGE_CHARS_MAX
        or len(failure.traceback) > TRACEBACK_CHARS_MAX
    ):
        return "its exception is"
    if len(answer.figures) > bounds.figures or any(
        len(figure) > bounds.figure_bytes or not is_png(figure) for figure in answer.figures
    ):
        return "a figure is"
    return "the number of tables is" if len(answer.tables) > bounds.tables else ""


def _is_over(table: TableRecord, bounds: SandboxBounds) -> bool:
    width = len(table.columns)
    return (
        width > bounds.table_columns
        or len(table.rows) > bounds.table_rows
        or any(len(name) > bounds.cell_chars for name in table.columns)
        or any(len(row) != width for row in table.rows)
        or any(isinstance(cell, str) and len(cell) > bounds.cell_chars for row in table.rows for cell in row)
    )
