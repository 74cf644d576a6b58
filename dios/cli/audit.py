"""``dios audit``: list, filter, follow and verify a node's audit log.

Not for: the log's format (``dios.host.audit``). It reads the files, so it works beside a running node and
without one, for whoever may read the node's data directory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.output import (
    FAILED,
    JsonOption,
    NodeOption,
    facts,
    plain,
    reporting,
    say,
    time_text,
    write_json,
)
from dios.client.locate import resolve_node
from dios.errors import UnreachableError
from dios.host.audit import segments
from dios.host.audit_reader import AuditReader, Entry, verify

FOLLOW_SECONDS: Final = 0.2

app: Final = typer.Typer(rich_markup_mode=None)


def log_folder(data: Path | None, node: str | None) -> Path:
    """Where the audit log of the node in question lies; raises UnreachableError when there is none."""
    # The socket lies in the data directory unless a setting says otherwise; then --data helps.
    folder = (data if data is not None else resolve_node(node).resolve().parent) / "audit"
    if not segments(folder):
        raise UnreachableError(
            f"there is no audit log in {folder}; name the node's data directory with --data"
        )
    return folder


def entry_line(entry: Entry) -> str:
    """One record as a line of the table."""
    record = entry.record
    # The table has one line for each record; --json shows a detail whole.
    detail = record.detail.split("\n", 1)[0]
    return plain(
        f"{entry.index:>7}  {time_text(record.now)}  {record.action:<10} {record.outcome:<8} "
        f"{record.principal:<10} {record.task or '-':<12} {record.subject or '-':<12}  {detail}".rstrip()
    )


def _json_line(entry: Entry) -> str:
    record = entry.record
    return json.dumps(
        {
            "index": entry.index,
            "now": record.now,
            "action": record.action,
            "outcome": record.outcome,
            "principal": record.principal,
            "task": record.task,
            "subject": record.subject,
            "detail": record.detail,
            "digest": entry.digest.hex(),
        },
        ensure_ascii=False,
    )


def _verify(folder: Path, anchor: str, *, as_json: bool) -> None:
    verdict = verify(folder, anchor=anchor)
    if as_json:
        write_json({name: getattr(verdict, name) for name in verdict.__struct_fields__})
    elif verdict.ok:
        facts([("audit log", "whole"), ("records", str(verdict.records)), ("head", verdict.head)])
        say("keep the head elsewhere: `dios audit --verify --anchor HEAD` shows later that nothing was cut")
        if verdict.torn_bytes:
            say(f"the last {verdict.torn_bytes} bytes are a record being written, or torn by a crash")
    else:
        facts(
            [("audit log", "DAMAGED"), ("problem", verdict.problem), ("good records", str(verdict.records))]
        )
        if verdict.index >= 0:
            place = f"record {verdict.index}, at byte {verdict.offset} of {verdict.segment}"
            facts([("first bad", place)])
    if not verdict.ok:
        raise typer.Exit(FAILED)


def _records(folder: Path, since: int, *, follow: bool) -> Iterator[Entry]:
    reader = AuditReader(folder)
    while True:
        yield from (entry for entry in reader.poll() if entry.index >= since)
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(FOLLOW_SECONDS)


@app.command(
    epilog="\b\nExamples:\n"
    "  dios audit --last 20\n"
    "  dios audit --outcome denied --follow\n"
    "  dios audit --task 3f9a --json | jq .action      (one JSON object a line)\n"
    "  dios audit --verify"
)
def audit(
    *,
    action: Annotated[
        str, typer.Option(metavar="WORD", help="Only this action: create, lookup, run, delegate, …")
    ] = "",
    outcome: Annotated[
        str, typer.Option(metavar="WORD", help="Only this outcome: ok, empty, denied, …")
    ] = "",
    task: Annotated[
        str, typer.Option(metavar="FINGERPRINT", help="Only by tasks whose fingerprint begins so.")
    ] = "",
    subject: Annotated[
        str, typer.Option(metavar="FINGERPRINT", help="Only about objects whose fingerprint begins so.")
    ] = "",
    since: Annotated[int, typer.Option(metavar="INDEX", min=0, help="From this record on.")] = 0,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="Only the last N that match; 0 for all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with records as they come.")] = False,
    check: Annotated[bool, typer.Option("--verify", help="Recompute the chain instead of listing.")] = False,
    anchor: Annotated[
        str,
        typer.Option(metavar="DIGEST", help="With --verify: a head seen earlier that must still be there."),
    ] = "",
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The node's data directory.")
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who did what to which object, when, and how it ended.

    Objects and tasks appear as fingerprints: the log holds no names. With --verify the exit status is 1
    when a record was changed, removed, inserted or moved.
    """
    with reporting("dios audit", as_json=as_json):
        folder = log_folder(data, node)
        if check:
            _verify(folder, anchor, as_json=as_json)
            return

        def matches(entry: Entry) -> bool:
            record = entry.record
            return (
                (not action or record.action == action)
                and (not outcome or record.outcome == outcome)
                and record.task.startswith(task)
                and record.subject.startswith(subject)
            )

        show = _json_line if as_json else entry_line
        skip = 0
        if last:
            seen = [entry.index for entry in _records(folder, since, follow=False) if matches(entry)]
            skip = seen[-last:][0] if seen else 0
        shown = 0
        for entry in _records(folder, max(since, skip), follow=follow):
            if matches(entry):
                sys.stdout.write(show(entry) + "\n")
                shown += 1
        if not shown and not as_json:
            say("no record matches")
