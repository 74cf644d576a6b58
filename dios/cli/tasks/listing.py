"""``dios ps``: the user's tasks, arrays of kept jobs in one line, and promised starts of waiting tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.json_rows import ListedTaskRow, PromisedRow
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    counted,
    reporting,
    say,
    span_text,
    table,
    time_text,
    write_json,
)
from dios.cli.nodes.members import silent
from dios.cli.tasks.control import described
from dios.cli.tasks.endings import cause_text
from dios.client.ops.cluster import Gathered
from dios.client.ops.status import Status
from dios.errors import DiosError
from dios.wire.types import TaskState

if TYPE_CHECKING:
    from dios.lib.supervised.kept_jobs import JobStatus, JobTasks

app: Final = CommandApplication()

_PROMISES_SHOWN: Final = 4
_S: Final = 1_000_000_000


class _Promise(msgspec.Struct):
    """A promise as the scheduler answers it."""

    task: str
    nodes: list[str]
    starts_in_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    after: list[str]
    others: int


class _Promises(msgspec.Struct):
    promises: list[_Promise]


@app.command(epilog="\b\nExamples:\n  dios ps\n  dios ps --here\n  dios ps --all --json")
def ps(
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also show ended tasks.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Only tasks on the asked node.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List your tasks on all nodes; in a cluster with the node of each.

    An array of kept jobs has one line; `dios job describe` lists its elements. A kept job that waits for
    another run has a line, too, although it has no task yet; --json lists only tasks. A job over time that
    waits for its promised start has none either: `dios pack ls` lists it. Promised starts are those of the
    asked node's scheduler.
    """
    with reporting("dios ps", as_json=as_json), opened(node) as place:
        tasks = place.node.tasks(local_only=here)
        known = [task for task in tasks if everything or not task.ended]
        jobs = None if here else _jobs_among(place, tasks)
        promises = _promises(place, known)
        if as_json:
            write_json([_listed(task, jobs, promises) for task in known])
        else:
            _show(known, jobs, promises, everything=everything)
            _show_promises(known, promises)
            _show_reason(place, [task for task in tasks if task.fingerprint not in promises], tasks)
        if tasks.incomplete:
            who = silent(place.node.nodes())
            say(f"{who} did not answer, so tasks there are not shown; see `dios node ls`")


def _jobs_among(place: CommandContext, tasks: Gathered[Status]) -> JobTasks | None:
    """Return the user's kept jobs; None if they are not known now."""
    # Imported late, because most users have no kept jobs.
    from dios.lib.supervised.kept_jobs import KeptJobs  # noqa: PLC0415 - see above

    with suppress(DiosError):
        return KeptJobs(place.node).among(tasks)
    return None


# -- the table --------------------------------------------------------------------------------------
def _show(
    tasks: Sequence[Status], jobs: JobTasks | None, promises: Mapping[str, PromisedRow], *, everything: bool
) -> None:
    shown = [] if jobs is None else [job for job in jobs.jobs if job.array is not None or job.after]
    compact = [job for job in shown if everything or job.end is None]
    hidden = {job.name for job in compact if job.array is not None}
    single = [task for task in tasks if jobs is None or _job_of(task, jobs) not in hidden]
    # A terminal line has space for only one of the two columns; --json has both.
    column = "NODE" if any(task.node for task in tasks) else "STARTED"
    rows = [_row(task, column, promises.get(task.fingerprint)) for task in single]
    rows += [_job_row(job, column) for job in compact]
    if not rows:
        say("no task runs" + ("" if everything else "; `dios ps --all` also shows ended tasks"))
        return
    head: tuple[str, ...] = ("TASK", "TITLE", "STATE", "BRAND", "PID", column, "FOR")
    if any(task.secrecy for task in single):
        head = (*head, "SECRECY")
        labels = [" ".join(task.secrecy) or "-" for task in single] + ["-"] * len(compact)
        rows = [(*row, label) for row, label in zip(rows, labels, strict=True)]
    table(head, rows, right=("PID", "FOR"))


def _row(task: Status, column: str, promised: PromisedRow | None) -> tuple[str, ...]:
    until = task.ended_ns or time.time_ns()
    state = cause_text(task)
    if promised is not None:
        state += f", starts in {span_text(max(0, promised['start'] - time.time_ns()))}"
    return (
        task.fingerprint,
        task.label,
        state,
        task.brand.name.lower(),
        str(task.pid) if task.pid else "-",
        task.node if column == "NODE" else time_text(task.started_ns),
        span_text(until - task.started_ns),
    )


