"""``dios doctor``: shows what this machine can enforce, the resulting guarantees, and advice.

``dios.node.doctor.diagnosis`` does the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import FAILED, JsonOption, reporting, waiting, write_json
from dios.client.locate import default_socket
from dios.client.plain_text import plain
from dios.node.doctor.diagnosis import Diagnosis, DoctorLevel, examine

_DEFAULT_DATA: Final = "node0"
_SIGNS: Final = {
    DoctorLevel.OK: "ok",
    DoctorLevel.WEAK: "weak",
    DoctorLevel.MISSING: "NO",
    DoctorLevel.UNKNOWN: "?",
}

app: Final = CommandApplication()


def _data_meant(data: Path | None) -> Path:
    """Return the given directory, else the default node's, else the one of the examples."""
    if data is not None:
        return data
    link = default_socket()
    return link.resolve().parent if link.exists() else Path(_DEFAULT_DATA)


def _line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def _show(diagnosis: Diagnosis) -> None:
    width = max(len(finding.name) for finding in diagnosis.findings)
    _line(f"Tests on this machine, as {diagnosis.user}:")
    for finding in diagnosis.findings:
        detail = plain(finding.detail)
        _line(f"  {_SIGNS[finding.level]:<4}  {finding.name.ljust(width)}  {finding.purpose} ({detail})")
    _line()
    _line("Promises of a node on this machine (docs/threat-model.md has their mechanisms and tests):")
    area = ""
    for guarantee in diagnosis.guarantees:
        if guarantee.area != area:
            area = guarantee.area
            _line(f" {area}")
        sign = "NO" if not guarantee.holds else "weak" if guarantee.weaker else "yes"
        lacks = "" if guarantee.holds else f" (missing: {', '.join(guarantee.missing)})"
        _line(f"  {sign:<4}  {guarantee.promise}{lacks}")
        for text in guarantee.weaker:
            _line(f"        here, {text}")
    advised: dict[str, list[str]] = {}
    for finding in diagnosis.findings:
        if finding.advice:
            advised.setdefault(finding.advice, []).append(finding.name)
    if advised:
        _line()
        _line("Advice:")
        for advice, names in advised.items():
            _line(f"  {', '.join(names)}: {plain(advice)}")
    _line()
    if diagnosis.confined:
        _line("Pure tasks are fully confined here.")
    elif diagnosis.fitness == "unknown":
        _line("It is not known yet if pure tasks can be confined here: run this command again.")
    else:
        _line("Pure tasks are NOT fully confined here. A node refuses them, unless it is started with")
        _line("--accept-weaker-sandbox, which gives up the guarantees marked NO above.")


@app.command(
    epilog="\b\nExamples:\n"
    "  dios doctor\n"
    "  dios doctor --data /var/lib/dios\n"
    "  dios doctor --json | jq .confined"
)
def doctor(
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="A present or future data directory; default: the default node's."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what this machine can enforce, what a node guarantees here, and what to change.

    Each mechanism is tried as the user who runs this command, so run it as the node's user. No node needs to
    run. The exit status is 0 if pure tasks are fully confined, else 1.
    """
    with reporting("dios doctor", as_json=as_json):
        with waiting("testing this machine"):
            diagnosis = examine(_data_meant(data))
        if as_json:
            write_json(diagnosis)
        else:
            _show(diagnosis)
        if not diagnosis.confined:
            raise typer.Exit(FAILED)
