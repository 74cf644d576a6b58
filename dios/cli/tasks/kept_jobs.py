"""``dios attach`` and ``dios job``: programs that the cluster keeps running until they are done.

``dios run --keep`` starts them.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import (
    RUN_FAILED,
    BytesOutput,
    JsonOption,
    NodeOption,
    bytes_output,
    facts,
    reporting,
    say,
    span_text,
    table,
    time_text,
    write_json,
)
from dios.cli.common.streams import INTERRUPTED
from dios.cli.nodes.members import silent
from dios.client.plain_text import plain
from dios.errors import DiosError, EndOfStreamError, TimeLimitError
from dios.lib.supervised.kept_jobs import JobStatus, KeptJobs

if TYPE_CHECKING:
    from dios.client.sync.node import Task
    from dios.lib.supervised.services import ServiceProgram

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Kept jobs: programs that the cluster keeps running until they are done.",
)
attach_app: Final = CommandApplication()

_LOOK_S: Final = limits.SERVICE_ROUND_MS / 1000
_SHARE_SHOWN: Final = 0.1
"""The progress between two lines about it."""

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The name of the job.")]


@attach_app.command(
    epilog="\b\nExamples:\n  dios attach count\n  dios attach count --new     (only output from now on)"
)
def attach(
    job: JobArgument,
    *,
    new: Annotated[
        bool, typer.Option("--new", help="Only output from now on; default: all that its node keeps.")
    ] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a kept job: show its output and progress, and end with its exit status.

    Ctrl-C detaches: the job goes on, and so it does when this terminal is closed. If the job is started again
    on another node, the command follows it there. Of a job that has ended it shows the last output, up to
    256 KiB.
    """
    with reporting("dios attach", as_json=as_json, status=RUN_FAILED), opened(node) as place:
        raise typer.Exit(follow(place, job, new=new, as_json=as_json))


