"""``dios doctor``: shows what this machine can enforce, the resulting guarantees, and advice.

``dios.node.doctor.diagnosis`` does the tests.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import FAILED, waiting, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.nodes.fitness import fitness_at
from dios.client.locate import default_socket
from dios.client.node_socket import data_directory
from dios.client.plain_text import plain
from dios.node import daemon
from dios.node.doctor.diagnosis import Diagnosis, examine
from dios.node.doctor.finding import DoctorLevel
from dios.node.settings import load
from dios.wire.types import Fitness

_DEFAULT_DATA: Final = "node0"
_SIGNS: Final = {
    DoctorLevel.OK: "ok",
    DoctorLevel.WEAK: "weak",
    DoctorLevel.MISSING: "NO",
    DoctorLevel.UNKNOWN: "?",
}
_PROBLEMS: Final = (DoctorLevel.MISSING, DoctorLevel.UNKNOWN)
_LINES_MAX: Final = 5
_WIDTH: Final = 79

app: Final = CommandApplication()


def _data_meant(data: Path | None) -> Path:
    """Return the given directory, else the default node's, else the one of the examples."""
    if data is not None:
        return data
    return data_directory(default_socket()) or Path(_DEFAULT_DATA)


def _running_node(data: Path) -> str:
    """Return what a node that runs on ``data`` says of its fitness for pure tasks; empty if none runs."""
    socket = load(data).socket
    return fitness_at(socket).text if daemon.find(socket) is not None else ""


def _line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def verdict_of(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return a line that says what this machine can do, and one with its first problem and the remedy."""
    problems = [finding for finding in diagnosis.findings if finding.level in _PROBLEMS]
    unknown = [finding for finding in problems if finding.level is DoctorLevel.UNKNOWN]
    if diagnosis.confined:
        first = f"Pure tasks are fully confined here, as {diagnosis.user}."
    elif diagnosis.fitness == Fitness.UNKNOWN.name.lower():
        names = ", ".join(finding.name for finding in unknown)
        return (
            f"It is not known yet if pure tasks are fully confined here: no answer of {names}.",
            "Run `dios doctor` again; a machine that is busy answers late.",
        )
    else:
        first = "Pure tasks are NOT fully confined here, and a node refuses them."
    if problems:
        problem = problems[0]
        return (
            first,
            f"First problem: {problem.name} ({_cut(plain(problem.detail))}). Remedy: {problem.advice}.",
        )
    weak = sum(finding.level is DoctorLevel.WEAK for finding in diagnosis.findings)
    held = sum(guarantee.holds for guarantee in diagnosis.guarantees)
    tests = f"{len(diagnosis.findings) - weak} of {len(diagnosis.findings)} tests are ok"
    return first, f"{tests}, and a node keeps {held} of {len(diagnosis.guarantees)} promises."


def _show_verdict(diagnosis: Diagnosis) -> None:
    for line in verdict_of(diagnosis):
        _wrapped(line)
    if diagnosis.running_node:
        _wrapped(f"The node that runs on {diagnosis.data} says of pure tasks: {diagnosis.running_node}.")


def _show(diagnosis: Diagnosis) -> None:
    """Show the verdict, and what is not ok: at most a screen."""
    _show_verdict(diagnosis)
    imperfect = [finding for finding in diagnosis.findings if finding.level is not DoctorLevel.OK]
    imperfect.sort(key=lambda finding: finding.level is DoctorLevel.WEAK)
    if imperfect:
        _line()
        _line("Not ok:")
        width = max(len(finding.name) for finding in imperfect)
        _some([f"{_SIGNS[row.level]:<4}  {row.name.ljust(width)}  {plain(row.detail)}" for row in imperfect])
    broken = [guarantee.promise for guarantee in diagnosis.guarantees if not guarantee.holds]
    if broken:
        _line()
        _line("A node here does not promise:")
        _some(broken)
    _line()
    _line("`dios doctor -v` shows all tests, all promises and all advice.")


def _some(texts: Sequence[str]) -> None:
    """Write the first of these texts, each on one line of a screen, and the number of the others."""
    for text in texts[:_LINES_MAX]:
        _line("  " + _cut(text))
    if len(texts) > _LINES_MAX:
        _line(f"  and {len(texts) - _LINES_MAX} more")


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH - 2 else text[: _WIDTH - 4].rsplit(" ", 1)[0] + " …"


def _wrapped(text: str) -> None:
    for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
        _line(line)


def _show_all(diagnosis: Diagnosis) -> None:
    """Show the verdict, every test, every promise, and all advice."""
    _show_verdict(diagnosis)
    _line()
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
    if not diagnosis.confined:
        _line()
        _wrapped(
            "A node that is started with --accept-weaker-sandbox runs pure tasks all the same. It gives up "
            "the promises that are marked NO."
        )


@app.command(
    examples="dios doctor\ndios doctor -v                    (every test and every promise)\n"
    "dios doctor --data /var/lib/dios\ndios doctor --json | jq .confined",
    json="dios.node.doctor.diagnosis:Diagnosis",
)
def doctor(
    *,
    data: Path | None = option(
        "--data DIR", "A present or future data directory; default: the default node's."
    ),
    verbose: bool = option("-v --verbose", "Show every test, every promise and all advice."),
    output: OutputOptions,
) -> None:
    """Show what this machine can enforce, and what is missing, with the first remedy.

    Each mechanism is tried as the user who runs this command, so run it as the node's user. No node needs to
    run. The exit status is 0 if pure tasks are fully confined, else 1.
    """
    with waiting("testing this machine"):
        place = _data_meant(data)
        diagnosis = replace(examine(place), running_node=_running_node(place))
    if output.as_json:
        write_json(diagnosis)
    elif verbose:
        _show_all(diagnosis)
    else:
        _show(diagnosis)
    if not diagnosis.confined:
        raise typer.Exit(FAILED)
