"""The records between a handle of a sandbox's owner and the supervisor in the session.

An order is a blob that names four streams by their fingerprints. The owner delegates the streams and then the
blob to the task of the session, so that every connection that may write to the task can give orders. The
session is hostile: what it sends is decoded as exactly these types.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from dios.errors import ProtocolError
from dios.lib.sandbox.bounds import MESSAGE_CHARS_MAX, TYPE_CHARS_MAX
from dios.limits import FINGERPRINT_CHARS_MAX, KIB, MIB, SANDBOX_PROGRAMS_MAX

PROGRAM_CHARS_MAX: Final = 256
"""The letters of the name of a program in a list; the session cuts longer ones."""

OUTPUT_BYTES_MAX: Final = 64 * KIB
"""The bytes of output in one frame."""

RECORD_BYTES_MAX: Final = 256 * KIB
"""The bytes of one record of the session."""

ORDER_BYTES_MAX: Final = 16 * MIB
"""The bytes of an order: the arguments of a program."""

ROWS_MAX: Final = 10_000
"""The rows and the columns of a terminal."""

RECORD: Final = 1
"""The kind of the frames with one record, in both directions."""

STATUS_MIN: Final = -128
STATUS_MAX: Final = 255

Fingerprint: TypeAlias = Annotated[str, msgspec.Meta(max_length=FINGERPRINT_CHARS_MAX)]
ProgramNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""The owner chooses it, so that the audit log has it before the program starts."""
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]
ExitStatus: TypeAlias = Annotated[int, msgspec.Meta(ge=STATUS_MIN, le=STATUS_MAX)]
"""The exit status, or the negative number of a signal."""


class Streams(msgspec.Struct, frozen=True, array_like=True):
    """The fingerprints of the streams of a channel: to the session, from it, then both for bytes."""

    control: Fingerprint
    status: Fingerprint
    input: Fingerprint
    output: Fingerprint


class TerminalSize(msgspec.Struct, frozen=True, array_like=True):
    """The size of a terminal in letters."""

    rows: Rows
    columns: Rows


# -- orders, in blobs -----------------------------------------------------------------------------
class StartProgram(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Start a program. ``variables`` None are those of the session. With a size it has a terminal."""

    streams: Streams
    number: ProgramNumber
    arguments: list[str]
    folder: str
    variables: dict[str, str] | None
    terminal: TerminalSize | None


class AttachProgram(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Give the streams of a program to this channel; the former one ends."""

    streams: Streams
    number: ProgramNumber


class ListPrograms(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Send the programs that run, and those that ended and whose output was not read."""

    streams: Streams


class ConnectPort(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Connect to a server on the loopback of the sandbox."""

    streams: Streams
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


Order: TypeAlias = StartProgram | AttachProgram | ListPrograms | ConnectPort


# -- during a channel -----------------------------------------------------------------------------
class SendSignal(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Send a signal to the program and its process group."""

    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class ResizeTerminal(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Give the terminal of the program another size."""

    size: TerminalSize


class EndInput(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Close the standard input of the program after the bytes that were sent."""


Control: TypeAlias = SendSignal | ResizeTerminal | EndInput


# -- from the session -----------------------------------------------------------------------------
class Started(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The program runs, or the connection is there."""

    has_terminal: bool = False


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The program has ended; its output may still come."""

    status: ExitStatus


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The order failed: the type of the exception and its text."""

    kind: Annotated[str, msgspec.Meta(max_length=TYPE_CHARS_MAX)]
    message: Annotated[str, msgspec.Meta(max_length=MESSAGE_CHARS_MAX)]


class Detached(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Another channel has the program now."""


class ProgramRow(msgspec.Struct, frozen=True, array_like=True):
    """A program: its number, name, number of arguments, and status if it has ended."""

    number: ProgramNumber
    program: Annotated[str, msgspec.Meta(max_length=PROGRAM_CHARS_MAX)]
    arguments: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    status: ExitStatus | None
    is_attached: bool
    has_terminal: bool


class Programs(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The programs of the session."""

    rows: Annotated[list[ProgramRow], msgspec.Meta(max_length=2 * SANDBOX_PROGRAMS_MAX)]


Record: TypeAlias = Started | Ended | Failed | Detached | Programs

orders: Final = msgspec.msgpack.Decoder(Order)
controls: Final = msgspec.msgpack.Decoder(Control)
_records: Final = msgspec.msgpack.Decoder(Record)


def decoded_record(body: bytes | memoryview) -> Record:
    """Return a record of the session. Raise ProtocolError for anything else."""
    try:
        return _records.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"it is no record of a supervisor: {error}") from None
