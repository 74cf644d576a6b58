"""``dios logs``, ``pause``, ``resume`` and ``kill``: control tasks.

``dios.cli.tasks.run`` starts them, and ``dios.cli.tasks.listing`` lists them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.json_rows import (
    KilledRow,
    LoggedTaskRow,
    PausedRow,
    ResumedRow,
    StoredConsoleRow,
    TaskRow,
)
from dios.cli.common.output import (
    FAILED,
    BytesOutput,
    JsonOption,
    NodeOption,
    bytes_output,
    reporting,
    say,
    size_text,
    write_json,
)
from dios.cli.tasks.endings import explain
from dios.client.ops.status import Status
from dios.client.plain_text import plain
from dios.client.sync.node import Console, Task
from dios.errors import (
    EndOfStreamError,
    InvalidError,
    NoSuchTaskError,
    UnreachableError,
)
from dios.lib.task_output import newest_output

app: Final = CommandApplication()

TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="The beginning of a fingerprint, a title, or a name.")
]


def pour(console: Console, output: BytesOutput) -> None:
    """Copy a console to a stream until the console is closed."""
    poured = 0
    with contextlib.suppress(EndOfStreamError):
        while True:
            data = console.receive()
            output.write(data)
            output.flush()
            poured += len(data)
    _tell_lost(console, poured)


def _tell_lost(console: Console, seen: int) -> None:
    if console.size > seen:
        say(f"{size_text(console.size - seen)} of its output are missing: the node did not keep them")


def described(task: Status) -> TaskRow:
    """Return a task for JSON."""
    return {
        "fingerprint": task.fingerprint,
        "label": task.label,
        "state": "moving" if task.leave_ns and not task.ended else task.state.name.lower(),
        "brand": task.brand.name.lower(),
        "principal": task.principal,
        "pid": task.pid,
        "started": task.started_ns,
        "ended": task.ended_ns,
        "cause": task.cause.name.lower(),
        "exit_status": task.exit_status if task.ended else None,
        "signal": task.signal,
        "detail": task.detail,
        "parent": task.parent,
        "node": task.node,
        "leave_by": task.leave_ns,
        "moves": task.moves,
        "restarts": task.restarts,
        "kept_bytes": task.kept_bytes,
        "progress": task.progress,
        "secrecy": list(task.secrecy),
    }


@app.command(
    epilog="\b\nExamples:\n  dios logs job.py\n  dios logs 3f9a --follow\n"
    "  dios logs sweep.7               (an element of an array)"
)
def logs(
    task: TaskArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the task ends.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the output of a task, as far as the node keeps it (the last 256 KiB).

    On a terminal, control characters are shown escaped; a file or pipe gets the bytes as they are.

    A task that prints waits up to a second for its readers. The last 16 KiB of an ended task's output are
    stored on its node and on the node of the task or user that started it. When the node has forgotten the
    task, give its name to read them; `dios run --detach --json` shows the name.
    """
    with reporting("dios logs", as_json=as_json), opened(node) as place:
        try:
            handle, status = place.task(task)
            console = handle.console()
        except (NoSuchTaskError, InvalidError, UnreachableError):
            kept = place.log_of(task) or _output_of_job(place, task)
            if kept is None:
                raise
            _print_kept(task, kept, as_json=as_json)
            return
        if follow and not as_json:
            pour(console, bytes_output(sys.stdout))
            return
        data = newest_output(console)
        if as_json:
            row: LoggedTaskRow = {**described(status), "console": data.decode(errors="replace")}
            write_json(row)
        else:
            _print_bytes(data)
            _tell_lost(console, len(data))
            for line in explain(status)[:1] if status.ended else ():
                say(line)


def _output_of_job(place: CommandContext, job: str) -> bytes | None:
    """Return the stored output of a kept job that has ended, or of an element; None if there is none."""
    # Imported late, because most tasks are no kept jobs.
    from dios.lib.supervised.kept_jobs import KeptJobs  # noqa: PLC0415 - see above

    with contextlib.suppress(InvalidError, UnreachableError):
        return KeptJobs(place.node).output(job) or None
    return None


