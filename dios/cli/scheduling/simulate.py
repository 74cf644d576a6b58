"""``dios sched simulate``: hours of a cluster under the real scheduler, in minutes.

Not for: the simulation (``dios.firmament.simulate``), which is loaded when the command runs.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from dios.cli.common.extras import needing_cluster
from dios.cli.common.output import (
    INTERRUPTED,
    JsonOption,
    err,
    facts,
    reporting,
    say,
    span_text,
    table,
    write_json,
)
from dios.errors import InvalidError

if TYPE_CHECKING:
    from dios.firmament.simulate.command import Options
    from dios.firmament.simulate.report import Spread, Summary
    from dios.firmament.simulate.run import Progress

DOING: Final = "dios sched simulate"
EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios sched simulate --synthetic google --machines 200 --blocks\n"
    "  dios sched simulate --synthetic mix-srg --model coco --stay --out results --plots\n"
    "  dios sched simulate --trace clusterdata-2011-2 --machines 500 --hours 2 --json"
)

_TRACE: Final = "Folder of the 2011 Google cluster trace: machine_events/, task_events/, maybe task_usage/."
_SYNTHETIC: Final = (
    "google: a made-up workload like that of the trace. mix-srg, mix-dc: five programs that disturb each "
    "other, on the thesis' two clusters (Table 8.2)."
)
_MODEL: Final = "Cost model, as `dios sched models` lists them; queue, queue-load: a queue without costs."
_INTERVAL: Final = "Simulated seconds between rounds, or 'measured': back to back, each as long as it takes."
_CHECK: Final = "Hold the scheduler's tables against the truth after each round."

TraceOption = Annotated[Path | None, typer.Option("--trace", metavar="DIR", help=_TRACE)]
SyntheticOption = Annotated[str | None, typer.Option("--synthetic", metavar="KIND", help=_SYNTHETIC)]
MachinesOption = Annotated[
    int | None, typer.Option("--machines", metavar="N", help="How many machines; of a trace, a part.")
]
HoursOption = Annotated[float, typer.Option("--hours", metavar="H", help="Simulated time.")]
ModelOption = Annotated[str, typer.Option("--model", metavar="NAME", help=_MODEL)]
ParameterOption = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the model.")
]
SolverOption = Annotated[str, typer.Option("--solver", metavar="NAME", help="The solver's algorithm.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of all that is random.")]
LoadOption = Annotated[
    float | None,
    typer.Option("--load", metavar="SHARE", help="Share of all slots that is asked for; default: 0.5."),
]
ScaleOption = Annotated[
    float | None,
    typer.Option("--scale", metavar="SHARE", help="Share of a trace's machines and jobs that is taken."),
]
IntervalOption = Annotated[str, typer.Option("--round-interval", metavar="SECONDS", help=_INTERVAL)]
BlocksOption = Annotated[bool, typer.Option("--blocks", help="Batch tasks have inputs somewhere (§8.4).")]
TopologyOption = Annotated[
    bool, typer.Option("--topology", help="Sockets, caches, cores and threads are vertices too.")
]
StayOption = Annotated[bool, typer.Option("--stay", help="Running tasks are neither stopped nor moved.")]
CheckOption = Annotated[bool, typer.Option("--check", help=_CHECK)]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write summary.json and tables there.")
]
PlotsOption = Annotated[bool, typer.Option("--plots", help="Write pictures there too.")]


def simulate(
    trace: TraceOption = None,
    synthetic: SyntheticOption = None,
    machines: MachinesOption = None,
    hours: HoursOption = 1.0,
    model: ModelOption = "quincy",
    param: ParameterOption = None,
    solver: SolverOption = "auto",
    seed: SeedOption = 0,
    load: LoadOption = None,
    scale: ScaleOption = None,
    round_interval: IntervalOption = "1",
    *,
    blocks: BlocksOption = False,
    topology: TopologyOption = False,
    stay: StayOption = False,
    check: CheckOption = False,
    out: OutOption = None,
    plots: PlotsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate a cluster: machines and tasks come and go, and the real scheduler decides.

    The same options give the same run to the last decision; `digest` tells runs apart. Ctrl-C ends a run
    with what was found so far.
    """
    with reporting(DOING, as_json=as_json):
        with needing_cluster("simulations"):
            from dios.firmament.simulate.command import Options  # noqa: PLC0415 - needs an extra
        options = Options(
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
        _run(options, out, plots=plots, as_json=as_json)


def _run(options: Options, out: Path | None, *, plots: bool, as_json: bool) -> None:
    """Simulate, write, tell."""
    from dios.firmament.coordinator.warm_up import exercise_kernels  # noqa: PLC0415 - needs an extra
    from dios.firmament.simulate import command, report  # noqa: PLC0415 - needs an extra
    from dios.firmament.simulate.plots import write_plots  # noqa: PLC0415 - needs an extra
    from dios.plotting import need_plots  # noqa: PLC0415 - needs an extra

    if plots and out is None:
        raise InvalidError("--plots needs --out DIR, where the pictures go")
    if plots:
        need_plots()
    config = command.config_of(options)
    if out is not None:
        # Before the simulation: what cannot be written must not show after an hour.
        out.mkdir(parents=True, exist_ok=True)
    with err().status("loading the scheduler; the first time its kernels are compiled, which takes a minute"):
        exercise_kernels("spread")
    with _progress() as progress:
        outcome = command.run_config(config, progress)
    summary = report.summarise(outcome)
    if out is not None:
        (out / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n", encoding="utf-8")
        written = report.write_tables(outcome, out)
        written += write_plots(outcome, out) if plots else []
        say(f"wrote summary.json, {', '.join(path.name for path in written)} in {out}")
    if as_json:
        write_json(summary.as_json())
    else:
        _tell(summary)
    if outcome.interrupted:
        say(f"{DOING}: interrupted after {_span(outcome.seconds)}; this is what was found until then")
        raise typer.Exit(INTERRUPTED)


def _parameters(given: Sequence[str]) -> dict[str, int | float | str | bool]:
    """NAME=VALUE words; the model makes numbers of the values."""
    found: dict[str, int | float | str | bool] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InvalidError(f"--param {word!r}: give it as NAME=VALUE")
        found[name] = value
    return found


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Progress], None] | None]:
    """A bar over simulated time, on a terminal only."""
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
        task = bar.add_task("simulating", total=None, doing="")

        def told(at: Progress) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            speed = f"{at.rounds / elapsed:.1f} rounds/s" if elapsed > 0 else ""
            doing = f"{_span(at.now)} of {_span(at.seconds)}, {at.running} run, {at.waiting} wait, {speed}"
            bar.update(task, completed=at.now, total=at.seconds, doing=doing)

        yield told


