"""The common form of a reproduced figure: tables, published numbers next to ours, plots, and its command.

``labs.plotting`` draws the plots.

A figure is written as ``figure-8.1.md`` for readers and ``figure-8.1.json`` for programs. Except for measured
times, which are marked, the content does not depend on when or where it was made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

import numpy as np

from dios.errors import InvalidError
from labs.papers.judgements import Comparison, Judgement, interval_text
from labs.plotting import Numbers, Picture, draw

Cell = str | int | float

PERCENTILES: Final = (1, 25, 50, 75, 99, 100)
"""The percentiles of the thesis' box plots: whiskers, box, median, and the maximum."""
PERCENTILE_COLUMNS: Final = ("tasks", "1 %", "25 %", "median", "75 %", "99 %", "max")


class FigureTable(NamedTuple):
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class PublishedClaim(NamedTuple):
    """A published result, and ours."""

    passage: str
    """The figure, table or section."""
    subject: str
    published: str
    ours: str
    compared: Comparison
    """The two intervals."""

    def judgement(self, *, quick: bool) -> Judgement:
        """Return the judgement; a quick run judges nothing that needs more seeds or a full size."""
        comparison = self.compared
        if quick and not comparison.exact and comparison.judgement is not Judgement.OURS:
            return Judgement.NOT_JUDGED
        return comparison.judgement

    def cells(self, *, quick: bool) -> tuple[str, ...]:
        """Return the cells under ``claim_columns``."""
        comparison = self.compared
        interval, own = (
            interval_text(comparison.low, comparison.high),
            interval_text(comparison.least, comparison.most),
        )
        return (
            *(self.passage, self.subject, self.published, self.ours, interval, own),
            str(self.judgement(quick=quick)),
        )


def claim_columns(source: str) -> tuple[str, ...]:
    """Return the columns of a table of claims about a publication."""
    return ("section", "claim", source, "here", "published interval", "our interval", "judgement")


@dataclass(frozen=True)
class Figure:
    """One reproduced figure or table of an evaluation."""

    number: str
    title: str
    seed: int
    quick: bool
    setting: tuple[tuple[str, str], ...]
    """The parameters of the experiment, by name."""
    sheets: tuple[FigureTable, ...]
    claims: tuple[PublishedClaim, ...]
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    """Differences from the publication, and their reasons."""
    measured: bool = False
    """True if it contains times measured on the machine on which it was made."""
    family: str = "firmament"
    """The word after ``dios lab repro``."""
    source: str = "the thesis"
    """The publication."""
    smaller: str = ""
    """For a quick run: how much smaller it is than a full one."""
    options: str = ""
    """Further options of the command, as `` --large``."""

    @property
    def stem(self) -> str:
        """The name of its files without the suffix."""
        return f"figure-{self.number}"

    @property
    def command(self) -> str:
        """The command that makes it again."""
        quick = " --quick" if self.quick else ""
        return f"dios lab repro {self.family} --figure {self.number} --seed {self.seed}{self.options}{quick}"


class WrittenFigure(NamedTuple):
    """A figure and its files."""

    figure: Figure
    written: list[Path]


ProgressCallback = Callable[[str], None]
"""Receives a line about the current step."""

ALL: Final = "all"


def select_figures(wanted: Sequence[str], numbers: Collection[str]) -> list[str]:
    """Return the requested figures in the order of ``numbers``, the existing ones; all if none is requested.

    Raises:
        InvalidError: a figure does not exist; the message lists those that do.
    """
    meant = [text.lower().removeprefix("figure").strip() for text in wanted] or [ALL]
    for name in meant:
        if name not in numbers and name != ALL:
            raise InvalidError(f"there is no figure {name!r}; there are {', '.join(numbers)} and {ALL}")
    return [number for number in numbers if ALL in meant or number in meant]


def make_figures(
    numbers: Sequence[str],
    makers: Mapping[str, Callable[[], Figure]],
    out: Path,
    seed: int,
    *,
    smaller: str = "",
) -> Iterator[WrittenFigure]:
    """Make figures, and write each as soon as it is finished.

    Args:
        numbers: the result of ``select_figures``.
        makers: the function that makes each figure.
        out: the directory; it is created.
        seed: the random seed; only checked here.
        smaller: for quick runs, how much smaller they are than full ones.

    Raises:
        InvalidError: the seed is below 0.
        OSError: the directory cannot be written.
    """
    if seed < 0:
        raise InvalidError(f"the seed is {seed}; it must be 0 or more")
    # Fail now if the directory cannot be created, not after hours of simulation.
    out.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        figure = replace(makers[number](), smaller=smaller)
        if figure.measured:
            today = datetime.now(UTC).date().isoformat()
            figure = replace(figure, setting=(*figure.setting, ("date", today)))
        drawn = []
        for picture in figure.pictures:
            drawn.append(f"figure-{picture.name}.png")
            draw(picture, out / drawn[-1])
        written = write(figure, out, drawn)
        yield WrittenFigure(figure, [*written, *(out / name for name in drawn)])


