"""``dios lab fair``: compare SDRF with DRF on whole traces, without a cluster.

The simulation is in ``labs.simulate.fairness``, which is imported when the command runs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import progress, say, table, write_facts, write_file, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.streams import INTERRUPTED
from dios.errors import InvalidError

if TYPE_CHECKING:
    from labs.simulate.fairness.trace import FairTrace
    from labs.simulate.fairness.trace_report import Comparison, MechanismResult

app: Final = CommandApplication()

DOING: Final = "dios lab fair"
RULES: Final = ("dominant", "sum")
ROWS_PER_UPDATE: Final = 100_000
_EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios lab fair --synthetic                                   # a synthetic month of 600 users\n"
    "  dios lab fair --synthetic --capacity 0.5 --delta 1-1e-5 --delta 1-1e-6 --no-events\n"
    "  dios lab fair --trace clusterdata-2011-2 --days 7 --out week --json"
)
_DELTA: Final = (
    "SDRF's discount factor per second, as 0.999999 or 1-1e-6 (the default). The nearer to 1, the longer "
    "SDRF remembers. May be repeated."
)
_CAPACITY: Final = (
    "The pool, in multiples of the tasks' average use. Below 1, not all tasks can be completed."
)
_PRIORITY: Final = (
    "dominant: largest share plus largest commitment (equation 10). sum: largest sum of both (Algorithm 1)."
)
_EVENTS: Final = "Also simulate with the live tree, to count its events."
_USERS, _TASKS = "Users of the synthetic trace: 600.", "Tasks of the synthetic trace: 1,000,000."


class Result(NamedTuple):
    """The results of one mechanism."""

    played: MechanismResult
    compared: Comparison
    events: int | None
    """Events of the live tree; None if they were not counted."""

    @property
    def per_thousand(self) -> float | None:
        """Return the live tree's events per thousand decisions."""
        return None if self.events is None else 1000.0 * self.events / max(self.played.order.size, 1)


@app.command("fair", epilog=_EXAMPLES)
def simulate(
    trace: Path | None = option("--trace DIR", "Folder with task_events/ of the 2011 trace."),
    users: int | None = option("--users N", _USERS),
    tasks: int | None = option("--tasks N", _TASKS),
    days: float | None = option(
        "--days D", "Days to simulate; default: 30 synthetic ones, or the whole trace."
    ),
    seed: int | None = option("--seed N", "Seed of the synthetic trace: 1.", min=0),
    delta: list[str] | None = option("--delta D", _DELTA),
    priority: str = option("--priority RULE", _PRIORITY, default="dominant"),
    capacity: float = option("--capacity R", _CAPACITY, default=1.0),
    out: Path | None = option("--out DIR", "Write summary.json, users.csv and pictures there."),
    *,
    synthetic: bool = option("--synthetic", "A synthetic trace: few constant users, most in bursts."),
    events: bool = option("--events/--no-events", _EVENTS, default=True),
    output: OutputOptions,
) -> None:
    """Simulate a trace under SDRF and under DRF, which has no memory, and compare the two.

    Shows the mean waiting time over users (each counts once), over tasks, and over the half of the users who
    ask for least; the number of users who complete fewer tasks before the trace ends; and the number of
    times that the live tree was reordered.
    """
    from labs.simulate.fairness import trace_report  # noqa: PLC0415 - loads numpy

    deltas = [_delta(text) for text in delta or ["1-1e-6"]]
    _check(priority, capacity, days)
    done: list[Result] = []
    if out is not None:
        # Create the directory first: a directory that cannot be written must not fail after minutes.
        out.mkdir(parents=True, exist_ok=True)
    try:
        with progress(DOING) as show_progress:
            tried = _trace(trace, users, tasks, days, seed, show_progress, synthetic=synthetic)
            pool = tried.usage() * capacity
            tried, too_large = trace_report.without_oversized(tried, pool)
            if not tried.submit_us.size:
                raise InvalidError(f"no task fits into --capacity {capacity}; give a larger capacity")
            show_progress(f"DRF, {tried.submit_us.size:,} tasks")
            plain = trace_report.run_mechanism(tried, pool, None)
            done.append(Result(plain, trace_report.compare(tried, plain, plain), None))
            for candidate in deltas:
                show_progress(f"SDRF, {trace_report.delta_text(candidate)}")
                played = trace_report.run_mechanism(tried, pool, candidate, priority)
                counted = _events(tried, pool.tolist(), candidate, priority) if events else None
                done.append(Result(played, trace_report.compare(tried, plain, played), counted))
    except KeyboardInterrupt:
        finished = ", ".join(result.played.name for result in done) or "nothing"
        say(f"{DOING}: interrupted; finished: {finished}")
        raise typer.Exit(INTERRUPTED) from None
    summary = _summary(tried, done, capacity, priority, too_large)
    if out is not None:
        _write(out, tried, done, summary)
    if output.as_json:
        write_json(summary)
    else:
        _show(tried, done, capacity, too_large)


