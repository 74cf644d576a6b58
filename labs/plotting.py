"""Box, line and scatter plots and heat maps, described as data and drawn by matplotlib.

Experiments (``dios lab repro``) and simulations use it. Their numbers are also in tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH: Final = 7.0
_HEIGHT: Final = 3.2
_DPI: Final = 90
"""The resolution; files stay small because the images are kept in the repository."""

Floats: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = Sequence[float] | Floats


class Boxes(NamedTuple):
    """A box plot for each group and series: 25th to 75th percentile, whiskers from the 1st to the 99th."""

    name: str
    title: str
    y: str
    groups: Mapping[str, Mapping[str, Numbers]]
    """Values by group (along the x axis) and series (colour)."""
    log: bool = False


class Lines(NamedTuple):
    """A plot of lines."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, tuple[Numbers, Numbers]]
    log_x: bool = False


class Dots(NamedTuple):
    """A scatter plot, with the diagonal on which both numbers are equal."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, tuple[Numbers, Numbers, Numbers]]
    """x, y, and the size of each point (1 is small)."""


class Matrix(NamedTuple):
    """A heat map with the value in each cell."""

    name: str
    title: str
    x: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    """One sequence for each row."""
    y: str = ""


Picture = Boxes | Lines | Dots | Matrix


def distribution(values: Numbers) -> tuple[Floats, Floats]:
    """Return a cumulative distribution as a line: sorted values, and the fraction of values up to each."""
    ordered = np.sort(np.asarray(values, np.float64))
    return ordered, np.arange(1, len(ordered) + 1) / max(len(ordered), 1)


def draw(picture: Picture, path: Path) -> None:
    """Write a plot as PNG."""
    # Imported here because it takes a second to load.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see above
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    canvas = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    if isinstance(picture, Boxes):
        _boxes(axes, picture)
    elif isinstance(picture, Dots):
        _dots(axes, picture)
    elif isinstance(picture, Matrix):
        _matrix(axes, picture)
    else:
        _lines(axes, picture)
    axes.set_title(picture.title, fontsize=9)
    axes.set_ylabel(picture.y, fontsize=8)
    axes.tick_params(labelsize=7)
    if not isinstance(picture, Matrix):
        axes.grid(visible=True, axis="y", alpha=0.3)
    # Without a date and a version in the file, the same data gives the same file.
    canvas.savefig(path, dpi=_DPI, metadata={"Software": None})


def _boxes(axes: Axes, picture: Boxes) -> None:
    series = list(dict.fromkeys(name for group in picture.groups.values() for name in group))
    width = 0.8 / max(len(series), 1)
    for at, name in enumerate(series):
        places = [x - 0.4 + (at + 0.5) * width for x in range(len(picture.groups))]
        values = [np.asarray(group.get(name, ())) for group in picture.groups.values()]
        shown = axes.boxplot(
            values, positions=places, widths=0.85 * width, whis=(1, 99), sym="", patch_artist=True
        )
        colour = f"C{at}"
        for box in shown["boxes"]:
            box.set(facecolor=colour, alpha=0.6, linewidth=0.6)
        for part in (*shown["whiskers"], *shown["caps"], *shown["medians"]):
            part.set(color="black", linewidth=0.7)
        axes.plot([], [], color=colour, label=name, linewidth=5, alpha=0.6)
        tops = [(x, group.max()) for x, group in zip(places, values, strict=True) if len(group)]
        axes.plot([x for x, _ in tops], [y for _, y in tops], "*", color=colour, markersize=3)
    axes.set_xticks(range(len(picture.groups)), list(picture.groups))
    if picture.log:
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _matrix(axes: Axes, picture: Matrix) -> None:
    values = np.asarray(picture.values, np.float64)
    axes.imshow(values, cmap="YlOrRd", aspect="auto")
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(len(picture.columns)), list(picture.columns))
    axes.set_yticks(range(len(picture.rows)), list(picture.rows))
    axes.set_xlabel(picture.x, fontsize=8)


def _dots(axes: Axes, picture: Dots) -> None:
    for name, (x, y, size) in picture.series.items():
        axes.scatter(np.asarray(x), np.asarray(y), s=4 * np.asarray(size), alpha=0.4, label=name)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.7)
    axes.set_xlabel(picture.x, fontsize=8)
    axes.legend(fontsize=7)


def _lines(axes: Axes, picture: Lines) -> None:
    for name, (x, y) in picture.series.items():
        axes.plot(np.asarray(x), np.asarray(y), label=name, linewidth=1.0)
    axes.set_xlabel(picture.x, fontsize=8)
    if picture.log_x:
        axes.set_xscale("log")
    if picture.series:
        axes.legend(fontsize=7)
