"""``dios journal``: makes journals (DURABLE_STREAM), appends to them, reads and follows them.

``dios logs`` shows the output of tasks.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Final, NotRequired, TypedDict

import typer

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import JsonOption, NodeOption, facts, reporting, say, write_json, write_line
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

LogArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name, a path, or a fingerprint.")]
PositionOption = Annotated[
    int, typer.Option("--from", metavar="POSITION", min=0, help="Begin here; `read --json` shows positions.")
]


class CreatedLogRow(TypedDict):
    """A new journal, with its secret name."""

    label: str
    fingerprint: str
    name: str


class AppendedRow(TypedDict):
    """The number of entries that were appended, and the number of the last, 0 without any."""

    appended: int
    last: int


class EntryRow(TypedDict):
    """An entry of a journal, and the position of the next. It has base64 if it is not text."""

    position: int
    next: int
    text: NotRequired[str]
    base64: NotRequired[str]


def _log(place: CommandContext, text: str) -> Log:
    log = place.object(text)
    if not isinstance(log, Log):
        raise InvalidError(
            f"{text!r} is a {log.type.name}, not a journal. `dios journal create` makes a journal."
        )
    return log


@app.command(epilog="\b\nExamples:\n  dios journal create events --group analytics")
def create(
    label: Annotated[str, typer.Argument(metavar="PATH", help="Its path in the group.")],
    *,
    group: Annotated[str, typer.Option("--group", "-g", metavar="ALIAS", help="The group of the journal.")],
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an empty journal in a group. It exists until `dios rm` removes it."""
    with reporting("dios journal create", as_json=as_json), opened(node, [group]) as place:
        checked = checked_path(label)
        staged = StagedFiles(place.files(group))
        staged.require_new(checked)
        log = place.node.create_log(groups=[place.group(group)], secrecy=staged.files.secrecy or None)
        name = log.name or b""
        staged.add_object(checked, name)
        staged.publish()
        if as_json:
            created: CreatedLogRow = {
                "label": checked,
                "fingerprint": log.fingerprint,
                "name": format_name(name),
            }
            write_json(created)
            return
        facts([("journal", checked), ("group", group), ("fingerprint", log.fingerprint)])
        say(f"next: dios journal append {checked} TEXT")


@app.command(
    epilog="\b\nExamples:\n  dios journal append events 'it began'\n"
    "  tail -f app.log | dios journal append events"
)
def append(
    name: LogArgument,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="One entry each; default: each line of standard input."),
    ] = None,
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append entries to a journal. They are on disk when the command returns."""
    with reporting("dios journal append", as_json=as_json), opened(node) as place:
        log = _log(place, name)
        count = number = 0
        for batch in _batches(texts):
            number = log.append_all(batch)
            count += len(batch)
        if as_json:
            row: AppendedRow = {"appended": count, "last": number}
            write_json(row)
        else:
            say(f"{count} appended" + (f", the last is number {number}" if count else ""))


def _batches(texts: list[str] | None) -> Iterator[list[bytes]]:
    """Yield the entries to append together: up to 256 texts, or each line when it arrives."""
    if texts:
        for start in range(0, len(texts), _BATCH):
            yield [text.encode(errors="surrogateescape") for text in texts[start : start + _BATCH]]
        return
    while line := sys.stdin.buffer.readline(limits.LOG_ENTRY_BYTES_MAX + 1):
        yield [line.removesuffix(b"\n")]


@app.command(
    epilog="\b\nExamples:\n  dios journal read events\n  dios journal read events --from 8192 --json"
)
def read(
    name: LogArgument,
    *,
    position: PositionOption = 0,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the entries of a journal, one per line, up to its present end.

    --json prints an object for each entry: its text (base64 if it is not text), its position, and the
    position of the next entry.
    """
    with reporting("dios journal read", as_json=as_json), opened(node) as place:
        for entry in _log(place, name).entries(position):
            _show(entry, as_json=as_json)


@app.command(epilog="\b\nExamples:\n  dios journal follow events\n  dios journal follow events --new --json")
def follow(
    name: LogArgument,
    *,
    position: PositionOption = 0,
    new: Annotated[bool, typer.Option("--new", help="Only entries appended from now on.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="End after N entries.")
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the entries of a journal and new ones until Ctrl-C, in the format of `dios journal read`."""
    with reporting("dios journal follow", as_json=as_json), opened(node) as place:
        log = _log(place, name)
        for shown, entry in enumerate(log.follow(log.size if new else position), 1):
            _show(entry, as_json=as_json)
            sys.stdout.flush()
            if shown == count:
                return


def _show(entry: Entry, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(_described(entry)) + "\n")
    elif sys.stdout.isatty():
        write_line(entry.data.decode(errors="backslashreplace"))
    else:
        sys.stdout.buffer.write(entry.data + b"\n")


def _described(entry: Entry) -> EntryRow:
    row: EntryRow = {"position": entry.position, "next": entry.next}
    try:
        row["text"] = entry.data.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(entry.data).decode()
    return row
