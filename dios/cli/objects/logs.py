"""``dios journal``: makes journals (DURABLE_STREAM), appends to them, reads and follows them.

``dios logs`` shows the output of tasks.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import Final

from msgspec import UNSET, UnsetType

from dios import limits
from dios.cli.common.application import LINES, CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import write_json_line, write_line
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.client.ops.logs import Entry
from dios.client.sync.node import Log
from dios.errors import InvalidError
from dios.lib.files.paths import checked_path
from dios.lib.files.staging import StagedFiles
from dios.wire.nametext import format_name

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Journals: entries on disk that are only appended, and can be read from any position.",
)

_BATCH: Final = 256

LOG_ARGUMENT: Final[str] = argument("NAME", "A name, a path, or a fingerprint.")
POSITION_OPTION: Final[int] = option(
    "--from POSITION", "Begin here; `read --json` shows positions.", default=0, min=0
)


class CreatedLogRow(Row):
    """A new journal, with its secret name."""

    label: str
    fingerprint: str
    name: str


class AppendedRow(Row):
    """The number of entries that were appended, and the number of the last, 0 without any."""

    appended: int
    last: int


class EntryRow(Row):
    """An entry of a journal, and the position of the next. It has base64 if it is not text."""

    position: int
    next: int
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


def _log(place: CommandContext, text: str) -> Log:
    log = place.object(text)
    if not isinstance(log, Log):
        raise InvalidError(
            f"{text!r} is a {log.type.name}, not a journal. `dios journal create` makes a journal."
        )
    return log


@app.command(examples="dios journal create events --group analytics", json=CreatedLogRow)
def create(
    label: str = argument("PATH", "Its path in the group."),
    *,
    group: str = option("-g --group ALIAS", "The group of the journal.", required=True),
    common: CommonOptions,
) -> None:
    """Make an empty journal in a group. It exists until `dios rm` removes it."""
    with opened(common.node, [group]) as place:
        checked = checked_path(label)
        staged = StagedFiles(place.files(group))
        staged.require_new(checked)
        log = place.node.create_log(groups=[place.group(group)], secrecy=staged.files.secrecy or None)
        name = log.name or b""
        staged.add_object(checked, name)
        staged.publish()
        common.print_row(
            CreatedLogRow(checked, log.fingerprint, format_name(name)),
            f"next: dios journal append {checked} TEXT",
            facts={"journal": checked, "group": group, "fingerprint": log.fingerprint},
        )


@app.command(
    examples="dios journal append events 'it began'\ntail -f app.log | dios journal append events",
    json=AppendedRow,
)
def append(
    name: str = LOG_ARGUMENT,
    texts: list[str] | None = argument("[TEXT]...", "One entry each; default: each line of standard input."),
    *,
    common: CommonOptions,
) -> None:
    """Append entries to a journal. They are on disk when the command returns."""
    with opened(common.node) as place:
        log = _log(place, name)
        count = number = 0
        for batch in _batches(texts):
            number = log.append_all(batch)
            count += len(batch)
        more = f", the last is number {number}" if count else ""
        common.print_row(AppendedRow(count, number), f"{count} appended{more}")


def _batches(texts: list[str] | None) -> Iterator[list[bytes]]:
    """Yield the entries to append together: up to 256 texts, or each line when it arrives."""
    if texts:
        for start in range(0, len(texts), _BATCH):
            yield [text.encode(errors="surrogateescape") for text in texts[start : start + _BATCH]]
        return
    while line := sys.stdin.buffer.readline(limits.LOG_ENTRY_BYTES_MAX + 1):
        yield [line.removesuffix(b"\n")]


@app.command(
    examples="dios journal read events\ndios journal read events --from 8192 --json",
    json=EntryRow,
    note=LINES,
)
def read(name: str = LOG_ARGUMENT, *, position: int = POSITION_OPTION, common: CommonOptions) -> None:
    """Print the entries of a journal, one per line, up to its present end.

    --json prints an object for each entry: its text (base64 if it is not text), its position, and the
    position of the next entry.
    """
    with opened(common.node) as place:
        for entry in _log(place, name).entries(position):
            _show(entry, as_json=common.as_json)


@app.command(
    examples="dios journal follow events\ndios journal follow events --new --json", json=EntryRow, note=LINES
)
def follow(
    name: str = LOG_ARGUMENT,
    *,
    position: int = POSITION_OPTION,
    new: bool = option("--new", "Only entries appended from now on."),
    count: int | None = option("-n --count N", "End after N entries.", min=1),
    common: CommonOptions,
) -> None:
    """Print the entries of a journal and new ones until Ctrl-C, in the format of `dios journal read`."""
    with opened(common.node) as place:
        log = _log(place, name)
        for shown, entry in enumerate(log.follow(log.size if new else position), 1):
            _show(entry, as_json=common.as_json)
            sys.stdout.flush()
            if shown == count:
                return


def _show(entry: Entry, *, as_json: bool) -> None:
    if as_json:
        write_json_line(_described(entry))
    elif sys.stdout.isatty():
        write_line(entry.data.decode(errors="backslashreplace"))
    else:
        sys.stdout.buffer.write(entry.data + b"\n")


def _described(entry: Entry) -> EntryRow:
    try:
        return EntryRow(entry.position, entry.next, text=entry.data.decode())
    except UnicodeDecodeError:
        return EntryRow(entry.position, entry.next, base64=base64.b64encode(entry.data).decode())