def _delta(text: str) -> float:
    """Parse a discount factor, as ``0.999999`` or ``1-1e-6``."""
    head, minus, tail = text.replace(" ", "").partition("1-")
    try:
        value = 1.0 - float(tail) if minus and not head else float(text)
    except ValueError:
        raise InvalidError(f"--delta {text!r}: give a number, as 0.999999 or 1-1e-6") from None
    if not 0.0 < value < 1.0:
        raise InvalidError(f"--delta {text!r}: it must be between 0 and 1; DRF is always simulated as well")
    return value


def _check(priority: str, capacity: float, days: float | None) -> None:
    if priority not in RULES:
        raise InvalidError(f"--priority is {priority!r}; choose from {' and '.join(RULES)}")
    if not (math.isfinite(capacity) and capacity > 0):
        raise InvalidError(f"--capacity is {capacity}; it must be a finite number above 0")
    if days is not None and not (math.isfinite(days) and days > 0):
        raise InvalidError(f"--days is {days}; it must be a finite number above 0")


def _trace(
    directory: Path | None,
    users: int | None,
    tasks: int | None,
    days: float | None,
    seed: int | None,
    show_progress: Callable[[str], None],
    *,
    synthetic: bool,
) -> FairTrace:
    """Return the trace that the options describe."""
    from labs.simulate.fairness.google_like import GoogleLike, generate_trace  # noqa: PLC0415 - loads numpy

    if synthetic == (directory is not None):
        raise InvalidError("give either --trace DIR or --synthetic")
    if directory is not None:
        for name, value in (("users", users), ("tasks", tasks), ("seed", seed)):
            if value is not None:
                raise InvalidError(f"--{name} is for synthetic traces only; leave it out with --trace")
        return _read(directory, days, show_progress)
    show_progress("generating a trace")
    try:
        parameters = GoogleLike(
            users=600 if users is None else users,
            tasks=1_000_000 if tasks is None else tasks,
            days=30.0 if days is None else days,
            seed=1 if seed is None else seed,
        )
    except ValueError as error:
        raise InvalidError(f"--synthetic: {error}") from None
    return generate_trace(parameters)


def _read(directory: Path, days: float | None, show_progress: Callable[[str], None]) -> FairTrace:
    """Read the 2011 trace, or its first days."""
    from labs.simulate.fairness.trace import DAY_US, trace_of_rows  # noqa: PLC0415 - loads numpy
    from labs.simulate.workloads.trace_rows import (  # noqa: PLC0415 - loads numpy
        AFTER,
        WINDOW_US,
        TraceTaskRow,
        task_rows,
    )

    until = None if days is None else WINDOW_US + int(days * DAY_US)

    def counted() -> Iterator[TraceTaskRow]:
        for number, row in enumerate(task_rows(directory, AFTER - 1 if until is None else until)):
            if number % ROWS_PER_UPDATE == 0:
                show_progress(f"{number:,} rows of {directory}")
            yield row

    trace, left_out = trace_of_rows(counted(), begin_us=WINDOW_US, until_us=until)
    if left_out:
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(left_out.items()))
        say(f"left out of the trace: {reasons}")
    return trace


def _events(trace: FairTrace, capacity: list[float], delta: float, rule: str) -> int:
    """Return the number of times that the live tree is reordered."""
    from labs.simulate.fairness.simulate_by_tree import simulate_by_tree  # noqa: PLC0415 - loads numpy

    *_, events = simulate_by_tree(
        *(trace.submit_us, trace.duration_us, trace.user, trace.demands, capacity),
        users=trace.users,
        delta=delta,
        priority=rule,
    )
    return events


# Output -----------------------------------------------------------------------------------------------


class MechanismRow(TypedDict):
    """A mechanism: its waits, as fractions of change compared with DRF, and the events of its live tree."""

    name: str
    delta: float | None
    wait_users_s: float
    wait_users: float
    wait_until_end: float
    wait_tasks_s: float
    wait_tasks: float
    wait_low_s: float
    wait_low: float
    each_mean: float
    each_median: float
    fewer: int
    more: int
    lost_most: float
    completed: int
    events: int | None
    events_per_thousand: float | None


