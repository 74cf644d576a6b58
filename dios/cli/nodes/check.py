"""``dios-node check``: verifies and repairs the data of a stopped node.

``dios.node.check`` does the work.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import (
    FAILED,
    counted,
    size_text,
    table_of,
    transfer,
    waiting,
    write_facts,
    write_json,
    write_line,
)
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.target import DATA_OPTION, data_or_default
from dios.client.plain_text import plain
from dios.store.findings import MEANINGS, FindingLevel, StoreFinding

if TYPE_CHECKING:
    from dios.node.check import CheckResult

app: Final = CommandApplication()


class FindingRow(Row):
    """Something that is not as it has to be: its meaning, what to do, and what --repair would do."""

    kind: str
    level: str
    subject: str
    detail: str
    meaning: str
    advice: str
    repair: str


class CheckedNodeRow(Row):
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


def _row(checked: CheckResult) -> CheckedNodeRow:
    findings = [
        FindingRow.of(
            finding,
            kind=str(finding.kind),
            level=str(finding.level),
            meaning=MEANINGS[finding.kind].text,
            advice=MEANINGS[finding.kind].advice,
        )
        for finding in checked.findings
    ]
    counts = {str(kind): count for kind, count in checked.counts.items()}
    return CheckedNodeRow.of(checked, findings=findings, counts=counts)


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
    write_facts(
        {
            "data": checked.data,
            "objects": f"{checked.objects}, {size_text(checked.bytes)}, {checked.extents} in files",
            "audit": f"{counted(checked.audit_records, 'record')}, head {checked.audit_head}",
        }
    )
    for sentence in checked.repaired:
        sys.stdout.write(f"repaired  {plain(sentence)}\n")
    if checked.findings:
        sys.stdout.write("\n")
        table_of(
            (
                {
                    "level": str(finding.level),
                    "kind": str(finding.kind),
                    "of": finding.subject,
                    "what": finding.detail,
                }
                for finding in checked.findings
            ),
            whole=True,
        )
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
    examples="dios-node check --data ./node0\ndios-node check --data ./node0 --repair\n"
    "dios-node check --data /var/lib/dios --json | jq .ok",
    json=CheckedNodeRow,
)
def check(
    *,
    data: Path | None = DATA_OPTION,
    mend: bool = option(
        "--repair",
        "Repair everything that is possible without losing acknowledged data. Files in the way are "
        "moved to DIR/lost+found, never deleted.",
    ),
    output: OutputOptions,
) -> None:
    """Verify all data of a stopped node: every record, all contents, every file, and the audit log.

    Stop the node first. Without --repair nothing is changed. The exit status is 0 if everything that was
    acknowledged can be read, else 1. Remains of a crash that the next start removes do not count.
    """
    # Imported late, so that commands that start or stop a node load no database.
    from dios.node.check import check_node  # noqa: PLC0415 - see above

    checked = check_node(data_or_default(data), mend=mend, waiting=waiting, moving=transfer)
    if output.as_json:
        write_json(_row(checked))
    else:
        _show(checked)
    if not checked.ok:
        raise typer.Exit(FAILED)
