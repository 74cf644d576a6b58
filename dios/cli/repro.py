"""``dios repro``: the thesis' evaluation done again, each figure beside its own numbers.

Not for: the experiments (``dios.firmament.repro``), which are loaded when the command runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dios.cli.extras import needing_cluster
from dios.cli.output import INTERRUPTED, JsonOption, err, reporting, say, table, write_json

if TYPE_CHECKING:
    from dios.firmament.repro.evaluation import Made

app: Final = typer.Typer(
    help="The experiments of the papers that DIOS implements, done again on simulated machines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DOING: Final = "dios repro firmament"
_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios repro firmament --quick                     # does everything work? seconds\n"
    "  dios repro firmament --figure 8.1 --figure 8.3   # some figures, minutes\n"
    "  dios repro firmament --out results --seed 7      # all of them, some ten minutes"
)
_FIGURE: Final = "8.1 to 8.7, or all; may be given several times. 8.5 has Table 8.5."

FigureOption = Annotated[list[str] | None, typer.Option("--figure", metavar="NUMBER", help=_FIGURE)]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Where tables, JSON and pictures are written.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of all that is random.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Small and short: whether it works, not what comes out.")
]


@app.callback()
def family() -> None:
    """The experiments of the papers that DIOS implements, done again on simulated machines."""


@app.command(epilog=_EXAMPLES)
def firmament(
    figure: FigureOption = None,
    out: OutOption = Path("repro-firmament"),
    seed: SeedOption = 1,
    *,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Do the cluster scheduler's evaluation again (thesis ch. 8), with the thesis' numbers beside ours.

    Each figure becomes figure-N.md, figure-N.json and pictures in the directory, as soon as it is made. The
    same seed gives the same numbers, but for measured times (8.7).
    """
    with reporting(DOING, as_json=as_json):
        with needing_cluster("the experiments"):
            from dios import pictures  # noqa: PLC0415 - needs an extra
            from dios.firmament.repro import evaluation  # noqa: PLC0415 - needs an extra
        numbers = evaluation.chosen(figure or [])
        if not pictures.can_draw():
            say(f"matplotlib is not installed, so there will be no pictures: {pictures.INSTALL}")
        done: list[Made] = []
        try:
            with _progress() as told:
                for made in evaluation.reproduce(numbers, out, seed, told, quick=quick):
                    done.append(made)
                    if not as_json:
                        _tell(made)
        except KeyboardInterrupt:
            finished = ", ".join(made.figure.number for made in done) or "nothing"
            say(f"{DOING}: interrupted; {out} has what was finished: {finished}")
            raise typer.Exit(INTERRUPTED) from None
        if as_json:
            write_json([_as_json(made) for made in done])
        else:
            say(f"wrote {sum(len(made.written) for made in done)} files in {out}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being done, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err(), transient=True
    )
    with shown:
        task = shown.add_task("preparing")
        yield lambda text: shown.update(task, description=text)


def _tell(made: Made) -> None:
    """The claims of one figure."""
    figure = made.figure
    sys.stdout.write(f"{figure.title}\n")
    rows = [
        [claim.where, claim.what, claim.published, claim.ours, "yes" if claim.holds else "no"]
        for claim in figure.claims
    ]
    table(("where", "what", figure.source, "here", "holds"), rows)
    sys.stdout.write("\n")


def _as_json(made: Made) -> dict[str, object]:
    from dios.figures import as_json  # noqa: PLC0415 - needs an extra

    return {**as_json(made.figure), "files": [str(path) for path in made.written]}
