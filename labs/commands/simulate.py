"""``dios lab simulate``: simulate hours of a cluster under the real scheduler in minutes.

The simulation is in ``labs.simulate.scheduling``, which is imported when the command runs.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import counted, err, say, span_text, table, write_facts, write_file, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.streams import INTERRUPTED
from dios.errors import InvalidError

if TYPE_CHECKING:
    from labs.simulate.scheduling.command import SimulationOptions
    from labs.simulate.scheduling.report import OutcomeSummary, Spread
    from labs.simulate.scheduling.run import SimulationProgress

app: Final = CommandApplication()
DOING: Final = "dios lab simulate"
EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios lab simulate --synthetic google --machines 200 --blocks\n"
    "  dios lab simulate --synthetic mix-srg --model coco --stay --out results --plots\n"
    "  dios lab simulate --trace clusterdata-2011-2 --machines 500 --hours 2 --json"
)

_TRACE: Final = (
    "Folder of the 2011 Google cluster trace: machine_events/, task_events/, optional task_usage/."
)
_SYNTHETIC: Final = (
    "google: a synthetic workload like that of the trace. mix-srg, mix-dc: five programs that disturb each "
    "other, on the thesis' two clusters (Table 8.2)."
)
_MODEL: Final = (
    "Cost model, as `dios sched models` lists them, or a file with your own, which this command executes;"
    " queue, queue-load: a queue without costs."
)
_INTERVAL: Final = "Simulated seconds between rounds, or 'measured': back to back, as long as each takes."
_CHECK: Final = "Compare the scheduler's tables with the simulated cluster after each round."

_DETAILS: Final = "Details of the simulation"

TRACE_OPTION: Final[Path | None] = option("--trace DIR", _TRACE)
SYNTHETIC_OPTION: Final[str | None] = option("--synthetic KIND", _SYNTHETIC)
MACHINES_OPTION: Final[int | None] = option("--machines N", "Number of machines to simulate.")
HOURS_OPTION: Final[float] = option("--hours H", "Simulated time.", default=1.0)


SOLVER_OPTION: Final[str] = option(
    "--solver NAME", "The solver's algorithm.", default="auto", section=_DETAILS
)
SEED_OPTION: Final[int] = option(
    "--seed N", "Seed of all random choices.", default=0, section=_DETAILS, min=0
)
LOAD_OPTION: Final[float | None] = option(
    "--load SHARE", "Share of all slots that is requested; default: 0.5.", section=_DETAILS
)
SCALE_OPTION: Final[float | None] = option(
    "--scale SHARE", "Share of a trace's machines and jobs to use.", section=_DETAILS
)
INTERVAL_OPTION: Final[str] = option("--round-interval SECONDS", _INTERVAL, default="1", section=_DETAILS)
BLOCKS_OPTION: Final[bool] = option(
    "--blocks", "Give batch tasks inputs on machines (§8.4).", section=_DETAILS
)

STAY_OPTION: Final[bool] = option("--stay", "Neither stop nor move running tasks.", section=_DETAILS)

OUT_OPTION: Final[Path | None] = option("--out DIR", "Write summary.json and tables to this folder.")
PLOTS_OPTION: Final[bool] = option("--plots", "Also write pictures to the folder of --out.", section=_DETAILS)


@app.command(epilog=EXAMPLES)
def simulate(
    trace: Path | None = TRACE_OPTION,
    synthetic: str | None = SYNTHETIC_OPTION,
    machines: int | None = MACHINES_OPTION,
    hours: float = HOURS_OPTION,
    model: str = option("--model NAME|FILE.py", _MODEL, default="quincy"),
    param: list[str] | None = option("--param NAME=VALUE", "A parameter of the model.", section=_DETAILS),
    solver: str = SOLVER_OPTION,
    seed: int = SEED_OPTION,
    load: float | None = LOAD_OPTION,
    scale: float | None = SCALE_OPTION,
    round_interval: str = INTERVAL_OPTION,
    *,
    blocks: bool = BLOCKS_OPTION,
    topology: bool = option(
        "--topology", "Add sockets, caches, cores and threads to the network.", section=_DETAILS
    ),
    stay: bool = STAY_OPTION,
    check: bool = option("--check", _CHECK, section=_DETAILS),
    out: Path | None = OUT_OPTION,
    plots: bool = PLOTS_OPTION,
    output: OutputOptions,
) -> None:
    """Simulate a cluster whose machines and tasks come and go, with the real scheduler.

    The same options give the same run, to the last decision; compare runs by their `digest`. Ctrl-C ends a
    run and shows its results up to then.
    """
    from labs.simulate.scheduling.command import SimulationOptions  # noqa: PLC0415 - loads numpy

    options = SimulationOptions(
        trace=trace,
        synthetic=synthetic,
        machines=machines,
        hours=hours,
        model=model,
        parameters=_parameters(param or []),
        solver=solver,
        seed=seed,
        load=load,
        scale=scale,
        round_interval=round_interval,
        blocks=blocks,
        topology=topology,
        stay=stay,
        checked=check,
    )
    _run(options, out, plots=plots, as_json=output.as_json)


def _run(options: SimulationOptions, out: Path | None, *, plots: bool, as_json: bool) -> None:
    """Simulate, write the files, and show the summary."""
    from dios.firmament.coordinator.warm_up import exercise_kernels  # noqa: PLC0415 - loads numpy
    from labs.simulate.scheduling import command, report  # noqa: PLC0415 - loads numpy
    from labs.simulate.scheduling.plots import write_plots  # noqa: PLC0415 - loads numpy

    if plots and out is None:
        raise InvalidError("--plots needs --out DIR, the folder for the pictures")
    config = command.config_of(options)
    if out is not None:
        # Create the directory first: a directory that cannot be written must not fail after an hour.
        out.mkdir(parents=True, exist_ok=True)
    with err().status("loading the scheduler; the first time, its kernels are compiled, which takes minutes"):
        exercise_kernels("spread")
    with simulation_progress(lambda: "simulating") as progress:
        outcome = command.run_config(config, progress)
    summary = report.summarise(outcome)
    if out is not None:
        write_file(out / "summary.json", json.dumps(summary.as_json(), indent=2) + "\n")
        written = report.write_tables(outcome, out)
        written += write_plots(outcome, out) if plots else []
        say(f"wrote summary.json, {', '.join(path.name for path in written)} in {out}")
    if as_json:
        write_json(summary.as_json())
    else:
        _show(summary)
    if outcome.interrupted:
        say(f"{DOING}: interrupted after {_span(outcome.seconds)}; these are the results up to then")
        raise typer.Exit(INTERRUPTED)


def _parameters(given: Sequence[str]) -> dict[str, int | float | str | bool]:
    """Parse NAME=VALUE words; the cost model converts the values."""
    parameters: dict[str, int | float | str | bool] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InvalidError(f"--param {word!r}: give it as NAME=VALUE")
        parameters[name] = value
    return parameters


@contextlib.contextmanager
def simulation_progress(
    activity: Callable[[], str],
) -> Iterator[Callable[[SimulationProgress], None] | None]:
    """Show a progress bar over simulated time, on a terminal only; ``activity`` returns its first words."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[doing]}"),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
    )
    with bar:
        task = bar.add_task(activity(), total=None, doing="")

        def update(at: SimulationProgress) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            speed = f"{at.rounds / elapsed:.1f} rounds/s" if elapsed > 0 else ""
            doing = f"{_span(at.now)} of {_span(at.seconds)}, {at.running} run, {at.waiting} wait, {speed}"
            bar.update(task, description=activity(), completed=at.now, total=at.seconds, doing=doing)

        yield update


