"""``dios attach`` and ``dios job``: programs that the cluster keeps running until they are done.

``dios run --keep`` starts them.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from msgspec import field

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    RUN_FAILED,
    BytesOutput,
    Cells,
    Number,
    bytes_output,
    counted,
    say,
    span_text,
    table_of,
    time_text,
)
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.common.streams import INTERRUPTED
from dios.cli.nodes.members import warn_of_silent
from dios.client.plain_text import plain
from dios.errors import DiosError, EndOfStreamError, TimeLimitError
from dios.lib.supervised.arrays import array_text
from dios.lib.supervised.kept_jobs import JobStatus, KeptJobs
from dios.lib.supervised.predecessors import waiting_text
from dios.wire.types import Cause, TaskState

if TYPE_CHECKING:
    from dios.client.ops.status import Status
    from dios.client.sync.node import Task
    from dios.lib.supervised.arrays import ArrayShape
    from dios.lib.supervised.records import JobArray, JobEnd, Predecessor
    from dios.lib.supervised.services import ServiceProgram

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Kept jobs: programs that the cluster keeps running until they are done.",
)
attach_app: Final = CommandApplication()

_LOOK_S: Final = limits.SERVICE_ROUND_MS / 1000
_SHARE_SHOWN: Final = 0.1
"""The progress between two lines about it."""

JOB_ARGUMENT: Final[str] = argument("JOB", "The name of the job.")


class JobNameRow(Row):
    """A kept job that was started, stopped or removed."""

    job: str


class JobElementRow(Row):
    """An element of an array: it is waiting, running or ended. What describes its end is null without one."""

    index: int
    state: str
    attempt: int
    node: str | None
    task: str | None
    ended: int | None
    cause: str | None
    exit_status: int | None
    detail: str | None


class JobRow(JobNameRow):
    """A kept job. Times are nanoseconds since 1970; what describes its end is null while it has none.

    ``after`` are the runs that it waits for. ``array`` has its indices, null if it is no array.
    """

    program: str
    state: str
    attempt: int
    attempts: int
    created_ns: int = field(name="created")
    node: str
    task: str | None
    progress: float | None
    restarts: int
    reason: str
    ended: int | None
    cause: str | None
    exit_status: int | None
    detail: str | None
    incomplete: bool
    after: list[str]
    array: str | None
    elements: list[JobElementRow]


@attach_app.command(
    examples="dios attach count\ndios attach count --new     (only output from now on)",
    failure_status=RUN_FAILED,
    json=JobRow,
)
def attach(
    job: str = JOB_ARGUMENT,
    *,
    new: bool = option("--new", "Only output from now on; default: all that its node keeps."),
    common: CommonOptions,
) -> None:
    """Follow a kept job: show its output and progress, and end with its exit status.

    Ctrl-C detaches: the job goes on, and so it does when this terminal is closed. If the job is started again
    on another node, the command follows it there. Of a job that has ended it shows the last output, up to
    256 KiB.
    """
    with opened(common.node) as place:
        raise typer.Exit(follow(place, job, common, new=new))


@app.command(examples="dios job ls\ndios job ls --json", json=[JobRow])
def ls(common: CommonOptions) -> None:
    """List your kept jobs, the oldest first; those that have ended stay until `dios job rm`."""
    with opened(common.node) as place:
        statuses = KeptJobs(place.node).statuses()
        common.print_rows(
            statuses,
            _cells,
            described=described,
            empty="you have no kept job; `dios run --keep` starts one",
        )
        warn_of_silent(place.node, "tasks", incomplete=any(status.incomplete for status in statuses))


def _cells(status: JobStatus) -> Cells:
    until = time.time_ns() if status.end is None else status.end.ended_ns
    return {
        "JOB": title_of(status),
        "PROGRAM": status.label,
        "STATE": state_text(status),
        "ATTEMPT": Number(f"{status.attempt}/{status.attempts}"),
        "NODE": _node_of(status),
        "CREATED": time_text(status.created_ns),
        "FOR": span_text(until - status.created_ns),
    }


@app.command(examples="dios job describe count", json=JobRow)
def describe(job: str = JOB_ARGUMENT, *, common: CommonOptions) -> None:
    """Show a kept job: its attempt, its node, its progress, and why it ended last."""
    with opened(common.node) as place:
        status = KeptJobs(place.node).status(job)
        share = None if status.task is None else status.task.progress
        reason = plain(status.reason if status.end is None else status.end.detail.partition("\n")[0])
        row = described(status)
        common.print_row(
            row,
            facts={
                "job": status.name,
                "program": status.label,
                "state": state_text(status),
                "attempt": f"{status.attempt} of {status.attempts}",
                "node": row.node,
                "task": row.task or "-",
                "progress": "-" if share is None else f"{share:.0%}",
                "last end": reason or "-",
            },
        )
        if status.array is not None and not common.as_json:
            _show_elements(status.name, row.elements)


def _show_elements(job: str, rows: Sequence[JobElementRow]) -> None:
    """Show the elements that have begun, and how many have not."""
    begun = [row for row in rows if row.task is not None or row.ended is not None or row.attempt > 1]
    table_of(
        {
            "ELEMENT": f"{job}.{row.index}",
            "STATE": row.state,
            "ATTEMPT": row.attempt,
            "NODE": row.node or None,
            "END": None if row.exit_status is None else _end_of_element(row),
        }
        for row in begun
    )
    if len(begun) < len(rows):
        say(f"{counted(len(rows) - len(begun), 'element')} did not begin yet")


def _end_of_element(row: JobElementRow) -> str:
    first = plain((row.detail or "").partition("\n")[0])
    return f"{row.exit_status}: {first}" if first else str(row.exit_status)


@app.command(examples="dios job stop count\ndios job stop sweep\ndios job stop sweep.7", json=JobNameRow)
def stop(
    job: str = argument("JOB", "The name of the job, or an element of an array: sweep.7."),
    *,
    common: CommonOptions,
) -> None:
    """End a kept job at once; it stays listed. A job that has ended is left as it is.

    Of an array all elements are ended, or with its index one of them.
    """
    with opened(common.node) as place:
        jobs = KeptJobs(place.node)
        ended = jobs.end_of(job) is not None
        jobs.stop(job)
        common.print_row(JobNameRow(job), f"job {job} {'had ended already' if ended else 'is stopped'}")


@app.command(examples="dios job rm count\ndios job rm count other", json=[JobNameRow])
def rm(jobs: list[str] = argument("JOB...", "The names of the jobs."), *, common: CommonOptions) -> None:
    """Remove kept jobs with their stored output. One that runs is ended."""
    with opened(common.node) as place:
        for job in jobs:
            KeptJobs(place.node).remove(job)
            if not common.as_json:
                say(f"job {job} is removed")
        common.print_row(list(map(JobNameRow, jobs)))


# -- dios run --keep --------------------------------------------------------------------------------
def start(
    place: CommandContext,
    program: ServiceProgram,
    name: str,
    file: Path,
    *,
    attempts: int,
    after: tuple[Predecessor, ...],
    array: ArrayShape | None,
) -> str:
    """Start a kept job and return its name: the one given, or one made from that of its file."""
    jobs = KeptJobs(place.node)
    if not name:
        stem = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")[:40].strip("-")
        name = jobs.free_name(stem or "job")
    jobs.start(name, program, attempts=attempts, after=after, array=array)
    return name


def show_started(place: CommandContext, name: str, common: CommonOptions, *, detach: bool) -> int:
    """Report a new job; follow it unless ``detach``. Return the exit status of the command."""
    if not detach:
        say(f"job {name} is kept by the cluster; Ctrl-C detaches")
        return follow(place, name, common)
    common.print_row(JobNameRow(name), f"next: dios attach {name}", facts={"job": name})
    return 0


def follow(place: CommandContext, name: str, common: CommonOptions, *, new: bool = False) -> int:
    """Show the output of a job until it has ended, and return its exit status; Ctrl-C detaches."""
    output = bytes_output(sys.stderr if common.as_json else sys.stdout)
    try:
        ended = _follow(KeptJobs(place.node), name, output, new=new)
    except KeyboardInterrupt:
        say(f"detached; the job {name} goes on: dios attach {name}")
        return INTERRUPTED
    detail = "" if ended.end is None else plain(ended.end.detail.partition("\n")[0])
    notices = [f"job {name}: {state_text(ended)}", *([detail] if detail else [])]
    common.print_row(described(ended), *(() if ended.ok else notices))
    return 0 if ended.end is None else ended.end.exit_status


def _follow(jobs: KeptJobs, name: str, output: BytesOutput, *, new: bool) -> JobStatus:
    shown, whole, told = "", 0, ""
    while True:
        status = jobs.status(name)
        if status.after or status.array is not None:
            state = state_text(status)
            if state != told and status.end is None:
                told = state
                say(f"job {name}: {state}")
            if status.array is not None and status.end is not None:
                return status
            if status.end is None:
                time.sleep(_LOOK_S)
                continue
        if status.end is not None:
            if whole != status.attempt and not (new and not shown):
                output.write(jobs.output(name))
                output.flush()
            return status
        task = jobs.task(status)
        if task is not None and task.fingerprint != shown:
            node = "" if status.task is None else status.task.node
            if shown:
                say(f"job {name} runs again on {node}, attempt {status.attempt} of {status.attempts}")
            try:
                _pour(task, name, output, new=new and not shown)
                whole = status.attempt
            except DiosError as error:
                say(f"job {name}: {error.message}; it is started again if its node is lost")
            shown = task.fingerprint
            continue
        if status.reason and status.reason != told:
            told = status.reason
            say(f"job {name} is started again: {plain(status.reason)}")
        time.sleep(_LOOK_S)


def _pour(task: Task, name: str, output: BytesOutput, *, new: bool) -> None:
    """Show the output of one attempt until it has ended, and lines about its progress on a terminal."""
    console = task.console()
    passed = console.size if new else 0
    seen, share = 0, 0.0
    while True:
        try:
            data = console.receive(timeout=1.0)
        except EndOfStreamError:
            return
        except TimeLimitError:
            now = task.status().progress if sys.stderr.isatty() else None
            if now is not None and now >= share + _SHARE_SHOWN:
                share = now
                say(f"job {name}: {now:.0%}")
            continue
        seen += len(data)
        if seen > passed:
            output.write(data[max(0, len(data) - (seen - passed)) :])
            output.flush()


# -- texts ------------------------------------------------------------------------------------------
def state_text(status: JobStatus) -> str:
    """Return the state of a job in a word or two."""
    end = status.end
    if end is not None and end.cause is Cause.DEPENDENCY:
        return "never began"
    if end is not None:
        return "done" if status.ok else "stopped" if not end.node else f"failed with {end.exit_status}"
    if status.after:
        return f"waits for {waiting_text(status.after)}"
    if status.array is not None:
        return array_state_text(status.array, status.running)
    if status.task is not None:
        return _of_task(status.task)
    return "pauses" if status.waits else "starting"


def _of_task(task: Status) -> str:
    return "waiting" if task.state is TaskState.WAITING else "running"


def array_state_text(array: JobArray, running: Mapping[int, Status]) -> str:
    """Return how many elements of an array run, are done, have failed, and are still to run."""
    ends = [element.end for element in array.ends if element.end is not None]
    runs = sum(task.state is not TaskState.WAITING for task in running.values())
    done = sum(not end.exit_status for end in ends)
    counts = {
        "running": runs,
        "done": done,
        "failed": len(ends) - done,
        "waiting": len(array.indices) - len(ends) - runs,
    }
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def described(status: JobStatus) -> JobRow:
    """Return a job for JSON."""
    task = status.task
    return JobRow.of(
        status,
        job=status.name,
        program=status.label,
        state="ended" if status.end is not None else "waiting" if status.after else _plain_state(status),
        node=_node_of(status),
        task=None if task is None else task.fingerprint,
        progress=None if task is None else task.progress,
        after=[waiting_text([dependency]) for dependency in status.after],
        array=None if status.shape is None else array_text(status.shape),
        elements=[] if status.array is None else _elements(status.array, status.running),
        **_end_of(status.end),
    )


def _end_of(end: JobEnd | None) -> dict[str, object]:
    if end is None:
        return dict.fromkeys(("ended", "cause", "exit_status", "detail"))
    return {
        "ended": end.ended_ns,
        "cause": end.cause.name.lower(),
        "exit_status": end.exit_status,
        "detail": end.detail,
    }


def _elements(array: JobArray, running: Mapping[int, Status]) -> list[JobElementRow]:
    """Return the elements of an array for JSON, by index."""
    rows = []
    for index, element in array.elements().items():
        task, end = running.get(index), element.end
        row = JobElementRow.of(
            element,
            index=index,
            state="ended" if end is not None else "waiting" if task is None else _of_task(task),
            node=end.node if end is not None else None if task is None else task.node,
            task=None if task is None else task.fingerprint,
            **_end_of(end),
        )
        rows.append(row)
    return rows


def _plain_state(status: JobStatus) -> str:
    """Return the state of a job that has not ended, and waits for no run, in one word."""
    if status.array is not None:
        return "running" if status.running else "starting"
    return state_text(status)


def _node_of(status: JobStatus) -> str:
    if status.end is not None:
        return status.end.node or "-"
    return "-" if status.task is None else status.task.node or "-"


def title_of(status: JobStatus) -> str:
    """Return the name of a job, with the indices of an array."""
    return status.name if status.shape is None else f"{status.name}[{array_text(status.shape)}]"
