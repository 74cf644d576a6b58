"""``dios lab compare``: one workload under many scheduling policies, in one table (thesis §9.2).

The comparison is in ``labs.simulate.scheduling.compare``, which is imported when the command runs.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import counted, err, say, table, write_file, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.streams import INTERRUPTED
from dios.errors import InvalidError
from labs.commands.simulate import (
    BLOCKS_OPTION,
    HOURS_OPTION,
    INTERVAL_OPTION,
    LOAD_OPTION,
    MACHINES_OPTION,
    OUT_OPTION,
    PLOTS_OPTION,
    SCALE_OPTION,
    SEED_OPTION,
    SOLVER_OPTION,
    STAY_OPTION,
    SYNTHETIC_OPTION,
    TRACE_OPTION,
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


@app.command(epilog=EXAMPLES)
def compare(
    trace: Path | None = TRACE_OPTION,
    synthetic: str | None = SYNTHETIC_OPTION,
    machines: int | None = MACHINES_OPTION,
    hours: float = HOURS_OPTION,
    model: list[str] | None = option(
        "--model NAME|FILE.py",
        "Compare this model, with its default parameters; may be repeated. Default: the two queues and"
        " all models of the catalogue.",
    ),
    solver: str = SOLVER_OPTION,
    seed: int = SEED_OPTION,
    load: float | None = LOAD_OPTION,
    scale: float | None = SCALE_OPTION,
    round_interval: str = INTERVAL_OPTION,
    *,
    blocks: bool = BLOCKS_OPTION,
    stay: bool = STAY_OPTION,
    out: Path | None = OUT_OPTION,
    plots: bool = PLOTS_OPTION,
    output: OutputOptions,
) -> None:
    """Simulate one workload under each cost model, and print one table.

    A model that fails has the reason in its row. Ctrl-C ends the comparison and shows the models that have
    run. The same options give the same table, except for the times of decisions.
    """
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
    _run(options, model or [], out, plots=plots, as_json=output.as_json)


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
