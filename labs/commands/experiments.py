"""``dios lab repro``: repeats the evaluations of the papers, and compares each figure with the published one.

The experiments are in ``labs.papers`` and are loaded when a command runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import counted, err, say, table, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.streams import INTERRUPTED
from dios.errors import InvalidError

if TYPE_CHECKING:
    from labs.papers.figures import ProgressCallback, WrittenFigure, WrittenFigureRow

app: Final = CommandApplication(
    help="The experiments of the papers that DIOS implements, repeated on this machine or on simulated ones.",
    no_args_is_help=True,
)

DOING: Final = "dios lab repro firmament"
_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab repro firmament --quick                     # test that all works; seconds\n"
    "  dios lab repro firmament --figure 8.1 --figure 8.3   # some figures, minutes\n"
    "  dios lab repro firmament --out results --seed 7      # all of them, some ten minutes"
)
_SDRF_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab repro sdrf --quick                          # test that all works; seconds\n"
    "  dios lab repro sdrf --figure 5 --figure 6            # waiting, completed tasks; some five minutes\n"
    "  dios lab repro sdrf --out results --seed 7           # all of it, some ten minutes"
)
_DC_DRF_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab repro dc-drf --quick                        # test that all works; seconds\n"
    "  dios lab repro dc-drf --out results                  # 100,000 tenants, 10,000 resources: minutes\n"
    "  dios lab repro dc-drf --large --figure 8             # the paper's sizes; some 3 GB of memory"
)
_PACKER_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab repro packer --quick                        # test that all works; seconds\n"
    "  dios lab repro packer --figure 3 --seeds 3           # acceptance, some minutes\n"
    "  dios lab repro packer --out results                  # all of it, some ten minutes"
)
_DIOS_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab repro dios --quick                          # test that all works; half a minute\n"
    "  dios lab repro dios --figure 5.3 --figure table-5.1  # streams and isolation, some minutes\n"
    "  dios lab repro dios --out results                    # all of it, some ten minutes on a quiet machine"
)
_INTERFERENCE_EXAMPLES: Final = (
    "\b\nFor example:\n"
    "  dios lab repro interference --quick                  # test that all works; half a minute\n"
    "  dios lab repro interference --figure 2.6             # pairs of workloads, some minutes\n"
    "  dios lab repro interference --out results            # all of it, on a quiet machine"
)
_SPRAYER_EXAMPLES: Final = (
    "\b\nFor example, as root:\n"
    "  dios lab repro sprayer --quick                       # test that all works; half a minute\n"
    "  dios lab repro sprayer --figure 3.6a --figure 3.9    # some figures, minutes\n"
    "  dios lab repro sprayer --out results                 # all of it, some ten minutes"
)
_FIGURE: Final = "8.1 to 8.7, or all; may be given several times. 8.5 has Table 8.5."

_SDRF_FIGURE: Final = "4 (with 1), 5, 6, 7, tree, or all; may be given several times."
_DC_DRF_FIGURE: Final = "3, 7, 8 (with 9 and 10), 11, or all; may be given several times."
_PACKER_FIGURE: Final = "3 to 8, time, bandwidth, or all; may be given several times."
_SPRAYER_FIGURE: Final = "3.6a, 3.6b, 3.7a, 3.7b, 3.8, 3.9, quic, or all; may be given several times."
_DIOS_FIGURE: Final = "5.1 to 5.5, nodes, table-5.1, or all; may be given several times."
_INTERFERENCE_FIGURE: Final = "2.4 to 2.8, or all; may be given several times."
_SEEDS: Final = "Number of seeds, from --seed on; each gives a result (default packer: 5, sprayer: 3)."
_LARGE: Final = "The paper's sizes: 1,000,000 tenants, 100,000 resources; some 3 GB of memory."


SEEDS_OPTION: Final[int | None] = option("--seeds N", _SEEDS, min=1)

OUT_OPTION: Final[Path] = option(
    "--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-dios")
)
SEED_OPTION: Final[int] = option("--seed N", "Seed of the random numbers.", default=1, min=0)
QUICK_OPTION: Final[bool] = option("--quick", "Small and short: tests that it works, without useful results.")


@app.callback()
def family() -> None:
    """The experiments of the papers that DIOS implements, repeated on this machine or on simulated ones."""


@app.command("dios", epilog=_DIOS_EXAMPLES)
def dios_itself(
    figure: list[str] | None = option("--figure NAME", _DIOS_FIGURE),
    out: Path = OUT_OPTION,
    seed: int = SEED_OPTION,
    *,
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Repeat the evaluation of DIOS itself (thesis ch. 5) on real nodes, compared with the ways of today.

    It starts clusters of its own on this machine and stops them: creation of objects, starts of tasks,
    messages, remote reads and lookups, MapReduce, and what a task can reach. Other lines are pipes, sockets,
    TCP, multiprocessing and concurrent.futures, and Ray where it is installed. All numbers are measured; the
    seed determines the text of 5.5.
    """
    doing = "dios lab repro dios"
    from labs.papers.dios import evaluation  # noqa: PLC0415 - loads numpy

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, quick=quick)

    _run(doing, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


@app.command(epilog=_INTERFERENCE_EXAMPLES)
def interference(
    figure: list[str] | None = option("--figure NUMBER", _INTERFERENCE_FIGURE),
    out: Path = option(
        "--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-interference")
    ),
    seed: int = SEED_OPTION,
    *,
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Measure heterogeneity and interference (thesis ch. 2) on this machine, compared with the thesis.

    Workloads are pinned to processors that share a cache, a core or a hardware thread, and run alone, in
    pairs and in crowds. It reports the kinds of pairs that this machine does not have.
    """
    doing = "dios lab repro interference"
    from labs.papers import figures  # noqa: PLC0415 - loads numpy
    from labs.papers.interference import evaluation  # noqa: PLC0415 - loads numpy

    wanted = figures.select_figures(figure or [], evaluation.FIGURES)
    for number, reason in evaluation.missing_requirements().items():
        if number in wanted:
            say(f"left out ({number}): {reason}")
    for sentence in evaluation.not_shown():
        say(f"not shown: {sentence}")

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, quick=quick)

    _run(doing, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


@app.command(epilog=_EXAMPLES)
def firmament(
    figure: list[str] | None = option("--figure NUMBER", _FIGURE),
    out: Path = option(
        "--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-firmament")
    ),
    seed: int = SEED_OPTION,
    *,
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Repeat the cluster scheduler's evaluation (thesis ch. 8), and compare with the thesis' numbers.

    Each figure is written as figure-N.md, figure-N.json and pictures as soon as it is finished. The same seed
    gives the same numbers, except for measured times (8.7).
    """
    from labs.papers.firmament import evaluation  # noqa: PLC0415 - loads numpy

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, quick=quick)

    _run(DOING, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


@app.command(epilog=_SDRF_EXAMPLES)
def sdrf(
    figure: list[str] | None = option("--figure NAME", _SDRF_FIGURE),
    out: Path = option("--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-sdrf")),
    seed: int = SEED_OPTION,
    *,
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Repeat the evaluation of SDRF (SDRF paper, section VII), on synthetic months of 600 users.

    The paper's trace has 32 million tasks; the synthetic ones have similar users and submission times. Eight
    seeds are simulated, from --seed on, and each gives a result. The same seed gives the same numbers, except
    for measured times (tree).
    """
    doing = "dios lab repro sdrf"
    from labs.papers.sdrf import evaluation  # noqa: PLC0415 - loads numpy

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, quick=quick)

    _run(doing, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


@app.command("dc-drf", epilog=_DC_DRF_EXAMPLES)
def dc_drf(
    figure: list[str] | None = option("--figure NAME", _DC_DRF_FIGURE),
    out: Path = option("--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-dc-drf")),
    seed: int = SEED_OPTION,
    *,
    large: bool = option("--large", _LARGE),
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Repeat the evaluation of DC-DRF (DC-DRF paper, section 5): with a deadline, compared with exact shares.

    The default is a tenth of the paper's tenants and resources. Without a deadline, allocations depend on the
    seed alone. Times, and allocations cut off by a deadline, depend on this machine.
    """
    doing = "dios lab repro dc-drf"
    if large and quick:
        raise InvalidError("--large and --quick: give one of them")
    from labs.papers.dc_drf import evaluation  # noqa: PLC0415 - loads numpy

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, quick=quick, large=large)

    _run(doing, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


@app.command(epilog=_PACKER_EXAMPLES)
def packer(
    figure: list[str] | None = option("--figure NAME", _PACKER_FIGURE),
    out: Path = option("--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-packer")),
    seed: int = option("--seed N", "Seed of the random numbers.", default=11, min=0),
    seeds: int | None = SEEDS_OPTION,
    *,
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Repeat Packer's evaluation (Packer paper, section III): 1,200 servers in 30 racks, three tiers.

    Every policy gets the same synthetic jobs. One more figure separates the effects of knowing demands over
    time and of the score. The same seed gives the same numbers, except for measured times (6).
    """
    doing = "dios lab repro packer"
    from labs.papers.packer import evaluation  # noqa: PLC0415 - loads numpy

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, seeds=seeds, quick=quick)

    _run(doing, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


@app.command(epilog=_SPRAYER_EXAMPLES)
def sprayer(
    figure: list[str] | None = option("--figure NAME", _SPRAYER_FIGURE),
    out: Path = option(
        "--out DIR", "Directory for tables, JSON and pictures.", default=Path("repro-sprayer")
    ),
    seed: int = option("--seed N", "Seed of the random numbers.", default=21, min=0),
    seeds: int | None = SEEDS_OPTION,
    *,
    quick: bool = QUICK_OPTION,
    output: OutputOptions,
) -> None:
    """Repeat Sprayer's evaluation (thesis section 3.4): spraying compared with RSS, on this machine's cores.

    It measures rates of one and of many flows, TCP with iperf3, delays and fairness, between network
    namespaces that it creates and removes. Parts that this machine cannot run are reported and left out:
    without root it measures only workers on frames in memory. All numbers are measured; the seed determines
    addresses and payload.
    """
    doing = "dios lab repro sprayer"
    from labs.papers import figures  # noqa: PLC0415 - loads numpy
    from labs.papers.sprayer import evaluation  # noqa: PLC0415 - loads numpy

    # Leave out figures that are not wanted.
    unwanted = set(evaluation.FIGURES) - set(figures.select_figures(figure or [], evaluation.FIGURES))
    lacks = {name: why for name, why in evaluation.missing_requirements().items() if name not in unwanted}
    for reason in dict.fromkeys(lacks.values()):
        left_out = ", ".join(name for name, why in lacks.items() if why == reason)
        say(f"left out ({left_out}): {reason}")

    def reproduce(numbers: list[str], told: ProgressCallback) -> Iterator[WrittenFigure]:
        return evaluation.reproduce(numbers, out, seed, told, seeds=seeds, quick=quick)

    _run(doing, evaluation.FIGURES, figure, out, reproduce, as_json=output.as_json)


def _run(
    doing: str,
    known: Mapping[str, str],
    wanted: list[str] | None,
    out: Path,
    reproduce: Callable[[list[str], ProgressCallback], Iterator[WrittenFigure]],
    *,
    as_json: bool,
) -> None:
    """Make the wanted figures and show each as soon as it is finished."""
    from labs.papers import figures  # noqa: PLC0415 - loads numpy

    numbers = figures.select_figures(wanted or [], known)
    done: list[WrittenFigure] = []
    try:
        with _progress() as told:
            for written_figure in reproduce(numbers, told):
                done.append(written_figure)
                if not as_json:
                    _tell(written_figure)
    except KeyboardInterrupt:
        finished = ", ".join(finished_figure.figure.number for finished_figure in done) or "nothing"
        say(f"{doing}: interrupted; {out} has what was finished: {finished}")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        write_json([_as_json(finished_figure) for finished_figure in done])
    else:
        say(
            f"wrote {counted(sum(len(finished_figure.written) for finished_figure in done), 'file')} in {out}"
        )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the current step, only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err(), transient=True
    )
    with shown:
        task = shown.add_task("preparing")
        yield lambda text: shown.update(task, description=text)


def _tell(written_figure: WrittenFigure) -> None:
    """Show the claims of one figure."""
    from labs.papers.figures import claim_columns  # noqa: PLC0415 - loads numpy

    figure = written_figure.figure
    sys.stdout.write(f"{figure.title}\n")
    rows = [list(claim.cells(quick=figure.quick)) for claim in figure.claims]
    table(claim_columns(figure.source), rows)
    if figure.quick:
        sys.stdout.write(f"a quick run: {figure.smaller or 'smaller and shorter than a full one'}\n")
    sys.stdout.write("\n")


def _as_json(written_figure: WrittenFigure) -> WrittenFigureRow:
    from labs.papers.figures import as_json  # noqa: PLC0415 - loads numpy

    return {**as_json(written_figure.figure), "files": [str(path) for path in written_figure.written]}
