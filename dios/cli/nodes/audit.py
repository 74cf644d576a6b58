"""``dios audit``: list, search, follow and verify a node's audit log.

It reads the files, so that it works with and without a running node, for users who may read the node's data
directory.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import typer
from msgspec import structs, to_builtins

from dios import limits
from dios.cli.common.application import LINES, CommandApplication, Output, calls_group
from dios.cli.common.options import Options, argument, option
from dios.cli.common.output import FAILED, counted, say, time_text
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.client.locate import resolve_node
from dios.client.plain_text import plain
from dios.errors import InvalidError, UnreachableError
from dios.host.audit.heads import KnownHeads
from dios.host.audit.log import segments
from dios.host.audit.reader import AuditEntry, AuditReader, verify
from dios.node.audit_heads import local_heads
from dios.node.settings import load

FOLLOW_SECONDS: Final = 0.2
FOLLOW_FROM: Final = 10

app: Final = CommandApplication()

DATA_OPTION: Final[Path | None] = option("--data DIR", "The node's data directory.")
LAST_OPTION: Final[int] = option("--last N", "Only the last N matching records; 0 for all.", default=0, min=0)


class FilterOptions(Options):
    """A filter of audit records."""

    action: str = option("--action WORD", "Only this action: create, lookup, run, delegate, …")
    outcome: str = option("--outcome WORD", "Only this outcome: ok, empty, denied, …")
    task: str = option("--task FINGERPRINT", "Only tasks whose fingerprint begins like this.")
    subject: str = option("--subject FINGERPRINT", "Only objects whose fingerprint begins like this.")
    since: int = option("--since INDEX", "Begin at this record.", default=0, min=0)
    data: Path | None = DATA_OPTION

    def fits(self, entry: AuditEntry) -> bool:
        """Return True if a record matches."""
        record = entry.record
        return (
            entry.index >= self.since
            and self.action in {"", record.action}
            and self.outcome in {"", record.outcome}
            and record.task.startswith(self.task)
            and record.subject.startswith(self.subject)
        )


def _mentions(entry: AuditEntry, pattern: re.Pattern[str]) -> bool:
    record = entry.record
    fields = (record.action, record.outcome, record.principal, record.task, record.subject, record.detail)
    return any(map(pattern.search, fields))


def log_folder(data: Path | None, node: str | None) -> Path:
    """Return the folder of the node's audit log. Raise UnreachableError if there is none."""
    # The socket is in the data directory unless a setting says otherwise; use --data then.
    folder = (data if data is not None else resolve_node(node).resolve().parent) / "audit"
    if not segments(folder):
        raise UnreachableError(
            f"there is no audit log in {folder}. Give the node's data directory with --data."
        )
    return folder


def entry_line(entry: AuditEntry) -> str:
    """Format a record as a line of the table."""
    record = entry.record
    # One line per record; --json shows the whole detail.
    detail = record.detail.split("\n", 1)[0]
    if record.count > 1:
        detail += f" [{counted(record.count, 'time')} since {time_text(record.first)}]"
    return plain(
        f"{entry.index:>7}  {time_text(record.now)}  {record.action:<10} {record.outcome:<8} "
        f"{record.principal:<10} {record.task or '-':<12} {record.subject or '-':<12}  {detail}".rstrip()
    )


class RecordRow(Row):
    """A record of the audit log. One of several equal refusals has their number, and the time of the first.

    Times are nanoseconds since 1970.
    """

    index: int
    now: int
    action: str
    outcome: str
    principal: str
    task: str
    subject: str
    detail: str
    count: int
    first: int
    digest: str


def _record_row(entry: AuditEntry) -> RecordRow:
    first = entry.record.first or entry.record.now
    return RecordRow.of(entry.record, index=entry.index, first=first, digest=entry.digest.hex())


def _known_heads(folder: Path, files: list[Path]) -> KnownHeads:
    """Return the signed heads of the log in ``folder``, also those that other nodes keep.

    Raise InvalidError if one of ``files`` cannot have any.
    """
    # Imported late: the other commands need no network.
    import trio  # noqa: PLC0415 - see above

    from dios.node.head_keepers import ask_known_nodes  # noqa: PLC0415 - the same

    for path in files:
        # Unlike ``Path.is_file``, it also returns False if the folder cannot be read.
        if not os.path.isfile(path):  # noqa: PTH113
            raise InvalidError(
                f"cannot compare the log with the heads in {path}: it {_state_of(path)}. Give --heads a file "
                "that the setting audit_heads named, or a copy of it."
            )
    settings = load(folder.parent, environ={})
    kept_by_others = trio.run(ask_known_nodes, settings.data, limits.PEER_CONNECT_MS_MAX)
    return local_heads(settings, files).with_others(kept_by_others)


def _state_of(path: Path) -> str:
    is_there = os.path.exists(path)  # noqa: PTH110 - as above
    return "is no regular file" if is_there else "does not exist, or its folder cannot be read"


