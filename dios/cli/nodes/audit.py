"""``dios audit``: list, search, follow and verify a node's audit log.

It reads the files, so that it works with and without a running node, for users who may read the node's data
directory.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.output import (
    FAILED,
    JsonOption,
    NodeOption,
    counted,
    facts,
    reporting,
    say,
    time_text,
    write_json,
)
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

ActionOption = Annotated[
    str, typer.Option("--action", metavar="WORD", help="Only this action: create, lookup, run, delegate, …")
]
OutcomeOption = Annotated[
    str, typer.Option("--outcome", metavar="WORD", help="Only this outcome: ok, empty, denied, …")
]
TaskOption = Annotated[
    str,
    typer.Option("--task", metavar="FINGERPRINT", help="Only tasks whose fingerprint begins like this."),
]
SubjectOption = Annotated[
    str,
    typer.Option("--subject", metavar="FINGERPRINT", help="Only objects whose fingerprint begins like this."),
]
SinceOption = Annotated[int, typer.Option("--since", metavar="INDEX", min=0, help="Begin at this record.")]
LastOption = Annotated[
    int, typer.Option("--last", metavar="N", min=0, help="Only the last N matching records; 0 for all.")
]
DataOption = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The node's data directory.")]


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A filter of audit records."""

    action: str = ""
    outcome: str = ""
    task: str = ""
    subject: str = ""
    since: int = 0
    pattern: re.Pattern[str] | None = None

    def fits(self, entry: AuditEntry) -> bool:
        """Return True if a record matches."""
        record = entry.record
        return (
            entry.index >= self.since
            and (not self.action or record.action == self.action)
            and (not self.outcome or record.outcome == self.outcome)
            and record.task.startswith(self.task)
            and record.subject.startswith(self.subject)
            and (self.pattern is None or self._holds(entry))
        )

    def _holds(self, entry: AuditEntry) -> bool:
        assert self.pattern is not None, "asked only when there is one"  # noqa: S101 - a private method
        record = entry.record
        fields = (
            record.action,
            record.outcome,
            record.principal,
            record.task,
            record.subject,
            record.detail,
        )
        return any(self.pattern.search(field) for field in fields)


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


class RecordRow(TypedDict):
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


def _json_line(entry: AuditEntry) -> str:
    record = entry.record
    row: RecordRow = {
        "index": entry.index,
        "now": record.now,
        "action": record.action,
        "outcome": record.outcome,
        "principal": record.principal,
        "task": record.task,
        "subject": record.subject,
        "detail": record.detail,
        "count": record.count,
        "first": record.first or record.now,
        "digest": entry.digest.hex(),
    }
    return json.dumps(row, ensure_ascii=False)


def _known_heads(folder: Path, files: list[Path]) -> KnownHeads:
    """Return the signed heads of the log in ``folder``, also those that other nodes keep."""
    # Imported late: the other commands need no network.
    import trio  # noqa: PLC0415 - see above

    from dios.node.head_keepers import ask_known_nodes  # noqa: PLC0415 - the same

    settings = load(folder.parent, environ={})
    kept_by_others = trio.run(ask_known_nodes, settings.data, limits.PEER_CONNECT_MS_MAX)
    return local_heads(settings, files).with_others(kept_by_others)


def _verify(folder: Path, anchor: str, files: list[Path], *, as_json: bool) -> None:
    known = _known_heads(folder, files)
    verdict = verify(folder, anchor=anchor, published=known.published)
    for reason in known.unknown:
        say(f"not compared with all heads: {reason}")
    if as_json:
        write_json(verdict)
    elif verdict.ok:
        facts([("audit log", "whole"), ("records", str(verdict.records)), ("head", verdict.head)])
        facts([("signed heads", f"{verdict.heads}, which agree with it")])
        for loss in verdict.lost:
            say(loss)
        if verdict.first:
            say(f"the node removed the records before {verdict.first}, as its settings say, and stated so")
        if verdict.torn_bytes:
            say(f"its end has {counted(verdict.torn_bytes, 'byte')} of a record being written, or cut off")
    else:
        facts(
            [("audit log", "DAMAGED"), ("problem", verdict.problem), ("good records", str(verdict.records))]
        )
        if verdict.segment:
            place = f"record {verdict.index}, at byte {verdict.offset} of {verdict.segment}"
            facts([("first bad", place)])
    if not verdict.ok:
        raise typer.Exit(FAILED)


