"""``dios fair``: whole traces under DRF and SDRF, side by side, without any cluster.

Not for: the mechanisms and the counting (``dios.fairness``), which are loaded when the command runs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from dios.cli.common.extras import needing_cluster
from dios.cli.common.output import INTERRUPTED, JsonOption, facts, progress, reporting, say, table, write_json
from dios.errors import InvalidError

if TYPE_CHECKING:
    from dios.fairness.trace import FairTrace
    from dios.fairness.trace_report import Compared, Played

app: Final = typer.Typer(
    help="Fair shares of several resources, tried on traces: nothing here needs a node.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DOING: Final = "dios fair simulate"
RULES: Final = ("dominant", "sum")
ROWS_TOLD: Final = 100_000
_EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios fair simulate --synthetic                                   # a made-up month of 600 users\n"
    "  dios fair simulate --synthetic --capacity 0.5 --delta 1-1e-5 --delta 1-1e-6 --no-events\n"
    "  dios fair simulate --trace clusterdata-2011-2 --days 7 --out week --json"
)
_DELTA: Final = (
    "SDRF's discount factor for a second, as 0.999999 or 1-1e-6 (the default); the nearer to 1, the longer "
    "it remembers. May be given several times."
)
_CAPACITY: Final = "The pool, in parts of what all tasks use on average; below 1 not all of them can be done."
_PRIORITY: Final = (
    "dominant: largest share plus largest commitment (equation 10). sum: largest sum (Algorithm 1)."
)
_EVENTS: Final = "Play everything by the live tree too, for the number of its events."
_USERS, _TASKS = "Of the made-up trace: 600.", "Of the made-up trace: 1,000,000."

TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="DIR", help="Folder with task_events/ of the 2011 trace.")
]
SyntheticOption = Annotated[
    bool, typer.Option("--synthetic", help="A made-up trace: few users all the time, most in bursts.")
]
UsersOption = Annotated[int | None, typer.Option("--users", metavar="N", help=_USERS)]
TasksOption = Annotated[int | None, typer.Option("--tasks", metavar="N", help=_TASKS)]
DaysOption = Annotated[
    float | None,
    typer.Option("--days", metavar="D", help="How many; default: 30 made-up ones, or the whole trace."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, metavar="N", help="Of the made-up trace: 1.")
]
DeltaOption = Annotated[list[str] | None, typer.Option("--delta", metavar="D", help=_DELTA)]
PriorityOption = Annotated[str, typer.Option("--priority", metavar="RULE", help=_PRIORITY)]
CapacityOption = Annotated[float, typer.Option("--capacity", metavar="R", help=_CAPACITY)]
EventsOption = Annotated[bool, typer.Option("--events/--no-events", help=_EVENTS)]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write summary.json, users.csv and pictures there."),
]


class Result(NamedTuple):
    """One mechanism."""

    played: Played
    compared: Compared
    events: int | None
    """Of the live tree."""

    @property
    def per_thousand(self) -> float | None:
        """Events for a thousand decisions."""
        return None if self.events is None else 1000.0 * self.events / max(self.played.order.size, 1)


@app.callback()
def family() -> None:
    """Fair shares of several resources, tried on traces: nothing here needs a node."""


@app.command(epilog=_EXAMPLES)
def simulate(
    trace: TraceOption = None,
    users: UsersOption = None,
    tasks: TasksOption = None,
    days: DaysOption = None,
    seed: SeedOption = None,
    delta: DeltaOption = None,
    priority: PriorityOption = "dominant",
    capacity: CapacityOption = 1.0,
    out: OutOption = None,
    *,
    synthetic: SyntheticOption = False,
    events: EventsOption = True,
    as_json: JsonOption = False,
) -> None:
    """Play a trace through SDRF and through DRF, which remembers nothing, and set both side by side.

    Told are the mean waiting over users (each counts once) and over tasks, that of the users who ask for
    least, who completes fewer tasks before the trace ends, and how often the live tree was reordered.
    """
    with reporting(DOING, as_json=as_json):
        with needing_cluster("simulations"):
            from dios.fairness import trace_report  # noqa: PLC0415 - needs an extra
        deltas = [_delta(text) for text in delta or ["1-1e-6"]]
        _check(priority, capacity, days)
        done: list[Result] = []
        if out is not None:
            # What cannot be written must not show after minutes.
            out.mkdir(parents=True, exist_ok=True)
        try:
            with progress(DOING) as told:
                tried = _trace(trace, users, tasks, days, seed, told, synthetic=synthetic)
                pool = tried.usage() * capacity
                tried, too_large = trace_report.fitting(tried, pool)
                if not tried.submit_us.size:
                    raise InvalidError(f"no task fits into --capacity {capacity}; give a larger one")
                told(f"DRF, {tried.submit_us.size:,} tasks")
                plain = trace_report.play(tried, pool, None)
                done.append(Result(plain, trace_report.compare(tried, plain, plain), None))
                for each in deltas:
                    told(f"SDRF, {trace_report.delta_text(each)}")
                    played = trace_report.play(tried, pool, each, priority)
                    counted = _events(tried, pool.tolist(), each, priority) if events else None
                    done.append(Result(played, trace_report.compare(tried, plain, played), counted))
        except KeyboardInterrupt:
            finished = ", ".join(result.played.name for result in done) or "nothing"
            say(f"{DOING}: interrupted; finished were: {finished}")
            raise typer.Exit(INTERRUPTED) from None
        summary = _summary(tried, done, capacity, priority, too_large)
        if out is not None:
            _write(out, tried, done, summary)
        if as_json:
            write_json(summary)
        else:
            _tell(tried, done, capacity, too_large)


def _delta(text: str) -> float:
    """``0.999999`` or ``1-1e-6``."""
    head, minus, tail = text.replace(" ", "").partition("1-")
    try:
        value = 1.0 - float(tail) if minus and not head else float(text)
    except ValueError:
        raise InvalidError(f"--delta {text!r}: give a number, as 0.999999 or 1-1e-6") from None
    if not 0.0 < value < 1.0:
        raise InvalidError(f"--delta {text!r}: it must lie between 0 and 1; DRF is played beside it anyway")
    return value


def _check(priority: str, capacity: float, days: float | None) -> None:
    if priority not in RULES:
        raise InvalidError(f"--priority is {priority!r}; there are {' and '.join(RULES)}")
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
    told: Callable[[str], None],
    *,
    synthetic: bool,
) -> FairTrace:
    """The tasks meant."""
    from dios.fairness.google_like import GoogleLike, generate_trace  # noqa: PLC0415 - needs an extra

    if synthetic == (directory is not None):
        raise InvalidError("give either --trace DIR or --synthetic")
    if directory is not None:
        for name, value in (("users", users), ("tasks", tasks), ("seed", seed)):
            if value is not None:
                raise InvalidError(f"--{name} means nothing with a trace; leave it out")
        return _read(directory, days, told)
    told("making a trace up")
    try:
        made = GoogleLike(
            users=600 if users is None else users,
            tasks=1_000_000 if tasks is None else tasks,
            days=30.0 if days is None else days,
            seed=1 if seed is None else seed,
        )
    except ValueError as error:
        raise InvalidError(f"--synthetic: {error}") from None
    return generate_trace(made)


def _read(directory: Path, days: float | None, told: Callable[[str], None]) -> FairTrace:
    """The 2011 trace, or its first days."""
    from dios.fairness.trace import DAY_US, trace_of_rows  # noqa: PLC0415 - needs an extra
    from dios.firmament.simulate.trace_rows import (  # noqa: PLC0415 - needs an extra
        AFTER,
        WINDOW_US,
        TaskRow,
        task_rows,
    )

    until = None if days is None else WINDOW_US + int(days * DAY_US)

    def counted() -> Iterator[TaskRow]:
        for number, row in enumerate(task_rows(directory, AFTER - 1 if until is None else until)):
            if number % ROWS_TOLD == 0:
                told(f"{number:,} rows of {directory}")
            yield row

    found, left_out = trace_of_rows(counted(), begin_us=WINDOW_US, until_us=until)
    if left_out:
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(left_out.items()))
        say(f"left out of the trace: {reasons}")
    return found


def _events(trace: FairTrace, capacity: list[float], delta: float, rule: str) -> int:
    """How often the live tree is reordered."""
    from dios.fairness.simulate_by_tree import simulate_by_tree  # noqa: PLC0415 - needs an extra

    *_, events = simulate_by_tree(
        *(trace.submit_us, trace.duration_us, trace.user, trace.demands, capacity),
        users=trace.users,
        delta=delta,
        priority=rule,
    )
    return events


# Telling and writing ----------------------------------------------------------------------------------


def _summary(
    trace: FairTrace, done: list[Result], capacity: float, priority: str, too_large: int
) -> dict[str, object]:
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
                **asdict(result.compared),
                "events": result.events,
                "events_per_thousand": result.per_thousand,
            }
            for result in done
        ],
    }


def _tell(trace: FairTrace, done: list[Result], capacity: float, too_large: int) -> None:
    days = trace.horizon_us / 86_400e6
    tasks = f"{trace.submit_us.size:,} of {trace.users:,} users in {days:.1f} days"
    if too_large:
        tasks += f"; {too_large:,} that ask for more than there is are left out"
    facts([("tasks", tasks), ("pool", f"{capacity:g} times what they use on average")])
    sys.stdout.write("\n")
    columns = (
        *("", "wait, users", "change", "wait, tasks", "change", "wait, low half", "change"),
        *("complete fewer", "more", "events / 1000"),
    )
    rows = []
    for result in done:
        found, drf = result.compared, result.played.delta is None
        changes = [
            "" if drf else f"{change:+.1%}" for change in (found.wait_users, found.wait_tasks, found.wait_low)
        ]
        rows.append(
            [
                result.played.name,
                *(_seconds(found.wait_users_s), changes[0], _seconds(found.wait_tasks_s), changes[1]),
                *(_seconds(found.wait_low_s), changes[2]),
                *("" if drf else str(count) for count in (found.fewer, found.more)),
                "" if result.per_thousand is None else f"{result.per_thousand:.2f}",
            ]
        )
    table(columns, rows, right=columns[1:])


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def _write(out: Path, trace: FairTrace, done: list[Result], summary: dict[str, object]) -> None:
    """summary.json, users.csv, and pictures where that is possible."""
    from dios import plotting  # noqa: PLC0415 - needs an extra
    from dios.fairness.trace_report import reductions  # noqa: PLC0415 - needs an extra

    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    heads = [f"{what} ({result.played.name})" for result in done for what in ("mean wait s", "completed")]
    lines = [",".join(["user", *(f'"{head}"' for head in heads)])]
    for user in range(trace.users):
        cells = [
            cell
            for result in done
            for cell in (f"{result.played.wait_s[user]:.3f}", str(result.played.completed[user]))
        ]
        lines.append(",".join([str(user), *cells]))
    (out / "users.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    written = ["summary.json", "users.csv"]
    if plotting.can_draw():
        waits = {result.played.name: plotting.distribution(result.played.wait_s + 1.0) for result in done}
        each = {r.played.name: reductions(done[0].played, r.played).tolist() for r in done[1:]}
        for drawn in (
            plotting.Lines("waits", "Waiting of users", "mean wait + 1 s", "users", waits, log_x=True),
            plotting.Boxes(
                *("reductions", "Waiting beside DRF, each user", "reduction"),
                {name: {"users": values} for name, values in each.items()},
            ),
        ):
            plotting.draw(drawn, out / f"{drawn.name}.png")
            written.append(f"{drawn.name}.png")
    else:
        say(f"matplotlib is not installed, so there are no pictures: {plotting.INSTALL}")
    say(f"wrote {', '.join(written)} in {out}")