class FairSummaryRow(TypedDict):
    """A trace, and the results of each mechanism."""

    tasks: int
    tasks_too_large: int
    users: int
    days: float
    capacity: float
    priority: str
    mechanisms: list[MechanismRow]


def _summary(
    trace: FairTrace, done: list[Result], capacity: float, priority: str, too_large: int
) -> FairSummaryRow:
    return {
        "tasks": int(trace.submit_us.size),
        "tasks_too_large": too_large,
        "users": trace.users,
        "days": trace.horizon_us / 86_400e6,
        "capacity": capacity,
        "priority": priority,
        "mechanisms": [
            {
                "name": result.played.name,
                "delta": result.played.delta,
                "wait_users_s": result.compared.wait_users_s,
                "wait_users": result.compared.wait_users,
                "wait_until_end": result.compared.wait_until_end,
                "wait_tasks_s": result.compared.wait_tasks_s,
                "wait_tasks": result.compared.wait_tasks,
                "wait_low_s": result.compared.wait_low_s,
                "wait_low": result.compared.wait_low,
                "each_mean": result.compared.each_mean,
                "each_median": result.compared.each_median,
                "fewer": result.compared.fewer,
                "more": result.compared.more,
                "lost_most": result.compared.lost_most,
                "completed": result.compared.completed,
                "events": result.events,
                "events_per_thousand": result.per_thousand,
            }
            for result in done
        ],
    }


def _show(trace: FairTrace, done: list[Result], capacity: float, too_large: int) -> None:
    days = trace.horizon_us / 86_400e6
    tasks = f"{trace.submit_us.size:,} of {trace.users:,} users in {days:.1f} days"
    if too_large:
        tasks += f"; {too_large:,} that ask for more than the pool are left out"
    write_facts({"tasks": tasks, "pool": f"{capacity:g} times the tasks' average use"})
    sys.stdout.write("\n")
    columns = (
        *("", "wait, users", "change", "wait, tasks", "change", "wait, low half", "change"),
        *("complete fewer", "more", "events / 1000"),
    )
    rows = []
    for result in done:
        comparison, drf = result.compared, result.played.delta is None
        changes = [
            "" if drf else f"{change:+.1%}"
            for change in (comparison.wait_users, comparison.wait_tasks, comparison.wait_low)
        ]
        rows.append(
            [
                result.played.name,
                *(
                    _seconds(comparison.wait_users_s),
                    changes[0],
                    _seconds(comparison.wait_tasks_s),
                    changes[1],
                ),
                *(_seconds(comparison.wait_low_s), changes[2]),
                *("" if drf else str(count) for count in (comparison.fewer, comparison.more)),
                "" if result.per_thousand is None else f"{result.per_thousand:.2f}",
            ]
        )
    table(columns, rows, right=columns[1:])


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def _write(out: Path, trace: FairTrace, done: list[Result], summary: FairSummaryRow) -> None:
    """Write summary.json, users.csv, and pictures."""
    from labs import plotting  # noqa: PLC0415 - loads numpy
    from labs.simulate.fairness.trace_report import reductions  # noqa: PLC0415 - loads numpy

    write_file(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    heads = [f"{column} ({result.played.name})" for result in done for column in ("mean wait s", "completed")]
    lines = [",".join(["user", *(f'"{head}"' for head in heads)])]
    for user in range(trace.users):
        cells = [
            cell
            for result in done
            for cell in (f"{result.played.wait_s[user]:.3f}", str(result.played.completed[user]))
        ]
        lines.append(",".join([str(user), *cells]))
    write_file(out / "users.csv", "\n".join(lines) + "\n")
    written = ["summary.json", "users.csv"]
    waits = {result.played.name: plotting.distribution(result.played.wait_s + 1.0) for result in done}
    reductions_by_name = {r.played.name: reductions(done[0].played, r.played).tolist() for r in done[1:]}
    for drawn in (
        plotting.Lines("waits", "Waiting of users", "mean wait + 1 s", "users", waits, log_x=True),
        plotting.Boxes(
            *("reductions", "Waiting compared with DRF, each user", "reduction"),
            {name: {"users": values} for name, values in reductions_by_name.items()},
        ),
    ):
        plotting.draw(drawn, out / f"{drawn.name}.png")
        written.append(f"{drawn.name}.png")
    say(f"wrote {', '.join(written)} in {out}")