def _print_kept(task: str, data: bytes, *, as_json: bool) -> None:
    if as_json:
        row: StoredConsoleRow = {"task": task, "console": data.decode(errors="replace")}
        write_json(row)
    else:
        _print_bytes(data)


def _print_bytes(data: bytes) -> None:
    output = bytes_output(sys.stdout)
    output.write(data)
    output.flush()


@app.command(epilog="\b\nExamples:\n  dios pause job.py\n  dios resume job.py")
def pause(task: TaskArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Suspend a task: it keeps its state and does nothing until it is resumed."""
    with reporting("dios pause", as_json=as_json), opened(node) as place:
        handle, status = place.task(task)
        done = handle.pause()
        if as_json:
            row: PausedRow = {"fingerprint": status.fingerprint, "label": status.label, "paused": done}
            write_json(row)
        else:
            _tell(status, "paused" if done else "has ended")
        if not done:
            raise typer.Exit(FAILED)


@app.command(epilog="\b\nExamples:\n  dios resume job.py")
def resume(task: TaskArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Continue a paused task."""
    with reporting("dios resume", as_json=as_json), opened(node) as place:
        handle, status = place.task(task)
        done = handle.resume()
        otherwise = "has ended" if status.ended else "was not paused"
        if as_json:
            row: ResumedRow = {"fingerprint": status.fingerprint, "label": status.label, "resumed": done}
            write_json(row)
        else:
            _tell(status, "resumed" if done else otherwise)
        if not done:
            raise typer.Exit(FAILED)


@app.command(
    epilog="\b\nExamples:\n  dios kill job.py\n  dios kill 3f9a 77c0\n  dios kill --title 'train-*'\n"
    "  dios kill --group analytics"
)
def kill(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK]...", help="The beginnings of fingerprints, titles, or names."),
    ] = None,
    *,
    title: Annotated[
        str,
        typer.Option("--title", metavar="TITLE", help="Running tasks with this title; * is any text."),
    ] = "",
    group: Annotated[
        str, typer.Option("--group", "-g", metavar="ALIAS", help="Running tasks that are members of it.")
    ] = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End tasks at once. Their committed data stay.

    With --title and --group, the tasks to which both apply. All names are looked up before a task is ended.
    """
    with reporting("dios kill", as_json=as_json), opened(node) as place:
        if not tasks and not title and not group:
            raise InvalidError("give the tasks to end, or choose them with --title or --group")
        chosen = {status.fingerprint: (handle, status) for handle, status in map(place.task, tasks or ())}
        if title or group:
            chosen |= _chosen(place, title, group)
        ended = [(status, _end(handle, status)) for handle, status in chosen.values()]
        if as_json:
            rows: list[KilledRow] = [
                {"fingerprint": row.fingerprint, "label": row.label, "killed": done} for row, done in ended
            ]
            write_json(rows)
            return
        for row, done in ended:
            _tell(row, "killed" if done else "had ended already")
        if not ended:
            say("no running task was chosen")


def _end(handle: Task, status: Status) -> bool:
    """End a task; return False if it has ended, which is no failure."""
    if status.ended:
        return False
    handle.kill()
    return True


def _chosen(place: CommandContext, title: str, group: str) -> dict[str, tuple[Task, Status]]:
    """Return the running tasks with a title, and in a group."""
    mark = place.group(group).fingerprint if group else ""
    chosen: dict[str, tuple[Task, Status]] = {}
    for row in place.node.tasks():
        if row.ended or row.name is None or (title and not fnmatch.fnmatchcase(row.label, title)):
            continue
        handle = place.node.find(row.name)
        if not isinstance(handle, Task) or (mark and mark not in place.node.describe(handle).groups):
            continue
        chosen[row.fingerprint] = (handle, row)
    return chosen


def _tell(status: Status, outcome: str) -> None:
    label = plain(status.label) or "without title"
    say(f"task {label} ({status.fingerprint}) {outcome}")