def smaller_by(quick: object, full: object) -> str:
    """Return what a quick run's sizes are instead of those of a full run: ``seeds 2 instead of 5``.

    Both are named tuples or dataclasses of one type.
    """
    small, large = _sizes(quick), _sizes(full)
    return ", ".join(
        smaller_by(small[name], large[name])
        if _sizes(small[name])
        else f"{name.replace('_', ' ')} {_size(small[name])} instead of {_size(large[name])}"
        for name in small
        if small[name] != large[name] and not isinstance(small[name], bool)
    )


def _sizes(scope: object) -> dict[str, object]:
    """Return the fields of a named tuple or a dataclass; none of other objects."""
    if isinstance(scope, tuple):
        names = getattr(scope, "_fields", ())
    else:
        names = tuple(field.name for field in fields(scope)) if is_dataclass(scope) else ()
    return {name: getattr(scope, name) for name in names}


def _size(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def percentile_cells(values: Numbers) -> tuple[Cell, ...]:
    """Return the cells under ``PERCENTILE_COLUMNS``; empty cells if there are no values."""
    if not len(values):
        return (0, *("" for _ in PERCENTILES))
    return (len(values), *(float(cell) for cell in np.percentile(np.asarray(values), PERCENTILES)))


def percentile(values: Numbers, at: float) -> float:
    """Return a percentile (0 to 100), or nan without values."""
    return float(np.percentile(np.asarray(values), at)) if len(values) else float("nan")


def median(values: Numbers) -> float:
    """Return the median, or nan without values."""
    return percentile(values, 50)


def mean(values: Numbers) -> float:
    """Return the mean of all values that are not nan, or nan without any."""
    known = np.asarray(values)[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


class ClaimRow(TypedDict):
    """A published result, ours, and the judgement; an end of an interval is null if it is infinite."""

    where: str
    what: str
    published: str
    ours: str
    published_interval: list[float | None]
    our_interval: list[float | None]
    judgement: str


class FigureTableRow(TypedDict):
    """A table of a figure."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


class FigureRow(TypedDict):
    """A reproduced figure or table of an evaluation."""

    figure: str
    title: str
    command: str
    seed: int
    quick: bool
    measured: bool
    setting: dict[str, str]
    smaller: str
    claims: list[ClaimRow]
    tables: list[FigureTableRow]
    notes: list[str]


class WrittenFigureRow(FigureRow):
    """A reproduced figure, and the files that were written."""

    files: list[str]


def as_json(figure: Figure) -> FigureRow:
    """Return a figure as a JSON object."""
    return {
        "figure": figure.number,
        "title": figure.title,
        "command": figure.command,
        "seed": figure.seed,
        "quick": figure.quick,
        "measured": figure.measured,
        "setting": dict(figure.setting),
        "smaller": figure.smaller if figure.quick else "",
        "claims": [_claim_as_json(claim, quick=figure.quick) for claim in figure.claims],
        "tables": [
            {"title": sheet.title, "columns": list(sheet.columns), "rows": [list(row) for row in sheet.rows]}
            for sheet in figure.sheets
        ],
        "notes": list(figure.notes),
    }


def _claim_as_json(claim: PublishedClaim, *, quick: bool) -> ClaimRow:
    comparison = claim.compared
    return {
        "where": claim.passage,
        "what": claim.subject,
        "published": claim.published,
        "ours": claim.ours,
        "published_interval": [_end(comparison.low), _end(comparison.high)],
        "our_interval": [_end(comparison.least), _end(comparison.most)],
        "judgement": str(claim.judgement(quick=quick)),
    }


def _end(number: float) -> float | None:
    """Return an end of an interval; None for infinity, which JSON does not have."""
    return number if math.isfinite(number) else None


def as_markdown(figure: Figure, drawn: Sequence[str] = ()) -> str:
    """Return a figure as Markdown; ``drawn`` are the names of its images in the same directory."""
    lines = [f"# {figure.title}", "", f"`{figure.command}`", ""]
    if figure.quick:
        size = f" ({figure.smaller})" if figure.smaller else ""
        lines += [
            (
                f"This is a quick run{size}, to check that everything works. It judges nothing that needs a "
                "full size or more seeds."
            ),
            "",
        ]
    lines += [f"- {name}: {value}" for name, value in figure.setting]
    lines += ["", f"## Compared with {figure.source}", ""]
    lines += _table(
        claim_columns(figure.source),
        [claim.cells(quick=figure.quick) for claim in figure.claims],
    )
    for sheet in figure.sheets:
        lines += ["", f"## {sheet.title}", "", *_table(sheet.columns, sheet.rows)]
    lines += [line for name in drawn for line in ("", f"![{figure.title}]({name})")]
    if figure.notes:
        lines += ["", "## Differences", "", *(f"- {note}" for note in figure.notes)]
    return "\n".join(lines) + "\n"


def text_of(value: Cell) -> str:
    """Return a cell as text, with three significant digits."""
    if isinstance(value, float):
        if abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def write(figure: Figure, directory: Path, drawn: Sequence[str]) -> list[Path]:
    """Write the Markdown and the JSON file, with links to the images ``drawn``; return the files' paths."""
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
