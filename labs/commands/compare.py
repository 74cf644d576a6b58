"""``dios lab compare``: one workload under many scheduling policies, in one table (thesis §9.2).

The comparison is in ``labs.simulate.scheduling.compare``, which is imported when the command runs.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import (
    JsonOption,
    counted,
    err,
    reporting,
    say,
    table,
    write_file,
    write_json,
)
from dios.cli.common.streams import INTERRUPTED
from dios.errors import InvalidError
from labs.commands.simulate import (
    BlocksOption,
    HoursOption,
    IntervalOption,
    LoadOption,
    MachinesOption,
    OutOption,
    PlotsOption,
    ScaleOption,
    SeedOption,
    SolverOption,
    StayOption,
    SyntheticOption,
    TraceOption,
    simulation_progress,
)

if TYPE_CHECKING:
    from pathlib import Path

    from labs.simulate.scheduling.command import SimulationOptions
    from labs.simulate.scheduling.compare import ComparedModel

app: Final = CommandApplication()
DOING: Final = "dios lab compare"
EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios lab compare --synthetic google --machines 50 --hours 0.5 --blocks\n"
    "  dios lab compare --trace clusterdata-2011-2 --machines 200 --out results --plots\n"
    "  dios lab compare --synthetic mix-srg --stay --model queue --model coco --model whare-mcs --json"
)
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME|FILE.py",
        help="Compare this model, with its default parameters; may be repeated. Default: the two queues and"
        " all models of the catalogue.",
    ),
]


@app.command(epilog=EXAMPLES)
def compare(
    trace: TraceOption = None,
    synthetic: SyntheticOption = None,
    machines: MachinesOption = None,
    hours: HoursOption = 1.0,
    model: ModelsOption = None,
    solver: SolverOption = "auto",
    seed: SeedOption = 0,
    load: LoadOption = None,
    scale: ScaleOption = None,
    round_interval: IntervalOption = "1",
    *,
    blocks: BlocksOption = False,
    stay: StayOption = False,
    out: OutOption = None,
    plots: PlotsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate one workload under each cost model, and print one table.

    A model that fails has the reason in its row. Ctrl-C ends the comparison and shows the models that have
    run. The same options give the same table, except for the times of decisions.
    """
    with reporting(DOING, as_json=as_json):
        from labs.simulate.scheduling.command import SimulationOptions  # noqa: PLC0415 - loads numpy

        options = SimulationOptions(
            trace=trace,
            synthetic=synthetic,
            machines=machines,
            hours=hours,
            solver=solver,
            seed=seed,
            load=load,
            scale=scale,
            round_interval=round_interval,
            blocks=blocks,
            stay=stay,
        )
        _run(options, model or [], out, plots=plots, as_json=as_json)


def _run(
    options: SimulationOptions, wanted: list[str], out: Path | None, *, plots: bool, as_json: bool
) -> None:
    """Compare, write the files, and show the table."""
    from dios.firmament.coordinator.warm_up import exercise_kernels  # noqa: PLC0415 - loads numpy
    from labs.simulate.scheduling import compare as comparison  # noqa: PLC0415 - loads numpy

    if plots and out is None:
        raise InvalidError("--plots needs --out DIR, the folder for the pictures")
    models = comparison.models_of(wanted)
    if out is not None:
        # A directory that cannot be written must not fail after an hour.
        out.mkdir(parents=True, exist_ok=True)
    with err().status("loading the scheduler; the first time, its kernels are compiled, which takes minutes"):
        exercise_kernels("spread")
    at = [""]

    def begin(name: str, number: int) -> None:
        at[0] = f"{number + 1} of {len(models)}: {name}"
        if not sys.stderr.isatty():
            say(at[0])

    with simulation_progress(lambda: at[0]) as progress:
        compared = list(comparison.compare(options, models, begin, progress))
    if out is not None:
        _write(compared, out, plots=plots)
    if as_json:
        write_json([model.as_json() for model in compared])
    else:
        table(comparison.COLUMNS, [list(model.cells()) for model in compared], right=comparison.COLUMNS[1:])
    for entry in compared:
        if entry.failure:
            say(f"{entry.model}: {entry.failure}")
    if any(model.interrupted for model in compared):
        say(
            f"{DOING}: interrupted after {len(compared)} of {counted(len(models), 'model')}; "
            "the last one is not complete"
        )
        raise typer.Exit(INTERRUPTED)


def _write(compared: list[ComparedModel], out: Path, *, plots: bool) -> None:
    from labs.simulate.scheduling import compare as comparison  # noqa: PLC0415 - loads numpy

    words = shlex.join(_words(sys.argv[1:])) or "lab compare"
    text = comparison.as_markdown(compared, "Scheduling policies on one workload", f"dios {words}")
    write_file(out / "compare.md", text)
    results = json.dumps([model.as_json() for model in compared], indent=1, default=asdict)
    write_file(out / "compare.json", results + "\n")
    pictures = comparison.write_comparison_plots(compared, out) if plots else []
    say(f"wrote {', '.join(['compare.md', 'compare.json', *(path.name for path in pictures)])} in {out}")


def _words(given: list[str]) -> list[str]:
    """Return the words of the command without the folder for the results, which changes nothing."""
    at = given.index("--out") if "--out" in given else len(given)
    return [*given[:at], *given[at + 2 :]]