@app.command(epilog="\b\nExamples:\n  dios job ls\n  dios job ls --json")
def ls(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List your kept jobs, the oldest first; those that have ended stay until `dios job rm`."""
    with reporting("dios job ls", as_json=as_json), opened(node) as place:
        found = KeptJobs(place.node).statuses()
        if as_json:
            write_json([described(one) for one in found])
        elif found:
            rows = [
                (
                    one.name,
                    one.label,
                    state_text(one),
                    f"{one.attempt}/{one.attempts}",
                    _node_of(one),
                    time_text(one.created_ns),
                    span_text(_until(one) - one.created_ns),
                )
                for one in found
            ]
            head = ("JOB", "PROGRAM", "STATE", "ATTEMPT", "NODE", "CREATED", "FOR")
            table(head, rows, right=("ATTEMPT", "FOR"))
        else:
            say("you have no kept job; `dios run --keep` starts one")
        if any(one.incomplete for one in found):
            who = silent(place.node.nodes())
            say(f"{who} did not answer, so tasks there are not shown; see `dios node ls`")


@app.command(epilog="\b\nExamples:\n  dios job describe count")
def describe(job: JobArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show a kept job: its attempt, its node, its progress, and why it ended last."""
    with reporting("dios job describe", as_json=as_json), opened(node) as place:
        found = KeptJobs(place.node).status(job)
        if as_json:
            write_json(described(found))
            return
        share = None if found.task is None else found.task.progress
        reason = plain(found.reason if found.end is None else found.end.detail.partition("\n")[0])
        facts(
            [
                ("job", found.name),
                ("program", found.label),
                ("state", state_text(found)),
                ("attempt", f"{found.attempt} of {found.attempts}"),
                ("node", _node_of(found)),
                ("task", "-" if found.task is None else found.task.fingerprint),
                ("progress", "-" if share is None else f"{share:.0%}"),
                ("last end", reason or "-"),
            ]
        )


@app.command(epilog="\b\nExamples:\n  dios job stop count")
def stop(job: JobArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """End a kept job at once; it stays listed. A job that has ended is left as it is."""
    with reporting("dios job stop", as_json=as_json), opened(node) as place:
        jobs = KeptJobs(place.node)
        ended = jobs.status(job).end is not None
        jobs.stop(job)
        if as_json:
            write_json(_named(job))
        else:
            say(f"job {job} {'had ended already' if ended else 'is stopped'}")


@app.command(epilog="\b\nExamples:\n  dios job rm count\n  dios job rm count other")
def rm(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="The names of the jobs.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove kept jobs with their stored output. One that runs is ended."""
    with reporting("dios job rm", as_json=as_json), opened(node) as place:
        for job in jobs:
            KeptJobs(place.node).remove(job)
            if not as_json:
                say(f"job {job} is removed")
        if as_json:
            write_json([_named(job) for job in jobs])


# -- dios run --keep --------------------------------------------------------------------------------
def start(place: CommandContext, program: ServiceProgram, name: str, attempts: int, file: str) -> str:
    """Start a kept job and return its name: the one given, or one made from that of its file."""
    jobs = KeptJobs(place.node)
    if not name:
        stem = re.sub(r"[^a-z0-9]+", "-", Path(file).stem.lower()).strip("-")[:40].strip("-")
        name = jobs.free_name(stem or "job")
    jobs.start(name, program, attempts=attempts)
    return name


def show_started(place: CommandContext, name: str, *, detach: bool, as_json: bool) -> int:
    """Report a new job; follow it unless ``detach``. Return the exit status of the command."""
    if not detach:
        say(f"job {name} is kept by the cluster; Ctrl-C detaches")
        return follow(place, name, new=False, as_json=as_json)
    if as_json:
        write_json(_named(name))
    else:
        facts([("job", name)])
        say(f"next: dios attach {name}")
    return 0


def follow(place: CommandContext, name: str, *, new: bool, as_json: bool) -> int:
    """Show the output of a job until it has ended, and return its exit status; Ctrl-C detaches."""
    output = bytes_output(sys.stderr if as_json else sys.stdout)
    try:
        ended = _follow(KeptJobs(place.node), name, output, new=new)
    except KeyboardInterrupt:
        say(f"detached; the job {name} goes on: dios attach {name}")
        return INTERRUPTED
    if as_json:
        write_json(described(ended))
    elif not ended.ok:
        say(f"job {name}: {state_text(ended)}")
        if ended.end is not None and ended.end.detail:
            say(plain(ended.end.detail.partition("\n")[0]))
    return 0 if ended.end is None else ended.end.exit_status


def _follow(jobs: KeptJobs, name: str, output: BytesOutput, *, new: bool) -> JobStatus:
    shown, whole, told = "", 0, ""
    while True:
        status = jobs.status(name)
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
    if end is not None:
        return "done" if status.ok else "stopped" if not end.node else f"failed with {end.exit_status}"
    if status.task is not None:
        return "running"
    return "pauses" if status.waits else "starting"


class JobNameRow(TypedDict):
    """A kept job that was started, stopped or removed."""

    job: str


class JobRow(JobNameRow):
    """A kept job. Times are nanoseconds since 1970; what describes its end is null while it has none."""

    program: str
    state: str
    attempt: int
    attempts: int
    created: int
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


def described(status: JobStatus) -> JobRow:
    """Return a job for JSON."""
    task, end = status.task, status.end
    return {
        "job": status.name,
        "program": status.label,
        "state": "ended" if end is not None else state_text(status),
        "attempt": status.attempt,
        "attempts": status.attempts,
        "created": status.created_ns,
        "node": _node_of(status),
        "task": None if task is None else task.fingerprint,
        "progress": None if task is None else task.progress,
        "restarts": status.restarts,
        "reason": status.reason,
        "ended": None if end is None else end.ended_ns,
        "cause": None if end is None else end.cause.name.lower(),
        "exit_status": None if end is None else end.exit_status,
        "detail": None if end is None else end.detail,
        "incomplete": status.incomplete,
    }


def _node_of(status: JobStatus) -> str:
    if status.end is not None:
        return status.end.node or "-"
    return "-" if status.task is None else status.task.node or "-"


def _until(status: JobStatus) -> int:
    return time.time_ns() if status.end is None else status.end.ended_ns


def _named(job: str) -> JobNameRow:
    return {"job": job}
