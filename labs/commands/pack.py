"""``dios lab pack``: compares policies on jobs over time in a simulated data centre.

``labs.simulate.packing.simulate`` is loaded when the command runs.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import counted, err, say, table, waiting, write_facts, write_file, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.streams import INTERRUPTED
from dios.errors import InvalidError
from dios.limits import PACKER_INSTANTS_MAX

if TYPE_CHECKING:
    from dios.packer.datacenter import Datacenter
    from labs.simulate.packing.simulate import JobSource, PolicySummary, Simulation

app: Final = CommandApplication()
DOING: Final = "dios lab pack"
EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios lab pack                              # 1,200 servers, six policies: half a minute\n"
    "  dios lab pack --servers 120 --bandwidth 5  # a small data centre with little traffic\n"
    "  dios lab pack --policy ahead --policy tetris-time --seed 4 --seed 5 --seed 6 --out results\n"
    "  dios lab pack --servers 80 --jobs nightly --json         # your own jobs"
)
POLICIES: Final = ("literal", "fixed", "ahead", "tetris", "tetris-time", "slots")
"""The policies that are simulated by default."""

_RATE: Final = (
    "Synthetic jobs that arrive at each instant; default: 35 for 1,200 servers, nearly their capacity."
)
_BANDWIDTH: Final = "Median demand of an edge of a synthetic job, in Mbit/s (default 30)."
_POLICY: Final = "Policy, as listed in docs/packer.md; may be given several times."
_SEED: Final = "Seed of the synthetic jobs (default 1); may be given several times, each gives a result."
_INSTANTS: Final = "Number of instants; default: 60, or with --jobs until the last job has arrived."
_JOBS: Final = (
    "Folder with jobs as NAME.toml, and arrivals.csv: lines `instant,NAME`; without it all arrive at 0."
)


class PackingRun(NamedTuple):
    """The simulation of one seed."""

    seed: int | None
    """None if the jobs were given with --jobs."""
    simulation: Simulation


class PackingScenario(NamedTuple):
    """The arguments of a simulation: the data centre, and the jobs of each seed."""

    make: Callable[[], Datacenter]
    sources: list[tuple[int | None, JobSource]]
    policies: list[str]
    instants: int
    begin: int
    """The first instant that counts in the results."""
    about: list[tuple[str, str]]


@app.command("pack", epilog=EXAMPLES)
def simulate(
    servers: int = option("--servers N", "Number of servers.", default=1200),
    per_rack: int = option("--per-rack N", "Servers per rack.", default=40),
    racks_per_pod: int = option("--racks-per-pod N", "Racks per pod.", default=10),
    rate: float | None = option("--rate JOBS", _RATE),
    bandwidth: float | None = option("--bandwidth MBPS", _BANDWIDTH),
    policy: list[str] | None = option("--policy NAME", _POLICY),
    seed: list[int] | None = option("--seed N", _SEED, min=0),
    instants: int | None = option("--instants N", _INSTANTS),
    jobs: Path | None = option("--jobs DIR", _JOBS),
    out: Path | None = option("--out DIR", "Write summary.json, instants.csv and pictures there."),
    *,
    output: OutputOptions,
) -> None:
    """Offer the same jobs over time to the same data centre under several policies, and compare.

    The results are the admitted fractions of jobs (whole or not at all), of tasks and of revenue; the use of
    each resource; and the CPU time per job. Servers have 16 cores, 32 GiB, 200 MB/s of disk in each direction
    and 1 Gbit/s, in racks of 10 Gbit/s and pods of 100 Gbit/s. With synthetic jobs, results count from the
    instant at which the first jobs have ended. Ctrl-C ends the simulation and shows its results so far.
    """
    from labs.simulate.packing.simulate import summarise  # noqa: PLC0415 - loads numpy

    try:
        scene = _scene(
            *(servers, per_rack, racks_per_pod, rate, bandwidth),
            *(policy, seed, instants, jobs),
        )
    except ValueError as error:
        raise InvalidError(str(error)) from None
    if out is not None:
        # An output that cannot be written must fail now, not after minutes.
        out.mkdir(parents=True, exist_ok=True)
    runs, interrupted = _play(scene)
    summaries = [(run.seed, summarise(run.simulation, scene.begin)) for run in runs]
    summary = _summary(scene, runs, summaries)
    if out is not None:
        _write(out, runs, summary)
    if output.as_json:
        write_json(summary)
    else:
        _tell(scene, runs, summaries)
    if interrupted:
        done = ", ".join(
            f"{'' if run.seed is None else f'seed {run.seed}: '}{run.simulation.done} of {scene.instants}"
            for run in runs
        )
        say(f"{DOING}: interrupted; instants simulated: {done or 'none'}")
        raise typer.Exit(INTERRUPTED)


def _scene(
    servers: int,
    per_rack: int,
    racks_per_pod: int,
    rate: float | None,
    bandwidth: float | None,
    policy: list[str] | None,
    seed: list[int] | None,
    instants: int | None,
    jobs: Path | None,
) -> PackingScenario:
    """Return the arguments given by the options. Raise ``ValueError`` for an invalid option."""
    from dios.packer.baselines import POLICIES as KNOWN  # noqa: PLC0415 - loads numpy
    from dios.packer.datacenter import Datacenter  # noqa: PLC0415 - loads numpy
    from labs.simulate.packing.generate_jobs import Workload  # noqa: PLC0415 - loads numpy
    from labs.simulate.packing.simulate import JOBS_EACH, SyntheticJobs, read_jobs  # noqa: PLC0415 - loads numpy

    chosen = list(dict.fromkeys(policy or POLICIES))
    for name in chosen:
        if name not in KNOWN:
            raise ValueError(f"--policy {name!r} does not exist; choose from {', '.join(KNOWN)}")
    if servers < 1:
        raise ValueError(f"--servers is {servers}; it must be at least 1")
    if instants is not None and not 1 <= instants <= PACKER_INSTANTS_MAX:
        raise ValueError(f"--instants is {instants}; it must be from 1 to {PACKER_INSTANTS_MAX}")
    sources: list[tuple[int | None, JobSource]]
    if jobs is not None:
        for name, value in (("rate", rate), ("bandwidth", bandwidth), ("seed", seed)):
            if value is not None:
                raise ValueError(f"--{name} has no meaning with --jobs; leave it out")
        given = read_jobs(jobs)
        sources, begin, longest = [(None, given)], 0, given.longest
        length = instants or given.last + 1
        about = [("jobs", f"{given.many:,} of {jobs}")]
    else:
        per_instant = servers * JOBS_EACH if rate is None else rate
        workload = Workload(mbps=30.0 if bandwidth is None else bandwidth)
        for name, value in (("rate", per_instant), ("bandwidth", workload.mbps)):
            if not (math.isfinite(value) and value > 0.0):
                raise ValueError(f"--{name} is {value}; it must be a number above 0")
        seeds = list(dict.fromkeys(seed or [1]))
        sources = [(number, SyntheticJobs(workload, number, per_instant)) for number in seeds]
        length, longest = instants or 60, workload.instants_max
        begin = min(longest, length // 2)
        about = [
            ("jobs", f"synthetic, {per_instant:g} at each instant, median edge {workload.mbps:g} Mbit/s"),
            ("seeds", ", ".join(map(str, seeds))),
        ]
        size = f"{counted(servers, 'server')}, {per_rack} per rack, {counted(racks_per_pod, 'rack')} per pod"
        about.append(("data centre", size))
    about.append(("instants", f"{length}; results count from instant {begin}"))

    def make() -> Datacenter:
        return Datacenter.tree(
            servers, per_rack=per_rack, racks_per_pod=racks_per_pod, horizon=max(64, longest)
        )

    make()
    return PackingScenario(make, sources, chosen, length, begin, about)


def _play(scene: PackingScenario) -> tuple[list[PackingRun], bool]:
    """Simulate every seed. Return the simulations so far, and True if interrupted."""
    from labs.simulate.packing.simulate import Simulation, warm_up  # noqa: PLC0415 - loads numpy

    runs: list[PackingRun] = []
    try:
        with waiting("loading the kernels; the first time they are compiled, which takes a minute"):
            warm_up()
        with _progress(scene.instants * len(scene.sources)) as told:
            for seed, source in scene.sources:
                simulation = Simulation(scene.make, source, scene.policies, scene.instants)
                runs.append(PackingRun(seed, simulation))
                while simulation.done < scene.instants:
                    told(simulation.done + scene.instants * (len(runs) - 1))
                    simulation.step()
    except KeyboardInterrupt:
        return [run for run in runs if run.simulation.done], True
    except ValueError as error:
        raise InvalidError(str(error)) from None
    return runs, False


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over instants, only on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=err(), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("instants", total=total)
        yield lambda done: bar.update(task, completed=done)


# Showing and writing ----------------------------------------------------------------------------------


_FRACTIONS: Final = ("jobs", "tasks", "revenue")


def _was_offered(scene: PackingScenario, run: PackingRun) -> bool:
    """Return True if jobs arrived in the instants that count; otherwise no fraction of them is admitted."""
    return bool(run.simulation.arrivals.jobs[scene.begin : run.simulation.done].any())


class PolicyRow(TypedDict):
    """A policy's results; the admitted fractions are null if no jobs came in the instants that count."""

    policy: str
    jobs: float | None
    tasks: float | None
    revenue: float | None
    paid: float
    used: list[float]
    booked: list[float]
    job_ms: tuple[float, float, float]
    refused_for: dict[str, int]


