"""``dios-node check``: whether everything is there that a stopped node acknowledged, and its repair.

Not for: finding any of it out (``dios.node.check``), or a node that runs (``dios-node status``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dios.cli.common.output import (
    FAILED,
    JsonOption,
    facts,
    plain,
    reporting,
    size_text,
    table,
    transfer,
    waiting,
    write_json,
)
from dios.client.locate import resolve_node
from dios.store.findings import MEANINGS, FindingLevel, StoreFinding

if TYPE_CHECKING:
    from dios.node.check import Checked

app: Final = typer.Typer(rich_markup_mode=None)


def _data_meant(data: Path | None) -> Path:
    """The data directory: what was given, else where the default node's socket is or was."""
    return resolve_node(None).resolve().parent if data is None else data


def _as_json(checked: Checked) -> dict[str, object]:
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
        "repaired": checked.repaired,
    }


def _explain(findings: list[StoreFinding]) -> None:
    """Each kind that occurs once, with what it means and what to do."""
    sys.stdout.write("\nWhat this means:\n")
    for kind in dict.fromkeys(finding.kind for finding in findings):
        meaning = MEANINGS[kind]
        sys.stdout.write(f"  {kind}: {meaning.text}\n")
        repairs = dict.fromkeys(each.repair for each in findings if each.kind is kind and each.repair)
        for repair in repairs:
            sys.stdout.write(f"    --repair: {repair}\n")
        if meaning.advice:
            sys.stdout.write(f"    else: {meaning.advice}\n" if repairs else f"    do: {meaning.advice}\n")


def _show(checked: Checked) -> None:
    facts(
        [
            ("data", checked.data),
            ("objects", f"{checked.objects}, {size_text(checked.bytes)}, {checked.extents} in files"),
            ("audit", f"{checked.audit_records} records, head {checked.audit_head}"),
        ]
    )
    for sentence in checked.repaired:
        sys.stdout.write(f"repaired  {plain(sentence)}\n")
    if checked.findings:
        sys.stdout.write("\n")
        rows = [[str(each.level), str(each.kind), each.subject, each.detail] for each in checked.findings]
        table(("level", "kind", "of", "what"), rows, whole=True)
        _explain(checked.findings)
    damages = sum(finding.level is FindingLevel.DAMAGE for finding in checked.findings)
    sys.stdout.write("\n")
    if checked.ok:
        sys.stdout.write("Everything that the node acknowledged is there and whole.\n")
    else:
        rest = "" if checked.repaired else "; docs/recovery.md tells of each"
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
        typer.Option("--data", metavar="DIR", help="A node's data directory; default: the default node's."),
    ] = None,
    mend: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Repair what can be repaired without losing what was acknowledged; what is in the way "
            "is moved to DIR/lost+found, never deleted.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify what a stopped node keeps: every row, every byte against its digest, every file, the audit log.

    The node must be stopped first. Without --repair nothing is changed. Exit status 0 when everything that
    was acknowledged can be read, 1 otherwise; what a crash left over, and what the next start clears away
    by itself, does not count.
    """
    # Late, so that whoever starts or stops a node loads no database.
    from dios.node.check import check_node  # noqa: PLC0415 - see above

    with reporting("dios-node check", as_json=as_json):
        checked = check_node(_data_meant(data), mend=mend, waiting=waiting, moving=transfer)
        if as_json:
            write_json(_as_json(checked))
        else:
            _show(checked)
        if not checked.ok:
            raise typer.Exit(FAILED)