def _job_row(job: JobStatus, column: str) -> tuple[str, ...]:
    """Return the line of an array, or of a kept job that waits for other runs."""
    from dios.cli.tasks.kept_jobs import state_text, title_of  # noqa: PLC0415 - as for KeptJobs

    nodes = sorted({task.node for task in job.running.values() if task.node})
    place = (nodes[0] if len(nodes) == 1 else counted(len(nodes), "node")) if nodes else "-"
    until = time.time_ns() if job.end is None else job.end.ended_ns
    return (
        "-",
        title_of(job),
        state_text(job),
        "pure",
        "-",
        place if column == "NODE" else time_text(job.created_ns),
        span_text(until - job.created_ns),
    )


def _job_of(task: Status, jobs: JobTasks) -> str | None:
    place = jobs.places.get(task.fingerprint)
    return None if place is None else place[0]


def _listed(task: Status, jobs: JobTasks | None, promises: Mapping[str, PromisedRow]) -> ListedTaskRow:
    """Return a task for JSON."""
    place = None if jobs is None else jobs.places.get(task.fingerprint)
    arrays = set() if jobs is None else {job.name for job in jobs.jobs if job.array is not None}
    return {
        **described(task),
        "job": None if place is None else place[0],
        "index": place[1] if place is not None and place[0] in arrays else None,
        "promised": promises.get(task.fingerprint),
    }


# -- waiting tasks ----------------------------------------------------------------------------------
def _promises(place: CommandContext, tasks: Sequence[Status]) -> dict[str, PromisedRow]:
    """Return the promised starts of waiting tasks, by fingerprint; none if nobody knows of any."""
    if not any(task.state is TaskState.WAITING for task in tasks):
        return {}
    # Imported late, because most of the time nothing waits.
    from dios.cli.scheduling.live import ask_at  # noqa: PLC0415 - see above

    now = time.time_ns()
    # A scheduler of another release, or one that starts, knows of none.
    with suppress(DiosError, msgspec.ValidationError):
        answer = msgspec.convert(ask_at(place, {"ask": "promises"}), _Promises)
        return {
            promise.task: {
                "start": now + round(promise.starts_in_s * _S),
                "nodes": promise.nodes,
                "after": promise.after,
                "others": promise.others,
            }
            for promise in answer.promises
        }
    return {}


def _show_promises(tasks: Sequence[Status], promises: Mapping[str, PromisedRow]) -> None:
    """Say where the tasks with a promised start will run, and what they wait for."""
    promised = [task for task in tasks if task.fingerprint in promises]
    for task in promised[:_PROMISES_SHOWN]:
        say(f"{task.label or task.fingerprint}: {promise_text(promises[task.fingerprint])}")
    if len(promised) > _PROMISES_SHOWN:
        say(f"{len(promised) - _PROMISES_SHOWN} more have a promised start: `dios ps --json`")


def promise_text(promised: PromisedRow) -> str:
    """Return in a sentence where a task starts and what it waits for."""
    awaited = [*promised["after"]]
    if promised["others"]:
        awaited.append(f"{counted(promised['others'], 'task')} of others")
    until = (
        f" when {', '.join(awaited)} there {'has' if len(awaited) == 1 else 'have'} ended" if awaited else ""
    )
    return f"room on {', '.join(promised['nodes'])} is kept for it, where it is expected to start{until}"


def _show_reason(place: CommandContext, tasks: Sequence[Status], everything: Sequence[Status]) -> None:
    """Say why the run without a promised start waits that has waited longest."""
    waiting = [task for task in tasks if task.state is TaskState.WAITING]
    if waiting:
        from dios.cli.scheduling.waiting_runs import waiting_reason  # noqa: PLC0415 - as for promises

        longest = min(waiting, key=lambda task: task.started_ns)
        others = f"; {len(waiting) - 1} more wait: `dios explain TASK`" if len(waiting) > 1 else ""
        name = longest.label or longest.fingerprint
        say(f"{name} waits: {waiting_reason(place, everything, longest)}{others}")