class PackingRunRow(TypedDict):
    """A simulation with one seed; null for given jobs."""

    seed: int | None
    instants_played: int
    jobs: int
    tasks: int
    policies: list[PolicyRow]


class PackingSummaryRow(TypedDict):
    """The setting of simulations, and the results of each; they count from the instant ``begin``."""

    setting: dict[str, str]
    instants: int
    begin: int
    runs: list[PackingRunRow]


def _policy_row(summary: PolicySummary, *, offered: bool) -> PolicyRow:
    return {
        "policy": summary.policy,
        "jobs": summary.jobs if offered else None,
        "tasks": summary.tasks if offered else None,
        "revenue": summary.revenue if offered else None,
        "paid": summary.paid,
        "used": list(summary.used),
        "booked": list(summary.booked),
        "job_ms": summary.job_ms,
        "refused_for": summary.refused_for,
    }


def _summary(
    scene: PackingScenario, runs: list[PackingRun], summaries: list[tuple[int | None, list[PolicySummary]]]
) -> PackingSummaryRow:
    return {
        "setting": dict(scene.about),
        "instants": scene.instants,
        "begin": scene.begin,
        "runs": [
            {
                "seed": seed,
                "instants_played": run.simulation.done,
                "jobs": int(run.simulation.arrivals.jobs.sum()),
                "tasks": int(run.simulation.arrivals.tasks.sum()),
                "policies": [_policy_row(summary, offered=_was_offered(scene, run)) for summary in policies],
            }
            for run, (seed, policies) in zip(runs, summaries, strict=True)
        ],
    }


