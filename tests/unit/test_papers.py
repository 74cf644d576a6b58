"""docs/papers.md lists all that the papers number, and each command, module and file in it exists."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from dios.cli.main import app

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "papers.md").read_text()
MODULE: Final = re.compile(r"(?:dios|labs)(?:\.\w+)+")
FILE: Final = re.compile(r"(?:dios|labs|docs|tests|examples)/[\w/.-]+")
REASON: Final = re.compile(r"(?:None|Not yet): \S+(?: \S+)+")
"""A row without a counterpart has a reason of at least two words."""


def numbers(kind: str, chapter: str, last: int) -> list[str]:
    """Return the items ``kind chapter.1`` to ``kind chapter.last``, or ``kind 1`` to ``kind last``."""
    return [f"{kind} {chapter}{at}" for at in range(1, last + 1)]


PAPERS: Final = {
    "Operating system support for warehouse-scale computing": [
        item
        for kind, chapters in {
            "Figure": {"2": 9, "3": 4, "4": 11, "5": 5, "6": 8, "7": 5, "8": 7, "A": 5, "C": 3},
            "Table": {"2": 8, "3": 1, "4": 7, "5": 1, "6": 4, "7": 2, "8": 6, "C": 3},
            "Listing": {"4": 6, "5": 1, "7": 1, "9": 1, "C": 1},
            "Algorithm": {"C": 1},
        }.items()
        for chapter, last in chapters.items()
        for item in numbers(kind, f"{chapter}.", last)
    ],
    "Improving software middleboxes and datacenter task schedulers": [
        *numbers("Figure", "1.", 1),
        *numbers("Figure", "2.", 6),
        *numbers("Figure", "3.", 9),
        *numbers("Figure", "4.", 11),
        *numbers("Table", "3.", 2),
        *numbers("Table", "4.", 1),
        *numbers("Algorithm", "", 1),
    ],
    "DC-DRF: adaptive multi-resource sharing at public cloud scale": [
        *numbers("Figure", "", 11),
        *numbers("Table", "", 3),
        *numbers("Algorithm", "", 2),
    ],
    "Stateful dominant resource fairness": [
        *numbers("Figure", "", 7),
        *numbers("Algorithm", "", 1),
        "Proposition 6",
    ],
    "The Packer paper": [*numbers("Figure", "", 8), "Table I", *numbers("Algorithm", "", 2)],
}
"""The numbers of each publication, from its lists of figures, tables and listings, and its captions."""


class Row(NamedTuple):
    """One line of a table of the page."""

    item: str
    subject: str
    here: str


def rows(paper: str) -> list[Row]:
    """Return the rows of a paper's section."""
    section = PAGE.partition(f"\n## {paper}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [Row(*row) for row in cells if row[0] != "item"]


ALL_ROWS: Final = [row for paper in PAPERS for row in rows(paper)]


@pytest.mark.parametrize("paper", PAPERS)
def test_each_number_of_a_paper_has_one_row(paper: str) -> None:
    """Figures, tables, algorithms and listings: none is missing, none is listed twice, none is invented."""
    assert Counter(row.item for row in rows(paper)) == Counter(PAPERS[paper])


def test_each_row_begins_with_its_counterpart_or_with_the_reason_for_none() -> None:
    """A command, a module, a file, or ``None`` or ``Not yet`` with words that say why."""
    vague = [
        row
        for row in ALL_ROWS
        if not REASON.match(row.here)
        and not ((start := re.match(r"`([^`]+)`", row.here)) and _kind(start[1]) != "unknown")
    ]
    assert not vague


def _kind(code: str) -> str:
    if code.startswith("dios "):
        return "command"
    if MODULE.fullmatch(code):
        return "module"
    return "file" if FILE.fullmatch(code) else "unknown"


def _codes(kind: str) -> list[str]:
    codes = {code for row in ALL_ROWS for code in re.findall(r"`([^`]+)`", row.here)}
    return sorted(code for code in codes if _kind(code) == kind)


def test_each_module_and_file_exists() -> None:
    """A module is a file or folder below ``dios`` or ``labs``; a path is in the repository."""
    gone = [
        code
        for code in _codes("module")
        if not any((ROOT / (code.replace(".", "/") + end)).exists() for end in (".py", "/__init__.py"))
    ]
    gone += [code for code in _codes("file") if not (ROOT / code).exists()]
    assert not gone


def lookup(words: list[str]) -> str:
    """Return the trouble with the words of a command line, or nothing."""
    command: object = get_command(app)
    context = typer.Context(command, info_name="dios")  # type: ignore[arg-type]
    at = 0
    while isinstance(command, TyperGroup) and at < len(words) and not words[at].startswith("-"):
        command = command.get_command(context, words[at])
        at += 1
    if command is None or isinstance(command, TyperGroup):
        return f"there is no command {' '.join(words[:at])}"
    flags = {flag for parameter in command.params for flag in parameter.opts}  # type: ignore[attr-defined]
    return ", ".join(word for word in words[at:] if word.startswith("--") and word not in flags)


def test_each_command_and_its_figure_exists() -> None:
    """The command is below ``dios``, has the options of its row, and makes the figures that it names."""
    commands = _codes("command")
    wrong = {code: trouble for code in commands if (trouble := lookup(code.split()[1:]))}
    for code in commands:
        match code.split():
            case ["dios", "lab", "repro", family, *options]:
                evaluation = importlib.import_module(f"labs.papers.{family.replace('-', '_')}.evaluation")
                named = [options[at + 1] for at, word in enumerate(options) if word == "--figure"]
                missing = [number for number in named if number not in evaluation.FIGURES]
                if missing or not named:
                    wrong[code] = f"no figure {missing}"
    assert not wrong


def test_a_command_that_does_not_exist_is_found() -> None:
    """The lookup of the test above refuses what does not exist: a command, a family and an option."""
    assert lookup(["lab", "repro", "nothing"])
    assert lookup(["lab", "repro"])
    assert lookup(["lab", "repro", "sdrf", "--nothing"])
    assert not lookup(["lab", "repro", "sdrf", "--figure", "4"])
