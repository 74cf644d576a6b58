"""``dios-node check``: verifies and repairs the data of a stopped node.

``dios.node.check`` does the work.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import (
    FAILED,
    JsonOption,
    counted,
    facts,
    reporting,
    size_text,
    table,
    transfer,
    waiting,
    write_json,
    write_line,
)
from dios.client.locate import resolve_node
from dios.client.plain_text import plain
from dios.store.findings import MEANINGS, FindingLevel, StoreFinding

if TYPE_CHECKING:
    from dios.node.check import CheckResult

app: Final = CommandApplication()


def _data_meant(data: Path | None) -> Path:
    """Return the given data directory, else that of the default node."""
    return resolve_node(None).resolve().parent if data is None else data


class FindingRow(TypedDict):
    """Something that is not as it has to be: its meaning, what to do, and what --repair would do."""

    kind: str
    level: str
    subject: str
    detail: str
    meaning: str
    advice: str
    repair: str


class CheckedNodeRow(TypedDict):
    """The result of a check: ``counts`` has the number of findings of each kind."""

    data: str
    ok: bool
    objects: int
    bytes: int
    extents: int
    audit_records: int
    audit_head: str
    findings: list[FindingRow]
    counts: dict[str, int]
    repaired: list[str]


def _as_json(checked: CheckResult) -> CheckedNodeRow:
    return {
        "data": checked.data,
        "ok": checked.ok,
        "objects": checked.objects,
        "bytes": checked.bytes,
        "extents": checked.extents,
        "audit_records": checked.audit_records,
        "audit_head": checked.audit_head,
        "findings": [
            {
                "kind": str(finding.kind),
                "level": str(finding.level),
                "subject": finding.subject,
                "detail": finding.detail,
                "meaning": MEANINGS[finding.kind].text,
                "advice": MEANINGS[finding.kind].advice,
                "repair": finding.repair,
            }
            for finding in checked.findings
        ],
        "counts": {str(kind): count for kind, count in checked.counts.items()},
        "repaired": checked.repaired,
    }


def _explain(findings: list[StoreFinding]) -> None:
    """Explain each kind of finding once: its meaning and what to do."""
    sys.stdout.write("\nWhat this means:\n")
    for kind in dict.fromkeys(finding.kind for finding in findings):
        meaning = MEANINGS[kind]
        sys.stdout.write(f"  {kind}: {meaning.text}\n")
        repairs = dict.fromkeys(
            finding.repair for finding in findings if finding.kind is kind and finding.repair
        )
        for repair in repairs:
            write_line(f"    --repair: {repair}")
        if meaning.advice:
            sys.stdout.write(f"    else: {meaning.advice}\n" if repairs else f"    do: {meaning.advice}\n")


def _show(checked: CheckResult) -> None:
    facts(
        [
            ("data", checked.data),
            ("objects", f"{checked.objects}, {size_text(checked.bytes)}, {checked.extents} in files"),
            ("audit", f"{counted(checked.audit_records, 'record')}, head {checked.audit_head}"),
        ]
    )
    for sentence in checked.repaired:
        sys.stdout.write(f"repaired  {plain(sentence)}\n")
    if checked.findings:
        sys.stdout.write("\n")
        rows = [
            [str(finding.level), str(finding.kind), finding.subject, finding.detail]
            for finding in checked.findings
        ]
        table(("level", "kind", "of", "what"), rows, whole=True)
        shown = Counter(finding.kind for finding in checked.findings)
        for kind, count in checked.counts.items():
            if count > shown[kind]:
                sys.stdout.write(f"and {count - shown[kind]} more of {kind}\n")
        _explain(checked.findings)
    damages = sum(
        count for kind, count in checked.counts.items() if MEANINGS[kind].level is FindingLevel.DAMAGE
    )
    sys.stdout.write("\n")
    if checked.ok:
        sys.stdout.write("Everything that the node acknowledged is there and intact.\n")
    else:
        rest = "" if checked.repaired else "; docs/recovery.md explains each kind"
        sys.stdout.write(f"{damages} thing{'s' * (damages != 1)} damaged{rest}.\n")


@app.command(
    epilog="\b\nExamples:\n"
    "  dios-node check --data ./node0\n"
    "  dios-node check --data ./node0 --repair\n"
    "  dios-node check --data /var/lib/dios --json | jq .ok"
)
def check(
    *,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="The node's data directory; default: the default node's."),
    ] = None,
    mend: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Repair everything that is possible without losing acknowledged data. Files in the way are "
            "moved to DIR/lost+found, never deleted.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify all data of a stopped node: every record, all contents, every file, and the audit log.

    Stop the node first. Without --repair nothing is changed. The exit status is 0 if everything that was
    acknowledged can be read, else 1. Remains of a crash that the next start removes do not count.
    """
    # Imported late, so that commands that start or stop a node load no database.
    from dios.node.check import check_node  # noqa: PLC0415 - see above

    with reporting("dios-node check", as_json=as_json):
        checked = check_node(_data_meant(data), mend=mend, waiting=waiting, moving=transfer)
        if as_json:
            write_json(_as_json(checked))
        else:
            _show(checked)
        if not checked.ok:
            raise typer.Exit(FAILED)