def _show(folder: Path, chosen: RecordFilter, last: int, *, follow: bool, as_json: bool) -> int:
    """Print matching records, and with ``follow`` new ones until Ctrl-C. Return their number."""
    show: Callable[[AuditEntry], str] = _json_line if as_json else entry_line
    reader = AuditReader(folder)
    fitting = (entry for entry in reader.poll() if chosen.fits(entry))
    shown = 0
    for entry in deque(fitting, maxlen=last) if last else fitting:
        sys.stdout.write(show(entry) + "\n")
        shown += 1
    while follow:
        sys.stdout.flush()
        time.sleep(FOLLOW_SECONDS)
        for entry in reader.poll():
            if chosen.fits(entry):
                sys.stdout.write(show(entry) + "\n")
                shown += 1
    if not shown and not as_json:
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
    epilog="\b\nExamples:\n"
    "  dios audit --last 20\n"
    "  dios audit --task 3f9a --json | jq .action      (one JSON object a line)\n"
    "  dios audit grep denied\n"
    "  dios audit follow --outcome denied\n"
    "  dios audit verify",
)
def audit(
    context: typer.Context,
    *,
    action: ActionOption = "",
    outcome: OutcomeOption = "",
    task: TaskOption = "",
    subject: SubjectOption = "",
    since: SinceOption = 0,
    last: LastOption = 0,
    data: DataOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who did what to which object, when, and with what result.

    Objects and tasks appear as fingerprints, because the log contains no names. Subcommands search, follow
    and verify the log.
    """
    with reporting("dios audit", as_json=as_json):
        given = any((action, outcome, task, subject, since, last, data, node, as_json))
        if context.invoked_subcommand is None:
            chosen = RecordFilter(action, outcome, task, subject, since)
            _show(log_folder(data, node), chosen, last, follow=False, as_json=as_json)
        elif given:
            word = context.invoked_subcommand
            raise InvalidError(f"put options after the subcommand: dios audit {word} --outcome denied")


@app.command(
    epilog="\b\nExamples:\n  dios audit grep denied\n  dios audit grep --action ended 'Memory|Value'Error\n"
    "  dios audit grep uid:1000 --last 5 --json"
)
def grep(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A word, or a Python regular expression.")
    ],
    *,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Ignore the case of letters.")
    ] = False,
    action: ActionOption = "",
    outcome: OutcomeOption = "",
    task: TaskOption = "",
    subject: SubjectOption = "",
    since: SinceOption = 0,
    last: LastOption = 0,
    data: DataOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the records with PATTERN in action, outcome, principal, task, subject or detail.

    The exit status is 1 if there is none.
    """
    with reporting("dios audit grep", as_json=as_json):
        try:
            sought = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        except re.error as error:
            raise InvalidError(
                f"{pattern!r} is not a regular expression: {error}; a backslash before one of "
                ". * + ? ( ) [ ] { } | makes it a plain character"
            ) from None
        chosen = RecordFilter(action, outcome, task, subject, since, sought)
        if not _show(log_folder(data, node), chosen, last, follow=False, as_json=as_json):
            raise typer.Exit(FAILED)


@app.command(
    epilog="\b\nExamples:\n  dios audit follow\n  dios audit follow --outcome denied\n"
    "  dios audit follow --json | jq .detail"
)
def follow(
    *,
    action: ActionOption = "",
    outcome: OutcomeOption = "",
    task: TaskOption = "",
    subject: SubjectOption = "",
    since: SinceOption = 0,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="Begin with the last N records; 0 for all.")
    ] = FOLLOW_FROM,
    data: DataOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last records, then new records as they arrive, until Ctrl-C."""
    with reporting("dios audit follow", as_json=as_json):
        chosen = RecordFilter(action, outcome, task, subject, since)
        _show(log_folder(data, node), chosen, last, follow=True, as_json=as_json)


@app.command(
    "verify",
    epilog="\b\nExamples:\n  dios audit verify\n  dios audit verify --anchor DIGEST\n"
    "  dios audit verify --json | jq .head",
)
def verify_chain(
    *,
    anchor: Annotated[
        str,
        typer.Option(metavar="DIGEST", help="A head digest from an earlier time, which must still be there."),
    ] = "",
    heads: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file with signed heads of this log; more than once."),
    ] = None,
    data: DataOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the chain of digests, and compare it with the signed heads that this and other nodes keep.

    The exit status is 1 if a record was changed, removed, added or moved.
    """
    with reporting("dios audit verify", as_json=as_json):
        _verify(log_folder(data, node), anchor, heads or [], as_json=as_json)