# Output -----------------------------------------------------------------------------------------------


def _show(summary: OutcomeSummary) -> None:
    """Show the summary for people."""
    ran = f"{summary.rounds} in {_span(summary.real_seconds)}"
    if summary.rounds_not_standing:
        ran += f"; {summary.rounds_not_standing} failed and left the schedule as it was"
    solved = ", ".join(f"{name} {count}" for name, count in summary.algorithms.items())
    ends = f"{summary.finished} finished, {summary.failed} failed, {summary.withdrawn} withdrawn"
    write_facts(
        {
            "model": summary.model,
            "simulated": _span(summary.seconds),
            "cluster": f"{counted(summary.machines, 'machine')}, {counted(summary.slots, 'slot')}",
            "tasks": f"{summary.submitted} submitted; {ends}, {summary.running} run, {summary.waiting} wait",
            "decisions": f"{summary.placed} placed, {summary.preempted} preempted, "
            f"{summary.migrated} migrated",
            "lost": f"{summary.lost_with_machines} runs with their machines",
            "wasted": f"{_span(summary.wasted_seconds)} of runs that were stopped",
            "utilisation": f"{summary.utilisation:.1%} of the slots",
            "rounds": f"{ran}; solved by: {solved or 'nothing'}",
            "network": f"at most {counted(summary.vertices, 'vertex', 'vertices')}, "
            f"{counted(summary.arcs, 'arc')}",
            "faults": str(summary.faults),
            "digest": summary.digest,
        }
    )
    sys.stdout.write("\n")
    columns = ("", "count", "mean", "50 %", "90 %", "99 %", "most")
    rows = [
        _spread("waiting, s", summary.wait),
        _spread("runtime, s", summary.runtime),
        _spread("job makespan, s", summary.makespan),
        *(_spread(f"{name}, times ideal", spread) for name, spread in summary.normalised.items()),
        _spread("decision, ms", summary.decision, 1000),
        _spread("solver, ms", summary.solve, 1000),
    ]
    table(columns, rows, right=columns[1:])
    if summary.passed_over:
        rows_of = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.passed_over.items()))
        say(f"rows of the trace without an effect here: {rows_of}")
    for text in summary.fault_texts[:5]:
        say(f"fault: {text}")
    if summary.faults > 5:
        say(f"fault: and {summary.faults - 5} more; --json lists up to {len(summary.fault_texts)}")


def _spread(name: str, spread: Spread, times: float = 1) -> list[str]:
    numbers = (spread.mean, spread.p50, spread.p90, spread.p99, spread.most)
    return [name, str(spread.count), *("-" if n is None else f"{n * times:.2f}" for n in numbers)]


def _span(seconds: float) -> str:
    return span_text(round(seconds * 1e9))
