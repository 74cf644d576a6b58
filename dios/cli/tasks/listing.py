"""``dios ps``: the user's tasks, arrays of kept jobs in one line, and promised starts of waiting tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import option
from dios.cli.common.output import (
    Cells,
    Number,
    counted,
    say,
    span_text,
    table_of,
    time_text,
    write_json,
)
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.members import warn_of_silent
from dios.cli.tasks.endings import cause_text
from dios.cli.tasks.task_row import TaskRow
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


class PromisedRow(Row):
    """When a waiting task is expected to start, in nanoseconds since 1970, and where.

    Room on ``nodes`` is kept for it. It starts when the tasks ``after`` have ended, and ``others`` tasks of
    other users.
    """

    start: int
    nodes: list[str]
    after: list[str]
    others: int


class ListedTaskRow(TaskRow, kw_only=True):
    """A task in `dios ps`: that of a kept job has the name of the job, and of an array the index.

    ``promised`` is null unless it waits and its start is promised.
    """

    job: str | None
    index: int | None
    promised: PromisedRow | None


@app.command(examples="dios ps\ndios ps --here\ndios ps --all --json", json=[ListedTaskRow])
def ps(
    *,
    everything: bool = option("-a --all", "Also show ended tasks."),
    here: bool = option("--here", "Only tasks on the asked node."),
    common: CommonOptions,
) -> None:
    """List your tasks on all nodes; in a cluster with the node of each.

    An array of kept jobs has one line; `dios job describe` lists its elements. A kept job that waits for
    another run has a line, too, although it has no task yet; --json lists only tasks. A job over time that
    waits for its promised start has none either: `dios pack ls` lists it. Promised starts are those of the
    asked node's scheduler.
    """
    with opened(common.node) as place:
        tasks = place.node.tasks(local_only=here)
        known = [task for task in tasks if everything or not task.ended]
        jobs = None if here else _jobs_among(place, tasks)
        promises = _promises(place, known)
        if common.as_json:
            write_json([_listed(task, jobs, promises) for task in known])
        else:
            _show(known, jobs, promises, everything=everything)
            _show_promises(known, promises)
            _show_reason(place, [task for task in tasks if task.fingerprint not in promises], tasks)
        warn_of_silent(place.node, "tasks", incomplete=tasks.incomplete)


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
    secrecy = any(task.secrecy for task in single)
    lines = [_cells(task, column, promises.get(task.fingerprint)) for task in single]
    lines += [_job_cells(job, column) for job in compact]
    labels = [" ".join(task.secrecy) or None for task in single] + [None] * len(compact)
    table_of(
        {**line, "SECRECY": label} if secrecy else line for line, label in zip(lines, labels, strict=True)
    )
    if not lines:
        say("no task runs" + ("" if everything else "; `dios ps --all` also shows ended tasks"))


def _cells(task: Status, column: str, promised: PromisedRow | None) -> Cells:
    state = cause_text(task)
    if promised is not None:
        state += f", starts in {span_text(max(0, promised.start - time.time_ns()))}"
    return {
        "TASK": task.fingerprint,
        "TITLE": task.label,
        "STATE": state,
        "BRAND": task.brand.name.lower(),
        "PID": Number(task.pid or "-"),
        column: task.node if column == "NODE" else time_text(task.started_ns),
        "FOR": span_text((task.ended_ns or time.time_ns()) - task.started_ns),
    }


def _job_cells(job: JobStatus, column: str) -> Cells:
    """Return the line of an array, or of a kept job that waits for other runs."""
    from dios.cli.tasks.kept_jobs import state_text, title_of  # noqa: PLC0415 - as for KeptJobs

    nodes = sorted({task.node for task in job.running.values() if task.node})
    place = (nodes[0] if len(nodes) == 1 else counted(len(nodes), "node")) if nodes else "-"
    until = time.time_ns() if job.end is None else job.end.ended_ns
    return {
        "TASK": "-",
        "TITLE": title_of(job),
        "STATE": state_text(job),
        "BRAND": "pure",
        "PID": Number("-"),
        column: place if column == "NODE" else time_text(job.created_ns),
        "FOR": span_text(until - job.created_ns),
    }


def _job_of(task: Status, jobs: JobTasks) -> str | None:
    place = jobs.places.get(task.fingerprint)
    return None if place is None else place[0]


def _listed(task: Status, jobs: JobTasks | None, promises: Mapping[str, PromisedRow]) -> ListedTaskRow:
    """Return a task for JSON."""
    place = None if jobs is None else jobs.places.get(task.fingerprint)
    arrays = set() if jobs is None else {job.name for job in jobs.jobs if job.array is not None}
    name, index = (None, None) if place is None else place
    promised = promises.get(task.fingerprint)
    return ListedTaskRow.of_task(task, job=name, index=index if name in arrays else None, promised=promised)


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
            promise.task: PromisedRow.of(promise, start=now + round(promise.starts_in_s * _S))
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
    awaited = [*promised.after]
    if promised.others:
        awaited.append(f"{counted(promised.others, 'task')} of others")
    until = (
        f" when {', '.join(awaited)} there {'has' if len(awaited) == 1 else 'have'} ended" if awaited else ""
    )
    return f"room on {', '.join(promised.nodes)} is kept for it, where it is expected to start{until}"


def _show_reason(place: CommandContext, tasks: Sequence[Status], everything: Sequence[Status]) -> None:
    """Say why the run without a promised start waits that has waited longest."""
    waiting = [task for task in tasks if task.state is TaskState.WAITING]
    if waiting:
        from dios.cli.scheduling.waiting_runs import waiting_reason  # noqa: PLC0415 - as for promises

        longest = min(waiting, key=lambda task: task.started_ns)
        others = f"; {len(waiting) - 1} more wait: `dios explain TASK`" if len(waiting) > 1 else ""
        name = longest.label or longest.fingerprint
        say(f"{name} waits: {waiting_reason(place, everything, longest)}{others}")