def _tell(
    scene: PackingScenario, runs: list[PackingRun], summaries: list[tuple[int | None, list[PolicySummary]]]
) -> None:
    """Show a line per policy with the median over seeds, and the tasks of each seed if there are several.

    A dash stands for the fractions of jobs that never came.
    """
    write_facts(dict(scene.about))
    if not summaries:
        return
    sys.stdout.write("\n")
    used = ("cpu", "memory", "write", "read", "links")
    columns = ("policy", "tasks", "jobs", "revenue", *used, "ms a job", "p95")
    several = [f"seed {seed}" for seed, _ in summaries] if len(summaries) > 1 else []
    rows = []
    for per_seed in zip(*(policies for _, policies in summaries), strict=True):
        fractions = [
            (summary.tasks, summary.jobs, summary.revenue)
            for summary, run in zip(per_seed, runs, strict=True)
            if _was_offered(scene, run)
        ]
        parts = [summary.used for summary in per_seed]
        times = [summary.job_ms[:2] for summary in per_seed]
        rows.append(
            [
                per_seed[0].policy,
                *(f"{_median(column):.1%}" for column in zip(*fractions, strict=True)),
                *(() if fractions else ("-",) * len(_FRACTIONS)),
                *(f"{_median(column):.1%}" for column in zip(*parts, strict=True)),
                *(f"{_median(column):.2f}" for column in zip(*times, strict=True)),
                *(
                    f"{summary.tasks:.1%}" if _was_offered(scene, run) else "-"
                    for summary, run in zip(per_seed, runs, strict=True)
                    if several
                ),
            ]
        )
    table((*columns, *several), rows, right=(*columns[1:], *several))


def _median(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _write(out: Path, runs: list[PackingRun], summary: PackingSummaryRow) -> None:
    """Write summary.json, instants.csv, and pictures."""
    from labs import plotting  # noqa: PLC0415 - loads numpy
    from labs.simulate.packing.simulate import figures_of, instants_csv  # noqa: PLC0415 - loads numpy

    write_file(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    text = instants_csv([(run.seed, run.simulation) for run in runs])
    write_file(out / "instants.csv", text)
    written = ["summary.json", "instants.csv"]
    if runs:
        for drawn in figures_of(runs[0].simulation):
            plotting.draw(drawn, out / f"{drawn.name}.png")
            written.append(f"{drawn.name}.png")
    say(f"wrote {', '.join(written)} in {out}")