def _show(
    filters: FilterOptions,
    common: CommonOptions,
    last: int,
    *,
    pattern: re.Pattern[str] | None = None,
    follow: bool = False,
) -> int:
    """Print matching records, and with ``follow`` new ones until Ctrl-C. Return their number."""

    def matching() -> Iterator[AuditEntry]:
        return (
            entry
            for entry in reader.poll()
            if filters.fits(entry) and (pattern is None or _mentions(entry, pattern))
        )

    reader = AuditReader(log_folder(filters.data, common.node))
    shown = 0
    entries: Iterable[AuditEntry] = deque(matching(), maxlen=last) if last else matching()
    while True:
        for entry in entries:
            line = json.dumps(to_builtins(_record_row(entry)), ensure_ascii=False)
            sys.stdout.write((line if common.as_json else entry_line(entry)) + "\n")
            shown += 1
        if not follow:
            break
        sys.stdout.flush()
        time.sleep(FOLLOW_SECONDS)
        entries = matching()
    if not shown and not common.as_json:
        say("no record matches")
    return shown


def records_about(folder: Path, fingerprint: str) -> Iterator[AuditEntry]:
    """Yield the records of a task's operations, and of operations on the task."""
    return (
        entry
        for entry in AuditReader(folder).poll()
        if fingerprint in (entry.record.task, entry.record.subject)
    )


@app.callback(
    invoke_without_command=True,
    examples="dios audit --last 20\n"
    "dios audit --task 3f9a --json | jq .action      (one JSON object a line)\n"
    "dios audit grep denied\ndios audit follow --outcome denied\ndios audit verify",
    json=Output((RecordRow,), note=LINES),
)
def audit(
    context: typer.Context, *, filters: FilterOptions, last: int = LAST_OPTION, common: CommonOptions
) -> None:
    """Show who did what to which object, when, and with what result.

    Objects and tasks appear as fingerprints, because the log contains no names. Subcommands search, follow
    and verify the log.
    """
    if calls_group(context):
        _show(filters, common, last)


@app.command(
    examples="dios audit grep denied\ndios audit grep --action ended 'Memory|Value'Error\n"
    "dios audit grep uid:1000 --last 5 --json",
    json=RecordRow,
    note=LINES,
)
def grep(
    pattern: str = argument("PATTERN", "A word, or a Python regular expression."),
    *,
    ignore_case: bool = option("-i --ignore-case", "Ignore the case of letters."),
    filters: FilterOptions,
    last: int = LAST_OPTION,
    common: CommonOptions,
) -> None:
    """Show the records with PATTERN in action, outcome, principal, task, subject or detail.

    The exit status is 1 if there is none.
    """
    try:
        sought = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise InvalidError(
            f"{pattern!r} is not a regular expression: {error}; a backslash before one of "
            ". * + ? ( ) [ ] { } | makes it a plain character"
        ) from None
    if not _show(filters, common, last, pattern=sought):
        raise typer.Exit(FAILED)


@app.command(
    examples="dios audit follow\ndios audit follow --outcome denied\ndios audit follow --json | jq .detail",
    json=RecordRow,
    note=LINES,
)
def follow(
    *,
    filters: FilterOptions,
    last: int = option("--last N", "Begin with the last N records; 0 for all.", default=FOLLOW_FROM, min=0),
    common: CommonOptions,
) -> None:
    """Show the last records, then new records as they arrive, until Ctrl-C."""
    _show(filters, common, last, follow=True)


@app.command(
    "verify",
    examples="dios audit verify\ndios audit verify --anchor DIGEST\ndios audit verify --json | jq .head",
    json="dios.host.audit.reader:Verdict",
)
def verify_chain(
    *,
    anchor: str = option("--anchor DIGEST", "A head digest from an earlier time, which must still be there."),
    heads: list[Path] | None = option(
        "--heads FILE", "A file with signed heads of this log; more than once."
    ),
    data: Path | None = DATA_OPTION,
    common: CommonOptions,
) -> None:
    """Verify the chain of digests, and compare it with the signed heads that this and other nodes keep.

    The exit status is 1 if a record was changed, removed, added or moved.
    """
    folder = log_folder(data, common.node)
    known = _known_heads(folder, heads or [])
    verdict = verify(folder, anchor=anchor, published=known.published)
    verdict = structs.replace(verdict, unknown=known.unknown)
    notices = [f"not compared with all heads: {reason}" for reason in verdict.unknown]
    if verdict.ok:
        notices += verdict.lost
        if verdict.first:
            notices.append(
                f"the node removed the records before {verdict.first}, as its settings say, and stated so"
            )
        if verdict.torn_bytes:
            notices.append(
                f"its end has {counted(verdict.torn_bytes, 'byte')} of a record being written, or cut off"
            )
        common.print_row(
            verdict,
            *notices,
            facts={
                "audit log": "whole",
                "records": verdict.records,
                "head": verdict.head,
                "signed heads": f"{verdict.heads}, which agree with it",
            },
        )
        return
    place = f"record {verdict.index}, at byte {verdict.offset} of {verdict.segment}"
    common.print_row(
        verdict,
        *notices,
        facts={
            "audit log": "DAMAGED",
            "problem": verdict.problem,
            "good records": verdict.records,
            "first bad": place if verdict.segment else None,
        },
    )
    raise typer.Exit(FAILED)
