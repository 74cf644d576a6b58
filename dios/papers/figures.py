"""What a reproduction of a figure gives: tables, published numbers beside ours, plots, and its command.

For: every ``repro``. Not for: what is in a figure, or how pictures are drawn (``dios.plotting``).

A figure is written as ``figure-8.1.md`` for people and ``figure-8.1.json`` for programs. Nothing in them
depends on when or where they were made but measured times, which say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from dios.errors import InvalidError
from dios.plotting import Numbers, Picture, can_draw, draw

Cell = str | int | float

PERCENTILES: Final = (1, 25, 50, 75, 99, 100)
"""Of the thesis' box plots: whiskers, box, median, and the maximum."""
PERCENTILE_COLUMNS: Final = ("tasks", "1 %", "25 %", "median", "75 %", "99 %", "max")


class Sheet(NamedTuple):
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class Claim(NamedTuple):
    """What was published, and what came out here."""

    where: str
    """Figure, table or section."""
    what: str
    published: str
    ours: str
    holds: bool


@dataclass(frozen=True)
class Figure:
    """One figure or table of the evaluation, done again."""

    number: str
    title: str
    seed: int
    quick: bool
    setting: tuple[tuple[str, str], ...]
    """What was run, by name."""
    sheets: tuple[Sheet, ...]
    claims: tuple[Claim, ...]
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    """What is different here, and why."""
    measured: bool = False
    """Whether it holds times of the machine on which it was made."""
    family: str = "firmament"
    """The word after ``dios repro``."""
    source: str = "the thesis"
    """Who published it."""
    options: str = ""
    """What else the command takes, as `` --large``."""

    @property
    def stem(self) -> str:
        """The name of its files."""
        return f"figure-{self.number}"

    @property
    def command(self) -> str:
        """How to make it again."""
        quick = " --quick" if self.quick else ""
        return f"dios repro {self.family} --figure {self.number} --seed {self.seed}{self.options}{quick}"


class Made(NamedTuple):
    """A figure and its files."""

    figure: Figure
    written: list[Path]


Told = Callable[[str], None]
"""Takes a line that says what is being done."""

ALL: Final = "all"


def chosen(wanted: Sequence[str], numbers: Collection[str]) -> list[str]:
    """The figures meant, in the order of ``numbers``, which are those that there are; nothing wanted: all.

    Raises:
        InvalidError: there is no such figure; the message lists those that there are.
    """
    meant = [each.lower().removeprefix("figure").strip() for each in wanted] or [ALL]
    for each in meant:
        if each not in numbers and each != ALL:
            raise InvalidError(f"there is no figure {each!r}; there are {', '.join(numbers)} and {ALL}")
    return [each for each in numbers if ALL in meant or each in meant]


def make(
    numbers: Sequence[str], makers: Mapping[str, Callable[[], Figure]], out: Path, seed: int
) -> Iterator[Made]:
    """Make figures and write them, each as soon as it is there.

    Args:
        numbers: from ``chosen``.
        makers: what makes each.
        out: the directory; it is made.
        seed: of all that is random; looked at, nothing more.

    Raises:
        InvalidError: a seed below 0.
        OSError: the directory cannot be written.
    """
    if seed < 0:
        raise InvalidError(f"the seed is {seed}; it must be 0 or more")
    # Before hours of simulation, not after.
    out.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        figure = makers[number]()
        drawn = []
        if can_draw():
            for picture in figure.pictures:
                drawn.append(f"figure-{picture.name}.png")
                draw(picture, out / drawn[-1])
        written = write(figure, out, drawn)
        yield Made(figure, [*written, *(out / name for name in drawn)])


def spread(values: Numbers) -> tuple[Cell, ...]:
    """The cells under ``PERCENTILE_COLUMNS``; empty ones where there are no values."""
    if not len(values):
        return (0, *("" for _ in PERCENTILES))
    return (len(values), *(float(each) for each in np.percentile(np.asarray(values), PERCENTILES)))


def percentile(values: Numbers, at: float) -> float:
    """A percentile (0 to 100); not a number of nothing."""
    return float(np.percentile(np.asarray(values), at)) if len(values) else float("nan")


def median(values: Numbers) -> float:
    """The median; not a number of nothing."""
    return percentile(values, 50)


def mean(values: Numbers) -> float:
    """The mean of what is a number; not a number of nothing."""
    found = np.asarray(values)[~np.isnan(values)]
    return float(found.mean()) if len(found) else float("nan")


def as_json(figure: Figure) -> dict[str, object]:
    """A figure for programs."""
    return {
        "figure": figure.number,
        "title": figure.title,
        "command": figure.command,
        "seed": figure.seed,
        "quick": figure.quick,
        "measured": figure.measured,
        "setting": dict(figure.setting),
        "claims": [{**claim._asdict(), "holds": bool(claim.holds)} for claim in figure.claims],
        "tables": [
            {"title": sheet.title, "columns": list(sheet.columns), "rows": [list(row) for row in sheet.rows]}
            for sheet in figure.sheets
        ],
        "notes": list(figure.notes),
    }


def as_markdown(figure: Figure, drawn: Sequence[str] = ()) -> str:
    """A figure for people; ``drawn`` are names of pictures beside the file."""
    lines = [f"# {figure.title}", "", f"`{figure.command}`", ""]
    if figure.quick:
        lines += ["Quick: small and short, to see that it works. What comes out says little.", ""]
    lines += [f"- {name}: {value}" for name, value in figure.setting]
    lines += ["", f"## Beside {figure.source}", ""]
    lines += _table(
        ("where", "what", figure.source, "here", "holds"),
        [(*claim[:4], "yes" if claim.holds else "no") for claim in figure.claims],
    )
    for sheet in figure.sheets:
        lines += ["", f"## {sheet.title}", "", *_table(sheet.columns, sheet.rows)]
    lines += [line for name in drawn for line in ("", f"![{figure.title}]({name})")]
    if figure.notes:
        lines += ["", "## What is different here", "", *(f"- {note}" for note in figure.notes)]
    return "\n".join(lines) + "\n"


def text_of(value: Cell) -> str:
    """A cell for people: three digits that matter."""
    if isinstance(value, float):
        if abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def write(figure: Figure, directory: Path, drawn: Sequence[str]) -> list[Path]:
    """Write both forms; ``drawn`` are the pictures that stand there already. Returns what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    for_people, for_programs = (directory / f"{figure.stem}.{end}" for end in ("md", "json"))
    for_people.write_text(as_markdown(figure, drawn))
    for_programs.write_text(json.dumps(as_json(figure), indent=1, ensure_ascii=False) + "\n")
    return [for_people, for_programs]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    line = (
        "|"
        + "|".join(
            " --: " if name != columns[0] and _numeric(rows, at) else " --- "
            for at, name in enumerate(columns)
        )
        + "|"
    )
    return [
        "| " + " | ".join(columns) + " |",
        line,
        *("| " + " | ".join(text_of(cell).replace("|", "/") for cell in row) + " |" for row in rows),
    ]


def _numeric(rows: Sequence[Sequence[Cell]], at: int) -> bool:
    return bool(rows) and all(not isinstance(row[at], str) or not row[at] for row in rows)