# Telling ----------------------------------------------------------------------------------------------


def _tell(summary: Summary) -> None:
    """The summary for people."""
    ran = f"{summary.rounds} in {_span(summary.real_seconds)}"
    if summary.rounds_not_standing:
        ran += f"; after {summary.rounds_not_standing} the last good schedule stayed"
    solved = ", ".join(f"{name} {count}" for name, count in summary.algorithms.items())
    ends = f"{summary.finished} finished, {summary.failed} failed, {summary.withdrawn} withdrawn"
    facts(
        [
            ("model", summary.model),
            ("simulated", _span(summary.seconds)),
            ("cluster", f"{summary.machines} machines, {summary.slots} slots"),
            ("tasks", f"{summary.submitted} came; {ends}, {summary.running} run, {summary.waiting} wait"),
            (
                "decisions",
                f"{summary.placed} placed, {summary.preempted} preempted, {summary.migrated} migrated",
            ),
            ("lost", f"{summary.lost_with_machines} runs with their machines"),
            ("wasted", f"{_span(summary.wasted_seconds)} of runs that were stopped"),
            ("utilisation", f"{summary.utilisation:.1%} of the slots"),
            ("rounds", f"{ran}; solved by: {solved or 'nothing'}"),
            ("network", f"{summary.vertices} vertices, {summary.arcs} arcs at the most"),
            ("faults", str(summary.faults)),
            ("digest", summary.digest),
        ]
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
        rows_of = ", ".join(f"{count} {what}" for what, count in sorted(summary.passed_over.items()))
        say(f"rows of the trace that change nothing here: {rows_of}")
    for text in summary.fault_texts[:5]:
        say(f"fault: {text}")
    if summary.faults > 5:
        say(f"fault: and {summary.faults - 5} more; --json lists up to {len(summary.fault_texts)}")


def _spread(name: str, spread: Spread, times: float = 1) -> list[str]:
    numbers = (spread.mean, spread.p50, spread.p90, spread.p99, spread.most)
    return [name, str(spread.count), *("-" if n is None else f"{n * times:.2f}" for n in numbers)]


def _span(seconds: float) -> str:
    return span_text(round(seconds * 1e9))
